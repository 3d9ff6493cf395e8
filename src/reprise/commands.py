"""What each command does, given plain values: `cli.py` reads them from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from reprise import peers, tune
from reprise.bench import Bench, Report, make_cases, measure
from reprise.config import Experiment, Setting, field_hints, make_experiment
from reprise.errors import Diverged, InputError
from reprise.estimate import Estimate
from reprise.experiments import find_scale
from reprise.experiments.reproduce import find_sheets, run_sheets
from reprise.first_weights import read_weights
from reprise.forking import Fork
from reprise.keeping import Saving
from reprise.methods import METHODS
from reprise.pictures import draw_grids
from reprise.ranks import follows
from reprise.reference import run_compared
from reprise.results import Record, folder_of, to_json, write_json
from reprise.runner import run_experiments
from reprise.streams import STREAMS, stream_kind
from reprise.terminal import (
    bench_table,
    cost_tables,
    costs_table,
    measuring_bar,
    progress_bars,
    ranking_table,
    results_table,
    scenes_table,
    spread,
)
from reprise.values import show_bytes, show_value

DEMO = "rooms"
DEMO_METHODS = ("sgd", "er", "car", "multitask")
DEMO_SETTINGS: dict[str, Any] = {"steps": 100, "buildings": "24,1,3"}
"""What the demo asks for in place of the stream's protocol: half the rooms and two thirds of the steps still show who
forgets, in a few minutes on two cores."""
STORE = Path("runs")
"""Where results go that are given no folder."""


@dataclass(frozen=True)
class Request:
    """What the user asks for: a stream, a method, some of the experiment's fields, and how to run it."""

    stream: str
    method: str
    fields: Mapping[str, Any]
    setting: Setting
    json: bool = False
    """Print one JSON record per run on stdout, and nothing else."""
    fork: Fork | None = None
    """Where the runs begin, if not at the beginning."""

    @property
    def protocol(self) -> Mapping[str, Any]:
        return stream_kind(self.stream).protocol_of(self.method)

    @property
    def running(self) -> dict[str, Any]:
        s = self.setting
        return {
            **{"seeds": s.seeds, "data": s.data, "device": s.device, "lanes": s.lanes, "ray": s.ray},
            **{"workers": s.workers, "compiled": s.compile, "artifacts": s.artifacts, "log": s.log},
        }

    @property
    def saving(self) -> Saving:
        s = self.setting
        return Saving(s.save_steps, s.save_minutes, s.keep, s.save_tasks)

    def begun(self, experiments: Sequence[Experiment]) -> list[Experiment]:
        """The experiments with the first weights asked for; only the rank that writes looks at the file."""
        path = self.setting.weights
        if path is None or follows():
            return list(experiments)
        read = {name: read_weights(path, name) for name in dict.fromkeys(e.encoder for e in experiments)}
        return [replace(e, first_weights=read[e.encoder]) for e in experiments]


def run(request: Request) -> None:
    """Train one method on one stream."""
    experiment = make_experiment(request.stream, request.method, request.fields, request.protocol)
    (experiment,) = request.begun([experiment])
    if request.fork is not None:
        experiment = replace(experiment, start=request.fork.start)
    out = request.setting.out
    with progress_bars(Console(stderr=True, quiet=follows())) as watch:
        runs = run_compared(
            [experiment],
            **request.running,
            store=STORE,
            out=out,
            train=request.setting.compare,
            watch=watch,
            saving=request.saving,
            fork=request.fork,
        )
        records = list(_said(runs, request.json))
    if records and not request.json:
        records.sort(key=lambda record: (record["method"] != request.method, record["seed"]))
        scenes = stream_kind(request.stream).reference_steps is not None
        title = request.stream if scenes else f"{request.stream}, {experiment.scenario}-incremental"
        Console().print(scenes_table(records, title) if scenes else results_table(records, title))
        if scenes and not METHODS[request.method].merged and records[0]["reference"] is None:
            Console().print(
                "The performance drop is unknown until the multi-task reference is there: add --compare true.",
                highlight=False,
            )
        folder = out or STORE / folder_of(records[0]["configuration"])
        Console().print(f"Records: {folder}", highlight=False, soft_wrap=True)


def search(request: Request, grid_lines: Sequence[str]) -> None:
    """Search a grid on the validation tasks."""
    stream, method = request.stream, request.method
    grid = tune.parse_grid(grid_lines, method)
    if not grid:
        grid.update(tune.default_grid(make_experiment(stream, method, request.fields, request.protocol)))
    experiments = request.begun(tune.grid_experiments(stream, method, request.fields, grid, request.protocol))
    store = request.setting.out or STORE
    records: list[Record] = []
    with progress_bars(Console(stderr=True, quiet=follows())) as watch:
        try:
            saving = replace(request.saving, tasks=False)  # nobody goes on from a point of a search
            runs = run_experiments(experiments, **request.running, store=store, watch=watch, saving=saving)
            for record in _said(runs, request.json):
                records.append(record)
        except Diverged as error:  # a point of the grid that went too far is no reason to lose the others
            if not records:
                raise
            sys.stderr.write(f"reprise: {error}\n")
    if follows():
        return
    ranked = tune.rank(records, list(grid))
    content = {"grid": {name: list(values) for name, values in grid.items()}, "ranked": ranked}
    write_json(store / f"tune-{stream}-{method}.json", content)
    if not request.json:
        Console().print(ranking_table(ranked, f"{method} on the validation tasks of {stream}"))
        best = " ".join(f"--{name} {show_value(value)}" for name, value in ranked[0]["setting"].items())
        Console().print(
            f"Best: reprise run {stream} --method {method} {best}", highlight=False, soft_wrap=True
        )


def demo(setting: Setting, fields: Mapping[str, Any]) -> None:
    """The embedded default: nothing to download, a few minutes on a laptop."""
    kind, store = stream_kind(DEMO), setting.out or Path("demo")
    experiments = [
        make_experiment(DEMO, name, DEMO_SETTINGS | dict(fields), kind.protocol_of(name))
        for name in DEMO_METHODS
        if not METHODS[name].merged
    ]
    with progress_bars(Console(stderr=True, quiet=follows())) as watch:
        runs = run_compared(
            experiments, setting.seeds, store, train=True, workers=setting.workers, watch=watch
        )
        records = list(runs)
    order = {name: place for place, name in enumerate(DEMO_METHODS)}
    records.sort(key=lambda record: (order[record["method"]], record["seed"]))
    console, e = Console(), experiments[0]
    tasks = len(records[0]["matrix"]["loss"])
    console.print(scenes_table(records, f"rooms: {tasks} tasks in a row, {e.steps} steps each"))
    sgd, er = (
        spread([r["forgetting_percent"] for r in records if r["method"] == name], 1, 0)
        for name in ("sgd", "er")
    )
    pictures = draw_grids(records, store, setting.seeds[0])
    console.print(
        f"Learning the tasks in a row raises the losses of old ones by {sgd} % with plain training, and by {er} % "
        f"where {e.m} images a task are remembered and replayed.\nPictures: {pictures[0]}\nRecords: {store}",
        highlight=False,
        soft_wrap=True,
    )


def bench(wanted: Bench) -> int:
    """Time a training step in every way it can be driven, and the peers'; the exit code: 1 where all rows failed."""
    cases = make_cases(wanted)
    report = Report(wanted)
    with measuring_bar(Console(stderr=True), len(cases)) as tell:
        for case in cases:
            report.add(measure(case, wanted, tell))
    console = Console()
    title = f"{wanted.method}, Split-CIFAR shapes, {wanted.encoder}, {wanted.place.type}"
    console.print(bench_table(report.rows, title))
    lines = [row["error"] for row in report.rows if "error" in row]
    if wanted.peers and (absent := peers.available()) is not None:
        lines.append(absent)
    for line in [*lines, f"File: {report.path}"]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0 if any("error" not in row for row in report.rows) else 1


def cost(stream: str, methods: Sequence[str], fields: Mapping[str, Any], json: bool) -> None:
    """What methods on a stream take, from shapes: no data is read, nothing is trained."""
    estimates, refusals, console = list[Estimate](), list[str](), Console()
    for name in methods:
        own = {field: value for field, value in fields.items() if field in field_hints(name)}
        try:
            estimates.append(
                Estimate(make_experiment(stream, name, own, stream_kind(stream).protocol_of(name)))
            )
        except InputError as error:
            if len(methods) == 1:
                raise
            refusals.append(str(error))
    if not estimates:
        raise InputError(refusals[0])
    if json:
        sys.stdout.writelines(to_json(one.record) + "\n" for one in estimates)
        return
    e = estimates[0].experiment
    size = "x".join(map(str, estimates[0].input_shape[1:]))
    title = f"{stream}: {len(estimates[0].tasks)} tasks, {size}, {e.encoder}, batch {e.batch}, {e.precision}"
    if len(methods) > 1:
        console.print(costs_table(estimates, title))
        for line in refusals:
            console.print(f"Left out: {line}", highlight=False, soft_wrap=True)
        return
    console.print(
        f"[bold]{title}, {e.method_name}{'' if e.m is None else f', m = {e.m}'}[/bold]", highlight=False
    )
    for table in cost_tables(estimates[0]):
        console.print(table, "")
    console.print(
        f"Model: {show_bytes(estimates[0].model)}. To train: {show_bytes(estimates[0].training)} at least (model, "
        "gradients, the optimizer's moments, what is kept, what is held).",
        highlight=False,
        soft_wrap=True,
    )


def reproduce(name: str, scale_name: str, setting: Setting, embed_images: bool) -> None:
    """Fill a table or figure of the paper, then write the report of all that the store holds."""
    sheets, scale = find_sheets(name), find_scale(scale_name)
    folder = setting.out or Path("reproduce")
    how = {"data": setting.data, "device": setting.device, "lanes": setting.lanes, "ray": setting.ray}
    diverged: Diverged | None = None
    with progress_bars(Console(stderr=True)) as watch:
        try:
            records = list(run_sheets(sheets, scale, folder / "store", **how, watch=watch))
            Console().print(f"{len(records)} runs: {folder / 'store'}", highlight=False, soft_wrap=True)
        except Diverged as error:  # the report shows what there is, and the exit code tells
            diverged = error
    report([folder / "store"], folder / "report", embed_images)
    if diverged is not None:
        raise diverged


def report(sources: Sequence[Path], out: Path, embed_images: bool) -> None:
    """Write the report of some records."""
    try:
        from reprise.report.write import write_report
    except ModuleNotFoundError as error:
        raise InputError(
            f"report: {error.name} is not installed; install the extra with `pip install 'reprise-cl[report]'`."
        ) from None
    page = write_report(sources, out, embed_images)
    Console().print(f"Report: {page}", highlight=False, soft_wrap=True)


def list_all() -> None:
    """The streams and methods there are."""
    console = Console()
    methods = {name: (kind.__doc__ or "").strip().splitlines()[0] for name, kind in METHODS.items()}
    for title, rows in (
        ("streams", {name: kind.about for name, kind in STREAMS.items()}),
        ("methods", methods),
    ):
        console.print(f"[bold]{title}[/bold]")
        for name, about in rows.items():
            console.print(f"  {name:<22}{about}", highlight=False, soft_wrap=True)


def _said(records: Iterator[Record], json: bool) -> Iterator[Record]:
    """The records, each one printed as soon as it is there if it is to be."""
    for record in records:
        if json:
            sys.stdout.write(to_json(record) + "\n")
            sys.stdout.flush()
        yield record
