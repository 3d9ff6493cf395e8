"""The examples of a task: a shared source, the rows of it that belong to the task, and the task's own columns.

Every lane of a study indexes one copy of the images. A lane differs in its rows (which images, in which task)
and in its own columns (local labels), which are small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from reprise.types import Tree


class Source:
    """Columns that tasks and lanes share, in the dtype of the files (uint8 images stay uint8)."""

    def __init__(self, columns: Tree) -> None:
        self.columns = columns

    def to(self, device: torch.device) -> None:
        """Move the columns, once for everyone who indexes them."""
        self.columns = {name: column.to(device) for name, column in self.columns.items()}


class Examples:
    """n examples, asked for by position.

    source  columns [N, ...] shared by all tasks and lanes
    rows    [n] the task's rows of the source; [lanes, n] when stacked
    own     the task's own columns [n] (labels, task index); [lanes, n] when stacked
    """

    def __init__(self, source: Source, rows: Tensor, own: Tree) -> None:
        self.source, self.rows, self.own = source, rows, own

    def __len__(self) -> int:
        return self.rows.shape[-1]

    def take(self, index: Tensor) -> Tree:
        """The columns at positions [b] (or [lanes, b]), in the dtype of the source."""
        rows = torch.gather(self.rows, -1, index)
        columns = {name: column[rows] for name, column in self.source.columns.items()}
        return columns | {name: torch.gather(column, -1, index) for name, column in self.own.items()}

    def to(self, device: torch.device) -> Examples:
        self.source.to(device)
        return Examples(self.source, self.rows.to(device), {k: v.to(device) for k, v in self.own.items()})

    @property
    def labels(self) -> np.ndarray | None:
        """Class labels [n] on the host, or None where targets are not one class per example."""
        y = self.own.get("y")
        return None if y is None or y.is_floating_point() else y.cpu().numpy()

    def subset(self, positions: np.ndarray) -> Examples:
        index = torch.as_tensor(positions, device=self.rows.device)
        return Examples(self.source, self.rows[..., index], {k: v[..., index] for k, v in self.own.items()})

    def copy(self) -> Examples:
        """The same examples, with rows and columns of its own."""
        return Examples(self.source, self.rows.clone(), {k: v.clone() for k, v in self.own.items()})

    def only(self, lanes: Sequence[int]) -> Examples:
        """Some lanes of stacked examples."""
        index = torch.as_tensor(list(lanes), device=self.rows.device)
        return Examples(self.source, self.rows[index], {k: v[index] for k, v in self.own.items()})

    @staticmethod
    def concatenate(parts: Sequence[Examples]) -> Examples:
        """All parts one after another (the multi-task reference's one phase)."""
        _same_source(parts)
        own = {name: torch.cat([part.own[name] for part in parts], -1) for name in parts[0].own}
        return Examples(parts[0].source, torch.cat([part.rows for part in parts], -1), own)

    @staticmethod
    def stack(lanes: Sequence[Examples]) -> Examples:
        """The same task of several lanes, one lane an entry of the leading axis."""
        _same_source(lanes)
        if len({len(lane) for lane in lanes}) > 1:
            raise ValueError("lanes must have equally many examples in a task")
        own = {name: torch.stack([lane.own[name] for lane in lanes]) for name in lanes[0].own}
        return Examples(lanes[0].source, torch.stack([lane.rows for lane in lanes]), own)


def _same_source(parts: Sequence[Examples]) -> None:
    if any(part.source is not parts[0].source for part in parts):
        raise ValueError("examples can only be joined where they index the same source")
