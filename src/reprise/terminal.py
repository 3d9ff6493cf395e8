"""What a person sees on the terminal: progress bars with the time left, and the table of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from reprise.metrics import summarise
from reprise.results import Record
from reprise.runner import Watch
from reprise.values import show_bytes, show_value


@contextmanager
def progress_bars(console: Console, jobs: int) -> Iterator[Watch]:
    """One bar for everything, with the time left, and one for each run under way; a line a run where no one looks."""
    if not console.is_terminal:
        yield lambda name, done, total, what: _tell_end(console, name, what)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task(f"{jobs} runs" if jobs > 1 else "1 run", total=float(jobs))
        known: dict[str, tuple[TaskID, float]] = {}

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


def _tell_end(console: Console, name: str, what: str) -> None:
    if what == "done":
        console.print(f"{name}: done", highlight=False)


@contextmanager
def measuring_bar(console: Console, rows: int) -> Iterator[Callable[[str, int, int], None]]:
    """A bar over the rows of a benchmark, drawn only when it is told something: never while a step is timed."""
    if not console.is_terminal:

        def say(name: str, done: int, total: int) -> None:
            if done == total:
                console.print(f"{name}: done", highlight=False)

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bars:
        bar, begun = bars.add_task("set-up", total=float(rows)), 0

        def draw(name: str, done: int, total: int) -> None:
            nonlocal begun
            begun += done == 0  # a row that fails never ends, but the next one begins
            bars.update(bar, completed=begun - 1 + done / total, description=name, refresh=True)

        yield draw


def results_table(records: Sequence[Record], title: str) -> Table:
    """Mean ± deviation over the seeds of each method and memory size."""
    headings = ("method", "m", "seeds", "acc %", "forgetting", "learned %", "kept", "s")
    table = _narrow(title, headings, left=("method",))
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(_group(record), []).append(record)
    for (method, *_), members in groups.items():
        first, seconds = members[0], sum(r["seconds"]["total"] for r in members)
        table.add_row(
            str(method),
            "–" if first["m"] is None else str(first["m"]),
            str(len(members)),
            spread([r["accuracy"] for r in members], 100, 1),
            spread([r["forgetting"] for r in members], 1, 3),
            spread([r["learning_accuracy"] for r in members], 100, 1),
            show_bytes(first["bytes"]["total"]),
            f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}",
        )
    return table


def ranking_table(ranked: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The points of a grid, the best one first."""
    table = _narrow(title, (*ranked[0]["setting"], "seeds", "acc %", "forgetting"))
    for row in ranked:
        accuracy, forgetting = row["accuracy"], row["forgetting"]
        table.add_row(
            *map(show_value, row["setting"].values()),
            str(row["seeds"]),
            _mean_and_deviation(accuracy, 100, 1),
            _mean_and_deviation(forgetting, 1, 3),
        )
    return table


def bench_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The rows of a benchmark; the last columns say how many times faster a lane's step is than each peer's.

    The slowest peer comes last. Without peers the step driven from the host, at its slowest, takes their place.
    """
    references = _references(rows)
    # A heading of two lines: the names of the peers are longer than any number below them.
    ratios = [f"{mode} ×".replace("-", "\n", 1) for mode in references]
    headings = ("mode", "K", "prec", "ms/step", "ms/lane", "memory", *ratios)
    table = _narrow(title, headings, left=("mode",))
    for row in rows:
        if "error" in row:
            table.add_row(row["mode"], str(row["K"]), row["precision"], "failed")
            continue
        a_lane, memory = row["ms_per_lane_step"], row["peak_memory_bytes"]
        table.add_row(
            row["mode"],
            str(row["K"]),
            row["precision"],
            _three_digits(row["ms_per_step"]),
            _three_digits(a_lane),
            "–" if memory is None else show_bytes(memory),
            *(f"{slow / a_lane:.2f}" for slow in references.values()),
        )
    return table


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _references(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What others are compared with: milliseconds of each peer at its slowest, ascending, or else of `eager`."""
    slowest: dict[str, float] = {}
    for row in rows:
        if "error" not in row and row["mode"] not in ("graph", "lanes"):
            slowest[row["mode"]] = max(row["ms_per_lane_step"], slowest.get(row["mode"], 0.0))
    eager = {mode: slowest.pop(mode) for mode in ("eager",) if mode in slowest}
    return dict(sorted(slowest.items(), key=lambda item: item[1])) or eager


def spread(values: Sequence[float | None], scale: float, digits: int) -> str:
    """`62.4 ± 1.5`, with the deviation over all seeds (ddof 0); a dash where there is no such number."""
    return _mean_and_deviation(summarise(values), scale, digits)


def _mean_and_deviation(summary: Mapping[str, Any], scale: float, digits: int) -> str:
    if summary["mean"] is None:
        return "–"
    mean, deviation = scale * summary["mean"], scale * summary["std"]
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if summary["n"] > 1 else "")


def _narrow(title: str, headings: Sequence[str], left: Sequence[str] = ()) -> Table:
    """A table without frame: eight columns with deviations fit into 80 characters, and no number is broken."""
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
    table = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), **look)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    return table


def _group(record: Record) -> tuple[object, ...]:
    own = {k: v for k, v in record["configuration"].items() if k != "data"}
    return record["method"], record["m"], str(sorted(own.items(), key=str))
