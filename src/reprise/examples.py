"""The examples of a task: a shared source, the rows of it that belong to the task, and the task's own columns.

Every lane of a study indexes one copy of the images. A lane differs in its rows (which images, in which task)
and in its own columns (local labels), which are small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reprise.errors import InputError
from reprise.types import Tree

Names = Mapping[str, str]
"""What a task calls a column of the source, and which one it is."""


@dataclass(frozen=True)
class Sent:
    """Columns that another stream copies to the device; on a CPU they are there."""

    columns: Tree
    arrived: torch.cuda.Event | None = None

    def receive(self) -> Tree:
        """The columns, for the stream that computes."""
        if self.arrived is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(self.arrived)
            for column in self.columns.values():
                # The stream that copied gave its memory, and must not give it to a later batch too early.
                column.record_stream(stream)
        return self.columns


class Source:
    """Columns that tasks and lanes share, in the dtype of the files (uint8 images stay uint8)."""

    resident = True
    """Whether the columns are where they are computed with; else `take` fetches them, row by row."""
    workers = 0
    """Threads that may fetch rows ahead of the step that needs them."""

    def __init__(self, columns: Tree) -> None:
        self.columns = columns

    def take(self, rows: Tensor, names: Names | None = None, step: int | None = None) -> Tree:
        """The columns at some rows, under a task's names for them.

        step  of the task that is trained: what items that are drawn anew each time are drawn by
        """
        chosen = {name: name for name in self.columns} if names is None else names
        return {name: self.columns[own][rows] for name, own in chosen.items()}

    def to(self, device: torch.device) -> None:
        """Move the columns, once for everyone who indexes them."""
        self.columns = {name: column.to(device) for name, column in self.columns.items()}

    def on_device(self, columns: Tree) -> Tree:
        """What `take` has fetched, where it is computed with."""
        return columns

    def send(self, columns: Tree) -> Sent:
        """The same on its way, while the device computes."""
        return Sent(self.on_device(columns))


class Examples:
    """n examples, asked for by position.

    source  columns [N, ...] shared by all tasks and lanes
    rows    [n] the task's rows of the source; [lanes, n] when stacked
    own     the task's own columns [n] (labels, task index); [lanes, n] when stacked
    names   which columns of the source the task sees, under which names; None: all, as they are called
    """

    def __init__(self, source: Source, rows: Tensor, own: Tree, names: Names | None = None) -> None:
        self.source, self.rows, self.own, self.names = source, rows, own, names

    def __len__(self) -> int:
        return self.rows.shape[-1]

    def take(self, index: Tensor) -> Tree:
        """The columns at positions [b] (or [lanes, b]), in the dtype of the source."""
        return self.source.on_device(self.fetch(index))

    def blank(self, n: int) -> Tree:
        """Columns of n examples for a dry run, where only shapes and dtypes are asked for."""
        return self.take(torch.arange(n))

    def fetch(self, index: Tensor, without: Sequence[str] = (), step: int | None = None) -> Tree:
        """The same where the source is: on the host if it is not resident. Some columns may be left out."""
        index = index.to(self.rows.device)
        names = self.names
        if without:
            known = {name: name for name in self.source.columns} if names is None else names
            names = {name: own for name, own in known.items() if name not in without}
        columns = self.source.take(torch.gather(self.rows, -1, index), names, step)
        return columns | {name: torch.gather(column, -1, index) for name, column in self.own.items()}

    def to(self, device: torch.device) -> Examples:
        self.source.to(device)
        place = device if self.source.resident else torch.device("cpu")
        return self._of(self.rows.to(place), {k: v.to(place) for k, v in self.own.items()})

    def _of(self, rows: Tensor, own: Tree) -> Examples:
        return Examples(self.source, rows, own, self.names)

    @property
    def labels(self) -> np.ndarray | None:
        """Class labels [n] on the host, or None where targets are not one class per example."""
        y = self.own.get("y")
        return None if y is None or y.is_floating_point() else y.cpu().numpy()

    def subset(self, positions: np.ndarray) -> Examples:
        index = torch.as_tensor(positions, device=self.rows.device)
        return self._of(self.rows[..., index], {k: v[..., index] for k, v in self.own.items()})

    def copy(self) -> Examples:
        """The same examples, with rows and columns of its own."""
        return self._of(self.rows.clone(), {k: v.clone() for k, v in self.own.items()})

    def only(self, lanes: Sequence[int]) -> Examples:
        """Some lanes of stacked examples."""
        index = torch.as_tensor(list(lanes), device=self.rows.device)
        return self._of(self.rows[index], {k: v[index] for k, v in self.own.items()})

    @staticmethod
    def concatenate(parts: Sequence[Examples]) -> Examples:
        """All parts one after another (the multi-task reference's one phase)."""
        _same_source(parts)
        own = {name: torch.cat([part.own[name] for part in parts], -1) for name in parts[0].own}
        return parts[0]._of(torch.cat([part.rows for part in parts], -1), own)

    @staticmethod
    def stack(lanes: Sequence[Examples]) -> Examples:
        """The same task of several lanes, one lane an entry of the leading axis."""
        _same_source(lanes)
        if len({len(lane) for lane in lanes}) > 1:
            raise ValueError("lanes must have equally many examples in a task")
        own = {name: torch.stack([lane.own[name] for lane in lanes]) for name in lanes[0].own}
        return lanes[0]._of(torch.stack([lane.rows for lane in lanes]), own)

    @staticmethod
    def shared(parts: Sequence[Examples]) -> list[Examples]:
        """Each part's examples of the images that all parts have, in one order (one image, several tasks)."""
        rows = parts[0].rows.numpy()
        for part in parts[1:]:
            rows = np.intersect1d(rows, part.rows.numpy())
        places = [np.argsort(part.rows.numpy(), kind="stable") for part in parts]
        return [
            part.subset(order[np.isin(part.rows.numpy()[order], rows)])
            for part, order in zip(parts, places, strict=True)
        ]


class Gone(Examples):
    """Examples that are no longer to be touched: how many there were, and how one of them looks."""

    def __init__(self, n: int, row: Tree, why: str) -> None:
        super().__init__(Source({}), torch.arange(n), {})
        self.row, self.why = row, why

    def blank(self, n: int) -> Tree:
        return {name: column.expand(n, *column.shape).clone() for name, column in self.row.items()}

    def fetch(self, index: Tensor, without: Sequence[str] = (), step: int | None = None) -> Tree:
        raise InputError(self.why)

    def _of(self, rows: Tensor, own: Tree) -> Examples:
        raise InputError(self.why)

    def to(self, device: torch.device) -> Examples:
        return self


def _same_source(parts: Sequence[Examples]) -> None:
    if any(part.source is not parts[0].source for part in parts):
        raise ValueError("examples can only be joined where they index the same source")
