"""A pack as the source of examples: all of it on the GPU where there is room, else fetched from the mapped files.

What comes out is what the files hold (8 and 16 bits; the loss mask as bytes, the two classifications as class
probabilities): a quarter of the bytes of finished targets, which are made where the step runs.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from reprise.examples import Names, Sent, Source
from reprise.streams.taskonomy.domains import DEPTH, DOMAINS, TASKS, TaskonomyTask
from reprise.streams.taskonomy.packed import Packed
from reprise.streams.taskonomy.targets import depth_mask, target
from reprise.types import Tree

VALID = "valid"
"""A column made of depth: where it is known, and so is every label that comes with it."""

COMFORT = 0.25
"""Part of the GPU's free memory that a source may take: models, activations and other runs need the rest."""

AT_ONCE = 256
"""Rows read at a time when all of them are put on the device."""


class PackSource(Source):
    """Rows of a pack. It stands on the host until `to` finds that it fits on the GPU."""

    resident = False

    def __init__(self, packed: Packed, workers: int = 0) -> None:
        super().__init__({})
        self.packed, self.workers = packed, workers
        self.device = torch.device("cpu")
        self._wanted: set[str] = set()

    def names(self, task: TaskonomyTask, masks: bool) -> Names:
        """The columns that a task sees; the source is told that they will be asked for."""
        names = {"x": "rgb", "y": task.domain} | ({"mask": VALID} if task.masked and masks else {})
        self._wanted |= set(names.values())
        return names

    def take(self, rows: Tensor, names: Names | None = None, step: int | None = None) -> Tree:
        if self.resident:
            return super().take(rows, names)
        assert names is not None, "a pack's columns are asked for by a task's names"
        flat = rows.reshape(-1).numpy()
        found = {name: torch.from_numpy(self._read(own, flat)) for name, own in names.items()}
        return {name: column.view(*rows.shape, *column.shape[1:]) for name, column in found.items()}

    def _read(self, column: str, rows: np.ndarray) -> np.ndarray:
        if column == VALID:
            return depth_mask(self.packed.take(DEPTH, rows))
        array = self.packed.take(column, rows)
        if DOMAINS[column].length is not None:
            (task,) = [name for name, task in TASKS.items() if task.domain == column]
            with np.errstate(invalid="ignore"):  # views without this label hold zeros; no task asks for them
                return target(task, array)[0]
        return array.view(np.int16) if array.dtype == np.uint16 else array

    def on_device(self, columns: Tree) -> Tree:
        if self.resident or self.device.type == "cpu":
            return columns
        return {name: column.to(self.device, non_blocking=True) for name, column in columns.items()}

    def send(self, columns: Tree) -> Sent:
        if self.device.type != "cuda":
            return Sent(columns)
        with torch.cuda.stream(self._copies):
            sent = {
                name: column.pin_memory().to(self.device, non_blocking=True)
                for name, column in columns.items()
            }
            arrived = torch.cuda.Event()
            arrived.record()
        return Sent(sent, arrived)

    @cached_property
    def _copies(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)

    def to(self, device: torch.device) -> None:
        self.device = device
        if device.type != "cuda":
            # Mapped files cost no memory, and several processes share them.
            self.columns, self.resident = {}, False
        elif missing := sorted(self._wanted - set(self.columns)):
            self.resident = self._fits()
            self.columns = (
                self.columns | {name: self._whole(name) for name in missing} if self.resident else {}
            )

    def _fits(self) -> bool:
        row = sum(self._read(column, np.zeros(1, np.int64)).nbytes for column in self._wanted)
        free, _ = torch.cuda.mem_get_info(self.device)
        return len(self.packed) * row <= COMFORT * free

    def _whole(self, column: str) -> Tensor:
        starts = range(0, len(self.packed), AT_ONCE)
        rows = (np.arange(start, min(start + AT_ONCE, len(self.packed))) for start in starts)
        return torch.cat([torch.from_numpy(self._read(column, part)).to(self.device) for part in rows])
