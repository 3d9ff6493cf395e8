"""Recorded runs by what they have in common, and comparisons of such groups seed by seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reprise.experiments.places import Metric
from reprise.metrics import forgetting_percent_per_task
from reprise.report.statistics import paired
from reprise.results import Record

ROOT = Path(__file__).parents[1]


@cache
def records(file: str) -> tuple[Record, ...]:
    path = ROOT / "results" / file
    return tuple(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else ()


FORGETTING = Metric("forgetting", ("forgetting",), digits=3, lower_is_better=True)
ACCURACY = Metric("accuracy %", ("accuracy",), 100.0)
LEARNING = Metric("learning accuracy %", ("learning_accuracy",), 100.0)
FORGETTING_PERCENT = Metric("forgetting %", ("forgetting_percent",), lower_is_better=True)
DROP = Metric("drop %", ("performance_drop_percent",), lower_is_better=True)


@dataclass(frozen=True)
class OverTasks(Metric):
    """The mean over some tasks of a number that the record holds for each."""

    first: int = 0
    end: int | None = None

    def of(self, record: Record) -> float | None:
        value: Any = record
        for key in self.path:
            value = value[key]
        return float(np.mean(value[self.first : self.end])) * self.factor


def _drift(first: int, end: int) -> OverTasks:
    return OverTasks(
        "relative drift", ("drift", "drift"), digits=2, lower_is_better=True, first=first, end=end
    )


@dataclass(frozen=True)
class OfFirstTask(Metric):
    """Forgetting % of the first task of the sequence."""

    def of(self, record: Record) -> float | None:
        return forgetting_percent_per_task(record["matrix"]["loss"])[0]


FIRST_FORGETTING = OfFirstTask("forgetting % of the first task", (), lower_is_better=True)

# The last task ends with the run: nothing of it can have moved.
DRIFT, FIRST_DRIFT, LATER_DRIFT = _drift(0, -1), _drift(0, 1), _drift(1, -1)


@dataclass(frozen=True)
class Cell:
    """The runs of one experiment: those of a file with this method and these fields."""

    file: str
    method: str
    fields: dict[str, Any] = field(default_factory=dict)

    def runs(self) -> list[Record]:
        return [
            r
            for r in records(self.file)
            if r["method"] == self.method
            and all(r["configuration"].get(name) == value for name, value in self.fields.items())
        ]

    def values(self, metric: Metric) -> dict[int, float]:
        """By seed."""
        found = {r["seed"]: metric.of(r) for r in self.runs()}
        return {seed: value for seed, value in found.items() if value is not None}

    def show(self, metric: Metric) -> str:
        return spread(list(self.values(metric).values()), metric.digits)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± deviation."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}" if values else "–"


ENOUGH = 3
"""Seeds of a clear answer: between two, an interval can be narrow by luck."""


@dataclass(frozen=True)
class Answer:
    """What a comparison says of a claim."""

    side: str
    """`clearly for`, `weakly for`, `open`, `weakly against`, `clearly against`; `missing` where runs are."""
    words: str
    difference: str


@dataclass(frozen=True)
class Comparison:
    """Whether `mine` is better (lower where less is better) than `theirs`, as the paper says."""

    about: str
    mine: Cell
    theirs: Cell
    metric: Metric
    claim: str = "better"
    """What the paper says of mine: `better`, `worse`, or `alike`."""
    their_metric: Metric | None = None
    """Where theirs is another number than mine, of the same kind."""

    def answer(self) -> Answer:
        mine, theirs = self.mine.values(self.metric), self.theirs.values(self.their_metric or self.metric)
        difference = paired(mine, theirs)
        if difference is None or difference.half is None:
            return Answer("missing", "", "not run")
        digits = self.metric.digits
        shown = f"{difference.mean:+.{digits}f} ± {difference.half:.{digits}f} ({difference.n} seeds)"
        better = (difference.mean < 0) == self.metric.lower_is_better
        if self.claim == "alike":
            if not difference.clear:
                return Answer("weakly for", "no difference seen", shown)
            return Answer("clearly against", "better" if better else "worse", shown)
        says = "for" if better == (self.claim == "better") else "against"
        word = {"for": "yes", "against": "no"}[says]
        if difference.clear and difference.n >= ENOUGH:
            return Answer(f"clearly {says}", word, shown)
        if len({mine[seed] < theirs[seed] for seed in mine.keys() & theirs.keys()}) == 1:
            return Answer(f"weakly {says}", f"{word}, in every seed", shown)
        return Answer("open", "open", shown)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
