"""What a run may leave beside its record: features, and what the memory holds. Plain .npz files, off by default.

features-JJ.npz   `then` [n, d]: features of task JJ's first test examples right after it was learnt
features-end.npz  `now_JJ` [n, d]: those of the same examples at the end; `names` of the tasks
memory.npz        `x` [rows, ...] as stored, `task` [rows], `label` [rows] (text), `names`
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from reprise.errors import InputError
from reprise.net import Net
from reprise.observe import Observer
from reprise.types import Batch, Tree

if TYPE_CHECKING:
    from reprise.train import Trainer

KINDS = ("features", "memory")
EXAMPLES = 200
"""Test examples of a task whose features are kept."""
ROWS = 40
"""Remembered examples of a task that are kept."""
LAST_FILES = {"features": "features-end.npz", "memory": "memory.npz"}
"""What is written last: a run that has it has left it all."""


@dataclass(frozen=True)
class Asked:
    """What a run is asked to leave, and where."""

    folder: Path
    kinds: tuple[str, ...]

    def there(self) -> bool:
        """Whether a finished run has left it all."""
        return all((self.folder / LAST_FILES[kind]).exists() for kind in self.kinds)


def check_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"artifacts: {kind!r} is not known; choose from {', '.join(KINDS)}.")
    return tuple(dict.fromkeys(kinds))


class ArtifactWriter(Observer):
    """Writes what each lane is asked to leave; None asks for nothing."""

    def __init__(self, asked: Sequence[Asked | None]) -> None:
        self.asked = asked

    def task_ended(self, trainer: Trainer, phase: int) -> None:
        if len(trainer.phases) > 1 and self._asked("features"):
            task = trainer.phases[phase].last
            self._write(
                "features", f"features-{task:02d}.npz", [{"then": f} for f in _features(trainer, task)]
            )

    def ended(self, trainer: Trainer) -> None:
        lanes, names = range(len(trainer.cells)), np.array([task.name for task in trainer.stream.tasks])
        if self._asked("features"):
            tables: list[dict[str, np.ndarray]] = [{"names": names} for _ in lanes]
            for task in range(len(names)) if len(trainer.phases) > 1 else ():
                for table, features in zip(tables, _features(trainer, task), strict=True):
                    table[f"now_{task:02d}"] = features
            self._write("features", LAST_FILES["features"], tables)
        if self._asked("memory"):
            self._write("memory", LAST_FILES["memory"], [_memory(trainer, lane, names) for lane in lanes])

    def _asked(self, kind: str) -> bool:
        return any(asked is not None and kind in asked.kinds for asked in self.asked)

    def _write(self, kind: str, name: str, tables: Sequence[dict[str, np.ndarray]]) -> None:
        for asked, table in zip(self.asked, tables, strict=True):
            if asked is not None and kind in asked.kinds:
                write_arrays(asked.folder / name, table)


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """The whole file or nothing."""
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise InputError(
            f"artifacts: {path} cannot be written ({error.strerror}); make room there."
        ) from None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no readable .npz file ({error}); remove its run's folder.") from None


def read_features(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Features then and now [n, d] by task name, in the order of the tasks; nothing where a run left none."""
    if not (folder / LAST_FILES["features"]).exists():
        return {}
    end = read_arrays(folder / LAST_FILES["features"])
    found = {}
    for task, name in enumerate(end["names"]):
        early = folder / f"features-{task:02d}.npz"
        if f"now_{task:02d}" in end and early.exists():
            found[str(name)] = (read_arrays(early)["then"], end[f"now_{task:02d}"])
    return found


# ---- what is looked at


def _take(trainer: Trainer, task: int, count: int) -> Tree:
    """The columns of a task's first test examples, all lanes."""
    return next(trainer.engine.chunks(trainer.tests[task], min(count, len(trainer.tests[task]))))


def _features(trainer: Trainer, task: int) -> list[np.ndarray]:
    """By lane [n, d]: the encoder's answer in evaluation mode; maps are averaged over space."""
    engine = trainer.engine
    batch = engine.reader.batch(_take(trainer, task, EXAMPLES), task)
    found: Tensor = engine.compute(_pooled_features, batch)
    return _by_lane(trainer, found.float())


def _pooled_features(net: Net, batch: Batch) -> Tensor:
    features = net(batch.x, batch.task).features
    return features.flatten(2).mean(2) if features.dim() > 2 else features


def _memory(trainer: Trainer, lane: int, names: np.ndarray) -> dict[str, np.ndarray]:
    """The first remembered rows of each task: they stand in the order of their importance."""
    inputs, tasks, labels = [], [], []
    classes = trainer.cells[lane].stream.class_names
    memory = trainer.memory
    for task in range(len(names)) if memory is not None else ():
        assert memory is not None
        shelf = memory.shelf(task)
        for row in shelf.rows_of(lane, task)[:ROWS]:
            x = shelf.columns["x"]
            inputs.append((x[lane, row] if shelf.stacked else x[row]).cpu().numpy())
            tasks.append(task)
            own = int(shelf.label[lane, row])
            # Labels count over all tasks where one head answers for all of them.
            labels.append(classes[task][own % len(classes[task])] if own >= 0 and classes else "")
    return {
        "x": np.stack(inputs) if inputs else np.zeros((0, 3, 1, 1), np.uint8),
        "task": np.array(tasks, dtype=np.int64),
        "label": np.array(labels, dtype=np.str_),
        "names": names,
    }


def _by_lane(trainer: Trainer, tensor: Tensor) -> list[np.ndarray]:
    array = tensor.cpu().numpy()
    return list(array) if trainer.stacked else [array]
