"""The report's figures as PNG and PDF, for papers and slides."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from reprise.report import curves
from reprise.report.charts import colour
from reprise.report.leftovers import Grid, Panel
from reprise.report.read import Group
from reprise.report.sections import Section, summary_of
from reprise.report.text import slug
from reprise.values import show_bytes

LINES = ("-", "--", ":", "-.")
LOOK: Any = {
    **{"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True},
    **{"grid.color": "#e4e4e4", "grid.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": 8},
    # Names are text, never formulas: a `$` in one must not be read as mathematics.
    **{"text.parse_math": False, "pdf.fonttype": 42},
}


def write_figures(
    folder: Path, sections: Sequence[Section], panels: Sequence[Panel], grids: Sequence[Grid]
) -> list[Path]:
    """Draw all there is to draw; the files written."""
    written = []
    with matplotlib.rc_context(LOOK), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        for name, figure in _figures(sections, panels, grids):
            for ending, more in (
                ("png", {"Software": None}),
                ("pdf", {"CreationDate": None, "Producer": None}),
            ):
                path = folder / f"{name}.{ending}"
                figure.savefig(path, dpi=160, bbox_inches="tight", metadata=more)
                written.append(path)
    return written


def _figures(
    sections: Sequence[Section], panels: Sequence[Panel], grids: Sequence[Grid]
) -> Iterator[tuple[str, Figure]]:
    for section in sections:
        for kind, draw in (
            ("sequence", _sequence),
            ("frontier", _frontier),
            ("tradeoff", _tradeoff),
            ("matrix", _matrices),
        ):
            figure = draw(section)
            if figure is not None:
                yield f"{kind}-{slug(section.title)}", figure
    if panels:
        yield "drift", _drift(panels)
    for grid in grids:
        yield f"predictions-{slug(grid.title)}", _grid(grid)


def _sequence(section: Section) -> Figure | None:
    groups = curves.main_groups(section)
    names = curves.short_names(groups)
    figure = Figure(figsize=(7.2, 4.2))
    axes = figure.subplots()
    for group, name in zip(groups, names, strict=True):
        found = curves.sequence(group)
        if found is None:
            if curves.has_accuracy(group):
                level = float(curves.matrices(group)[:, -1].mean())
                axes.axhline(level, color=colour(group.method), linestyle="--", linewidth=1, label=name)
            continue
        mean, std = found
        tasks = np.arange(1, len(mean) + 1)
        own = sorted((g for g in groups if g.method == group.method), key=lambda g: -(g.m or 0))
        line = LINES[own.index(group) % len(LINES)]
        axes.plot(tasks, mean, line, color=colour(group.method), label=name, linewidth=1.6)
        axes.fill_between(tasks, mean - std, mean + std, color=colour(group.method), alpha=0.12, linewidth=0)
    if not axes.has_data():
        return None
    axes.set(xlabel="tasks learnt", ylabel=curves.sequence_title(section), title=section.title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def _frontier(section: Section) -> Figure | None:
    metric = next((metric for metric in section.metrics if "forgetting" in metric.title), None)
    if metric is None:
        return None
    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.subplots()
    by_method: dict[str, list[Group]] = {}
    for group in curves.main_groups(section):
        if curves.kept_bytes(group) is not None and summary_of(group, metric)["mean"] is not None:
            by_method.setdefault(group.method, []).append(group)
    if not by_method:
        return None
    for method, groups in by_method.items():
        groups.sort(key=lambda group: curves.kept_bytes(group) or 0)
        summaries = [summary_of(group, metric) for group in groups]
        axes.errorbar(
            [curves.kept_bytes(group) or 0 for group in groups],
            [s["mean"] or 0.0 for s in summaries],
            yerr=[s["std"] or 0.0 for s in summaries],
            color=colour(method),
            marker="o",
            capsize=2,
            linewidth=1.2,
            label=groups[0].name.split(" · ")[0],
        )
    smallest = min(
        (b for groups in by_method.values() for g in groups if (b := curves.kept_bytes(g))), default=1000
    )
    axes.set_xscale("symlog", linthresh=smallest / 3, linscale=0.3)
    axes.xaxis.set_major_formatter(lambda value, _: show_bytes(int(value)) if value else "nothing")
    axes.set(xlabel="kept besides the model", ylabel=metric.title, title=section.title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def _tradeoff(section: Section) -> Figure | None:
    families, metrics = curves.lam_fm_series(section), section.metrics[:2]
    if not families or len(metrics) < 2:
        return None
    figure = Figure(figsize=(6.4, 5.2))
    both = figure.subplots(2, sharex=True)
    for place, family in enumerate(families):
        weights = [group.configuration["lam_fm"] for group in family]
        rest = [part for part in family[0].name.split(" · ") if not part.startswith("lam_fm=")]
        for axes, metric in zip(both, metrics, strict=True):
            summaries = [summary_of(group, metric) for group in family]
            axes.errorbar(
                weights,
                [s["mean"] or 0.0 for s in summaries],
                yerr=[s["std"] or 0.0 for s in summaries],
                marker="o",
                capsize=2,
                color=f"C{place}",
                label=" · ".join(rest),
            )
            axes.set_ylabel(metric.title)
            axes.set_xscale("log")
    both[1].set_xlabel("λ_fm")
    both[0].set_title(section.title)
    both[0].legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def _matrices(section: Section) -> Figure | None:
    groups = [group for group in curves.main_groups(section) if curves.sequence(group) is not None]
    if not groups:
        return None
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.9 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, group, name in zip(grid.flat, groups, curves.short_names(groups), strict=False):
        table = curves.mean_matrix(group)
        accuracy = curves.has_accuracy(group)
        shown = table if accuracy else table / table.diagonal()
        axes.set_axis_on()
        image = axes.imshow(shown, cmap="viridis" if accuracy else "magma", vmin=0 if accuracy else None)
        axes.grid(False)
        axes.set_title(name, fontsize=8)
        axes.set(xlabel="evaluated on", ylabel="after learning")
        figure.colorbar(image, ax=axes, shrink=0.8)
    figure.suptitle(section.title + (": accuracy, %" if curves.has_accuracy(groups[0]) else ": loss ratio"))
    return figure


def _drift(panels: Sequence[Panel]) -> Figure:
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.2 * columns, 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.scatter(*panel.then.T, s=5, c="#d1493a", alpha=0.7, linewidths=0, label="right after the task")
        axes.scatter(*panel.now.T, s=5, c="#3b7dc4", alpha=0.7, linewidths=0, label="at the end")
        axes.set_title(panel.title, fontsize=8, wrap=True)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=2)
    return figure


def _grid(grid: Grid) -> Figure:
    rows, columns = len(grid.rows), len(grid.headings)
    figure = Figure(figsize=(1.5 * columns, 1.6 * rows), layout="constrained")
    cells = figure.subplots(rows, columns, squeeze=False)
    for row, pictures in enumerate(grid.rows):
        for axes, shown, heading in zip(cells[row], pictures, grid.headings, strict=True):
            axes.imshow(shown.pixels, interpolation="nearest")
            axes.set_axis_off()
            if row == 0:
                axes.set_title(heading, fontsize=8)
    figure.suptitle(grid.title, fontsize=9)
    return figure
