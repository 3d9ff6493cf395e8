"""One self-contained page: tables, charts, pictures, the charts' library. It asks nothing of the network."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

import reprise
from reprise.report import leftovers
from reprise.report.charts import Chart, View, make_charts
from reprise.report.costs import cost_table
from reprise.report.leftovers import Panel
from reprise.report.read import Found
from reprise.report.sections import Section
from reprise.report.sheets import NOT_COMPARABLE, Entry, Filled
from reprise.report.text import section_table, slug
from reprise.values import show_value

MARKS = {
    **{"agrees": "good", "better than printed": "good", "worse than printed": "bad"},
    **{NOT_COMPARABLE: "plain", "one seed": "plain"},
}
"""How verdicts are coloured."""
PARTS = {
    **{"split_cifar": "Split-CIFAR", "split_miniimagenet": "Split-miniImageNet"},
    **{"sequence_1": "Taskonomy, sequence 1", "sequence_2": "Taskonomy, sequence 2"},
}
PLACE = ("commit", "device_name", "device", "torch", "python", "numpy", "system", "threads")
"""What is said of where a run took place, in this order."""


@dataclass(frozen=True)
class PanelView:
    """A panel as the page shows it."""

    title: str
    numbers: str
    chart: Chart


@dataclass(frozen=True)
class SheetCell:
    """A number of the paper beside ours."""

    measured: str
    printed: str
    more: str
    verdict: str
    mark: str
    sort: float | None


def make_page(
    found: Found,
    sections: Sequence[Section],
    filled: Sequence[Filled],
    panels: Sequence[Panel],
    embed_images: bool,
) -> str:
    """The page's HTML. Everything that comes from records is escaped by the template."""
    charts = make_charts(sections)
    costs = [table for section in sections if (table := cost_table(section))]
    panel_runs: dict[str, list[PanelView]] = {}
    for index, panel in enumerate(panels):
        view = PanelView(panel.task, panel.numbers, _panel_chart(index, panel))
        panel_runs.setdefault(panel.run, []).append(view)
    drawn = [*charts, *(view.chart for views in panel_runs.values() for view in views)]
    return template("page.html").render(
        title="Continual learning report",
        lead=_lead(found, sections),
        contents=_contents(bool(filled), bool(costs), charts),
        **fixtures(drawn),
        tables=[section_table(section) for section in sections],
        costs=costs,
        sheets=[_sheet(one) for one in filled],
        charts=charts,
        panels=panel_runs,
        drift_table=leftovers.drift_table(sections),
        grids=leftovers.prediction_grids(sections, embed_images),
        shelves=leftovers.memory_shelves(sections, embed_images),
        missing={
            "features": "Feature drift: no run in this store left features; add --artifacts features to a run.",
            "predictions": leftovers.why_missing(found.groups, "samples", "Dense predictions"),
            "memory": leftovers.why_missing(found.groups, "memory", "Memory"),
        },
        sections=[_described(section) for section in sections],
        footer=f"Made by reprise {reprise.__version__} from the records named above; nothing here is typed by hand.",
    )


def template(name: str) -> Template:
    """A template of ours; what it is given is escaped."""
    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=False, loader=FunctionLoader(_asset)
    ).get_template(name)


def fixtures(charts: Sequence[Chart]) -> dict[str, Markup]:
    """What every page carries: style, scripts, and the data of its charts."""
    return {
        "css": Markup(_asset("page.css")),
        "js": Markup(_asset("page.js")),
        "plotly": Markup(packed_plotly()),
        "data": _json({"charts": [asdict(chart) for chart in charts]}),
    }


def _asset(name: str) -> str:
    return files("reprise.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def packed_plotly() -> str:
    """Plotly's script as base64 of gzip, a third of its size; the page unpacks it. The same bytes every time."""
    script = files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(script, compresslevel=9, mtime=0)).decode()


def _json(content: dict[str, Any]) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _lead(found: Found, sections: Sequence[Section]) -> str:
    streams = ", ".join(dict.fromkeys(group.stream for group in found.groups))
    groups = len(found.groups)
    text = f"{found.runs} runs of {groups} configuration{'s' if groups != 1 else ''} on {streams}."
    if found.repeated:
        text += f" {found.repeated} more repeat a configuration and seed and are left out: the first one read counts."
    return text


def _contents(paper: bool, costs: bool, charts: Sequence[Chart]) -> list[tuple[str, str]]:
    links = [("results", "Results")] + ([("paper", "Beside the paper")] if paper else [])
    links += [("costs", "Costs")] if costs else []
    links += [(chart.id, chart.title) for chart in charts]
    return [
        *links,
        ("drift", "Drift"),
        ("predictions", "Predictions"),
        ("memory", "Memory"),
        ("runs", "Runs"),
    ]


def _sheet(filled: Filled) -> dict[str, Any]:
    """A table in the paper's own shape: a row a method or setting, a column a memory size and metric."""
    parts = []
    for part in filled.sheet.parts:
        own = [entry for entry in filled.entries if entry.place.part == part]
        columns = list(dict.fromkeys((entry.place.column, entry.metric.title) for entry in own))
        rows: dict[str, dict[tuple[str, str], SheetCell]] = {}
        for entry in own:
            rows.setdefault(entry.place.row, {})[entry.place.column, entry.metric.title] = _sheet_cell(entry)
        headings = [f"{_memory(column)}{metric}" for column, metric in columns]
        lines = [(row, [cells.get(column) for column in columns]) for row, cells in rows.items()]
        name = slug(f"{filled.sheet.name} {part}")
        parts.append({"id": name, "name": PARTS.get(part, part), "headings": headings, "rows": lines})
    return {
        "title": filled.sheet.title,
        "said": f"{filled.measured} of {len(filled.entries)} numbers measured",
        "baseline": filled.sheet.baseline,
        "note": filled.sheet.note,
        "parts": parts,
    }


def _memory(column: str) -> str:
    return f"m = {column[1:]}: " if column[1:].isdigit() else ""


def _sheet_cell(entry: Entry) -> SheetCell:
    summary, group = entry.summary, entry.group
    more = []
    if group is not None:
        more = [group.stream, f"{summary['n']} seed{'s' if summary['n'] != 1 else ''}"]
        more += [f"Δ {entry.difference_text}"] if entry.difference is not None else []
        more += [entry.settings_text] if entry.differing else []
    verdict = entry.verdict if entry.printed is not None or group is not None else ""
    mark = MARKS.get(verdict, "plain")
    return SheetCell(
        entry.measured_text, entry.printed_text, " · ".join(more), verdict, mark, summary["mean"]
    )


def _panel_chart(index: int, panel: Panel) -> Chart:
    traces = [
        {
            **{"type": "scatter", "mode": "markers", "name": name, "showlegend": False},
            **{"x": _short(points[:, 0]), "y": _short(points[:, 1])},
            **{"marker": {"size": 4, "color": ink, "opacity": 0.7}},
            "hovertemplate": f"example %{{pointNumber}}, {name}<extra></extra>",
        }
        for name, points, ink in (
            ("right after the task", panel.then, "var(--then)"),
            ("at the end", panel.now, "var(--now)"),
        )
    ]
    bare = {"visible": False}
    layout = {"xaxis": bare, "yaxis": {**bare, "scaleanchor": "x"}, "small": True}
    return Chart(f"panel-{index}", panel.title, "", [View("", traces, layout)])


def _short(values: Any) -> list[float]:
    return [round(float(value), 2) for value in values]


def _described(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "groups": [
            {
                "name": group.name,
                "hash": group.hash,
                "seeds": "seeds " + ", ".join(map(str, group.seeds)),
                "configuration": [(name, _value(value)) for name, value in group.configuration.items()],
                "places": _places(group.runs),
            }
            for group in section.groups
        ],
    }


def _value(value: Any) -> str:
    return show_value(tuple(value) if isinstance(value, list) else value)


def _places(runs: Sequence[Any]) -> list[str]:
    """Where the runs took place and were found, each place once with its seeds."""
    seeds: dict[str, list[int]] = {}
    for run in runs:
        where = run.record.get("environment") or {}
        known = [f"{name} {where[name]}" for name in PLACE if where.get(name) is not None]
        text = ", ".join([*known, f"reprise {run.record.get('version')}", f"from {run.source}"])
        seeds.setdefault(text, []).append(run.record["seed"])
    return [
        f"Seed{'s' if len(own) > 1 else ''} {', '.join(map(str, own))}: {text}" for text, own in seeds.items()
    ]
