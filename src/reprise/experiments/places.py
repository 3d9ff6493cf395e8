"""The paper's tables as places: where a number is printed, what run gives it, and the number itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from reprise.results import Record


@dataclass(frozen=True)
class Metric:
    """A number of a record in the unit the paper prints it in."""

    title: str
    path: tuple[str, ...]
    """Where the record holds it."""
    factor: float = 1.0
    digits: int = 1
    """Digits after the point, of the paper and of ours."""
    lower_is_better: bool = False
    judged: bool = True
    """Whether better and worse have a meaning: bytes are counted, not judged."""

    def of(self, record: Record) -> float | None:
        value: Any = record
        for key in self.path:
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else float(value) * self.factor

    def show(self, value: float) -> str:
        """With the table's digits; sizes, which range over magnitudes, with three that count."""
        return f"{value:.{self.digits}f}" if self.judged else f"{value:.3g}"


METRICS: dict[str, Metric] = {
    "acc": Metric("accuracy %", ("accuracy",), 100.0),
    "fgt": Metric("forgetting", ("forgetting",), digits=2, lower_is_better=True),
    "fgt_percent": Metric("forgetting %", ("forgetting_percent",), lower_is_better=True),
    "dperf": Metric("performance drop %", ("performance_drop_percent",), lower_is_better=True),
    "storage": Metric("extra storage, GB", ("bytes", "total"), 1e-9, judged=False),
    "model": Metric("final model, GB", ("bytes", "model"), 1e-9, judged=False),
    "activations": Metric("activations, MB", ("bytes", "activation"), 1e-6, judged=False),
}


@dataclass(frozen=True)
class Printed:
    """A printed mean, and its deviation where the paper has one."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Place:
    """A cell of a table.

    part     the benchmark or task sequence, for tables that hold several
    fields   what the run must have, in the paper's own scale; `m` among them where the method remembers
    printed  by metric; None where the paper has a dash
    """

    part: str
    row: str
    column: str
    benchmark: str
    method: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    printed: Mapping[str, Printed | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Sheet:
    """A table or figure of the paper."""

    name: str
    title: str
    places: tuple[Place, ...]
    baseline: str | None = None
    """The row that others are compared with, seed by seed."""
    artifacts: tuple[str, ...] = ()
    """What its runs must leave beside their records."""
    note: str = ""

    @property
    def parts(self) -> list[str]:
        return list(dict.fromkeys(place.part for place in self.places))

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for place in self.places for name in place.printed))


@cache
def paper() -> dict[str, Any]:
    """Every printed number (the file says where each stands)."""
    text = files("reprise.experiments").joinpath("paper_results.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def printed_table(name: str) -> dict[str, Any]:
    return paper()["tables"][name]


def printed_seeds(benchmark: str) -> int:
    """Over how many seeds the paper averages."""
    return paper()["meta"]["seeds"]["taskonomy" if benchmark == "taskonomy" else "split"]


def as_printed(value: Any) -> Printed | None:
    """A cell of the file: `[mean, std]`, a bare mean, or nothing."""
    if value is None or isinstance(value, str):
        return None
    if isinstance(value, list):
        return Printed(*value)
    return Printed(float(value))
