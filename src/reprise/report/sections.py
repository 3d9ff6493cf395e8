"""Groups side by side: those of one stream, scenario and split form a section, named by what tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reprise.config import make_experiment
from reprise.experiments import METRICS, Metric
from reprise.experiments.tables import METHODS
from reprise.methods import METHODS as OUR_METHODS
from reprise.metrics import Summary, summarise
from reprise.report.read import Group
from reprise.report.statistics import Difference, paired
from reprise.streams import STREAMS
from reprise.values import show_value

METHOD_NAMES = {ours: theirs for theirs, ours in METHODS.items()} | {"derpp": "DER++", "lwf": "LwF"}
LEARNED = Metric("learned %", ("learning_accuracy",), 100.0)
UNNAMED = ("stream", "method", "scenario", "split", "m", "m_per_class", "m_per_task", "memory")
"""Fields that a group's name needs not tell apart: the section or the name itself says them."""


@dataclass
class Section:
    """Groups that may be compared: same stream, scenario and split, in the table's order of methods."""

    title: str
    groups: list[Group] = field(default_factory=list)

    @property
    def metrics(self) -> list[Metric]:
        """Accuracy and forgetting where there is accuracy, the relative losses elsewhere."""
        by_accuracy = [METRICS["acc"], METRICS["fgt"], LEARNED]
        has_accuracy = any(METRICS["acc"].of(record) is not None for g in self.groups for record in g.records)
        chosen = by_accuracy if has_accuracy else [METRICS["fgt_percent"], METRICS["dperf"]]
        return [metric for metric in chosen if any(values_of(g, metric) for g in self.groups)]


def method_name(method: str) -> str:
    return METHOD_NAMES.get(method, method)


def make_sections(groups: Sequence[Group]) -> list[Section]:
    sections: dict[tuple[object, ...], Section] = {}
    for group in groups:
        c = group.configuration
        key = (group.stream, c.get("scenario"), c.get("split"), c.get("sequence"))
        sections.setdefault(key, Section(_title(group))).groups.append(group)
    known = list(METHOD_NAMES)
    for section in sections.values():
        section.groups.sort(key=lambda g: (_place(g.method, known), g.m or 0))
        for method in {group.method for group in section.groups}:
            _name([group for group in section.groups if group.method == method])
        section.groups.sort(key=lambda g: (_place(g.method, known), g.m or 0, _sortable(g.differing)))
    return sorted(sections.values(), key=lambda s: ("validation" in s.title, s.title))


def _title(group: Group) -> str:
    c = group.configuration
    parts = [group.stream]
    if c.get("sequence") is not None:
        parts.append(f"sequence {c['sequence']}")
    if c.get("scenario") == "class":
        parts.append("class-incremental")
    if c.get("split") == "validation":
        parts.append("validation tasks (for search only)")
    return ", ".join(parts)


def _place(method: str, known: Sequence[str]) -> tuple[int, str]:
    return (known.index(method) if method in known else len(known), method)


def _sortable(values: dict[str, Any]) -> list[tuple[str, float, str]]:
    return [(name, float(v) if isinstance(v, int | float) else 0.0, str(v)) for name, v in values.items()]


def _name(groups: Sequence[Group]) -> None:
    """Name groups of one method by m and by the fields in which they differ, where these are not the defaults."""
    usual = defaults(groups[0])
    names = dict.fromkeys(name for group in groups for name in group.configuration)
    fields = [name for name in names if name not in UNNAMED]
    varying = [name for name in fields if len({repr(group.configuration.get(name)) for group in groups}) > 1]
    for group in groups:
        own = {name: group.configuration.get(name) for name in varying}
        group.differing = {
            name: value for name, value in own.items() if name not in usual or usual[name] != value
        }
        parts = [method_name(group.method)]
        if group.m is not None:
            parts.append(f"m={group.m}")
        parts += [f"{name}={show_value(value)}" for name, value in group.differing.items()]
        group.name = " · ".join(parts)


def defaults(group: Group) -> dict[str, Any]:
    """What a group's fields are when nobody says anything; nothing for streams and methods we do not know."""
    if group.stream not in STREAMS or group.method not in OUR_METHODS:
        return {}
    protocol = STREAMS[group.stream].protocol_of(group.method)
    return make_experiment(group.stream, group.method, {}, protocol).to_dict()


def values_of(group: Group, metric: Metric) -> dict[int, float]:
    """A metric by seed, where the run has it."""
    found = {record["seed"]: metric.of(record) for record in group.records}
    return {seed: value for seed, value in found.items() if value is not None}


def summary_of(group: Group, metric: Metric) -> Summary:
    return summarise(list(values_of(group, metric).values()))


def show_summary(summary: Summary, metric: Metric) -> str:
    """`62.4 ± 1.5`, or a dash."""
    if summary["mean"] is None:
        return "–"
    shown = metric.show(summary["mean"])
    return shown if summary["n"] < 2 or summary["std"] is None else f"{shown} ± {metric.show(summary['std'])}"


def show_difference(difference: Difference | None, metric: Metric) -> str:
    """`+1.2 [0.3, 2.1]`: the mean and the interval of paired differences."""
    if difference is None:
        return "–"
    mean = f"{difference.mean:+.{metric.digits}f}"
    if difference.half is None:
        return mean
    low, high = difference.mean - difference.half, difference.mean + difference.half
    return f"{mean} [{metric.show(low)}, {metric.show(high)}]"


def baseline_of(group: Group, section: Section) -> Group | None:
    """ER with the same memory for a method that replays, SGD for the others; the one of the most like settings."""
    wanted = ("er", group.m) if group.m is not None and group.method != "er" else ("sgd", None)
    candidates = [g for g in section.groups if (g.method, g.m) == wanted and g is not group]
    if group.method == "sgd" or not candidates:
        return None
    return max(candidates, key=lambda other: _alike(group, other))


def _alike(one: Group, other: Group) -> int:
    mine, theirs = one.configuration, other.configuration
    return sum(mine.get(name) == theirs.get(name) for name in mine.keys() | theirs.keys())


def against_baseline(group: Group, section: Section, metric: Metric) -> tuple[Group, Difference] | None:
    baseline = baseline_of(group, section)
    if baseline is None:
        return None
    difference = paired(values_of(group, metric), values_of(baseline, metric))
    return None if difference is None else (baseline, difference)
