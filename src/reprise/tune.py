"""Hyper-parameter search on the validation tasks only: a grid, every point on every seed, the best one named."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reprise.config import MEMORY_FIELDS, Experiment, field_hints, make_experiment, no_such_field, overlay
from reprise.errors import InputError
from reprise.metrics import SMALLEST_REFERENCE, summarise
from reprise.results import Record
from reprise.values import read_value

DEFAULT_GRID: dict[str, tuple[float, ...]] = {
    "lr": (0.003, 0.01, 0.03, 0.1),
    "lam": (0.5, 1.0, 2.0),
    "lam_fm": (0.25, 1.0, 5.0, 10.0, 25.0),
}
"""Tried where a method has the field and the user names no grid; the later a field stands, the more it matters."""


def parse_grid(lines: Sequence[str], method: str) -> dict[str, Sequence[Any]]:
    """`lam_fm=1,5,25` as a field of the method and its values."""
    hints = field_hints(method)
    grid: dict[str, Sequence[Any]] = {}
    for line in lines:
        name, sign, values = line.partition("=")
        if not sign or not values.strip(","):
            raise InputError(f"grid: {line!r} is not a list of values; write for example lam_fm=1,5,25.")
        name = name.strip().replace("-", "_")
        if name not in hints:
            raise no_such_field(name, method, hints, " to search (--grid)")
        grid[name] = [read_value(name, value.strip(), hints[name]) for value in values.split(",") if value]
    return grid


def default_grid(experiment: Experiment) -> dict[str, tuple[float, ...]]:
    """The method's last field of the table, else the learning rate."""
    names = [name for name in DEFAULT_GRID if name in experiment.to_dict()]
    return {names[-1]: DEFAULT_GRID[names[-1]]}


def grid_experiments(
    stream: str,
    method: str,
    given: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    protocol: Mapping[str, Any],
) -> list[Experiment]:
    """One experiment for each point of the grid, all on the validation tasks."""
    if "split" in {**given, **grid}:
        raise InputError("split: a search sees the validation tasks only; leave it out.")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [
        make_experiment(stream, method, overlay(given, point) | {"split": "validation"}, protocol)
        for point in points
    ]


def rank(records: Sequence[Record], grid: Sequence[str]) -> list[dict[str, Any]]:
    """The grid's points, the best first: by mean accuracy, or, where tasks have none, by the geometric mean of the
    final losses, which no task's scale decides. Those of which a seed diverged come last."""
    # However m was given, a record holds it as m.
    names = list(dict.fromkeys("m" if name in MEMORY_FIELDS else name for name in grid))
    judged = all(record["accuracy"] is not None for record in records)
    measures = MEASURES if judged else LOSS_MEASURES
    points: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        points.setdefault(tuple(record["configuration"][name] for name in names), []).append(record)
    rows = [
        {
            "setting": dict(zip(names, point, strict=True)),
            "seeds": len(members),
            **{name: summarise([of(r) for r in members]) for name, of in measures.items()},
        }
        for point, members in points.items()
    ]
    return sorted(rows, key=_place)


MEASURES: dict[str, Callable[[Record], float]] = {
    "accuracy": lambda r: r["accuracy"],
    "forgetting": lambda r: r["forgetting"],
}
LOSS_MEASURES: dict[str, Callable[[Record], float]] = {
    "loss": lambda r: geometric_mean(r["matrix"]["loss"][-1]),
    "forgetting_percent": lambda r: r["forgetting_percent"],
}


def _place(row: Mapping[str, Any]) -> tuple[float, float]:
    return -row["seeds"], -row["accuracy"]["mean"] if "accuracy" in row else row["loss"]["mean"]


def geometric_mean(losses: Sequence[float]) -> float:
    return math.exp(sum(math.log(max(loss, SMALLEST_REFERENCE)) for loss in losses) / len(losses))
