"""Scene streams: the 11 Taskonomy tasks over the views of a pack, whether photographed or rendered.

Views are divided into those to train on, those to choose settings by and those to test on: by building, or, where
there is only one, by point (views of one point show the same place).
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from reprise.errors import InputError
from reprise.examples import Examples
from reprise.streams.fetch import some
from reprise.streams.packs import PackSource
from reprise.streams.stream import Normalise, Stream
from reprise.streams.taskonomy.buildings import SPLITS, find_split
from reprise.streams.taskonomy.domains import SEQUENCES, find_tasks
from reprise.streams.taskonomy.labels import TaskLabels
from reprise.streams.taskonomy.packed import Packed
from reprise.tasks import Task

if TYPE_CHECKING:
    from reprise.config import Experiment

TEST_SHARE, VALIDATION_SHARE = 0.2, 0.15
"""Of the points of a building that is divided."""
P_REPLAY = 0.5
"""The paper's: every other step replays."""
SAMPLED = 2000
"""Training images, evenly spread, that the mean colour is taken over."""


@dataclass(frozen=True)
class Parts:
    """Rows of a pack to train on and to score on."""

    train: np.ndarray
    score: np.ndarray


@dataclass(frozen=True, eq=False)
class Scenes:
    """A pack, and how its views are divided. `divided` is `points`, `worlds`, a split's name or a file."""

    packed: Packed
    divided: str
    buildings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By part (train, validation, test): the buildings; empty where points are divided."""
    workers: int = 0

    @property
    def fingerprint(self) -> str:
        return self.packed.fingerprint

    @cached_property
    def source(self) -> PackSource:
        """One for all tasks, lanes and seeds."""
        return PackSource(self.packed, self.workers)

    def parts(self, split: str) -> Parts:
        """The views for `report` (scored on the test part) or `validation`."""
        scored = "test" if split == "report" else "validation"
        if not self.buildings:
            of_point = divide_points(self.packed)
            return Parts(np.flatnonzero(of_point == "train"), np.flatnonzero(of_point == scored))
        train = self.buildings["train"]
        if split == "report" and self.divided == "paper":
            train = train + self.buildings["validation"]
        return Parts(self._rows(train), self._rows(self.buildings[scored]))

    def warnings(self, tasks: Iterable[str], masks: bool = True) -> list[str]:
        """How many views each task goes without, and why; one sentence each."""
        return [line for task in tasks if (line := self.packed.left_out(task, masks))]

    def _rows(self, names: Iterable[str]) -> np.ndarray:
        wanted = set(names)
        chosen = [k for k, building in enumerate(self.packed.buildings) if building.name in wanted]
        return np.flatnonzero(np.isin(self.packed.views[:, 0], chosen))

    def mean_colour(self, rows: np.ndarray) -> tuple[float, ...]:
        """Of the training images, 0..1 by channel."""
        chosen = rows[np.linspace(0, len(rows) - 1, min(SAMPLED, len(rows))).astype(int)]
        images = self.packed.take("rgb", chosen)
        return tuple(float(value) for value in images.mean((0, 2, 3), dtype=np.float64) / 255)


def divide_points(packed: Packed) -> np.ndarray:
    """`train`, `validation` or `test` for each view: some points of each building, by a hash of their names."""
    found = np.full(len(packed), "train", dtype=object)
    for number, building in enumerate(packed.buildings):
        own = packed.views[:, 0] == number
        points = sorted({int(p) for p in building.views[:, 0]}, key=lambda p: _shuffled(building.name, p))
        tested, validated = round(TEST_SHARE * len(points)), round(VALIDATION_SHARE * len(points))
        for part, chosen in (
            ("test", points[:tested]),
            ("validation", points[tested : tested + validated]),
        ):
            found[own & np.isin(packed.views[:, 1], chosen)] = part
    return found


def _shuffled(building: str, point: int) -> bytes:
    return hashlib.sha256(f"{building}/{point}".encode()).digest()


def divide_buildings(how: str, there: Iterable[str]) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The division's name and its buildings by part, for `auto`, `points`, a split's name or a csv file."""
    there = set(there)
    if how == "auto":
        whole = [name for name in ("paper", *reversed(SPLITS)) if there >= set(SPLITS[name].all)]
        how = whole[0] if whole else "points"
    if how == "points":
        return how, {}
    if how in SPLITS:
        split = find_split(how, there)
        return how, {"train": split.train, "validation": split.validation, "test": split.test}
    if not how.endswith(".csv"):
        raise InputError(
            f"buildings: {how!a} is no division; use auto, points, {', '.join(SPLITS)}, "
            "or a file like the official train_val_test_*.csv."
        )
    return how, _from_file(Path(how), there)


def _from_file(path: Path, there: set[str]) -> dict[str, tuple[str, ...]]:
    """Official files have the columns id, train, val, test with 1 where a building belongs."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        parts = {
            name: tuple(sorted(line["id"] for line in lines if line[column].strip() == "1"))
            for name, column in (("train", "train"), ("validation", "val"), ("test", "test"))
        }
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, AttributeError, TypeError) as error:
        raise InputError(
            f"buildings: {path} has no columns id, train, val, test ({error!s:.60}); name an official file."
        ) from None
    lacking = sorted({name for names in parts.values() for name in names} - there)
    if lacking or not all(parts.values()):
        what = f"names buildings that are not there: {some(lacking)}" if lacking else "leaves a part empty"
        raise InputError(f"buildings: {path} {what}; get them, or use --buildings points.")
    return parts


def task_names(sequence: str) -> tuple[str, ...]:
    """`1` and `2` are the paper's sequences; else names, in their order."""
    return SEQUENCES.get(sequence) or tuple(name.strip() for name in sequence.split(","))


def scene_stream(scenes: Scenes, seed: int, experiment: Experiment) -> Stream:
    """The stream of an experiment; every seed has the same tasks and views."""
    e, packed = experiment, scenes.packed
    require_scene_fields(e)
    wanted = find_tasks(task_names(e.sequence or "1"))
    masks = True if e.masks is None else e.masks
    parts = scenes.parts(e.split)
    tasks = []
    for task in wanted:
        usable, names = packed.rows(task.name, masks=masks), scenes.source.names(task, masks)
        both = [_examples(scenes, np.intersect1d(part, usable), names) for part in (parts.train, parts.score)]
        tasks.append(Task(task.name, task.under(e.norms), both[0], both[1]))
    mean = torch.tensor(scenes.mean_colour(parts.train), dtype=torch.float64).view(3, 1, 1)
    return Stream(
        name=e.stream,
        tasks=tuple(tasks),
        input_shape=(3, packed.size, packed.size),
        # x / 127.5 - 1, less its mean over the training images
        normalise=Normalise(mean, torch.full((1, 1, 1), 0.5, dtype=torch.float64)),
        fingerprint=scenes.fingerprint,
        shared_head=False,
        labels=tuple(TaskLabels(task.name) for task in wanted),
        flips=True if e.flip is None else e.flip,
        p_replay=P_REPLAY,
        # Said or not, the paper's norms are the same experiment.
        choices={
            "buildings": e.buildings if scenes.divided == "worlds" else scenes.divided,
            "norms": None if e.norms == "paper" else e.norms,
        },
    ).first(e.tasks)


def _examples(scenes: Scenes, rows: np.ndarray, names: Mapping[str, str]) -> Examples:
    return Examples(scenes.source, torch.from_numpy(rows), {}, names)


def require_scene_fields(e: Experiment) -> None:
    """Refuse what no scene stream can do, before anything is packed or rendered."""
    find_tasks(task_names(e.sequence or "1"))
    if e.scenario != "task":
        raise InputError(
            f"scenario: {e.scenario} is for Split streams; tasks of {e.stream} share no classes."
        )
    if e.normalise != "channel":
        raise InputError(f"normalise: {e.normalise} is for Split streams; use channel on {e.stream}.")
