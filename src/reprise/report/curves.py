"""Arrays behind the charts: what the matrices of a group say over the sequence, over its seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reprise.experiments.places import paper
from reprise.metrics import SMALLEST_REFERENCE
from reprise.report.read import Group
from reprise.report.sections import Section

Array = NDArray[np.float64]


def has_accuracy(group: Group) -> bool:
    """Whether every task is judged by it: of mixed tasks only the losses can be averaged."""
    return all(record.get("accuracy") is not None for record in group.records)


def matrices(group: Group) -> Array:
    """Accuracy in percent, or loss: [seeds, after task i, on task j]; NaN where nothing was measured."""
    key, factor = ("accuracy", 100.0) if has_accuracy(group) else ("loss", 1.0)
    return factor * np.array([record["matrix"][key] for record in group.records], dtype=np.float64)


def mean_matrix(group: Group) -> Array:
    return matrices(group).mean(0)


def sequence(group: Group) -> tuple[Array, Array] | None:
    """Mean and deviation over seeds, after each task: accuracy over the tasks seen; or their loss as a multiple of
    what it was right after each. None where all tasks were trained at once."""
    table = matrices(group)
    if table.shape[1] < 2 or np.isnan(table[:, 0, 0]).any():
        return None
    if not has_accuracy(group):
        learnt = np.diagonal(table, axis1=1, axis2=2)[:, None]
        table = table / np.where(learnt < SMALLEST_REFERENCE, np.nan, learnt)
    measured = ~np.isnan(table)
    sums, counts = np.where(measured, table, 0).sum(2), measured.sum(2)
    # After some tasks nothing may have been measured (`--evaluate_every`): a gap.
    seen = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return seen.mean(0), seen.std(0)


def sequence_title(section: Section) -> str:
    if any(has_accuracy(group) for group in section.groups):
        return "accuracy on all tasks seen, %"
    return "loss, as a multiple of that right after the task"


def task_names(group: Group) -> list[str]:
    """The tasks' names where a record has them or the sequence is one of the paper's, numbers elsewhere."""
    tasks = matrices(group).shape[-1]
    sequence = paper()["task_sequences"].get(f"sequence_{group.configuration.get('sequence')}", [])
    known = group.records[0].get("tasks", sequence)
    return list(known) if len(known) == tasks else [f"task-{j}" for j in range(tasks)]


def main_groups(section: Section) -> list[Group]:
    """One group for each method and m: that nearest to the default settings, of several the one with most runs."""
    best: dict[tuple[str, int | None], Group] = {}
    for group in section.groups:
        key = group.method, group.m
        if key not in best or _rank(group) < _rank(best[key]):
            best[key] = group
    return list(best.values())


def _rank(group: Group) -> tuple[int, int]:
    return len(group.differing), -len(group.runs)


def lam_fm_series(section: Section) -> list[list[Group]]:
    """Groups that differ in λ_fm alone, in its order; at least two different weights above 0 each."""
    families: dict[str, list[Group]] = {}
    for group in section.groups:
        weight = group.configuration.get("lam_fm")
        if isinstance(weight, int | float) and weight > 0:
            rest = {k: v for k, v in group.configuration.items() if k != "lam_fm"}
            families.setdefault(repr(sorted(rest.items(), key=str)), []).append(group)
    series = [sorted(family, key=lambda g: g.configuration["lam_fm"]) for family in families.values()]
    return [family for family in series if len(family) > 1]


def kept_bytes(group: Group) -> int | None:
    return (group.records[0].get("bytes") or {}).get("total")


def short_names(groups: Sequence[Group]) -> list[str]:
    """Method and m where these tell the groups apart, else the full names."""
    short = [" · ".join(part for part in g.name.split(" · ")[:2] if not _is_setting(part)) for g in groups]
    return [s if short.count(s) == 1 else group.name for s, group in zip(short, groups, strict=True)]


def _is_setting(part: str) -> bool:
    return "=" in part and not part.startswith("m=")
