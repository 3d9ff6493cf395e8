"""Memory: rows of named columns, in the dtype of the source. It knows no methods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from reprise.types import Tree

Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of one row of each column."""

KINDS = {"x": "inputs", "y": "labels", "mask": "masks", "task": "tasks"}
"""How the byte ledger names the columns every method has; a method's own columns keep their names."""


class Shelf:
    """Rows of one shape, all allocated from the start (a captured step needs fixed addresses).

    columns  [rows, ...]; [lanes, rows, ...] when stacked
    held     [rows] or [lanes, rows]: which rows hold an example
    owner    [lanes, rows] on the host: the task a row belongs to, -1 where it is empty
    label    [lanes, rows] on the host: its class within the task, -1 where there is none
    """

    def __init__(self, capacities: Sequence[int], spec: Spec, stacked: bool, device: torch.device) -> None:
        self.capacities = list(capacities)
        rows, lanes = max(self.capacities), len(self.capacities)
        lead = (lanes, rows) if stacked else (rows,)
        self.spec, self.stacked = spec, stacked
        self.columns: Tree = {
            name: torch.zeros(*lead, *shape, dtype=dtype, device=device)
            for name, (shape, dtype) in spec.items()
        }
        self.held = torch.zeros(lead, dtype=torch.bool, device=device)
        self.owner = np.full((lanes, rows), -1, dtype=np.int64)
        self.label = np.full((lanes, rows), -1, dtype=np.int64)

    def rows_of(self, lane: int, task: int) -> np.ndarray:
        """The rows of a task, in the order of their importance."""
        return np.flatnonzero(self.owner[lane] == task)

    def tasks(self, lane: int) -> list[int]:
        return sorted({int(task) for task in self.owner[lane] if task >= 0})

    def free_rows(self, lane: int, count: int) -> np.ndarray:
        free = np.flatnonzero(self.owner[lane, : self.capacities[lane]] < 0)
        if len(free) < count:
            raise ValueError(f"{count} rows were asked for, but only {len(free)} are free")
        return free[:count]

    def write(
        self, lane: int, rows: np.ndarray, columns: Tree, task: int, labels: np.ndarray | None = None
    ) -> None:
        """Put examples of a task into rows; columns [len(rows), ...] of this lane."""
        if len(rows) == 0:
            return
        index = torch.as_tensor(rows)
        for name, column in self.columns.items():
            target = column[lane] if self.stacked else column
            target[index.to(column.device)] = columns[name].to(device=column.device, dtype=column.dtype)
        self._mark(lane, rows, True)
        self.owner[lane, rows] = task
        self.label[lane, rows] = -1 if labels is None else labels

    def take(self, rows: Tensor) -> Tree:
        """The columns at rows [r] (or [lanes, r])."""
        if not self.stacked:
            return {name: column[rows] for name, column in self.columns.items()}
        lane = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
        return {name: column[lane, rows] for name, column in self.columns.items()}

    def _mark(self, lane: int, rows: np.ndarray, held: bool) -> None:
        own = self.held[lane] if self.stacked else self.held
        own[torch.as_tensor(rows, device=own.device)] = held

    def shrink(self, lane: int, task: int, count: int) -> None:
        """Forget all but the first rows of a task: they were written in the order of their importance."""
        forgotten = self.rows_of(lane, task)[count:]
        self._mark(lane, forgotten, False)
        self.owner[lane, forgotten] = -1
        self.label[lane, forgotten] = -1


def row_bytes(spec: Spec) -> dict[str, int]:
    """Bytes of one row by kind."""
    return {
        KINDS.get(name, name): int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        for name, (shape, dtype) in spec.items()
    }


class Memory:
    """The shelves of a stream: one that all tasks share where their examples have one shape, else one each."""

    def __init__(self, shelves: Sequence[Shelf], tasks: int) -> None:
        if len(shelves) not in (1, tasks):
            raise ValueError("a memory has one shelf, or one for each task")
        self.shelves = list(shelves)
        self.replays_current = False
        """Whether replayed rows may name examples of the current task (see plan.draw_reservoir_replay)."""
        self.seen = 0
        """Examples that have passed by: what a reservoir counts."""

    def shelf(self, task: int) -> Shelf:
        return self.shelves[0] if len(self.shelves) == 1 else self.shelves[task]

    def rows_by_task(self, lane: int, before: int) -> dict[int, np.ndarray]:
        """The rows of every earlier task that holds any."""
        if len(self.shelves) == 1:  # one look at the shelf, not one a task: streams may be long
            owner = self.shelves[0].owner[lane]
            order = np.argsort(owner, kind="stable")
            ends = np.searchsorted(owner[order], np.arange(before + 1))
            rows = {task: order[ends[task] : ends[task + 1]] for task in range(before)}
        else:
            rows = {task: self.shelf(task).rows_of(lane, task) for task in range(before)}
        return {task: found for task, found in rows.items() if len(found)}

    def nbytes(self, lane: int, specs: Sequence[Spec] | None = None) -> dict[str, int]:
        """Bytes at full capacity, by kind; `specs` are the shelves' rows where a lane needs fewer columns."""
        total: dict[str, int] = {}
        for shelf, spec in zip(self.shelves, specs or [shelf.spec for shelf in self.shelves], strict=True):
            for kind, size in row_bytes(spec).items():
                total[kind] = total.get(kind, 0) + size * shelf.capacities[lane]
        return total

    def columns(self, task: int) -> Tree:
        """What a method's answer may look at: the columns of the task's shelf, and which rows are `held`."""
        shelf = self.shelf(task)
        return {**shelf.columns, "held": shelf.held}
