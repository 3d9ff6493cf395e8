"""Method: what to minimise, how to step, what to keep, how to answer. A few hooks with defaults.

A method is a frozen dataclass; its fields are its hyper-parameters and become command-line flags. It knows no
loops, devices, seeds or ranks. Rules for `objective`: no `.item()`, no Python branch on tensor values, no
in-place change of inputs; float fields may be tensors there (one value per lane).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from reprise.examples import Examples
from reprise.models.model import Model
from reprise.tasks import weighted_sums
from reprise.types import Batch, Output, Tree

if TYPE_CHECKING:
    from reprise.engine import Engine, Net
    from reprise.streams.stream import Stream

Recall = Callable[[int, int], Iterator[Batch]]
"""So many batches of so many examples from the memory of earlier tasks; nothing where it holds none."""

Scope = Literal["union", "one_task", "each_task", "each_class"]


@dataclass(frozen=True)
class Needs:
    """What the plan must draw for a method; None means what the protocol says."""

    replay: int | None = None
    """Rows of the replay batch of a step."""
    scope: Scope | None = None
    """From the union of old tasks, one old task, or so many of each task or each class."""
    draws: dict[str, int] = field(default_factory=dict)
    """Further batches a step needs, by name: how many rows each; 0 means as many as the replay batch."""
    current_task: bool = False
    """Replay may show examples of the current task that a reservoir holds by then."""
    both: bool = False
    """A step needs the current and the replayed batch, so `p_replay` is refused."""
    fill: str | None = None
    """Memory policy, where the method insists on one."""
    share: Literal["fixed", "seen"] = "fixed"
    """A class's share of m: m over all classes of the stream, or over those seen so far (old shares shrink)."""

    def sizes(self, replay: int) -> dict[str, int]:
        """Rows of every replayed batch of a step, by role."""
        return {"replay": replay} | {role: size or replay for role, size in self.draws.items()}


@dataclass(frozen=True)
class Method:
    """The hooks. As it stands it is plain fine-tuning: `sgd`."""

    replays: ClassVar[bool] = False
    merged: ClassVar[bool] = False
    """Train all tasks at once (the multi-task reference)."""
    refresh: ClassVar[tuple[str, ...]] = ()
    """Memory columns recomputed for all rows at each task end."""
    captures: ClassVar[bool] = True
    """A step needs nothing of the host, so that it may become a CUDA graph."""
    divides: ClassVar[bool] = True
    """Ranks may share a step's batches; else each of them makes the whole step."""
    first_task_is_sgd: ClassVar[bool] = True
    """While there is only one task, it trains as plain SGD does (a check holds it to that)."""
    inert: ClassVar[frozenset[str]] = frozenset()
    """Fields that act only under other settings than the default ones."""
    neutral: ClassVar[Mapping[str, float]] = {}
    """Values of its own float fields at which the method is exactly its parent class: same parameters, same steps,
    whatever its other fields say. Runs of the parent may then be lanes beside it. Not inherited: each class says it
    of itself."""

    # ---- what it asks for
    def needs(self, stream: Stream) -> Needs:
        return Needs()

    def taps(self) -> bool:
        """Whether it looks at the encoder's intermediate layers."""
        return False

    def resolve(self, stream: Stream, features_shape: tuple[int, ...]) -> Method:
        """The same method with every `auto` field replaced by what it stands for."""
        return self

    # ---- the model
    def wrap(self, model: Model) -> Model:
        """Another architecture around the encoder."""
        return model

    def grow(self, model: Model, task: int) -> None:
        """Parts a task needs besides its head, initialised from the current generator."""

    def trains(self, name: str, task: int) -> bool:
        """Whether this parameter learns in this task; the rest stands still, BatchNorm statistics too."""
        return True

    # ---- a step
    def start(self, engine: Engine) -> Tree:
        """Tensors of fixed shape the method owns during training."""
        return {}

    def holds_heads(self, batch: Batch) -> bool:
        """Whether a batch's loss moves the encoder alone, and the heads that answer it stand still."""
        return False

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        """What is minimised: one lane, pure; `out` is already computed."""
        return net.loss(batch, out)

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, loss = engine.gradient(self.objective, batches)
        engine.apply(grads)
        return loss

    # ---- the end of a task: all lanes at once
    def select(self, engine: Engine, examples: Examples, counts: Sequence[int]) -> list[np.ndarray] | None:
        """Positions to remember for each lane, the most important first; None leaves it to the fill policy."""
        return None

    def keep(self, engine: Engine, batch: Batch) -> Tree:
        """Tensors stored beside each example of a batch that is about to be remembered."""
        return {}

    def end_task(self, engine: Engine, examples: Examples, task: int, recall: Recall) -> Tree:
        """Entries of the method's state that the end of a task changes; the memory still holds earlier tasks only."""
        return {}

    # ---- the answer
    def predict(self, net: Net, x: Tensor, task: Tensor | int, memory: Tree) -> Tensor:
        """Prediction for inputs of known task; `memory` holds the columns as stored."""
        return net(x, task).prediction

    def score(self, net: Net, batch: Batch, memory: Tree) -> Tensor:
        """Sums over a test batch [4]: loss, its weight, correct answers, their weight (0 where none can be)."""
        prediction = self.predict(net, batch.x, batch.task, memory)
        kind = net.kind(batch.task)
        loss = weighted_sums(*kind.loss(prediction, batch.y, batch.mask))
        correct = kind.correct(prediction, batch.y, batch.mask)
        right = (torch.zeros_like(loss[0]),) * 2 if correct is None else weighted_sums(*correct)
        return torch.stack([*loss, *right])


def neutral_values(kind: type[Method], ancestor: type[Method]) -> dict[str, float] | None:
    """Field values at which `kind` is exactly `ancestor`, a class it may be itself; None where it never is."""
    values: dict[str, float] = {}
    for step in kind.__mro__:
        if step is ancestor:
            return values
        if not (own := vars(step).get("neutral")):
            return None
        values |= own
    return None
