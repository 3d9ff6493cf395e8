"""Net: one lane's world as a method sees it. Parameters, the method's state, the tasks' losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.func import functional_call

from reprise.models.model import Model
from reprise.ranks import Ranks
from reprise.tasks import Kind, weighted_sums
from reprise.types import Batch, Output, Tree


class Net:
    """A model at certain weights, with the method's state beside it.

    weights  parameters and buffers to run the model at; None runs the module as it stands
    kinds    each task's kind; with heads of one shape the first speaks for all
    ranks    those that share the batch; None where this process sees all of it
    """

    def __init__(
        self,
        model: Model,
        kinds: Sequence[Kind],
        state: Tree,
        weights: tuple[Tree, Tree] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.kinds, self.state, self.weights, self.ranks = model, kinds, state, weights, ranks

    def __call__(self, x: Tensor, task: Tensor | int) -> Output:
        return self.forward([x], [task])[0]

    def forward(
        self,
        xs: Sequence[Tensor],
        tasks: Sequence[Tensor | int],
        nudges: Tree | None = None,
        same_input: bool = False,
        held: Sequence[bool] | None = None,
    ) -> list[Output]:
        """The outputs of several batches from one joint encoder pass; those `held` give their heads no gradient."""
        asked = (xs, tasks, nudges, same_input, held)
        if self.weights is None:
            return self.model(*asked)
        return functional_call(self.model, self.weights, asked)

    def predict(self, features: Tensor, task: Tensor | int | None) -> Tensor:
        """A head's prediction from features; of stacked heads None asks for all [n, tasks, classes].

        The running statistics of a head's norms, which move in the joint pass, do not move here.
        """
        params, buffers = self.weights or (
            dict(self.model.named_parameters()),
            dict(self.model.named_buffers()),
        )
        own = dict(_under("heads.", params))
        read = {n: b.clone() if b.is_floating_point() else b for n, b in _under("heads.", buffers)}
        return functional_call(self.model.heads, own | read, (features, task))

    def at(self, params: Tree) -> Net:
        """The same world at other parameters (a look-ahead)."""
        buffers = self.weights[1] if self.weights else dict(self.model.named_buffers())
        fixed = self.weights[0] if self.weights else dict(self.model.named_parameters())
        return Net(self.model, self.kinds, self.state, (fixed | params, buffers), self.ranks)

    def kind(self, task: Tensor | int) -> Kind:
        return self.kinds[task] if isinstance(task, int) else self.kinds[0]

    def loss(self, batch: Batch, out: Output) -> Tensor:
        """The mean loss of a batch under its own heads."""
        return self.mean(*self.kind(batch.task).loss(out.prediction, batch.y, batch.mask))

    def mean(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        """The only reduction of losses: a weighted mean over the whole batch; nothing valid gives 0.

        Of a shared batch it is this rank's part of that mean: the ranks' parts add up to it.
        """
        if weights is None and self.ranks is None:
            return values.mean()
        total, weight = weighted_sums(values, weights)
        if self.ranks is not None:
            weight = self.ranks.total(weight)
        return total / weight.clamp(min=1e-12)

    def of_all(self, fn: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """A function of the whole batch that is no mean over examples (a distance of sets), as `mean` gives it."""
        if self.ranks is None:
            return fn(*rows)
        return fn(*(self.ranks.rows(part) for part in rows)) / self.ranks.size


def _under(prefix: str, tree: Tree) -> list[tuple[str, Tensor]]:
    return [(name.removeprefix(prefix), t) for name, t in tree.items() if name.startswith(prefix)]
