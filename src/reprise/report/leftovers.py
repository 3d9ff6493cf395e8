"""What runs left beside their records: drift panels and their numbers, prediction grids, what the memory holds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reprise import drift
from reprise.artifacts import LAST_FILES, read_arrays, read_features
from reprise.report.curves import main_groups, short_names
from reprise.report.pictures import Picture, show_input, show_target
from reprise.report.read import Group
from reprise.report.sections import Section, method_name
from reprise.report.text import Table

Arrays = dict[str, np.ndarray]
GENERATED = ("split-shapes", "rooms")
"""Streams whose pictures are our own: those of others are shown only when asked for."""
PANELS = 3
"""Tasks of a group whose features are drawn."""
MEASURES = {"drift": drift.relative_drift, "CKA": drift.linear_cka, "MMD": drift.mmd}
FIGURE = ("sgd", "er", "car")
"""The paper's figure of predictions shows these; others follow."""
ROWS_SHOWN = 2
"""Examples of a task in a prediction grid."""


@dataclass(frozen=True)
class Panel:
    """Features of one task in one embedding [n, 2]: right after the task, and the same examples at the end."""

    run: str
    task: str
    then: np.ndarray
    now: np.ndarray
    numbers: str
    """Drift, CKA and MMD of these very features."""

    @property
    def title(self) -> str:
        return f"{self.run}, {self.task}"


@dataclass(frozen=True)
class Grid:
    """Pictures in rows under headings."""

    title: str
    headings: list[str]
    rows: list[list[Picture]]


@dataclass(frozen=True)
class ShelfTask:
    name: str
    count: int
    pictures: list[Picture]


@dataclass(frozen=True)
class ShelfView:
    """The memory of one run, task by task."""

    title: str
    tasks: list[ShelfTask]


# ---- drift


def drift_panels(sections: Sequence[Section]) -> list[Panel]:
    """The first seed's features of the first task, and of tasks a third and two thirds into the sequence.

    One group for each method and m is drawn; the table has them all.
    """
    panels = []
    for section in sections:
        groups = [group for group in main_groups(section) if _feature_sets(group)]
        for group, name in zip(groups, short_names(groups), strict=True):
            features = _feature_sets(group)[0]
            tasks = list(features)
            for place in sorted({len(tasks) * part // PANELS for part in range(PANELS)}):
                then, now = features[tasks[place]]
                both = embed(np.concatenate([then, now]))
                numbers = " · ".join(f"{word} {measure(then, now):.2f}" for word, measure in MEASURES.items())
                run = f"{section.title} — {name}"
                panels.append(Panel(run, tasks[place], both[: len(then)], both[len(then) :], numbers))
    return panels


def _feature_sets(group: Group) -> list[dict[str, tuple[np.ndarray, np.ndarray]]]:
    sets = [read_features(run.artifacts) for run in group.runs if run.artifacts is not None]
    return [features for features in sets if features]


def embed(points: np.ndarray) -> np.ndarray:
    """One t-SNE embedding [n, 2] of all points together; the same points give the same picture."""
    from openTSNE import TSNE  # slow to import, and only needed where runs left features

    perplexity = min(30.0, (len(points) - 1) / 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = TSNE(perplexity=perplexity, random_state=0, n_jobs=1, negative_gradient_method="bh")
        return np.asarray(fitted.fit(np.asarray(points, dtype=np.float64)))


def drift_table(sections: Sequence[Section]) -> Table:
    """Relative drift, CKA and MMD of every task, mean over seeds."""
    rows, sort = [], []
    for section in sections:
        for group in section.groups:
            sets = _feature_sets(group)
            for task in sets[0] if sets else ():
                pairs = [features[task] for features in sets if task in features]
                numbers = [
                    float(np.mean([measure(then, now) for then, now in pairs]))
                    for measure in MEASURES.values()
                ]
                rows.append(
                    [section.title, group.name, task, str(len(pairs)), *(f"{n:.3f}" for n in numbers)]
                )
                sort.append([None, None, None, float(len(pairs)), *numbers])
    headings = ["stream", "run", "task", "seeds", "relative drift", "linear CKA", "MMD"]
    return Table(
        "drift", "Feature drift from the end of each task to the end of the run", headings, rows, sort
    )


# ---- pictures


def allowed(group: Group, embed_images: bool) -> bool:
    return embed_images or group.stream in GENERATED


FILES = {"memory": Path("artifacts", LAST_FILES["memory"]), "samples": Path("samples.npz")}
"""Where a run's folder has pictures: of its memory, and of its final answers to a few test images."""


def _shown(
    sections: Sequence[Section], kind: str, embed_images: bool
) -> Iterator[tuple[Section, Group, Arrays]]:
    """The groups whose pictures may be shown, with the file of their first seed that has one."""
    for section in sections:
        for group in section.groups:
            paths = [run.folder / FILES[kind] for run in group.runs if run.folder is not None]
            there = [path for path in paths if path.exists()]
            if there and allowed(group, embed_images):
                yield section, group, read_arrays(there[0])


def prediction_grids(sections: Sequence[Section], embed_images: bool) -> list[Grid]:
    """For each dense task: input, truth, and the final answers of each method's first group."""
    by_section: dict[str, dict[str, Arrays]] = {}
    for section, group, arrays in _shown(sections, "samples", embed_images):
        by_section.setdefault(section.title, {}).setdefault(group.method, arrays)
    grids = []
    for title, found in by_section.items():
        methods = {name: found[name] for name in dict.fromkeys((*FIGURE, *found)) if name in found}
        first = next(iter(methods.values()))
        names = [
            key.removesuffix(".truth") for key in first if key.endswith(".truth") and first[key].ndim > 2
        ]
        for name in names:
            rows = [
                _grid_row(name, row, methods) for row in range(min(ROWS_SHOWN, len(first[f"{name}.truth"])))
            ]
            grids.append(Grid(f"{title} — {name}", ["input", "truth", *map(method_name, methods)], rows))
    return grids


def _grid_row(name: str, row: int, methods: dict[str, Arrays]) -> list[Picture]:
    first = next(iter(methods.values()))
    truth = first[f"{name}.truth"][row]
    mask = first[f"{name}.mask"][row] if f"{name}.mask" in first else None
    cells = [show_input(first[f"{name}.input"][row], f"{name}: input {row + 1}")]
    cells.append(show_target(truth, truth, mask, f"{name}: truth"))
    for method, arrays in methods.items():
        cells.append(
            show_target(arrays[f"{name}.answer"][row], truth, None, f"{name}: {method_name(method)}")
        )
    return cells


def memory_shelves(sections: Sequence[Section], embed_images: bool) -> list[ShelfView]:
    shelves = []
    for section, group, arrays in _shown(sections, "memory", embed_images):
        tasks = []
        for task, name in enumerate(arrays["names"]):
            rows = np.flatnonzero(arrays["task"] == task)
            pictures = [
                show_input(arrays["x"][row], str(arrays["label"][row]) or f"{name}, row {row + 1}")
                for row in rows
            ]
            if pictures:
                tasks.append(ShelfTask(str(name), len(rows), pictures))
        if tasks:
            shelves.append(ShelfView(f"{section.title} — {group.name}", tasks))
    return shelves


def why_missing(groups: Sequence[Group], kind: str, what: str) -> str:
    """One plain line in place of pictures that cannot be shown."""
    folders = [(group, run.folder) for group in groups for run in group.runs if run.folder is not None]
    there = [group for group, folder in folders if (folder / FILES[kind]).exists()]
    if there and not any(group.stream in GENERATED for group in there):
        return f"{what}: pictures of {there[0].stream} are embedded only with --embed-images."
    if there:
        return f"{what}: the runs in this store have none to show."
    way_out = (
        "only runs on scene streams leave any" if kind == "samples" else "add --artifacts memory to a run"
    )
    return f"{what}: no run in this store left any; {way_out}."
