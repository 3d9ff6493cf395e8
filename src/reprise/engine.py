"""Engine: parameters and how they run. One method text, executed by a single model or by stacked lanes.

The single engine is the reference: a plain module, plain autograd, plain `torch.optim`. `Lanes` (lanes.py) holds
parameters, buffers and state of several runs stacked on axis 0 and must equal it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reprise.examples import Examples
from reprise.feed import Reader
from reprise.method import Method
from reprise.models.conv import differentiable_twice
from reprise.models.model import Model
from reprise.models.norm import Norm
from reprise.net import Net
from reprise.ranks import Ranks, Reduction, whole_rows
from reprise.tasks import Kind
from reprise.types import Batch, Output, Tree

Wrt = Literal["params", "inputs", "features"]
Mode = Literal["train", "eval"]
Body = Callable[[Net, Sequence[Batch], Sequence[Tree], Tree, Tree], Any]


def make_optimizer(name: str, params: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(params, lr=lr, foreach=True)
    if params[0].is_cuda:
        return torch.optim.Adam(params, lr=lr, fused=True)
    return torch.optim.Adam(params, lr=lr, foreach=True)


class Engine(ABC):
    """What a method may ask of the machinery. Trees and batches have a leading lane axis in `Lanes`."""

    lanes: int = 1
    stacked: bool = False
    """Whether tensors have a lane axis (a stack of one lane has it too)."""
    params: Tree
    buffers: Tree
    state: Tree
    optimizer: torch.optim.Optimizer
    lr: Tensor
    """The learning rate, one value per lane."""

    def __init__(
        self,
        model: Model,
        method: Method,
        kinds: Sequence[Kind],
        layer_shapes: dict[str, tuple[int, ...]],
        reader: Reader,
        bn: str = "joint",
        clip: float | None = None,
        open_ended: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks
        """Those that train this run together; None where this process trains it alone."""
        self._sharing: Ranks | None = None
        """The same while batches are shared: within a step."""
        self.model, self.method, self.kinds, self.bn, self.clip = model, method, kinds, bn, clip
        self.layer_shapes, self.reader = layer_shapes, reader
        self.open_ended = open_ended
        """Further tasks may follow the last one there is."""
        self.state = {}
        self._same_input = False
        self._training: Sequence[nn.Module] = ()
        self._learning: dict[int | None, list[str]] = {}
        """What learns now, by the head it belongs to; None has all else."""
        self._norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    # ---- how a function of one lane runs
    @abstractmethod
    def _run(self, body: Body, batches: Sequence[Batch], trees: Sequence[Tree], nudges: Tree) -> Any:
        """`body` once per lane; results with a leading lane axis in `Lanes`."""

    @abstractmethod
    def lift(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A pure function of one lane's trees as a function of the engine's."""

    @abstractmethod
    def place(self, tensor: Tensor) -> Tensor:
        """A tensor of one lane where the parameters are, in their dtype if it is real; repeated for each lane."""

    @abstractmethod
    def only(self, lanes: Sequence[int]) -> Engine:
        """A view for `compute` and `gradient` on some lanes."""

    # ---- gradients and steps
    def gradient(
        self,
        fn: Callable[..., Tensor],
        batches: Sequence[Batch],
        *trees: Tree,
        wrt: Wrt = "params",
        statistics: bool = True,
        create_graph: bool = False,
        mode: Mode = "train",
    ) -> tuple[Tree, Tensor]:
        """The gradient and the value of Σ_batch fn(net, batch, out, *trees), per lane.

        wrt         "params": what learns now; "inputs": by the batches' roles; "features": the encoder's answer
                    and the tapped layers of one batch
        statistics  whether BatchNorm's running statistics move
        """
        nudges: Tree = {}
        leaves: Tree = {}
        if wrt == "params":
            self.model.heads_asked(anew=True)
        elif wrt == "inputs":
            leaves = {batch.role: batch.x.detach().requires_grad_() for batch in batches}
            batches = [batch.with_tensors(batch.tensors() | {"x": leaves[batch.role]}) for batch in batches]
        else:
            (batch,) = batches
            shape = batch.x.shape[: 2 if self.stacked else 1]
            leaves = nudges = {
                name: batch.x.new_zeros(*shape, *layer).requires_grad_()
                for name, layer in self.layer_shapes.items()
            }

        def total(
            net: Net, batches: Sequence[Batch], trees: Sequence[Tree], nudges: Tree, fields: Tree
        ) -> Tensor:
            outs = self._forward(net, batches, nudges)
            lane_fn = bind(fn, fields)
            losses = [lane_fn(net, batch, out, *trees) for batch, out in zip(batches, outs, strict=True)]
            return losses[0] if len(losses) == 1 else sum(losses[1:], losses[0])

        if create_graph:
            differentiable_twice(self.model)
        with self._mode(mode, statistics), torch.enable_grad():
            losses = self._run(total, batches, trees, nudges)
            over_lanes = losses.sum()
        if wrt == "params":
            # With a head per task most of a long stream's parameters are far from this step.
            heads = [None, *self.model.heads_asked()]
            leaves = {name: self.params[name] for head in heads for name in self._learning.get(head, ())}
        if self._sharing is not None and wrt == "params":
            return self._summed_gradient(self._sharing, losses, leaves, create_graph)
        found = _gradients(over_lanes, leaves, create_graph)
        return found, losses if create_graph else losses.detach()

    def _summed_gradient(
        self, ranks: Ranks, loss: Tensor, leaves: Tree, create_graph: bool
    ) -> tuple[Tree, Tensor]:
        """The gradient and the value of the sum of all ranks' losses."""
        if create_graph:
            found = _gradients(loss, leaves, create_graph)
            return {name: ranks.summed(grad) for name, grad in found.items()}, ranks.summed(loss)
        reduction = Reduction(leaves)
        found = _gradients(loss, leaves, create_graph)
        summed, total = reduction.finish(loss)
        return {name: summed[name] for name in found}, total

    def _forward(self, net: Net, batches: Sequence[Batch], nudges: Tree) -> list[Output]:
        """One joint pass, or one per batch: `bn` is protocol. Batches that share their input share the pass."""
        xs, tasks = [batch.x for batch in batches], [batch.task for batch in batches]
        held = [self.method.holds_heads(batch) for batch in batches]
        if self._same_input or self.bn == "joint" or len(batches) == 1:
            return net.forward(xs, tasks, nudges, self._same_input, held)
        return [net.forward([x], [task], held=[h])[0] for x, task, h in zip(xs, tasks, held, strict=True)]

    def compute(
        self,
        fn: Callable[..., Any],
        batch: Batch,
        *trees: Tree,
        mode: Mode = "eval",
    ) -> Any:
        """fn(net, batch, *trees) per lane, without gradients and without moving the statistics."""

        def value(
            net: Net, batches: Sequence[Batch], trees: Sequence[Tree], nudges: Tree, fields: Tree
        ) -> Any:
            return bind(fn, fields)(net, batches[0], *trees)

        with self._mode(mode, statistics=False), torch.no_grad():
            return self._run(value, [batch], trees, {})

    def batches(self, examples: Examples, task: int, size: int = 250) -> Iterator[Batch]:
        """All examples of a task, a chunk at a time."""
        return (self.reader.batch(columns, task) for columns in self.chunks(examples, size))

    def chunks(self, examples: Examples, size: int, ranks: Ranks | None = None) -> Iterator[Tree]:
        """The columns of all examples, as stored, a chunk at a time; of several ranks each gets its share."""
        starts = range(0, len(examples), size)
        for start in starts if ranks is None else starts[ranks.share(len(starts))]:
            index = torch.arange(start, min(start + size, len(examples)), device=examples.rows.device)
            if self.stacked:
                index = index.expand(self.lanes, -1)
            yield examples.take(index)

    def apply(self, grads: Tree) -> None:
        """One optimizer step; a parameter without gradient does not move."""
        if self.clip is not None:
            grads = self.lift(clip_by_norm(self.clip))(grads)
        grads = self._scaled(grads)
        for param in self.optimizer.param_groups[0]["params"]:
            param.grad = None
        for name, grad in grads.items():
            param = self.params[name]
            if grad.stride() != param.stride():
                # One gradient laid out otherwise, and the optimizer steps every tensor in a kernel of its own.
                grad = torch.empty_like(param).copy_(grad)
            param.grad = grad
        # It holds only what has a gradient: a step does not get slower with the heads of other tasks.
        group = self.optimizer.param_groups[0]
        group["params"] = [self.params[name] for name in grads]
        if "capturable" in group:
            # Adam counts its steps on the device, but asks to be told that it is being captured.
            group["capturable"] = (
                self.reader.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            )
        self.optimizer.step()

    def _scaled(self, grads: Tree) -> Tree:
        return grads

    # ---- ranks
    @contextmanager
    def together(self) -> Iterator[None]:
        """Within the block batches are this rank's shares, and statistics and gradients those of the whole."""
        if self.ranks is None:
            yield
            return
        self._share(self.ranks)
        try:
            yield
        finally:
            self._share(None)

    def _share(self, ranks: Ranks | None) -> None:
        self._sharing = ranks
        for norm in self._norms:
            if isinstance(norm, Norm):
                norm.ranks = ranks

    def whole(self, tree: Tree) -> Tree:
        """Columns of the current step's share as those of the whole batch, which a method's state may follow."""
        return whole_rows(self._sharing, tree)

    # ---- state
    def update_state(self, fn: Callable[..., Tree], *trees: Tree) -> None:
        """Replace entries of the method's state by fn(state, *trees), in place so that captured steps see it."""
        self.write_state(self.lift(fn)(self.state, *trees))

    def write_state(self, entries: Tree) -> None:
        for name, value in entries.items():
            self.state[name].copy_(value)

    def snapshot(self) -> Tree:
        """A copy of the parameters."""
        return {name: param.detach().clone() for name, param in self.params.items()}

    def assign(self, params: Tree) -> None:
        """Set parameters in place."""
        with torch.no_grad():
            for name, value in params.items():
                self.params[name].copy_(value)

    def enter(self, task: int) -> None:
        """A task begins: what `trains` names learns, all else stands still and runs in evaluation mode."""
        for name, param in self.params.items():
            param.requires_grad_(self.method.trains(name, task))
        self._learning = {}
        for name, param in self.params.items():
            if param.requires_grad:
                self._learning.setdefault(self.model.head_of(name), []).append(name)
        self._training = [
            module
            for prefix, module in self.model.named_modules()
            if any(self.method.trains(_join(prefix, name), task) for name in _own_names(module))
        ]
        for name, value in self.model.begin(task).items():
            self.buffers[name].fill_(value)
        self.model.eval()
        self._turn(True)

    def _turn(self, training: bool) -> None:
        """What learns into training mode, in which every step finds it and pays nothing for it, or out of it."""
        for module in self._training:
            # Not by `module.training = …`, which looks first whether that is a parameter.
            object.__setattr__(module, "training", training)

    @contextmanager
    def _mode(self, mode: Mode, statistics: bool) -> Iterator[None]:
        if mode == "train" and statistics:
            yield
            return
        if mode == "eval":
            self._turn(False)
        else:
            # In training mode a BatchNorm that tracks nothing uses the batch's statistics and moves none.
            for norm in self._norms:
                norm.track_running_stats = not norm.training
        try:
            yield
        finally:
            for norm in self._norms:
                norm.track_running_stats = True
            self._turn(True)


class Single(Engine):
    """One model, as PyTorch runs it."""

    def __init__(self, model: Model, method: Method, kinds: Sequence[Kind], **options: Any) -> None:
        optimizer, lr = options.pop("optimizer", "sgd"), options.pop("lr", 0.03)
        super().__init__(model, method, kinds, **options)
        self.params = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())
        self.optimizer = make_optimizer(optimizer, list(self.params.values()), lr)
        self.lr = next(iter(self.params.values())).new_tensor(lr)
        self.state = method.start(self)

    def _run(self, body: Body, batches: Sequence[Batch], trees: Sequence[Tree], nudges: Tree) -> Any:
        self._same_input = same_input(batches)
        net = Net(self.model, self.kinds, self.state, ranks=self._sharing)
        return body(net, batches, trees, nudges, {})

    def gradient(
        self,
        fn: Callable[..., Tensor],
        batches: Sequence[Batch],
        *trees: Tree,
        wrt: Wrt = "params",
        statistics: bool = True,
        create_graph: bool = False,
        mode: Mode = "train",
    ) -> tuple[Tree, Tensor]:
        """The same; several batches of different heads take the memory of one where their passes are apart."""
        apart = len(batches) > 1 and not self.reader.shared_head and self.ranks is None
        if apart and wrt == "params" and not create_graph:
            if same_input(batches) and len(self.layer_shapes) == 1:
                return self._head_by_head(fn, batches, trees, statistics, mode)
            if self.bn == "separate" and not same_input(batches):
                return self._batch_by_batch(fn, batches, trees, statistics, mode)
        return super().gradient(
            fn, batches, *trees, wrt=wrt, statistics=statistics, create_graph=create_graph, mode=mode
        )

    def _batch_by_batch(
        self, fn: Callable[..., Tensor], batches: Sequence[Batch], trees: Sequence[Tree], *how: Any
    ) -> tuple[Tree, Tensor]:
        statistics, mode = how
        found, total = _Sum(), torch.zeros_like(self.lr)
        for batch in batches:
            grads, loss = super().gradient(fn, [batch], *trees, statistics=statistics, mode=mode)
            found.add(grads)
            total = total + loss
        return found.tree, total

    def _head_by_head(
        self, fn: Callable[..., Tensor], batches: Sequence[Batch], trees: Sequence[Tree], *how: Any
    ) -> tuple[Tree, Tensor]:
        """One encoder pass; each head's gradient is taken at the features and forgotten before the next one's."""
        statistics, mode = how
        common = {name: self.params[name] for name in self._learning.get(None, ())}
        net = Net(self.model, self.kinds, self.state)
        found, total = _Sum(), torch.zeros_like(self.lr)
        with self._mode(mode, statistics), torch.enable_grad():
            features = self.model.encode(batches[0].x, batches[0].task)
            # The heads see a copy: their graphs end there, and only what they ask of it is passed on.
            seen = features.detach().requires_grad_()
            for batch in batches:
                held = self.method.holds_heads(batch)
                out = Output(seen, self.model.heads(seen, batch.task, held))
                loss = fn(net, batch, out, *trees)
                assert isinstance(batch.task, int), "heads of different shapes do not share a batch"
                own = {name: self.params[name] for name in self._learning.get(batch.task, ())}
                found.add(_gradients(loss, {"": seen} | common | own))
                total = total + loss.detach()
            pulled = found.tree.pop("")
            found.add(_gradients(features, common, weight=pulled))
        return found.tree, total

    def lift(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return fn

    def place(self, tensor: Tensor) -> Tensor:
        return placed_like(next(iter(self.params.values())), tensor)

    def only(self, lanes: Sequence[int]) -> Engine:
        return self


class _Sum:
    """A tree that others are added to."""

    def __init__(self) -> None:
        self.tree: Tree = {}

    def add(self, tree: Tree) -> None:
        for name, tensor in tree.items():
            self.tree[name] = self.tree[name] + tensor if name in self.tree else tensor


def _gradients(value: Tensor, leaves: Tree, create_graph: bool = False, weight: Tensor | None = None) -> Tree:
    grads = torch.autograd.grad(
        value, list(leaves.values()), weight, allow_unused=True, create_graph=create_graph
    )
    return {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}


def bind(fn: Callable[..., Any], fields: Tree) -> Callable[..., Any]:
    """A method's hook as one lane sees it: the lane's own values stand in the method's float fields."""
    owner = getattr(fn, "__self__", None)
    if not fields or not isinstance(owner, Method):
        return fn
    lane = copy.copy(owner)
    for name, value in fields.items():
        object.__setattr__(lane, name, value)
    return getattr(lane, fn.__name__)


def placed_like(param: Tensor, tensor: Tensor) -> Tensor:
    return tensor.to(device=param.device, dtype=param.dtype if tensor.is_floating_point() else tensor.dtype)


def same_input(batches: Sequence[Batch]) -> bool:
    return len(batches) > 1 and all(batch.x is batches[0].x for batch in batches)


def clip_by_norm(limit: float) -> Callable[[Tree], Tree]:
    """Scale a gradient tree down to a norm of at most `limit`."""

    def clip(grads: Tree) -> Tree:
        norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
        scale = (limit / norm.clamp(min=1e-12)).clamp(max=1.0)
        return {name: grad * scale for name, grad in grads.items()}

    return clip


def _own_names(module: nn.Module) -> list[str]:
    named = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return [name for name, _ in named]


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
