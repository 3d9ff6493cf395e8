"""A learner's page: how each task fares, what the learner answers, and what it remembers. One offline file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

import reprise
from reprise.learner_report import forgotten_text, score_text
from reprise.report.charts import Chart, View, colour_of_place, label
from reprise.report.leftovers import ShelfTask
from reprise.report.page import fixtures, template
from reprise.report.pictures import Picture, show_input, show_target
from reprise.report.sections import method_name
from reprise.report.text import Table
from reprise.values import show_bytes, show_value

if TYPE_CHECKING:
    from reprise.learner import Learner

KINDS = {"classify": "classes", "segment": "classes of pixels", "regress": "values"}
UNSAID = ("encoder", "method")
"""Settings that the page says in words of its own."""
SHOWN = 32
"""Remembered images of a task that are shown."""
VALUES = 6
"""Of a vector, these many are said."""
ACCURACY, RATIO = "accuracy, %", "loss, 1 when learned"


def make_learner_page(learner: Learner) -> str:
    """The page's HTML. Names and values are escaped by the template."""
    charts = [chart for chart in (_over_time(learner), _matrix(learner)) if chart is not None]
    answers = _answers(learner)
    method = method_name(learner.settings["method"]["name"])
    contents = [("tasks", "Tasks"), *((chart.id, chart.title) for chart in charts)]
    contents += [("answers", "Answers")] if answers else []
    count = len(learner.tasks)
    return template("learner.html").render(
        title=f"Learner: {learner.out.name}",
        lead=f"{count} task{'s' if count != 1 else ''} learned with {method}; besides the model it keeps "
        f"{show_bytes(learner.ledger[-1]['bytes']['total'])}.",
        contents=[*contents, ("memory", "Memory"), ("settings", "Settings")],
        **fixtures(charts),
        tasks=_tasks(learner),
        charts=charts,
        answers=answers,
        ledger=_ledger(learner),
        shelf=_shelf(learner),
        method=method,
        folder=str(learner.out),
        settings=_settings(learner),
        footer=f"Made by reprise {reprise.__version__} from the learner in {learner.out}.",
    )


def _tasks(learner: Learner) -> Table:
    matrix, forgotten = learner.matrix, learner.forgetting
    rows: list[list[str]] = []
    sort: list[list[float | None]] = []
    for j, page in enumerate(learner.book.finished):
        judged = matrix["accuracy"][j][j] is not None
        kind = "accuracy" if judged else "loss"
        then, now, lost = matrix[kind][j][j], matrix[kind][-1][j], forgotten.get(page.name)
        what = KINDS[page.kind["kind"]]
        length = page.epochs if page.steps is None else page.steps
        learned = f"{length} {'epoch' if page.steps is None else 'step'}{'s' if length != 1 else ''}"
        rows.append(
            [
                *(page.name, score_text(now, judged), forgotten_text(lost, judged), score_text(then, judged)),
                *(f"{page.kind['classes']} {what}" if "classes" in page.kind else what, kind),
                *(learned, str(page.train), str(page.test)),
            ]
        )
        sort.append([None, now, lost, then, None, None, length, page.train, page.test])
    headings = ["task", "now", "forgotten", "when learned", "targets", "measured by"]
    table = Table("tasks", "Tasks", [*headings, "learned for", "train", "test"], rows, sort)
    if any(score_text(None, True) in row for row in rows):
        return replace(
            table, note="Not measured: the test data was not here; Learner.load(…, tests=…) takes it."
        )
    return table


def _over_time(learner: Learner) -> Chart | None:
    """A line a task; accuracies, and losses in units of the one right after the task."""
    tables = _tables(learner)
    views = []
    for name, table in tables.items():
        data = []
        for j, task in enumerate(learner.tasks):
            column = table[j:, j]
            if np.isnan(column).all():
                continue
            data.append(
                {
                    **{"type": "scatter", "mode": "lines+markers", "name": label(task)},
                    **{"x": list(range(j + 1, len(table) + 1)), "y": _numbers(column), "connectgaps": True},
                    "line": {"color": colour_of_place(j, len(table)), "width": 2},
                    "marker": {"size": 7},
                    "hovertemplate": f"<b>{label(task)}</b> after %{{x}} tasks: %{{y:.3g}}<extra></extra>",
                }
            )
        ticks = {"tickvals": list(range(1, len(table) + 1)), "ticktext": [label(t) for t in learner.tasks]}
        limits = {"range": [0, 102]} if name == ACCURACY else {"rangemode": "tozero"}
        layout = {
            "xaxis": {"title": {"text": "after learning"}, **ticks},
            "yaxis": {"title": {"text": name}, **limits},
        }
        views.append(View(name, data, layout))
    views = [view for view in views if view.data]
    about = "One line a task, from the moment it was learned until now: what stays level is not forgotten."
    return Chart("over-time", "Each task over time", about, views) if len(learner.tasks) > 1 else None


def _matrix(learner: Learner) -> Chart | None:
    names = [label(name) for name in learner.tasks]
    views = []
    for name, table in _tables(learner).items():
        accuracy = name == ACCURACY
        if np.isnan(table).all():
            continue
        heat = {
            **{"type": "heatmap", "z": [_numbers(row) for row in table], "x": names, "y": names},
            **{"colorscale": "Viridis" if accuracy else "Magma", "xgap": 1, "ygap": 1},
            **{"colorbar": {"title": {"text": name}, "thickness": 12}},
            **({"zmin": 0, "zmax": 100} if accuracy else {}),
            "hovertemplate": f"after %{{y}}, on %{{x}}: {name} %{{z:.3g}}<extra></extra>",
        }
        if len(table) <= 12:
            heat |= {"texttemplate": "%{z:.0f}" if accuracy else "%{z:.2f}", "textfont": {"size": 11}}
        layout = {
            "xaxis": {"title": {"text": "asked about"}, "showgrid": False, "tickangle": -45},
            "yaxis": {"title": {"text": "after learning"}, "autorange": "reversed", "showgrid": False},
            "square": True,
        }
        views.append(View(name, [heat], layout))
    about = "Row: after learning this task; column: how well that task is answered."
    return Chart("matrix", "Task by task", about, views) if len(names) > 1 else None


def _tables(learner: Learner) -> dict[str, np.ndarray]:
    """[after, of]: accuracies in percent where answers are right or wrong. Where some are neither, first what all
    tasks have: losses in units of each task's first."""
    loss, accuracy = (_square(learner.matrix[kind]) for kind in ("loss", "accuracy"))
    found = {ACCURACY: 100 * accuracy}
    if np.isnan(np.diagonal(accuracy)).any():
        first = np.diagonal(loss)
        found = {RATIO: loss / np.where(first > 0, first, np.nan)} | found
    return {name: table for name, table in found.items() if not np.isnan(table).all()}


def _square(rows: Sequence[Sequence[float | None]]) -> np.ndarray:
    """A row has the tasks there were by then; what was not measured is NaN."""
    table = np.full((len(rows), len(rows)), np.nan)
    for i, row in enumerate(rows):
        for j, value in enumerate(row[: i + 1]):
            table[i, j] = np.nan if value is None else value
    return table


def _numbers(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(f"{value:.4g}") for value in values]


# ---- pictures


@dataclass(frozen=True)
class Answers:
    """Test images of one task, and what is answered: pictures, or the names of classes."""

    title: str
    rows: dict[str, list[Picture | str]]
    """What is shown, and that of every image."""


def _answers(learner: Learner) -> list[Answers]:
    """Where the test data of all tasks is at hand; of images only, and not of vectors."""
    if not set(learner.tasks) <= set(learner.desk.tests):
        return []
    trainer = learner.standing()
    for place, name in enumerate(learner.tasks):
        trainer.tests[place] = learner.desk.tests[name].to(learner.desk.device)
    [found] = trainer.evaluator.samples(learner.tasks)
    grids = []
    for page in learner.book.finished:
        part = {kind: found.get(f"{page.name}.{kind}") for kind in ("input", "truth", "answer", "mask")}
        images, truth, answer, mask = part.values()
        if images is None or truth is None or answer is None or images.ndim != 4:
            continue
        names = learner.classes(page.name)
        rows: dict[str, list[Picture | str]] = {
            "image": [show_input(image, f"{page.name}: test image") for image in images]
        }
        for word, own in (("truth", truth), ("answer", answer)):
            if page.kind["kind"] == "classify":
                rows[word] = [_class_text(names, one) for one in own]
            elif page.kind.get("pooled"):
                rows[word] = [", ".join(f"{value:.3g}" for value in one.ravel()[:VALUES]) for one in own]
            else:
                hidden = [None] * len(own) if mask is None else mask
                rows[word] = [
                    show_target(*parts, f"{page.name}: {word}")
                    for parts in zip(own, truth, hidden, strict=True)
                ]
        grids.append(Answers(page.name, rows))
    return grids


def _class_text(names: Sequence[str], found: np.ndarray) -> str:
    """A class, or the likeliest of logits and how likely it is."""
    if found.ndim == 0:
        return names[int(found)]
    likely = np.exp(found.astype(np.float64) - found.max())
    return f"{names[int(likely.argmax())]} ({100 * likely.max() / likely.sum():.0f} %)"


def _shelf(learner: Learner) -> list[ShelfTask]:
    memory = learner.standing().memory
    if memory is None:
        return []
    tasks = []
    for j, name in enumerate(learner.tasks):
        shelf = memory.shelf(j)
        rows = shelf.rows_of(0, j)
        column = shelf.columns["x"][0] if shelf.stacked else shelf.columns["x"]
        if not len(rows) or column.dim() != 4:
            continue
        labels = [int(shelf.label[0, row]) for row in rows[:SHOWN]]
        names = learner.classes(name)
        words = [name if kind < 0 else f"{name}: {names[kind]}" for kind in labels]
        pictures = [
            show_input(column[int(row)].cpu().numpy(), about)
            for row, about in zip(rows[:SHOWN], words, strict=True)
        ]
        tasks.append(ShelfTask(name, len(rows), pictures))
    return tasks


# ---- words


def _ledger(learner: Learner) -> Table:
    kinds = list(
        dict.fromkeys(
            kind for line in learner.ledger for kind in line["bytes"] if kind not in ("total", "model")
        )
    )
    rows: list[list[str]] = []
    sort: list[Sequence[float | None]] = []
    for line in learner.ledger:
        own = [line["bytes"].get(kind, 0) for kind in kinds]
        share, total = line["m_per_task"], line["bytes"]["total"]
        rows.append(
            [line["after"], "–" if share is None else str(share), *map(show_bytes, own), show_bytes(total)]
        )
        sort.append([None, share, *own, total])
    return Table("ledger", "What is remembered", ["after", "examples a task", *kinds, "in all"], rows, sort)


def _settings(learner: Learner) -> list[tuple[str, str]]:
    made = {"encoder": learner.settings["encoder"] or "your own module"} | learner.settings["method"]
    made |= {name: value for name, value in learner.settings.items() if name not in UNSAID}
    # `room` 0 and what is None were not asked for.
    said = {name: value for name, value in made.items() if value is not None and (name, value) != ("room", 0)}
    return [
        (name, show_value(tuple(value) if isinstance(value, list) else value))
        for name, value in said.items()
        if name != "name"
    ]
