"""What a person sees on the terminal: progress bars with the time left, and the table of results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from reprise.metrics import summarise
from reprise.results import Record
from reprise.runner import Watch


@contextmanager
def progress_bars(console: Console, jobs: int) -> Iterator[Watch]:
    """One bar for everything, with the time left, and one for each run under way."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task(f"{jobs} runs" if jobs > 1 else "1 run", total=float(jobs))
        known: dict[str, tuple[int, float]] = {}

        def watch(name: str, done: int, total: int, what: str) -> None:
            if name not in known:
                known[name] = (bars.add_task(name, total=float(total)), 0.0)
            bar, before = known[name]
            # A group of lanes is as many runs as it has lanes.
            runs = int(name.split(" lanes")[0]) if " lanes" in name else 1
            share = runs * done / max(total, 1)
            bars.update(bar, completed=done, description=f"{name} · {what}", visible=done < total)
            bars.advance(whole, share - before)
            known[name] = (bar, share)

        yield watch


def results_table(records: Sequence[Record], title: str) -> Table:
    """Mean ± deviation over the seeds of each method and memory size."""
    table = Table(title=title, title_justify="left")
    for heading in (
        "method",
        "m",
        "seeds",
        "accuracy %",
        "forgetting",
        "learning acc. %",
        "kept bytes",
        "seconds",
    ):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(_group(record), []).append(record)
    for (method, *_), members in groups.items():
        first = members[0]
        table.add_row(
            str(method),
            "–" if first["m"] is None else str(first["m"]),
            str(len(members)),
            spread([r["accuracy"] for r in members], 100, 1),
            spread([r["forgetting"] for r in members], 1, 3),
            spread([r["learning_accuracy"] for r in members], 100, 1),
            f"{first['bytes']['total']:,}",
            f"{sum(r['seconds']['total'] for r in members):.1f}",
        )
    return table


def _group(record: Record) -> tuple[object, ...]:
    own = {k: v for k, v in record["configuration"].items() if k != "data"}
    return record["method"], record["m"], str(sorted(own.items(), key=str))


def spread(values: Sequence[float | None], scale: float, digits: int) -> str:
    """`62.4 ± 1.5`, with the deviation over all seeds (ddof 0); a dash where there is no such number."""
    summary = summarise([None if value is None else scale * value for value in values])
    if summary["mean"] is None:
        return "–"
    if summary["n"] == 1:
        return f"{summary['mean']:.{digits}f}"
    return f"{summary['mean']:.{digits}f} ± {summary['std']:.{digits}f}"
