"""Feed: the plan's tables on the device, and the batches they stand for."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from reprise.ahead import Ahead
from reprise.examples import Sent
from reprise.memory import Memory
from reprise.plan import Plan
from reprise.ranks import Ranks
from reprise.streams.stream import Labels, Normalise, Phase
from reprise.types import Batch, Tree

BASIC = ("x", "y", "mask", "task")


@dataclass(frozen=True)
class Sort:
    """What steps have in common that differ in nothing but their examples."""

    tasks: tuple[int | None, ...]
    """Those whose current batches it sees."""
    roles: tuple[str, ...]
    """Of the batches it replays."""
    old: int | None
    """The one task these are of; None where they come from all."""


@dataclass(frozen=True)
class Reader:
    """Stored columns to a batch: images are normalised, labels made targets, a method's columns put aside."""

    normalise: Normalise
    dtype: torch.dtype
    shared_head: bool
    input_shape: tuple[int, ...] = ()
    labels: tuple[Labels, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where batches are."""
        return self.normalise.mean.device

    def batch(
        self,
        columns: Tree,
        task: int | None,
        role: str = "current",
        flipped: Tensor | None = None,
        x: Tensor | None = None,
    ) -> Batch:
        """flipped  which examples are mirrored; x  the images, where they have been read already"""
        y, mask = columns["y"], columns.get("mask")
        if self.labels:
            assert task is not None, "tasks whose labels differ do not share a batch"
            y, mask = self.labels[task].target(y, mask)
            if flipped is not None:
                y, mask = self.labels[task].mirror(y, mask, flipped)
        kept = {name: column for name, column in columns.items() if name not in BASIC}
        return Batch(
            x=self.images(columns["x"], flipped) if x is None else x,
            y=y.to(self.dtype) if y.is_floating_point() else y.long(),
            task=columns["task"].long() if self.shared_head or task is None else task,
            mask=mask,
            role=role,
            kept=kept,
        )

    def step(self, sort: Sort, columns: Tree) -> list[Batch]:
        """A step's batches of its columns (`Feed.columns`). It asks nothing of the host."""
        parts = [_below(str(n), columns) for n in range(len(sort.tasks))]
        found = self.current(sort.tasks, parts, columns.get("flipped"))
        return found + [self.batch(_below(role, columns), sort.old, role) for role in sort.roles]

    def current(
        self, tasks: Sequence[int | None], columns: Sequence[Tree], flipped: Tensor | None
    ) -> list[Batch]:
        """A batch of each task, all of the same images, which only the first has among its columns."""
        found: list[Batch] = []
        for task, own in zip(tasks, columns, strict=True):
            # One tensor of images says to the engine that the parts share them.
            x = found[0].x if found else None
            found.append(self.batch(own, task, flipped=flipped, x=x))
        return found

    def images(self, x: Tensor, flipped: Tensor | None) -> Tensor:
        if flipped is not None:
            x = torch.where(_like(flipped, x), x.flip(-1), x)
        return x.to(self.dtype) if x.is_floating_point() else self.normalise(x, self.dtype)


class Feed:
    """The batches of one phase, by step. Tables are [steps, rows], or [steps, lanes, rows] when stacked."""

    def __init__(
        self,
        phase: Phase,
        plans: Sequence[Plan],
        memory: Memory | None,
        reader: Reader,
        stacked: bool,
        ranks: Ranks | None = None,
    ) -> None:
        self.phase, self.memory, self.reader = phase, memory, reader
        self.plan = plans[0]
        device = reader.device

        def table(arrays: list[np.ndarray], device: torch.device = device) -> Tensor:
            if len({array.shape for array in arrays}) > 1:
                raise ValueError("lanes of one group must replay batches of one shape")
            rows = np.stack(arrays, 1) if stacked else arrays[0]
            own = slice(None) if ranks is None else ranks.share(rows.shape[-1])
            return torch.as_tensor(rows[..., own], device=device)

        self.current = table([plan.current for plan in plans])
        self.replay = {role: table([plan.replay[role] for plan in plans]) for role in self.plan.replay}
        flips = [plan.flipped for plan in plans if plan.flipped is not None]
        self.flipped = table(flips) if flips else None
        source = phase.train.source
        self._on_host = table([plan.current for plan in plans], torch.device("cpu"))
        self.ahead = Ahead(self._fetch, len(self.current), 0 if source.resident else source.workers)
        self._capacity: Tensor | None = None
        if memory is not None and memory.replays_current:
            capacities = torch.as_tensor(memory.shelf(0).capacities, device=device)
            self._capacity = capacities.unsqueeze(1) if stacked else capacities
        # Row of each step in its own table: current and replaying steps are counted apart.
        self._current_row = np.cumsum(self.plan.trains) - 1
        self._replay_row = np.cumsum(self.plan.replays) - 1
        # Steps at the start that replay nothing, before all others do (a reservoir that must fill first).
        self.quiet = int(self.plan.replays.argmax()) if self.plan.replays.any() else 0

    @property
    def steps(self) -> int:
        return self.plan.steps

    @property
    def uniform(self) -> bool:
        """Whether every step after the quiet ones has the same batches, so that one captured step stands for all."""
        plan = self.plan
        alike = plan.trains.all() and (plan.replays[self.quiet :].all() or not plan.replays.any())
        return bool(alike) and (plan.old_task is None or self.reader.shared_head)

    @property
    def form(self) -> object:
        """What a captured step depends on besides the contents of tensors: feeds of one form may take its place."""
        return tuple((name, t.shape, t.dtype) for name, t in self._tensors().items())

    def _tensors(self) -> Tree:
        """Every tensor a step reads that is not of the run as a whole."""
        found = {"current": self.current} | {f"replay.{role}": table for role, table in self.replay.items()}
        if self.flipped is not None:
            found["flipped"] = self.flipped
        for index, (task, examples) in enumerate(self.phase.parts):
            name = f"part.{index}" if self.reader.shared_head else f"part.{index}.{task}"
            found[f"{name}.rows"] = examples.rows
            found |= {f"{name}.{column}": own for column, own in examples.own.items()}
        return found

    def copy(self) -> Feed:
        """A feed with tensors of its own."""
        twin = copy.copy(self)
        twin.current = self.current.clone()
        twin.replay = {role: table.clone() for role, table in self.replay.items()}
        twin.flipped = None if self.flipped is None else self.flipped.clone()
        twin.ahead = Ahead(twin._fetch, len(twin.current), 0)
        twin.phase = replace(
            self.phase, parts=tuple((task, examples.copy()) for task, examples in self.phase.parts)
        )
        return twin

    def load(self, other: Feed) -> None:
        """Take the contents of another feed of this form."""
        for mine, theirs in zip(self._tensors().values(), other._tensors().values(), strict=True):
            mine.copy_(theirs)

    def batches(self, step: int) -> list[Batch]:
        """What a step sees: the current batch first, then what it replays."""
        return self.reader.step(self.sort(step), self.columns(step))

    def sort(self, step: int) -> Sort:
        return Sort(
            self._tasks if self.plan.trains[step] else (),
            tuple(self.replay) if self.plan.replays[step] else (),
            self._old_task(step) if self.plan.replays[step] else None,
        )

    def columns(self, step: int) -> Tree:
        """The columns of every batch of a step, on the device as they are stored, under `batch/column`."""
        found: Tree = {}
        if self.plan.trains[step]:
            row = int(self._current_row[step])
            for n, sent in enumerate(self.ahead.get(row)):
                found |= _under(str(n), sent.receive())
            if self.flipped is not None:
                found["flipped"] = self.flipped[row]
        if self.plan.replays[step]:
            row, old = int(self._replay_row[step]), self._old_task(step)
            for role, table in self.replay.items():
                found |= _under(role, self._stored(table[row], old))
        return found

    @property
    def _tasks(self) -> tuple[int | None, ...]:
        return tuple(task for task, _ in self.phase.parts)

    def _old_task(self, step: int) -> int | None:
        """The one task that a replaying step shows."""
        table = self.plan.old_task
        return None if table is None else int(table[self._replay_row[step]])

    def batches_at(self, cursor: Tensor) -> list[Batch]:
        """The same for a uniform phase after its quiet steps, by a step counter [1] on the device."""
        index = self.current.index_select(0, cursor).squeeze(0)
        flipped = None if self.flipped is None else self.flipped.index_select(0, cursor).squeeze(0)
        found = self.reader.current(self._tasks, self._columns(index), flipped)
        for role, table in self.replay.items():
            rows = table.index_select(0, cursor - self.quiet).squeeze(0)
            found.append(self.reader.batch(self._stored(rows, None), None, role))
        return found

    def _fetch(self, row: int) -> list[Sent]:
        """The columns of a current step; of a source that is not on the device, on their way to it."""
        source = self.phase.train.source
        if source.resident:
            return [Sent(columns) for columns in self._columns(self.current[row], row)]
        return [source.send(columns) for columns in self._columns(self._on_host[row], row)]

    def _columns(self, index: Tensor, step: int | None = None) -> list[Tree]:
        """Each part's columns; parts of a phase show the same images, so only the first has them."""
        parts = [examples for _, examples in self.phase.parts]
        return [part.fetch(index, ("x",) if n else (), step) for n, part in enumerate(parts)]

    def _stored(self, rows: Tensor, old_task: int | None) -> Tree:
        """The memory's columns at some rows."""
        assert self.memory is not None
        shelf = self.memory.shelf(old_task or 0)
        if self._capacity is None:
            return shelf.take(rows)
        # Rows past a lane's capacity are examples of the current task that its reservoir holds by now.
        fresh = rows >= self._capacity
        stored = shelf.take(torch.where(fresh, 0, rows))
        now = self.phase.train.take((rows - self._capacity).clamp(min=0))
        return {
            name: torch.where(_like(fresh, column), now[name].to(column.dtype), column)
            for name, column in stored.items()
        }


def _under(batch: str, columns: Tree) -> Tree:
    return {f"{batch}/{name}": column for name, column in columns.items()}


def _below(batch: str, columns: Tree) -> Tree:
    start = f"{batch}/"
    return {name[len(start) :]: column for name, column in columns.items() if name.startswith(start)}


def _like(mask: Tensor, column: Tensor) -> Tensor:
    return mask.view(*mask.shape, *[1] * (column.dim() - mask.dim()))
