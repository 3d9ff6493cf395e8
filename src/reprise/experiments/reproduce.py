"""Run what a table or figure needs and the store does not have yet; what is there is not run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprise.config import Experiment
from reprise.errors import Diverged, InputError
from reprise.experiments.places import Sheet
from reprise.experiments.scales import Scale
from reprise.experiments.tables import SHEETS
from reprise.results import Record
from reprise.runner import run_experiments

ALL = "all"


@dataclass(frozen=True)
class Batch:
    """Experiments over the same seeds that leave the same things, each of them once."""

    experiments: tuple[Experiment, ...]
    seeds: tuple[int, ...]
    artifacts: tuple[str, ...]


def find_sheets(name: str) -> list[Sheet]:
    """The table or figure of that name, or all of them."""
    if name != ALL and name not in SHEETS:
        raise InputError(f"name: {name!r} is not known; choose one of {', '.join([*SHEETS, ALL])}.")
    return [make() for key, make in SHEETS.items() if name in (key, ALL)]


def plan_batches(sheets: Sequence[Sheet], scale: Scale) -> list[Batch]:
    """What has to be run: cells that tables share are run once, and leave all that any of them asks for."""
    seeds: dict[Experiment, tuple[int, ...]] = {}
    artifacts: dict[Experiment, set[str]] = {}
    for sheet in sheets:
        for place in sheet.places:
            experiment = scale.experiment(place)
            own = tuple(range(scale.seeds_of(place)))
            seeds[experiment] = max(seeds.get(experiment, ()), own)
            artifacts.setdefault(experiment, set()).update(sheet.artifacts)
    batches: dict[tuple[tuple[int, ...], tuple[str, ...]], list[Experiment]] = {}
    for experiment, own in seeds.items():
        batches.setdefault((own, tuple(sorted(artifacts[experiment]))), []).append(experiment)
    return [Batch(tuple(experiments), *key) for key, experiments in batches.items()]


def run_sheets(sheets: Sequence[Sheet], scale: Scale, store: Path, **how: Any) -> Iterator[Record]:
    """The records of every cell. One that diverges is told at the end, when all the others are there."""
    lost: list[Diverged] = []
    for batch in plan_batches(sheets, scale):
        try:
            yield from run_experiments(
                batch.experiments, batch.seeds, store=store, artifacts=batch.artifacts, **how
            )
        except Diverged as error:
            lost.append(error)
    if lost:
        raise lost[0]
