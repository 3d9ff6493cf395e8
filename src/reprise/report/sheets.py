"""The paper's tables, filled: measured beside printed for every cell, and a verdict where one may be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reprise.experiments import (
    METRICS,
    SCALES,
    SHEETS,
    Metric,
    Place,
    Printed,
    Scale,
    Sheet,
    printed_seeds,
    scaled_m,
)
from reprise.method import Method
from reprise.methods import METHODS
from reprise.metrics import Summary, summarise
from reprise.report.read import Group
from reprise.report.sections import show_difference, show_summary, values_of
from reprise.report.statistics import Difference, paired, verdict
from reprise.streams import STREAMS
from reprise.values import show_value

Match = tuple[Group, dict[str, Any]]
"""The runs of a place, and the settings in which they differ from it."""

NOT_COMPARABLE = "not comparable (scale)"
UNCOMPARED = ("data", "results_version", "precision", "plan_seed", "curve", "m", "stream", "method")
"""Fields of a configuration that make no other reading of a place."""
SETTLED = ("fill", "replay", "scope", "p_replay")
"""Fields that a method with needs of its own decides, or a stream whose tasks differ in shape."""


@dataclass(frozen=True)
class Entry:
    """One metric of one place: printed, measured, compared."""

    place: Place
    metric: Metric
    printed: Printed | None
    group: Group | None = None
    differing: dict[str, Any] = field(default_factory=dict)
    """Settings of the run that are not those of the table."""
    difference: Difference | None = None
    """To the sheet's baseline row at the same memory, seed by seed."""
    verdict: str = ""

    @property
    def summary(self) -> Summary:
        return summarise([] if self.group is None else list(values_of(self.group, self.metric).values()))

    @property
    def printed_text(self) -> str:
        if self.printed is None:
            return "–"
        mean = self.metric.show(self.printed.mean)
        return mean if self.printed.std is None else f"{mean} ± {self.metric.show(self.printed.std)}"

    @property
    def measured_text(self) -> str:
        return show_summary(self.summary, self.metric)

    @property
    def difference_text(self) -> str:
        return show_difference(self.difference, self.metric)

    @property
    def settings_text(self) -> str:
        return ", ".join(f"{name}={show_value(value)}" for name, value in self.differing.items())


@dataclass(frozen=True)
class Filled:
    """A sheet with what the store has of it."""

    sheet: Sheet
    entries: list[Entry]

    @property
    def measured(self) -> int:
        return sum(entry.summary["n"] > 0 for entry in self.entries)


def fill_sheets(groups: Sequence[Group]) -> list[Filled]:
    """Every table of the paper of which the store has at least one cell."""
    filled = [fill_sheet(make(), groups) for make in SHEETS.values()]
    return [one for one in filled if one.measured]


def fill_sheet(sheet: Sheet, groups: Sequence[Group]) -> Filled:
    found: dict[tuple[str, str | None, str], Match | None] = {}
    for part in {place.part: None for place in sheet.places}:
        places = [place for place in sheet.places if place.part == part]
        # m is read one way in a whole table: as printed, or as a smaller scale has it, whichever fills more of it.
        readings = [[best_match(place, groups, printed) for place in places] for printed in (True, False)]
        fullest = max(readings, key=lambda matches: sum(match is not None for match in matches))
        found |= {place_key(place): match for place, match in zip(places, fullest, strict=True)}
    entries = []
    for place in sheet.places:
        match = found[place_key(place)]
        base = None
        if sheet.baseline not in (None, place.row):
            base = found.get((place.part, sheet.baseline, place.column))
        entries += [_entry(place, name, match, base[0] if base else None) for name in place.printed]
    return Filled(sheet, entries)


def place_key(place: Place) -> tuple[str, str | None, str]:
    return place.part, place.row, place.column


def _entry(place: Place, name: str, match: Match | None, base: Group | None) -> Entry:
    metric, printed = METRICS[name], place.printed[name]
    if match is None:
        return Entry(place, metric, printed, verdict="not run")
    group, differing = match
    mine = values_of(group, metric)
    against = None if base is None or not metric.judged else paired(mine, values_of(base, metric))
    said = ""
    if mine and printed is not None and metric.judged:
        said = NOT_COMPARABLE
        if comparable(group):
            said = verdict(list(mine.values()), printed, printed_seeds(place.benchmark), metric) or "one seed"
    return Entry(place, metric, printed, group, differing, against, said)


def comparable(group: Group) -> bool:
    """Whether a verdict against the paper may be given: Split-CIFAR on full data, the paper's length and batch."""
    c = group.configuration
    return (
        group.stream == "split-cifar"
        and c.get("scenario") == "task"
        and c.get("split") == "report"
        and c.get("tasks") is None
        and c.get("steps") is None
        and c.get("epochs") == 1
        and c.get("batch") == 10
    )


def best_match(place: Place, groups: Sequence[Group], printed: bool) -> Match | None:
    """The group that gives a place, and the settings in which it differs; the largest scale and fewest differences.

    The table's own axes (stream, method, m, what its rows vary) must agree; what the paper leaves open may differ
    and is said beside the number. m is the printed one, or else what the scale makes of it.
    """
    for name in reversed(SCALES):
        scale = SCALES[name]
        stream = scale.streams[place.benchmark]
        if stream not in STREAMS or (name == "paper" and not printed):
            continue
        m = place.fields.get("m") if printed else scaled_m(scale, place)
        fitting = [
            (group, differences(place, scale, group))
            for group in groups
            if group.stream == stream and group.method == place.method and group.m == m
        ]
        axes = place.fields.keys() - {"m"} | {"scenario", "split", "tasks"}
        fitting = [(group, differing) for group, differing in fitting if not differing.keys() & axes]
        if fitting:
            return min(fitting, key=lambda match: (len(match[1]), -len(match[0].runs)))
    return None


def differences(place: Place, scale: Scale, group: Group) -> dict[str, Any]:
    """Settings of a group that are not those of the place at this scale."""
    expected = scale.experiment(place).to_dict()
    settled = METHODS[place.method].needs is not Method.needs or place.benchmark == "taskonomy"
    found = {}
    for name, value in group.configuration.items():
        if name in UNCOMPARED or expected.get(name) == "auto" or (settled and name in SETTLED):
            continue
        if (
            name in expected
            and expected[name] != value
            and name not in ("m_per_class", "m_per_task", "memory")
        ):
            found[name] = value
    m = place.fields.get("m")
    return found if m is None or group.m == m else {"m": group.m} | found
