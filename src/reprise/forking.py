"""A run that begins where another one stood after some of its tasks, and goes on with other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprise.archive import Archive, Damaged, tree_of
from reprise.checkpoint import Checkpoint, joined, restore
from reprise.errors import InputError
from reprise.files import write_text
from reprise.keeping import Seat
from reprise.results import read_json, to_json
from reprise.train import Trainer

SAME = (
    "stream",
    "scenario",
    "split",
    "tasks",
    "normalise",
    "encoder",
    "first_weights",
    "precision",
    "data",
    "results_version",
)
"""What a run has in common with the one it goes on from; of the rest, the shapes of its tensors decide."""


@dataclass(frozen=True)
class Fork:
    """The folder of an experiment, and how many of its tasks are taken over."""

    run: Path
    task: int

    @property
    def start(self) -> str:
        """What it is called in the configuration: it decides results."""
        return f"{self._described()['hash']}:{self.task}"

    def _described(self) -> dict[str, Any]:
        described = self.run / "experiment.json"
        if not described.exists():
            raise InputError(f"from: {self.run} holds no experiment; name the folder of a run (--out of it).")
        return read_json(described)

    def check(self, configuration: Mapping[str, Any], seeds: Sequence[int]) -> None:
        """Refuse what cannot be gone on from, before anything is trained."""
        there = self._described()
        if differing := [name for name in SAME if there.get(name) != configuration.get(name)]:
            shown = ", ".join(
                f"{name} {there.get(name)!r} there, {configuration.get(name)!r} here"
                for name in differing[:3]
            )
            raise InputError(
                f"from: {self.run} is of another kind ({shown}); leave these fields as they were."
            )
        for seed in seeds:
            self._archive(seed).task_end(self.task)

    def _archive(self, seed: int) -> Archive:
        return Archive(self.run / f"seed-{seed}" / "checkpoints")

    def begin(self, trainer: Trainer, seeds: Sequence[int], seats: Sequence[Seat]) -> None:
        """Put a fresh trainer there: weights, memory, state, and what had been written down by then."""
        same_optimizer = self._described().get("optimizer") == trainer.experiment.optimizer
        runs = []
        for seed in seeds:
            archive = self._archive(seed)
            try:
                entry = archive.load(archive.task_end(self.task))
            except Damaged as error:
                raise InputError(f"from: {archive.folder} is damaged ({error}); name another task.") from None
            tensors = {
                name: t
                for name, t in tree_of(entry.parts).items()
                if same_optimizer or not name.startswith("optimizer.")
            }
            runs.append(Checkpoint(tensors, entry.values))
        ledgers = [outcome.bytes for outcome in trainer.outcomes]
        restore(trainer, joined(trainer, runs))
        for lane, (outcome, ledger) in enumerate(zip(trainer.outcomes, ledgers, strict=True)):
            outcome.bytes = ledger
            if seats:
                lines = "".join(to_json(line) + "\n" for line in outcome.log)
                write_text(seats[lane].folder / "log.jsonl", lines)
