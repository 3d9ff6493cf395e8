"""Keeps runs from being lost: saves at steps, minutes, task ends and on a wish to stop; finds where to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reprise.archive import Archive, Damaged, Entry, Position, tree_of
from reprise.checkpoint import (
    Checkpoint,
    capture,
    grown,
    joined,
    lanes_of,
    parts_of,
    restore,
    restore_values,
    values_of,
)
from reprise.errors import StorageError
from reprise.files import remove_partial, write_text
from reprise.locks import NAME as LOCK
from reprise.locks import try_lock
from reprise.results import to_json, trouble
from reprise.stopping import Stopped
from reprise.train import Trainer

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Saving:
    """When checkpoints are written, and how many stay."""

    steps: int | None = None
    minutes: float = 5.0
    keep: int = 2
    tasks: bool = False
    """Whether weights, memory and state at the end of every task are kept for good."""


@dataclass(frozen=True)
class Seat:
    """One run of a group: its folder, and the name its company knows it by."""

    folder: Path
    key: str

    @property
    def archive(self) -> Archive:
        return Archive(self.folder / "checkpoints")


class GroupKeeper:
    """Saves a group of runs that are trained together: each run's own part, in its own folder.

    asked  the number of a signal that wants the group to stop, or None
    """

    def __init__(self, seats: Sequence[Seat], saving: Saving, asked: Callable[[], int | None]) -> None:
        self.seats, self.saving, self.asked = seats, saving, asked
        self.archives = [seat.archive for seat in seats]
        self._steps, self._moment = 0, time.monotonic()
        self._remembered: dict[int, list[dict[str, dict[str, str]]]] = {}
        """By phases done: the parts of each run that hold its memory, which changes only where a task ends."""

    # ---- what the trainer asks for
    def due(self) -> bool:
        self._steps += 1
        by_steps = self.saving.steps is not None and self._steps >= self.saving.steps
        return by_steps or self._by_clock() or self.asked() is not None

    def save(self, trainer: Trainer) -> None:
        self._save(trainer)
        self._stop_if_asked()

    def end_task(self, trainer: Trainer) -> None:
        over = trainer.cursor.phase == len(trainer.phases)
        if self.saving.tasks:
            self._save(trainer, last=True)
        elif over:
            # Records are written one after another: were it killed in between, the others would still agree.
            self._save(trainer, tensors=False)
        elif self._by_clock() or self.asked() is not None:
            self._save(trainer)
        if not over:
            self._stop_if_asked()

    def write(self, lane: int, line: dict[str, Any]) -> None:
        if not self.seats:
            return
        path = self.seats[lane].folder / "log.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(to_json(line) + "\n")
        except OSError as error:
            raise self._full(path, error, lane) from None

    # ---- saving
    def _by_clock(self) -> bool:
        return time.monotonic() - self._moment >= 60 * self.saving.minutes

    def _stop_if_asked(self) -> None:
        if (number := self.asked()) is not None:
            raise Stopped(number)

    def _save(self, trainer: Trainer, last: bool = False, tensors: bool = True) -> None:
        self._steps, self._moment = 0, time.monotonic()
        diverged = [
            trouble(0, outcome) is not None or not np.isfinite(trainer.window[:, lane]).all()
            for lane, outcome in enumerate(trainer.outcomes)
        ]
        if not self.seats or all(diverged):  # the last good checkpoint is the one that lies there
            return
        phase, step = trainer.cursor.phase, trainer.cursor.step
        known = self._remembered.get(phase)
        whole = capture(trainer, CPU, memory=known is None) if tensors else Checkpoint({}, values_of(trainer))
        runs = lanes_of(trainer, whole)
        common = {
            "company": [seat.key for seat in self.seats],
            "stacked": trainer.stacked,
            "device": trainer.device.type,
        }
        named = []
        for lane, (archive, own) in enumerate(zip(self.archives, runs, strict=True)):
            values = common | {"diverged": diverged[lane]} | own.values
            try:
                named.append(
                    archive.save(
                        (phase, step),
                        values,
                        parts_of(own.tensors),
                        last,
                        known[lane] if known and tensors else {},
                    )
                )
            except OSError as error:
                raise self._full(archive.folder, error, lane) from None
        if tensors:
            self._remembered = {
                phase: [{n: part for n, part in own.items() if n.startswith("memory.")} for own in named]
            }
        # Only now: until all have the new one, all have the one before.
        for archive in self.archives:
            archive.prune(self.saving.keep)

    def _full(self, path: Path, error: OSError, lane: int) -> StorageError:
        return StorageError(
            f"out: {path} cannot be written ({error.strerror}); {self.last_good(lane)}; "
            "make room and run the same command again."
        )

    def finish(self, recorded: Sequence[bool]) -> None:
        """The records are there: what only an interrupted run needs goes, but for runs that diverged."""
        for archive, done in zip(self.archives, recorded, strict=bool(self.archives)):
            if done and archive.folder.exists():
                archive.prune(self.saving.keep, finished=True)

    def last_good(self, lane: int) -> str:
        good = self.archives[lane].last_good()
        return "no checkpoint had been written yet" if good is None else f"the last good checkpoint is {good}"


def tidy(folder: Path) -> None:
    """Remove what a process left that was killed after it had written a run's record: its lock tells."""
    if not (folder / LOCK).exists():
        return
    with try_lock(folder) as mine:
        if mine:
            archive = Archive(folder / "checkpoints")
            remove_partial(folder)
            if archive.folder.exists():
                archive.prune(keep=0, finished=True)


# ---- going on


def go_on(trainer: Trainer, seats: Sequence[Seat], say: Callable[[str], None]) -> bool:
    """Put a fresh trainer where its runs were interrupted; False where they start from the beginning.

    The newest position at which all of them have a whole checkpoint, written when they were trained together.
    """
    archives = [seat.archive for seat in seats]
    together = set.intersection(*(set(archive.positions()) for archive in archives))
    found: Position | None = None
    for position in sorted(together, reverse=True):
        entries = _load(archives, position, say)
        if entries is not None and len({tuple(entry.values["company"]) for entry in entries}) == 1:
            _take_up(trainer, entries)
            found = position
            break
    for seat, archive in zip(seats, archives, strict=True):
        for position, path in archive.positions().items():
            if found is None or position > found:
                path.unlink()
        lane = list(seats).index(seat)
        lines = trainer.outcomes[lane].log
        write_text(seat.folder / "log.jsonl", "".join(to_json(line) + "\n" for line in lines))
    return found is not None


def _load(archives: Sequence[Archive], position: Position, say: Callable[[str], None]) -> list[Entry] | None:
    entries = []
    for archive in archives:
        try:
            entries.append(archive.load(position))
        except Damaged as error:
            name = archive.positions()[position].name
            say(f"{archive.folder / name} is damaged ({error}); going back to the one before it.")
            return None
    return entries


def _take_up(trainer: Trainer, entries: Sequence[Entry]) -> None:
    runs = [Checkpoint(tree_of(entry.parts), entry.values) for entry in entries]
    if not any(entry.parts for entry in entries):
        whole = joined(trainer, runs)
        restore_values(trainer, whole.values)
        return
    whole = joined(trainer, runs)
    restore(trainer, grown(trainer, whole) if trainer.stream.open_ended else whole)
