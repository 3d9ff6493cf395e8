"""Live curves in other people's tools: TensorBoard and Weights & Biases, each an observer of a run.

The log as JSON lines is always written; these are extras, asked for by name (`--log tensorboard,wandb`).
"""

from __future__ import annotations

import importlib.util
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprise.errors import InputError
from reprise.observe import Observer

if TYPE_CHECKING:
    from reprise.train import Trainer


class Logger(Observer):
    """Numbers by name, for each lane. What a tool does with them is all that differs."""

    @abstractmethod
    def write(self, lane: int, values: Mapping[str, float], step: int) -> None:
        """Note values at a step; a name is always counted in the same steps."""

    def logged(self, trainer: Trainer, lane: int, line: Mapping[str, float | int | str]) -> None:
        """The training loss, a curve for each task: counted in the task's own steps."""
        self.write(lane, {f"loss/{line['name']}": float(line["loss"])}, int(line["step"]))

    def task_ended(self, trainer: Trainer, phase: int) -> None:
        """Test loss and accuracy of the tasks seen: counted in tasks."""
        names = [task.name for task in trainer.stream.tasks]
        for lane, outcome in enumerate(trainer.outcomes):
            values: dict[str, float] = {}
            for title, rows in (("test loss", outcome.loss), ("accuracy", outcome.accuracy)):
                found = zip(names, rows[-1] or (), strict=False)
                values |= {f"{title}/{name}": value for name, value in found if value is not None}
            self.write(lane, values, trainer.phases[phase].last + 1)


class TensorBoard(Logger):
    """Event files in each run's folder: `tensorboard --logdir runs`."""

    def __init__(self, folders: Sequence[Path], configurations: Sequence[Mapping[str, Any]]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writers = [SummaryWriter(str(folder / "tensorboard")) for folder in folders]

    def write(self, lane: int, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writers[lane].add_scalar(name, value, step)

    def ended(self, trainer: Trainer) -> None:
        for writer in self.writers:
            writer.close()


class WeightsAndBiases(Logger):
    """A run of the project `reprise` for each lane; the environment (WANDB_MODE, WANDB_PROJECT, ...) is heeded."""

    def __init__(self, folders: Sequence[Path], configurations: Sequence[Mapping[str, Any]]) -> None:
        import wandb

        self.runs = [
            wandb.init(
                project=os.environ.get("WANDB_PROJECT", "reprise"),
                dir=str(folder),
                name=f"{folder.parent.name}/{folder.name}",
                config=dict(configuration),
                reinit="create_new",
            )
            for folder, configuration in zip(folders, configurations, strict=True)
        ]

    def write(self, lane: int, values: Mapping[str, float], step: int) -> None:
        # Its own step counter only goes up; curves of several tasks carry theirs as a value.
        self.runs[lane].log({**values, "step": step})

    def ended(self, trainer: Trainer) -> None:
        for run in self.runs:
            run.finish()


LOGGERS: dict[str, tuple[type[TensorBoard] | type[WeightsAndBiases], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "wandb": (WeightsAndBiases, "wandb"),
}
"""By name: the logger, and the package it needs."""


def check_loggers(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once; unknown ones and those whose package is missing are refused before anything runs."""
    for name in names:
        if name not in LOGGERS:
            raise InputError(f"log: {name!r} is not known; choose from {', '.join(LOGGERS)}.")
        if importlib.util.find_spec(LOGGERS[name][1]) is None:
            raise InputError(
                f"log: {name} is not installed; install the extra with `pip install 'reprise-cl[{name}]'`."
            )
    return tuple(dict.fromkeys(names))


def make_loggers(
    names: Sequence[str], folders: Sequence[Path], configurations: Sequence[Mapping[str, Any]]
) -> list[Observer]:
    return [LOGGERS[name][0](folders, configurations) for name in names]
