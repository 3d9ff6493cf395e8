"""Split streams: the classes of a data set cut into tasks of five.

The first classes (15 of CIFAR-100 and mini-ImageNet) are always the validation tasks, for hyper-parameter search;
the rest is shuffled by the seed and cut into the tasks that are reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reprise.errors import InputError
from reprise.examples import Examples, Source
from reprise.randomness import rng
from reprise.streams.files import Images
from reprise.streams.stream import Normalise, Stream
from reprise.tasks import Classify, Task

CLASSES_PER_TASK = 5
VALIDATION_TASKS = 3


@dataclass(frozen=True)
class Pool:
    """A whole data set on the device once, indexed by every task and lane.

    source  x [train + test, 3, h, w] uint8
    labels  [train + test]; rows below `train` are for training
    """

    source: Source
    labels: np.ndarray
    train: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str

    def rows(self, label: int, train: bool) -> np.ndarray:
        found = np.flatnonzero(self.labels == label)
        return found[found < self.train] if train else found[found >= self.train]

    def normaliser(self, how: str) -> Normalise:
        if how == "channel":
            return Normalise(_per_channel(self.mean), _per_channel(self.std))
        mean = self.source.columns["x"][: self.train].to(torch.float64).mean(0) / 255
        return Normalise(mean.cpu(), torch.ones(1, 1, 1, dtype=torch.float64))


def make_pool(
    train: Images, test: Images, mean: tuple[float, ...], std: tuple[float, ...], fingerprint: str
) -> Pool:
    x = torch.from_numpy(np.concatenate([train.x, test.x]))
    labels = np.concatenate([train.y, test.y])
    return Pool(Source({"x": x}), labels, len(train.y), train.classes, mean, std, fingerprint)


def split_stream(
    name: str,
    pool: Pool,
    seed: int,
    scenario: str = "task",
    split: str = "report",
    normalise: str = "channel",
) -> Stream:
    """The stream of a seed: which classes form which task, and in which order."""
    held_out = VALIDATION_TASKS * CLASSES_PER_TASK
    everything = np.arange(len(pool.classes))
    reported, validation = everything[held_out:], everything[:held_out]
    if len(reported) < CLASSES_PER_TASK or len(reported) % CLASSES_PER_TASK:
        raise InputError(
            f"{name}: {len(pool.classes)} classes were found, which is not {held_out} validation classes and "
            f"a multiple of {CLASSES_PER_TASK} reported ones; check the data folder."
        )
    order = rng(seed, "classes").permutation(reported if split == "report" else validation)
    groups = order.reshape(-1, CLASSES_PER_TASK)
    outputs = CLASSES_PER_TASK if scenario == "task" else groups.size
    tasks = tuple(
        Task(
            f"task-{j}",
            Classify(outputs),
            train=_examples(pool, group, j, True, scenario),
            test=_examples(pool, group, j, False, scenario),
        )
        for j, group in enumerate(groups)
    )
    return Stream(
        name=name,
        tasks=tasks,
        input_shape=tuple(pool.source.columns["x"].shape[1:]),
        normalise=pool.normaliser(normalise),
        fingerprint=pool.fingerprint,
        scenario=scenario,
        full_tasks=len(reported) // CLASSES_PER_TASK,
        classes_per_task=CLASSES_PER_TASK,
        class_names=tuple(tuple(pool.classes[c] for c in group) for group in groups),
    )


def _examples(pool: Pool, group: np.ndarray, task: int, train: bool, scenario: str) -> Examples:
    """A task's rows in file order; labels count from 0 in each task, or over all tasks (class-incremental)."""
    rows = np.concatenate([pool.rows(label, train) for label in group])
    local = np.concatenate([np.full(len(pool.rows(label, train)), i) for i, label in enumerate(group)])
    order = np.argsort(rows, kind="stable")
    y = local[order] + (task * len(group) if scenario == "class" else 0)
    own = {"y": torch.from_numpy(y).long(), "task": torch.full((len(rows),), task)}
    return Examples(pool.source, torch.from_numpy(rows[order]).long(), own)


def _per_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)
