"""A stream: an ordered list of tasks, and the phases in which they are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from reprise.errors import InputError
from reprise.examples import Examples
from reprise.tasks import Kind, Task


@dataclass(frozen=True)
class Phase:
    """What is trained between two evaluations: one task, or all of them at once.

    Each part is a task index with its examples; a part of index None carries one task index per example.
    Several parts share their inputs: a step makes one batch of each at the same positions.
    """

    name: str
    parts: tuple[tuple[int | None, Examples], ...]
    last: int
    """Index of the latest task it trains; tasks up to this one have been seen afterwards."""
    epochs_of: int = 1
    """How many tasks' worth of steps it stands for (`steps` is given per task)."""

    @property
    def train(self) -> Examples:
        return self.parts[0][1]


@dataclass(frozen=True)
class Normalise:
    """(x / 255 - mean) / std, on the device; mean and std broadcast over [..., c, h, w]."""

    mean: Tensor
    std: Tensor

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        mean = self.mean.to(device=x.device, dtype=dtype)
        std = self.std.to(device=x.device, dtype=dtype)
        return (x.to(dtype) / 255 - mean) / std

    def to(self, device: torch.device, dtype: torch.dtype) -> Normalise:
        return Normalise(self.mean.to(device, dtype), self.std.to(device, dtype))


class Labels(Protocol):
    """How a task's stored labels become targets, where the step runs."""

    def target(self, raw: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]: ...

    def mirror(self, y: Tensor, mask: Tensor | None, flipped: Tensor) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True)
class Stream:
    """Tasks in their order. `shared_head` says that all heads have one shape, so that a batch may mix tasks."""

    name: str
    tasks: tuple[Task, ...]
    input_shape: tuple[int, ...]
    normalise: Normalise
    fingerprint: str
    shared_head: bool = True
    scenario: str = "task"
    full_tasks: int = 0
    """Tasks of the whole stream, whatever `--tasks` leaves of it: what m is divided by."""
    classes_per_task: int | None = None
    """Classes of each task, where every task is a classification of equally many."""
    class_names: tuple[tuple[str, ...], ...] = field(default=())
    labels: tuple[Labels, ...] = ()
    """By task, where stored labels are not yet the targets."""
    flips: bool = False
    """Current images are mirrored at random, and their labels with them."""
    p_replay: float | None = None
    """How often a whole step replays, where the experiment does not say."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the experiment that the data has decided (`auto`)."""
    open_ended: bool = False
    """Further tasks may follow the last one there is."""
    room: int = 0
    """Tasks that stacked heads are laid out for, if more than there are yet."""
    joint: bool = False
    """All tasks in one phase: the multi-task reference."""

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InputError(f"stream {self.name!r} names task {twice[0]!r} twice; task names must differ.")

    @property
    def kinds(self) -> list[Kind]:
        """Of every task there is room for: those still to come are like the last."""
        kinds = [task.kind for task in self.tasks]
        return kinds + kinds[-1:] * (self.room - len(kinds))

    @property
    def phases(self) -> tuple[Phase, ...]:
        if self.joint:
            return (self._joint_phase(),)
        return tuple(
            Phase(task.name, ((None if self.shared_head else j, task.train),), last=j)
            for j, task in enumerate(self.tasks)
        )

    def _joint_phase(self) -> Phase:
        last = len(self.tasks) - 1
        trains = [task.train for task in self.tasks]
        if self.shared_head:
            parts: Sequence[tuple[int | None, Examples]] = [(None, Examples.concatenate(trains))]
            return Phase("all tasks", tuple(parts), last, epochs_of=len(self.tasks))
        together = Examples.shared(trains)
        if not len(together[0]):
            raise InputError(f"stream {self.name!r}: no image has labels for all of its tasks; name fewer.")
        return Phase("all tasks", tuple(enumerate(together)), last, epochs_of=1)

    def merged(self) -> Stream:
        """One phase that holds all tasks: multi-task training is SGD on a merged stream."""
        return replace(self, joint=True)

    def first(self, tasks: int | None) -> Stream:
        """Only the first tasks; `full_tasks` still tells how many there were."""
        if tasks is None:
            return self
        if not 1 <= tasks <= len(self.tasks):
            raise InputError(
                f"tasks: {tasks} was asked for, but {self.name} has {len(self.tasks)}; "
                f"give a number from 1 to {len(self.tasks)}."
            )
        return replace(
            self,
            tasks=self.tasks[:tasks],
            class_names=self.class_names[:tasks],
            labels=self.labels[:tasks],
        )
