"""The command line. The only file that knows the argument parser.

Method and protocol fields are plain flags; a file of fields may stand behind them. Bad input is one sentence on
stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from reprise import __version__, tune
from reprise.config import Experiment, check_type, make_experiment, read_config
from reprise.docstrings import field_docs
from reprise.errors import Diverged, InputError
from reprise.methods import METHODS
from reprise.results import Record, write_json
from reprise.runner import run_experiments
from reprise.streams import STREAMS, stream_kind
from reprise.streams.check import check
from reprise.streams.fetch import fetch_cifar100
from reprise.terminal import progress_bars, results_table, spread

DEMO_METHODS = ("sgd", "er", "car", "multitask")
USAGE = """usage: reprise COMMAND ...

  run STREAM --method NAME   train a method on a stream and write its records
  tune STREAM --method NAME  search hyper-parameters on the validation tasks
  demo                       SGD, ER, CAR and the multi-task reference, without any download
  list                       the streams and methods there are
  data fetch|check           get a data set, or look whether it is whole

`reprise COMMAND --help` tells more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code: 0 done, 1 failed, 2 bad input, 3 diverged, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {
        "run": run,
        "tune": tune_command,
        "demo": demo,
        "list": list_command,
        "data": data,
    }
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        sys.stdout.write(f"reprise {__version__}\n")
        return 0
    try:
        if words[0] not in commands:
            raise InputError(f"command: {words[0]!r} is not known; choose one of {', '.join(commands)}.")
        return commands[words[0]](words[1:])
    except InputError as error:
        sys.stderr.write(f"reprise: {error}\n")
        return 2
    except Diverged as error:
        sys.stderr.write(f"reprise: {error}\n")
        return 3
    except KeyboardInterrupt:
        sys.stderr.write("reprise: interrupted; finished runs are saved, the rest starts anew next time.\n")
        return 130


# ---- commands


def run(words: list[str]) -> int:
    """Train one method on one stream."""
    given, options = _parse("run", "Train a method on a stream; finished seeds are not run again.", words)
    experiment = make_experiment(
        options["stream"], options["method"], given, stream_kind(options["stream"]).protocol
    )
    console = _console()
    records: list[Record] = []
    store = None if options["out"] else Path("runs")
    with progress_bars(console, len(options["seeds"])) as watch:
        for record in run_experiments(
            [experiment], **_running(options), out=options["out"], store=store, watch=watch
        ):
            records.append(record)
            if options["json"]:
                sys.stdout.write(json.dumps(record) + "\n")
                sys.stdout.flush()
    if not options["json"]:
        Console().print(results_table(records, f"{experiment.stream}, {experiment.scenario}-incremental"))
        Console().print(f"Records: {options['out'] or store}", highlight=False)
    return 0


def tune_command(words: list[str]) -> int:
    """Search a grid on the validation tasks."""
    given, options = _parse(
        "tune", "Search hyper-parameters on the 3 validation tasks; they are never reported.", words
    )
    stream, method = options["stream"], options["method"]
    protocol = stream_kind(stream).protocol
    grid: dict[str, Sequence[Any]] = {}
    for name, texts in tune.parse_grid(options["grid"]).items():
        hints = _hints(method)
        if name not in hints:
            raise InputError(
                f"grid: {method} has no field {name!r}; the fields are {', '.join(sorted(hints))}."
            )
        grid[name] = [_value(name, text, hints[name]) for text in texts]
    if not grid:
        grid.update(tune.default_grid(make_experiment(stream, method, given, protocol)))
    experiments = tune.grid_experiments(stream, method, given, grid, protocol)
    store = options["out"] or Path("runs")
    records: list[Record] = []
    with progress_bars(_console(), len(experiments) * len(options["seeds"])) as watch:
        for record in run_experiments(experiments, **_running(options), store=store, watch=watch):
            records.append(record)
            if options["json"]:
                sys.stdout.write(json.dumps(record) + "\n")
    ranked = tune.rank(records, list(grid))
    write_json(
        store / f"tune-{stream}-{method}.json",
        {"grid": {k: list(v) for k, v in grid.items()}, "ranked": ranked},
    )
    if not options["json"]:
        table = Table(title=f"{method} on the validation tasks of {stream}", title_justify="left")
        for heading in (*grid, "accuracy %", "forgetting"):
            table.add_column(heading, justify="right")
        for row in ranked:
            accuracy, forgetting = row["accuracy"], row["forgetting"]
            table.add_row(
                *(
                    f"{value:g}" if isinstance(value, float) else str(value)
                    for value in row["setting"].values()
                ),
                f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['std']:.1f}",
                "–" if forgetting["mean"] is None else f"{forgetting['mean']:.3f}",
            )
        Console().print(table)
        best = " ".join(f"--{name} {value}" for name, value in ranked[0]["setting"].items())
        Console().print(f"Best: reprise run {stream} --method {method} {best}", highlight=False)
    return 0


def demo(words: list[str]) -> int:
    """The embedded default: nothing to download, a few minutes on a laptop."""
    parser = _parser(
        "demo", "Train SGD, ER, CAR and the multi-task reference on a stream that needs no download."
    )
    parser.add_argument("--out", default="demo", help="folder for the records (default: demo)")
    parser.add_argument("--seeds", default="0,1,2", help="seeds to run (default: 0,1,2)")
    parser.add_argument("--steps", default=None, help="steps of each task (default: one pass)")
    options = vars(_read(parser, words))
    stream = "split-shapes"
    given = {} if options["steps"] is None else {"steps": _value("steps", options["steps"], int)}
    experiments = [make_experiment(stream, name, given, STREAMS[stream].protocol) for name in DEMO_METHODS]
    seeds, store = _seeds(options["seeds"]), Path(options["out"])
    with progress_bars(_console(), len(experiments) * len(seeds)) as watch:
        records = list(run_experiments(experiments, seeds, store=store, watch=watch))
    order = {name: place for place, name in enumerate(DEMO_METHODS)}
    records.sort(key=lambda record: (order[record["method"]], record["seed"]))
    Console().print(results_table(records, "10 tasks of 5 classes, one pass each"))
    gain = [spread([r["accuracy"] for r in records if r["method"] == name], 100, 1) for name in ("sgd", "er")]
    Console().print(
        f"Learning the tasks in a row, plain SGD ends at {gain[0]} %; replaying one image per class lifts it to "
        f"{gain[1]} %.\nRecords: {store}",
        highlight=False,
    )
    return 0


def list_command(words: list[str]) -> int:
    """What there is."""
    _read(_parser("list", "The streams and methods there are."), words)
    console = Console()
    for title, rows in (
        ("streams", [(name, kind.about) for name, kind in STREAMS.items()]),
        ("methods", [(name, (kind.__doc__ or "").strip().splitlines()[0]) for name, kind in METHODS.items()]),
    ):
        console.print(f"[bold]{title}[/bold]")
        for name, about in rows:
            console.print(f"  {name:<22}{about}", highlight=False)
    return 0


def data(words: list[str]) -> int:
    """Get data sets and look after them."""
    actions = {"fetch": "cifar100", "check": "STREAM"}
    if words and words[0] in ("-h", "--help"):
        sys.stdout.write(
            "usage: reprise data fetch cifar100 --data DIR | reprise data check STREAM --data DIR\n"
        )
        return 0
    if not words or words[0] not in actions:
        found = repr(words[0]) if words else "nothing"
        raise InputError(f"data: {found} was asked for; say `data fetch cifar100` or `data check STREAM`.")
    parser = _parser(
        f"data {words[0]}", "Get a data set." if words[0] == "fetch" else "Look whether data is whole."
    )
    parser.add_argument("name", help="cifar100" if words[0] == "fetch" else "a stream")
    parser.add_argument("--data", default=None, help="the folder that holds the data sets")
    options = vars(_read(parser, words[1:]))
    if options["data"] is None:
        raise InputError("data: no folder was given; name one with --data DIR.")
    folder = Path(options["data"])
    if words[0] == "check":
        report = check(options["name"], folder)
        sys.stdout.write("\n".join(report.lines) + "\n")
        return 0 if report.ok else 2
    if options["name"] != "cifar100":
        raise InputError(
            f"data: {options['name']!r} cannot be fetched; only cifar100 can, mini-ImageNet has no free copy."
        )
    with Progress(
        "{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=_console()
    ) as bars:
        bar = bars.add_task("cifar100", total=None)
        said = fetch_cifar100(
            folder, progress=lambda done, total: bars.update(bar, completed=done, total=total)
        )
    sys.stdout.write(f"{said}\n")
    return 0


# ---- arguments


def _parser(command: str, about: str) -> ArgumentParser:
    return ArgumentParser(
        prog=f"reprise {command}", description=about, exit_on_error=False, allow_abbrev=False
    )


def _read(parser: ArgumentParser, words: list[str]) -> argparse.Namespace:
    try:
        return typing.cast("argparse.Namespace", parser.parse_args(words))
    except argparse.ArgumentError as error:
        sentence = str(error).replace("\n", " ").strip()
        raise InputError(f"{sentence}; `{parser.prog} --help` lists what there is.") from None


def _parse(command: str, about: str, words: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that were given, by flag or by file, and how to run."""
    early = ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
    early.add_argument("--method", default=None)
    early.add_argument("--config", default=None)
    known, _ = early.parse_known_args([w for w in words if w not in ("-h", "--help")])
    from_file = read_config(Path(known.config)) if known.config else {}
    asked_help = any(word in ("-h", "--help") for word in words)
    method = known.method or from_file.get("method") or ("car" if asked_help else None)
    if method is None:
        raise InputError(f"method: none was named; add --method with one of {', '.join(METHODS)}.")
    if method not in METHODS:
        raise InputError(f"method: {method!r} is not known; choose one of {', '.join(METHODS)}.")
    parser = _parser(command, about)
    parser.add_argument("stream", nargs="?", default=None, help=f"one of {', '.join(STREAMS)}")
    parser.add_argument("--method", default=None, help=f"one of {', '.join(METHODS)}")
    parser.add_argument("--seeds", default="0", help="seeds, for example 0,1,2")
    parser.add_argument(
        "--data", default=None, help="root folder of the data sets, or the stream's own folder"
    )
    parser.add_argument("--out", default=None, help="folder of the result (default: one below runs/)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--lanes", default=None, help="runs stacked in one process (default: as many as fit)")
    parser.add_argument("--config", default=None, help="YAML file of fields; flags outweigh it")
    parser.add_argument("--json", action="store_true", help="print one JSON record per run and nothing else")
    if command == "tune":
        parser.add_argument(
            "--grid", action="append", default=[], help="field=value,value,... (may be repeated)"
        )
    hints = _hints(method)
    docs = field_docs(Experiment) | field_docs(METHODS[method])
    for name, hint in hints.items():
        flags = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        parser.add_argument(
            *flags, default=argparse.SUPPRESS, metavar=_metavar(hint), help=docs.get(name, ""), type=str
        )
    options = vars(_read(parser, words))
    given = {name: value for name, value in from_file.items() if name not in ("stream", "method")}
    unknown = sorted(set(given) - set(hints) - {"seeds", "data", "out", "device", "lanes"})
    if unknown:
        raise InputError(
            f"{unknown[0]}: {known.config} names it, but {method} has no such field; `--help` lists them."
        )
    running = {name: given.pop(name) for name in ("seeds", "data", "out", "device", "lanes") if name in given}
    defaults = {"seeds": "0", "data": None, "out": None, "device": "cpu", "lanes": None}
    for name, value in running.items():
        if options[name] == defaults[name]:
            options[name] = ",".join(map(str, value)) if isinstance(value, list) else value
    given |= {name: _value(name, options[name], hints[name]) for name in hints if name in options}
    stream = options["stream"] or from_file.get("stream")
    if stream is None:
        raise InputError(
            f"stream: none was named; say `reprise {command} STREAM` with one of {', '.join(STREAMS)}."
        )
    stream_kind(stream)
    return given, options | {
        "stream": stream,
        "method": method,
        "seeds": _seeds(str(options["seeds"])),
        "data": Path(options["data"]) if options["data"] else None,
        "out": Path(options["out"]) if options["out"] else None,
        "lanes": None if options["lanes"] is None else _value("lanes", str(options["lanes"]), int),
    }


def _running(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("seeds", "data", "device", "lanes")}


def _hints(method: str) -> dict[str, Any]:
    """Every field that may be a flag, with its type."""
    own = typing.get_type_hints(METHODS[method])
    common = typing.get_type_hints(Experiment)
    protocol = {f.name: common[f.name] for f in fields(Experiment) if f.name not in ("stream", "method")}
    return {f.name: own[f.name] for f in fields(METHODS[method])} | protocol


def _metavar(hint: Any) -> str:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is Literal:
        return "{" + ",".join(map(str, options)) + "}"
    kind = options[0] if options else hint
    return {int: "N", float: "X"}.get(kind, "TEXT")


def _value(name: str, text: str, hint: Any) -> Any:
    """A flag's text as a value: numbers and `none` as YAML reads them, where the field is no text."""
    wants_text = hint is str or typing.get_origin(hint) is Literal or str in typing.get_args(hint)
    value: Any = text
    if not wants_text or text == "none":
        try:
            value = None if text == "none" and type(None) in typing.get_args(hint) else yaml.safe_load(text)
            value = float(text) if isinstance(value, str) and not wants_text else value
        except (yaml.YAMLError, ValueError):
            value = text
    return check_type(name, value, hint)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        seeds = ()
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InputError(
            f"seeds: {text!r} is not a list of different whole numbers; write for example 0,1,2."
        )
    return seeds


def _console() -> Console:
    """Progress goes to stderr, so that stdout carries results only."""
    return Console(stderr=True)
