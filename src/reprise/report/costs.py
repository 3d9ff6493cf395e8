"""What methods cost: storage, model, a query of the first and of the last task, a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reprise.report.read import Group
from reprise.report.sections import Section, method_name
from reprise.report.text import Table, slug
from reprise.results import Record
from reprise.values import show_bytes, show_count

NOTE = (
    "A step is one of the last task, current and replaying ones in their shares. FLOPs are those of convolutions and "
    "matrix products; moved is what its operators read and write, held what waits for the backward pass."
)
HEADINGS = (
    *("method", "m", "kept", "model", "first query, MAC", "last query, MAC", "last query, ms"),
    *("step, FLOP", "moved", "held", "GPU peak"),
)


def cost_table(section: Section) -> Table | None:
    """A line for each group of a section; None where no record says what it cost."""
    lines = [_line(group) for group in section.groups if any(r.get("cost") for r in group.records)]
    if not lines:
        return None
    # Of numbers that no record has, not even the heading is of use.
    shown = [i for i in range(len(HEADINGS)) if any(line[i][0] != "–" for line in lines)]
    rows = [[line[i][0] for i in shown] for line in lines]
    sort = [[line[i][1] for i in shown] for line in lines]
    title = f"{section.title}: costs"
    return Table(slug(f"cost {section.title}"), title, [HEADINGS[i] for i in shown], rows, sort, NOTE)


def _line(group: Group) -> list[tuple[str, float | None]]:
    """Cells, and the numbers that they are sorted by."""
    records = group.records
    bytes_, cost = records[0].get("bytes") or {}, _first(records, "cost")
    macs, seconds = cost.get("macs_per_query") or [], cost.get("seconds_per_query") or []
    peaks = [(r.get("cost") or {}).get("peak_memory") for r in records]
    peak = max((p for p in peaks if p is not None), default=None)
    return [
        (method_name(group.method), None),
        ("–" if group.m is None else str(group.m), group.m),
        _cell(bytes_.get("total"), show_bytes),
        _cell(bytes_.get("model"), show_bytes),
        _cell(macs[0] if macs else None, show_count),
        _cell(macs[-1] if macs else None, show_count),
        _cell(seconds[-1] if seconds else None, lambda n: f"{1000 * n:.2f}"),
        _cell(cost.get("flops_per_step"), show_count),
        _cell(cost.get("bytes_moved_per_step"), show_bytes),
        _cell(cost.get("bytes_held_by_step"), show_bytes),
        _cell(peak, show_bytes),
    ]


def _first(records: Sequence[Record], key: str) -> dict[str, Any]:
    return next((record[key] for record in records if record.get(key)), {})


def _cell(number: float | None, show: Any) -> tuple[str, float | None]:
    return ("–", None) if number is None else (show(number), float(number))
