"""Observers: who looks on while a run trains. They see everything, change nothing, and no result depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reprise.train import Trainer


class Observer:
    """As it stands it looks at nothing. With lanes, one observer sees them all."""

    def logged(self, trainer: Trainer, lane: int, line: Mapping[str, float | int | str]) -> None:
        """A line of the log: the mean loss since the last one."""

    def task_ended(self, trainer: Trainer, phase: int) -> None:
        """A phase is over: its examples are remembered and every task seen is evaluated."""

    def ended(self, trainer: Trainer) -> None:
        """The run is over."""


class Several(Observer):
    """Observers one after another."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    def logged(self, trainer: Trainer, lane: int, line: Mapping[str, float | int | str]) -> None:
        for observer in self.observers:
            observer.logged(trainer, lane, line)

    def task_ended(self, trainer: Trainer, phase: int) -> None:
        for observer in self.observers:
            observer.task_ended(trainer, phase)

    def ended(self, trainer: Trainer) -> None:
        for observer in self.observers:
            observer.ended(trainer)
