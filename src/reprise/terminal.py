"""What a person sees on the terminal: progress bars with the time left, and the table of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from reprise.estimate import Estimate
from reprise.metrics import summarise
from reprise.peers import PEERS
from reprise.progress import Notice, Outlook, Report, Watch
from reprise.results import Record
from reprise.values import show_bytes, show_count, show_value

Stepped = Callable[[int, int, str], None]
"""Told the steps done, all steps, and what is being done."""


@contextmanager
def progress_bars(console: Console) -> Iterator[Watch]:
    """One bar for everything, one for each group or run under way; a line for each that ends where no one looks."""
    if not console.is_terminal:
        yield lambda said: _tell_line(console, said)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # Groups differ in speed, and evaluations stand between the steps: the time left follows the last minutes.
    with Progress(*columns, console=console, transient=True, speed_estimate_period=300) as bars:
        yield _Bars(bars)


@contextmanager
def step_bar(wish: Stepped | bool) -> Iterator[Stepped | None]:
    """Who is told of the steps of one run: a bar where there is a terminal, nobody, or the user's own function."""
    console = Console(stderr=True)
    if not isinstance(wish, bool):
        yield wish
        return
    if not wish or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        bar = bars.add_task("")
        yield lambda done, total, what: bars.update(bar, description=what, completed=done, total=total)


class _Bars:
    """The bars of a study. Progress is counted in steps of single runs: 20 lanes advance by 20 a step."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._whole: TaskID | None = None
        self._over = 0
        self._under_way: dict[str, tuple[TaskID, Report]] = {}

    def __call__(self, said: Outlook | Report | Notice) -> None:
        if isinstance(said, Notice):
            self._bars.console.print(said.text, highlight=False)
        elif isinstance(said, Report):
            self._follow(said)
        elif said.runs:
            runs = f"{said.runs} runs" if said.runs > 1 else "1 run"
            self._whole = self._bars.add_task(runs, total=float(said.steps))

    def _follow(self, report: Report) -> None:
        name = report.name
        bar = self._under_way[name][0] if name in self._under_way else self._bars.add_task(name)
        if report.over:
            self._bars.remove_task(bar)
            self._under_way.pop(name, None)
            self._over += report.weight
        else:
            about = f"{name} · {report.what}"
            self._bars.update(bar, description=about, completed=report.done, total=float(report.total))
            self._under_way[name] = (bar, report)
        if self._whole is not None:
            now = sum(last.weight for _, last in self._under_way.values())
            self._bars.update(self._whole, completed=self._over + now)


def _tell_line(console: Console, said: Outlook | Report | Notice) -> None:
    if isinstance(said, Notice):
        console.print(said.text, highlight=False, soft_wrap=True)
    elif (
        isinstance(said, Report) and said.over and said.what == "done"
    ):  # other ends have a sentence of their own
        line = f"{said.name}: {said.what} after {said.seconds:.1f} s"
        console.print(line, highlight=False, soft_wrap=True)


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


Columns = Mapping[str, Callable[[Sequence[Record]], str]]
"""What a table shows of the runs of one setting, by heading."""

_WHO: Columns = {
    "method": lambda runs: str(runs[0]["method"]),
    "m": lambda runs: "–" if runs[0]["m"] is None else str(runs[0]["m"]),
    "seeds": lambda runs: str(len(runs)),
}
_ACCURACIES: Columns = {
    "acc %": lambda runs: spread([r["accuracy"] for r in runs], 100, 1),
    "forgetting": lambda runs: spread([r["forgetting"] for r in runs], 1, 3),
    "learned %": lambda runs: spread([r["learning_accuracy"] for r in runs], 100, 1),
    "kept": lambda runs: show_bytes(runs[0]["bytes"]["total"]),
}
_LOSSES: Columns = {
    "forgetting %": lambda runs: spread([r["forgetting_percent"] for r in runs], 1, 1),
    "drop %": lambda runs: spread([r["performance_drop_percent"] for r in runs], 1, 1),
    "kept": lambda runs: show_bytes(runs[0]["bytes"]["total"]),
    "model": lambda runs: show_bytes(runs[0]["bytes"]["model"]),
}
_TIME: Columns = {"s": lambda runs: _seconds(sum(r["seconds"]["total"] for r in runs))}


def results_table(records: Sequence[Record], title: str) -> Table:
    """Mean ± deviation over the seeds of each method and memory size."""
    return _table(records, title, {**_WHO, **_ACCURACIES, **_TIME})


def scenes_table(records: Sequence[Record], title: str) -> Table:
    """Mean ± deviation over the seeds of each method: relative losses, since most tasks have no accuracy."""
    return _table(records, title, {**_WHO, **_LOSSES, **_TIME})


def _table(records: Sequence[Record], title: str, columns: Columns) -> Table:
    table = _narrow(title, tuple(columns), left=("method",))
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(_group(record), []).append(record)
    for members in groups.values():
        table.add_row(*(show(members) for show in columns.values()))
    return table


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}"


def ranking_table(ranked: Sequence[Mapping[str, Any]], title: str) -> Table:
    """The points of a grid, the best one first."""
    judged = "accuracy" in ranked[0]
    measures = ("acc %", "forgetting") if judged else ("loss", "forgetting %")
    table = _narrow(title, (*ranked[0]["setting"], "seeds", *measures))
    for row in ranked:
        if judged:
            shown = [(row["accuracy"], 100, 1), (row["forgetting"], 1, 3)]
        else:
            shown = [(row["loss"], 1, 4), (row["forgetting_percent"], 1, 1)]
        table.add_row(
            *map(show_value, row["setting"].values()),
            str(row["seeds"]),
            *(_mean_and_deviation(*one) for one in shown),
        )
    return table


def costs_table(estimates: Sequence[Estimate], title: str) -> Table:
    """What methods take beside each other: storage, a query of the last task, a step, the memory to train in."""
    # Headings of two lines: the words are longer than the numbers below them.
    headings = (
        "method",
        "m",
        "kept",
        "model",
        "query\nMAC",
        "last\nquery",
        "step\nFLOP",
        "step\nmoved",
        "to\ntrain",
    )
    table = _narrow(title, headings, left=("method",))
    for one in estimates:
        e, mean = one.experiment, one.steps["mean"]
        table.add_row(
            *(e.method_name, "–" if e.m is None else str(e.m)),
            *(show_bytes(one.kept_in_all), show_bytes(one.model)),
            *(show_count(one.macs_per_query[0]), show_count(one.macs_per_query[-1])),
            *(show_count(mean.flops), show_bytes(mean.moved), show_bytes(one.training)),
        )
    return table


def cost_tables(one: Estimate) -> list[Table]:
    """One method: what it keeps by kind, its queries task by task, its steps by sort."""
    kept = _narrow("kept", ("what", "size"), left=("what",))
    for kind, size in (*one.kept.items(), ("in all", one.kept_in_all)):
        kept.add_row(kind, show_bytes(size))
    queries = _narrow("one query", ("task", "MAC", "parameters"), left=("task",))
    for name, macs, parameters in zip(one.tasks, one.macs_per_query, one.parameters_per_query, strict=True):
        queries.add_row(name, show_count(macs), show_count(parameters))
    steps = _narrow("one training step of the last task", ("sort", "FLOP", "moved", "held"), left=("sort",))
    for sort, cost in one.steps.items():
        if sort == "mean" and len(one.steps) == 2:
            continue  # of one sort
        steps.add_row(sort, show_count(cost.flops), show_bytes(cost.moved), show_bytes(cost.held))
    return [kept, queries, steps]


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
        if "error" not in row and row["mode"] in ("eager", *PEERS):
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
