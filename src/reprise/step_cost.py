"""What a training step takes, counted from shapes: the method's own step, run on tensors that have no values.

A replaying step, a reference gradient, a penalty or a second pass costs what the method's text makes it cost: nothing
is assumed of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from reprise.build import Cell
from reprise.config import Experiment
from reprise.cost import guess_flops
from reprise.engine import Engine, Single
from reprise.feed import Sort
from reprise.ledger import make_model, make_reader, quota_of, row_spec, rows_of_shelf
from reprise.memory import Spec
from reprise.methods import METHODS
from reprise.models.norm import allow_mixed
from reprise.models.parts import Parts
from reprise.streams.stream import Stream
from reprise.tasks import Kind
from reprise.types import Tree

META = torch.device("meta")
ALLOCATES = ("empty", "new_empty")
"""Operators that only reserve memory."""


@dataclass(frozen=True)
class StepCost:
    """One step, or the mean of several.

    flops  of convolutions and matrix products, forward and backward: two for each multiply-accumulate
    moved  bytes that its operators read and write, were each a pass over memory of its own
    held   bytes that wait for a backward pass at the same time, parameters aside
    """

    flops: float
    moved: float
    held: float

    @staticmethod
    def mean(costs: Iterable[tuple[StepCost, float]]) -> StepCost:
        """Weighted; of `held` the most, since memory must be there for the largest."""
        known = list(costs)
        total = sum(weight for _, weight in known)
        flops = sum(cost.flops * weight for cost, weight in known) / total
        moved = sum(cost.moved * weight for cost, weight in known) / total
        return StepCost(flops, moved, max(cost.held for cost, _ in known))


def recorded_step(cell: Cell, macs_per_query: Sequence[int]) -> dict[str, int | None]:
    """What a run's record says of a step of its last task.

    Where modules or the method are not ours it is guessed from a query: they may ask for values, which shapes do not
    have, and a finished run must not be lost for a count.
    """
    e = cell.experiment
    if cell.capturable and type(e.method) in METHODS.values():
        mean = step_costs(e, cell.stream, cell.parts)["mean"]
        flops, moved, held = (round(number) for number in (mean.flops, mean.moved, mean.held))
        return {"flops_per_step": flops, "bytes_moved_per_step": moved, "bytes_held_by_step": held}
    replayed = e.replay if e.method.replays else 0
    examples = e.batch + replayed if not e.p_replay else (1 - e.p_replay) * e.batch + e.p_replay * replayed
    flops = guess_flops(macs_per_query, examples)
    return {"flops_per_step": flops, "bytes_moved_per_step": None, "bytes_held_by_step": None}


def shape_engine(experiment: Experiment, stream: Stream, parts: Parts | None = None) -> Single:
    """The engine of a settled experiment of which nothing but shapes is there, in the last task."""
    with META:
        model = make_model(replace(experiment, first_weights=None), stream, 0, parts)
        allow_mixed(model, True)
        engine = Single(
            model,
            experiment.method,
            stream.kinds,
            layer_shapes=model.layer_shapes(stream.input_shape),
            reader=make_reader(experiment, stream, META),
            bn=experiment.bn,
            clip=experiment.clip,
            optimizer=experiment.optimizer,
            lr=experiment.lr,
        )
    engine.enter(len(stream.tasks) - 1)
    return engine


def step_costs(experiment: Experiment, stream: Stream, parts: Parts | None = None) -> dict[str, StepCost]:
    """The steps of a settled experiment's last task, by sort: `current`, `replaying` or `both`; and their `mean`.

    With a head for each task a replaying step depends on the old task it shows: each counts alike. Modules that are
    not ours may ask for values, which are not there (`Parts.ours`).
    """
    engine = shape_engine(experiment, stream, parts)
    phase = stream.merged().phases[0] if experiment.method.merged else stream.phases[-1]
    current = tuple(task for task, _ in phase.parts)
    e, roles = experiment, _rows(experiment, stream)
    if not roles or len(stream.tasks) == 1:
        alone = _count(engine, e, stream, Sort(current, (), None), {})
        return {"current": alone, "mean": alone}
    old = _alike(stream)
    if not e.p_replay:
        both = [(_count(engine, e, stream, Sort(current, tuple(roles), one), roles), n) for one, n in old]
        return {"both": StepCost.mean(both), "mean": StepCost.mean(both)}
    alone = _count(engine, e, stream, Sort(current, (), None), {})
    replayed = [(_count(engine, e, stream, Sort((), tuple(roles), one), roles), n) for one, n in old]
    replaying = StepCost.mean(replayed)
    mean = StepCost.mean([(alone, 1 - e.p_replay), (replaying, e.p_replay)])
    return {"current": alone, "replaying": replaying, "mean": mean}


def _rows(experiment: Experiment, stream: Stream) -> dict[str, int]:
    """Examples of each replayed batch of a step, which cannot be more than are remembered."""
    if not experiment.method.replays or not experiment.m:
        return {}
    needs, quota = experiment.method.needs(stream), quota_of(experiment, stream, experiment.m)
    classes, tasks = stream.classes_per_task or 1, len(stream.tasks) - 1
    groups = {"each_task": tasks, "each_class": tasks * classes}.get(experiment.scope, 1)
    shelf = rows_of_shelf(quota, stream, 0)
    there = shelf * tasks // len(stream.tasks) if stream.shared_head and not needs.current_task else shelf
    return {role: min(groups * size, there) for role, size in needs.sizes(experiment.replay).items()}


def _alike(stream: Stream) -> list[tuple[int | None, int]]:
    """One old task of each kind, and how many there are of it; heads of one shape need not be told apart."""
    if stream.shared_head:
        return [(None, 1)]
    kinds: list[Kind] = stream.kinds[:-1]
    counts = Counter(kinds)
    return [(kinds.index(kind), count) for kind, count in counts.items()]


def _count(
    engine: Single, experiment: Experiment, stream: Stream, sort: Sort, roles: Mapping[str, int]
) -> StepCost:
    columns: Tree = {}
    for n, task in enumerate(sort.tasks):
        shown = stream.tasks[task or 0].train.blank(2)
        own = {name: (tuple(column.shape[1:]), column.dtype) for name, column in shown.items()}
        columns |= _blank(str(n), own, experiment.batch)
    for role in sort.roles:
        columns |= _blank(role, row_spec(engine, experiment.method, stream, sort.old or 0), roles[role])
    if stream.flips and sort.tasks:
        columns["flipped"] = torch.empty(experiment.batch, dtype=torch.bool, device=META)
    engine.reader.step(sort, columns)  # tables that labels make once are no part of every step
    with _held_by(engine) as held, Operators() as done:
        experiment.method.step(engine, engine.reader.step(sort, columns))
    return StepCost(done.flops, done.moved.total(), held.most)


def _blank(batch: str, spec: Spec, rows: int) -> Tree:
    return {
        f"{batch}/{name}": torch.empty(rows, *shape, dtype=dtype, device=META)
        for name, (shape, dtype) in spec.items()
    }


class Operators(TorchDispatchMode):
    """Adds up what operators compute, and what each of them reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.moved: Counter[str] = Counter()
        """By the operator's name and the type of its first tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        # (`FlopCounterMode` follows modules too, and its hooks do not bear gradients taken part by part.)
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **kwargs, out_val=out)
        name = func.overloadpacket.__name__
        if not func.is_view and name not in ALLOCATES:
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
            kind = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
            self.moved[f"{name} {kind}".rstrip()] += sum(tensor.nbytes for tensor in tensors)
        return out


class _Held:
    """Memory that autograd keeps for a backward pass: now, and at most."""

    def __init__(self, not_counted: Iterable[Tensor]) -> None:
        self._aside = {_memory(tensor) for tensor in not_counted}
        self._users: Counter[int] = Counter()
        self._now = self.most = 0

    def keep(self, tensor: Tensor) -> _Kept:
        key, size = _memory(tensor), tensor.untyped_storage().nbytes()
        if key not in self._aside:
            self._now += 0 if self._users[key] else size
            self._users[key] += 1
            self.most = max(self.most, self._now)
        return _Kept(self, tensor, key, size)

    def release(self, key: int, size: int) -> None:
        if key not in self._aside:
            self._users[key] -= 1
            self._now -= 0 if self._users[key] else size


class _Kept:
    """A tensor that waits; when the backward pass has had it, it is gone."""

    def __init__(self, held: _Held, tensor: Tensor, key: int, size: int) -> None:
        self.held, self.tensor, self.key, self.size = held, tensor, key, size

    def __del__(self) -> None:
        self.held.release(self.key, self.size)


@contextmanager
def _held_by(engine: Engine) -> Iterator[_Held]:
    held = _Held([*engine.params.values(), *engine.buffers.values()])
    with torch.autograd.graph.saved_tensors_hooks(held.keep, lambda kept: kept.tensor):
        yield held


def _memory(tensor: Tensor) -> int:
    """What tensors of the same memory have in common, while one of them lives."""
    return tensor.untyped_storage()._cdata
