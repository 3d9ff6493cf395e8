"""The page's interactive charts, as Plotly's own data: each chart has one or more views to choose from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reprise.experiments import Metric
from reprise.report import curves
from reprise.report.read import Group
from reprise.report.sections import Section, summary_of
from reprise.values import show_bytes, show_value

COLOURS = {
    **{"sgd": "#8a8a8a", "multitask": "#5f9e6e", "ewc": "#9370c4", "agem": "#d98f1c", "er": "#3b7dc4"},
    **{"car": "#d1493a", "icarl": "#1f9e9e", "mer": "#a5764a", "hal": "#d068a8", "side_tuning": "#4b9b3f"},
    **{"derpp": "#6a6fd8", "lwf": "#a3a52e"},
}
OTHER = "#777777"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
LARGEST = 400
"""Views of one chart: beyond that a list to choose from helps nobody, and the page grows."""


@dataclass(frozen=True)
class View:
    """Traces and layout, in Plotly's words; colours of text and grid are the page's."""

    name: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    caption: str
    views: list[View]


def make_charts(sections: Sequence[Section]) -> list[Chart]:
    """Every chart that the records can fill."""
    charts = [
        Chart(
            "sequence",
            "Over the sequence",
            "The mean over the tasks seen so far, after each task; the band is one deviation over seeds. One group "
            "of runs for each method and memory size, that nearest to the default settings. Click a name to hide it.",
            [view for section in sections for view in _sequence(section)],
        ),
        Chart(
            "tasks",
            "Each task over the sequence",
            "One line a task, from the moment it was learnt to the end; mean over seeds.",
            [view for section in sections for view in _tasks(section)][:LARGEST],
        ),
        Chart(
            "frontier",
            "Forgetting against memory",
            "What is forgotten against the bytes a method keeps besides its model: left and low is better. Lines "
            "join one method's memory sizes; faint points are other settings. Bars are one deviation over seeds.",
            [view for section in sections for view in _frontier(section)],
        ),
        Chart(
            "tradeoff",
            "The λ_fm trade-off",
            "The weight of CAR's feature matching: what it keeps and what it costs. Bars are one deviation over "
            "seeds.",
            [view for section in sections for view in _tradeoff(section)],
        ),
        Chart(
            "matrix",
            "Task by task",
            "Row: after learning this task; column: how well that task is done. Mean over seeds.",
            [view for section in sections for view in _matrix(section)][:LARGEST],
        ),
    ]
    return [chart for chart in charts if chart.views]


def label(text: str) -> str:
    """Text for a chart: Plotly reads some HTML, so that names must not be any."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def colour(method: str) -> str:
    return COLOURS.get(method, OTHER)


def colour_of_place(place: int, places: int) -> str:
    """A colour for one of several lines that belong together."""
    return f"hsl({int(330 * place / places)}, 55%, 50%)"


def _styles(groups: Sequence[Group]) -> list[tuple[str, str, str]]:
    """Colour by method; dash and symbol by its place among the method's groups, the largest memory solid."""
    found = []
    for group in groups:
        own = sorted((g for g in groups if g.method == group.method), key=lambda g: -(g.m or 0))
        place = own.index(group)
        found.append((colour(group.method), DASHES[place % len(DASHES)], SYMBOLS[place % len(SYMBOLS)]))
    return found


def _sequence(section: Section) -> list[View]:
    groups = curves.main_groups(section)
    data: list[dict[str, Any]] = []
    names = curves.short_names(groups)
    longest = max((curves.matrices(group).shape[-1] for group in groups), default=0)
    unit = "%" if any(curves.has_accuracy(group) for group in groups) else ""
    for group, name, (ink, dash, symbol) in zip(groups, names, _styles(groups), strict=True):
        found = curves.sequence(group)
        if found is None:
            data += _reference_line(group, name, longest, ink)
            continue
        mean, std = found
        x = list(range(1, len(mean) + 1))
        if len(group.runs) > 1:
            band = {"x": x + x[::-1], "y": _round([*(mean + std), *(mean - std)[::-1]]), "fill": "toself"}
            band |= {
                "fillcolor": ink,
                "opacity": 0.12,
                "line": {"width": 0},
                "hoverinfo": "skip",
                "mode": "lines",
            }
            data.append({**band, "showlegend": False, "legendgroup": name, "type": "scatter"})
        line = {"color": ink, "dash": dash, "width": 2}
        marker = {"size": 6, "symbol": symbol}
        about = [f"± {value:.1f} over {len(group.runs)} seeds" for value in std]
        data.append(
            {
                **{
                    "type": "scatter",
                    "mode": "lines+markers",
                    "x": x,
                    "y": _round(mean),
                    "name": label(name),
                },
                **{"line": line, "marker": marker, "legendgroup": name, "text": about, "connectgaps": True},
                "hovertemplate": f"<b>{label(name)}</b><br>after %{{x}} tasks: %{{y:.2f}}{unit} %{{text}}"
                "<extra></extra>",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "tasks learnt"}, "dtick": 1 if longest <= 20 else 5},
        "yaxis": {"title": {"text": curves.sequence_title(section)}},
    }
    return [View(section.title, data, layout)] if any(len(t["x"]) > 2 for t in data) else []


def _reference_line(group: Group, name: str, tasks: int, ink: str) -> list[dict[str, Any]]:
    """Training on all tasks at once has no sequence: a level across the chart, where it is an accuracy."""
    if not curves.has_accuracy(group) or tasks < 2:
        return []
    level = round(float(curves.matrices(group)[:, -1].mean()), 3)
    about = f"<b>{label(name)}</b>, all tasks at once: {level:.2f}%<extra></extra>"
    line = {"color": ink, "dash": "dash", "width": 1.5}
    ends = {"x": [1, tasks], "y": [level, level], "mode": "lines", "type": "scatter"}
    return [{**ends, "line": line, "name": label(name), "hovertemplate": about}]


def _tasks(section: Section) -> list[View]:
    views = []
    for group in section.groups:
        table = curves.mean_matrix(group)
        tasks = len(table)
        if tasks < 2 or math.isnan(table[0, 0]):
            continue
        data = []
        for j, name in enumerate(curves.task_names(group)):
            shade = colour_of_place(j, tasks)
            data.append(
                {
                    **{"type": "scatter", "mode": "lines+markers", "name": label(name)},
                    **{"x": list(range(j + 1, tasks + 1)), "y": _round(table[j:, j])},
                    **{"line": {"color": shade, "width": 1.6}, "marker": {"size": 5}},
                    "hovertemplate": f"<b>{label(name)}</b> after %{{x}} tasks: %{{y:.3g}}<extra></extra>",
                }
            )
        title = "accuracy, %" if curves.has_accuracy(group) else "loss"
        layout = {
            "xaxis": {"title": {"text": "tasks learnt"}, "dtick": 1 if tasks <= 20 else 5},
            "yaxis": {"title": {"text": title}} | ({} if curves.has_accuracy(group) else {"type": "log"}),
        }
        views.append(View(f"{section.title} — {group.name}", data, layout))
    return views


def _forgetting(section: Section) -> Metric | None:
    return next((metric for metric in section.metrics if "forgetting" in metric.title), None)


def _frontier(section: Section) -> list[View]:
    metric = _forgetting(section)
    if metric is None:
        return []
    main = curves.main_groups(section)
    points = [(group, curves.kept_bytes(group), summary_of(group, metric)) for group in section.groups]
    shown = [(group, kept, s) for group, kept, s in points if kept is not None and s["mean"] is not None]
    if not shown:
        return []
    smallest = min((kept for _, kept, _ in shown if kept), default=1000)
    nothing = 10 ** math.floor(math.log10(smallest) - 0.5)
    data = []
    for method in dict.fromkeys(group.method for group, _, _ in shown):
        for faint in (True, False):
            own = [point for point in shown if point[0].method == method and (point[0] not in main) == faint]
            if own:
                data.append(_frontier_trace(method, sorted(own, key=lambda p: p[1]), metric, nothing, faint))
    layout = {
        "xaxis": {
            "title": {"text": "kept besides the model"},
            **_byte_axis(nothing, max(p[1] for p in shown)),
        },
        "yaxis": {"title": {"text": metric.title}, "rangemode": "tozero"},
        "hovermode": "closest",
    }
    return [View(section.title, data, layout)]


def _frontier_trace(
    method: str, own: Sequence[tuple[Group, int, Any]], metric: Metric, nothing: float, faint: bool
) -> dict[str, Any]:
    about = [
        f"<b>{label(group.name)}</b><br>{metric.title} {metric.show(s['mean'])}"
        + (f" ± {metric.show(s['std'])} over {s['n']} seeds" if s["n"] > 1 else ", one seed")
        + f"<br>{show_bytes(kept)} kept"
        for group, kept, s in own
    ]
    look: dict[str, Any] = {"marker": {"color": colour(method), "size": 6 if faint else 10}}
    if faint:
        look |= {"mode": "markers", "opacity": 0.35, "showlegend": False}
    else:
        look |= {"mode": "lines+markers", "line": {"color": colour(method), "width": 1.5}}
        errors = [round(s["std"], 5) if s["n"] > 1 else 0 for _, _, s in own]
        look["error_y"] = {"type": "data", "array": errors, "thickness": 1, "width": 3}
    return {
        **{"type": "scatter", "name": label(own[0][0].name.split(" · ")[0]), "legendgroup": method, **look},
        **{"x": [kept or nothing for _, kept, _ in own], "y": _round([s["mean"] for _, _, s in own])},
        **{"text": about, "hovertemplate": "%{text}<extra></extra>"},
    }


def _byte_axis(nothing: float, largest: int) -> dict[str, Any]:
    """A logarithmic axis with a place for methods that keep nothing."""
    first = round(math.log10(nothing))
    last = max(math.ceil(math.log10(max(largest, 10))), first + 1)
    ticks = [10.0**power for power in range(first, last + 1)]
    words = ["nothing", *(show_bytes(int(tick)).replace(".00", "").replace(".0", "") for tick in ticks[1:])]
    return {"type": "log", "tickvals": ticks, "ticktext": words, "range": [first - 0.3, last + 0.2]}


def _tradeoff(section: Section) -> list[View]:
    families = curves.lam_fm_series(section)
    metrics = section.metrics[:2]
    if not families or len(metrics) < 2:
        return []
    data = []
    for place, family in enumerate(families):
        rest = {name: value for name, value in family[0].differing.items() if name != "lam_fm"}
        words = [f"m={family[0].m}"] if family[0].m is not None else []
        words += [f"{name}={show_value(value)}" for name, value in rest.items()]
        name = label(" · ".join(words) or family[0].name.split(" · ")[0])
        ink = f"hsl({int(5 + 300 * place / len(families))}, 60%, 50%)"
        for axis, metric in zip(("y", "y2"), metrics, strict=True):
            summaries = [summary_of(group, metric) for group in family]
            errors = [round(s["std"] or 0.0, 5) for s in summaries]
            data.append(
                {
                    **{"type": "scatter", "mode": "lines+markers", "yaxis": axis, "name": name},
                    **{"legendgroup": str(place), "showlegend": axis == "y", "line": {"color": ink}},
                    **{"x": [group.configuration["lam_fm"] for group in family]},
                    **{"y": _round([s["mean"] for s in summaries]), "marker": {"size": 7}},
                    "error_y": {"type": "data", "array": errors, "thickness": 1, "width": 3},
                    "hovertemplate": f"λ_fm %{{x}}: {metric.title} %{{y:.3g}}<extra>{name}</extra>",
                }
            )
    weights = sorted({group.configuration["lam_fm"] for family in families for group in family})
    layout = {
        "xaxis": {"title": {"text": "λ_fm"}, "type": "log", "tickvals": weights, "anchor": "y2"}
        | {"ticktext": [f"{weight:g}" for weight in weights]},
        "yaxis": {"title": {"text": metrics[0].title}, "domain": [0.54, 1]},
        "yaxis2": {"title": {"text": metrics[1].title}, "domain": [0, 0.46]},
        "hovermode": "closest",
    }
    return [View(section.title, data, layout)]


def _matrix(section: Section) -> list[View]:
    views = []
    for group in section.groups:
        table = curves.mean_matrix(group)
        names = [label(name) for name in curves.task_names(group)]
        if len(table) < 2 or math.isnan(table[0, 0]):
            continue
        accuracy = curves.has_accuracy(group)
        if not accuracy:
            # Losses of different tasks have different scales: each column in units of its own first loss.
            table = table / table.diagonal()
        unit = "accuracy %{z:.1f}%" if accuracy else "%{z:.2f} times the loss right after the task"
        heat = {
            **{"type": "heatmap", "z": [_round(row) for row in table], "x": names, "y": names},
            **{"colorscale": "Viridis" if accuracy else "Magma", "reversescale": False, "xgap": 1, "ygap": 1},
            **{"colorbar": {"title": {"text": "accuracy, %" if accuracy else "loss ratio"}, "thickness": 12}},
            "hovertemplate": f"after %{{y}}, on %{{x}}: {unit}<extra></extra>",
        }
        if len(table) <= 12:
            heat |= {"texttemplate": "%{z:.0f}" if accuracy else "%{z:.1f}", "textfont": {"size": 11}}
        layout = {
            "xaxis": {"title": {"text": "evaluated on"}, "showgrid": False, "tickangle": -45},
            "yaxis": {"title": {"text": "after learning"}, "autorange": "reversed", "showgrid": False},
            "hovermode": "closest",
            "square": True,
        }
        views.append(View(f"{section.title} — {group.name}", [heat], layout))
    return views


def _round(values: Any) -> list[float | None]:
    """Four digits, and null for what is not there: JSON has no NaN."""
    return [None if value is None or math.isnan(value) else float(f"{value:.4g}") for value in values]
