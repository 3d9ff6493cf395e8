"""What a study says while it runs: what lies ahead, how far each group of lanes is, and what else is to be known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outlook:
    """What lies ahead. It is said once, before anything is trained."""

    runs: int
    steps: int
    """Of all runs together: runs differ in length, so steps are what progress is measured in."""


@dataclass(frozen=True)
class Report:
    """How far a run, or a group of lanes that advance together, has come."""

    name: str
    runs: int
    done: int
    """Steps done, of each of its runs."""
    total: int
    what: str
    """What it is at; how it ended once it is over."""
    seconds: float = 0.0
    """Since it began."""
    over: bool = False

    @property
    def weight(self) -> int:
        """Steps done of all its runs: its part of `Outlook.steps`."""
        return self.runs * self.done


@dataclass(frozen=True)
class Notice:
    """A sentence the user should see."""

    text: str


Watch = Callable[[Outlook | Report | Notice], None]
