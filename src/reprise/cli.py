"""The command line. The only file that knows the argument parser.

The fields of an experiment, of its method and of its setting are plain flags; a file of fields may stand behind
them. Bad input is one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from reprise import __version__, bench, commands, data_commands, ranks
from reprise.config import (
    SETTING_HINTS,
    Experiment,
    Setting,
    field_hints,
    make_setting,
    no_such_field,
    overlay,
    read_config,
)
from reprise.docstrings import field_docs
from reprise.errors import Diverged, InputError, StorageError, WorkersLost
from reprise.experiments import SCALES, SHEETS
from reprise.forking import Fork
from reprise.methods import METHODS
from reprise.stopping import Stopped, listening
from reprise.streams import STREAMS, stream_kind
from reprise.values import placeholder, read_value, show_value

INTERRUPTED = "interrupted; the same command goes on from what is saved."

USAGE = """usage: reprise COMMAND ...

  run STREAM --method NAME   train a method on a stream and write its records
  tune STREAM --method NAME  search hyper-parameters on the validation tasks
  demo                       SGD, ER, CAR and the multi-task reference, without any download
  list                       the streams and methods there are
  data fetch|check|pack|rooms  get, check and prepare data
  cost STREAM [--method NAME]  what methods keep and take, counted before any data is there
  bench                      time a training step, alone and as stacked lanes, beside its peers
  reproduce NAME             run what a table or figure of the paper needs, then write its report
  predict RUN --task NAME FOLDER  a learner's answers to a folder of pictures
  report [STORE ...]         tables, figures and one offline page of the records in a store

`reprise COMMAND --help` tells more.
"""
DATA_USAGE = """usage: reprise data ACTION ...

  fetch cifar100 --data DIR                 download CIFAR-100
  check STREAM --data DIR                   look whether data is whole; of taskonomy, which views serve which task
  pack taskonomy --data DIR --out DIR       decode and resize official Taskonomy folders once, for training
  rooms DIR                                 render rooms as files in the official Taskonomy layout

`reprise data ACTION --help` tells more. (Runs pack and render by themselves what they need, into a cache:
REPRISE_CACHE, or reprise in the user's cache folder.)
"""
DATA: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "fetch": ("Get a data set.", "cifar100", ()),
    "check": ("Look whether data is whole.", "STREAM", ("tasks", "buildings")),
    "pack": (
        "Pack official folders at one resolution; called again, it goes on where it stopped.",
        "taskonomy",
        ("out", "size", "tasks", "buildings", "workers"),
    ),
    "rooms": (
        "Render rooms as files in the official layout.",
        "DIR",
        ("size", "buildings", "views", "workers"),
    ),
}
DATA_FLAGS = {
    "out": "folder of the pack",
    "size": "pixels a side (default: 256)",
    "tasks": "only what these tasks need: curvature,normal,... (default: all 11)",
    "buildings": "names of buildings, or of a split: paper, tiny, medium, full, fullplus (default: all); of rooms, "
    "numbers of worlds to train, validate, test on: 4,1,1",
    "views": "views of each world (default: 32)",
    "workers": "processes (default: as many as there are cores)",
}
DEMO_FIELDS = ("steps", "size", "buildings", "views", "sequence")
HELP = ("-h", "--help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code: 0 done, 1 failed, 2 bad input, 3 diverged, 130 or 143 stopped by a signal."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in HELP:
        sys.stdout.write(USAGE)
        return 0
    if words and words[0] == "--version":
        sys.stdout.write(f"reprise {__version__}\n")
        return 0
    try:
        with listening():
            return _command(words)(words[1:])
    except InputError as error:
        return _say(error, 2)
    except Diverged as error:
        return _say(error, 3)
    except (StorageError, WorkersLost) as error:
        return _say(error, 1)
    except Stopped as stop:
        return _say("stopped where it can go on; the same command does.", 128 + stop.number)
    except KeyboardInterrupt:
        return _say(INTERRUPTED, 130)
    except SystemExit as end:  # help, or a signal
        if end.code == 128 + signal.SIGTERM:
            return _say(INTERRUPTED, end.code)
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:
        if not ranks.launched():
            raise
        traceback.print_exc()
        what = f"rank {ranks.own_rank()}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return _say(f"{what}; the same command, with any number of ranks, goes on from what is saved.", 1)


def _command(words: list[str]) -> Callable[[list[str]], int]:
    known = {
        **{"run": _run, "tune": _tune, "demo": _demo, "list": _list, "data": _data, "bench": _bench},
        **{"cost": _cost, "reproduce": _reproduce, "report": _report, "predict": _predict},
    }
    if not words:
        raise InputError(
            f"command: none was named; choose one of {', '.join(known)}, or say `reprise --help`."
        )
    if words[0] not in known:
        raise InputError(f"command: {words[0]!r} is not known; choose one of {', '.join(known)}.")
    return known[words[0]]


def _say(sentence: object, code: int) -> int:
    if code != 1 and ranks.follows():  # the first rank says the same
        return code
    sys.stderr.write(f"reprise: {' '.join(str(sentence).split())}\n")
    return code


# ---- commands


def _run(words: list[str]) -> int:
    about = "Train a method on a stream; finished seeds are not run again, interrupted ones go on."
    request, _ = _request("run", about, words)
    commands.run(request)
    return 0


def _tune(words: list[str]) -> int:
    about = "Search hyper-parameters on the 3 validation tasks; they are never reported."
    request, options = _request("tune", about, words)
    commands.search(request, options.get("grid", []))
    return 0


def _demo(words: list[str]) -> int:
    about = "Train SGD, ER, CAR and the multi-task reference on rendered rooms: 11 tasks, no download."
    parser = _parser("demo", about, "[--out PATH] [--seeds N,N,...] [--FIELD VALUE ...] ")
    parser.add_argument("--out", metavar="PATH", default="demo", help="folder for records and pictures")
    parser.add_argument("--seeds", metavar="N,N,...", default="0", help="seeds to run")
    known, docs = {name: field_hints("sgd")[name] for name in DEMO_FIELDS}, field_docs(Experiment)
    chosen = {**stream_kind(commands.DEMO).protocol, **commands.DEMO_SETTINGS}
    for name, hint in known.items():
        about = f"{docs[name]} (default: {show_value(chosen[name])})"
        parser.add_argument(f"--{name}", metavar=placeholder(hint), help=about)
    options = _read(parser, words, ("out", "seeds", *known))
    setting = make_setting({name: options.pop(name) for name in ("out", "seeds")})
    commands.demo(setting, options)
    return 0


def _cost(words: list[str]) -> int:
    about = (
        "What methods on a stream keep, and what a query and a training step take, counted from shapes: no data is "
        "read and nothing trained. All methods side by side, or one in detail."
    )
    method = _peek(words, "--method")
    parser = _parser("cost", about, "STREAM [--method NAME] [--FIELD VALUE ...] ")
    _add_what(parser)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per method and nothing else"
    )
    hints = _add_experiment(parser, method, _protocol(words, method))
    options = _read(parser, words, {*hints, "method", "json"}, method)
    stream = _named_stream("cost", options.get("stream"))
    fields = {name: value for name, value in options.items() if name in hints}
    commands.cost(stream, list(METHODS) if method is None else [method], fields, "json" in options)
    return 0


def _list(words: list[str]) -> int:
    _read(_parser("list", "The streams and methods there are."), words)
    commands.list_all()
    return 0


def _data(words: list[str]) -> int:
    if words and words[0] in HELP:
        sys.stdout.write(DATA_USAGE)
        return 0
    if not words or words[0] not in DATA:
        found = repr(words[0]) if words else "nothing"
        raise InputError(
            f"data: {found} was asked for; say `data fetch cifar100`, `data check STREAM`, `data pack taskonomy` or "
            "`data rooms DIR`."
        )
    action = words[0]
    about, name, flags = DATA[action]
    usage = f"{name} {'' if action == 'rooms' else '--data DIR '}"
    parser = _parser(f"data {action}", about, usage + ("[--FIELD VALUE ...] " if flags else ""))
    parser.add_argument("name", nargs="?", help=name)
    if action != "rooms":
        parser.add_argument("--data", metavar="DIR", help="the folder that holds the data sets")
    for flag in flags:
        parser.add_argument(f"--{flag}", metavar=flag.upper(), help=DATA_FLAGS[flag])
    options = _read(parser, words[1:], ("data", *flags))
    if "name" not in options:
        raise InputError(f"data: nothing to {action} was named; say `reprise data {action} {name}`.")
    if action == "rooms":
        data_commands.write_rooms(Path(options["name"]), options)
        return 0
    if not options.get("data"):
        raise InputError("data: no folder was given; name one with --data DIR.")
    folder = Path(options["data"])
    if action == "check":
        return data_commands.check_data(options["name"], folder, options)
    if action == "pack":
        data_commands.pack_data(options["name"], folder, options)
    else:
        data_commands.fetch_data(options["name"], folder)
    return 0


def _bench(words: list[str]) -> int:
    about = (
        "Time a training step on Split-CIFAR shapes (random images, no download): driven from the host, as a CUDA "
        "graph, as stacked lanes, and that of every installed peer. The numbers go to a new file."
    )
    parser = _parser("bench", about, "[--FIELD VALUE ...] ")
    _add_fields(parser, "what is measured", bench.Bench, bench.HINTS)
    return commands.bench(bench.make_bench(_read(parser, words, bench.HINTS)))


def _reproduce(words: list[str]) -> int:
    about = (
        f"Run the cells of a table or figure of the paper that are not there yet ({', '.join(SHEETS)} or all), then "
        "write the report. smoke: generated data on a CPU; sample: CIFAR-100 and one Taskonomy building; paper: the "
        "full setting."
    )
    parser = _parser("reproduce", about, "NAME [--scale smoke|sample|paper] [--data DIR] [--out DIR] ")
    parser.add_argument("name", nargs="?", help="a table or figure, or all")
    parser.add_argument("--scale", metavar="NAME", default="smoke", help=f"one of {', '.join(SCALES)}")
    hints = {name: SETTING_HINTS[name] for name in ("data", "out", "device", "lanes", "ray")}
    _add_fields(parser, "how it is run", Setting, hints)
    parser.add_argument("--embed-images", action="store_true", help="show pictures that are not ours to copy")
    options = _read(parser, words, (*hints, "scale", "embed-images"))
    if "name" not in options:
        raise InputError(f"name: no table or figure was named; choose one of {', '.join([*SHEETS, 'all'])}.")
    setting = make_setting({name: options[name] for name in hints if name in options})
    commands.reproduce(options["name"], options["scale"], setting, "embed_images" in options)
    return 0


def _predict(words: list[str]) -> int:
    """A learner's answers to a folder of pictures."""
    about = (
        "Answer every picture of a folder. RUN is a learner's folder, or a .pt2 file that one exported. Classes and "
        "vectors become a table (CSV), maps become pictures, and arrays (.npy) where they are values."
    )
    parser = _parser("predict", about, "RUN --task NAME FOLDER [--out DIR] ")
    parser.add_argument("run", nargs="?", help="folder of a learner, or a .pt2 file")
    parser.add_argument(
        "folder", nargs="?", help="folder of pictures; they are resized to what the task takes"
    )
    parser.add_argument("--task", metavar="NAME", help="the task to answer (a .pt2 file has one)")
    parser.add_argument("--out", metavar="DIR", default="predictions", help="folder for the answers")
    # The parser takes places only where they stand together: flags come first.
    flags = [i for i, word in enumerate(words) if word in ("--task", "--out")]
    valued = {*flags, *(i + 1 for i in flags)}
    ordered = [words[i] for i in sorted(range(len(words)), key=lambda i: i not in valued)]
    options = _read(parser, ordered, ("task", "out"))
    for name in ("run", "folder"):
        if name not in options:
            raise InputError(f"{name}: none was named; say `reprise predict RUN --task NAME FOLDER`.")
    from reprise.predictions import predict_folder

    paths = (Path(options["run"]), options.get("task"), Path(options["folder"]), Path(options["out"]))
    sys.stdout.write(predict_folder(*paths) + "\n")
    return 0


def _report(words: list[str]) -> int:
    about = (
        "Write tables (Markdown, LaTeX, CSV), figures (PNG, PDF) and one self-contained HTML page of the records in "
        "folders or .jsonl files."
    )
    parser = _parser("report", about, "[STORE ...] --out DIR [--embed-images] ")
    parser.add_argument("sources", nargs="*", help="folders of runs, or .jsonl files; runs, if none is named")
    parser.add_argument("--out", metavar="DIR", default="report", help="folder for the report")
    about = "show pictures of data that is not ours to copy (Taskonomy, ImageNet, CIFAR)"
    parser.add_argument("--embed-images", action="store_true", help=about)
    options = _read(parser, words, ("out", "embed-images"))
    sources = [Path(source) for source in options.get("sources") or [commands.STORE]]
    commands.report(sources, Path(options["out"]), "embed_images" in options)
    return 0


# ---- arguments


def _request(command: str, about: str, words: list[str]) -> tuple[commands.Request, dict[str, Any]]:
    """What is asked for, flag over file, and the options that are no field of anything."""
    path = _peek(words, "--config")
    file = {} if path is None else read_config(Path(path))
    method = _peek(words, "--method") or file.get("method")
    if method is None and not set(HELP) & set(words):
        raise InputError(f"method: none was named; add --method with one of {', '.join(METHODS)}.")
    parser, hints = _full_parser(command, about, method, _protocol(words, method))
    known = {*hints, *SETTING_HINTS}
    options = _read(parser, words, {*known, "method", "config", "json", "from", "task"}, method)
    assert method is not None, "only a request for help names no method, and it ends in the parser"
    for name in file:
        if name not in known | {"stream", "method"}:
            raise no_such_field(name, method, known, f" (named in {path})")
    flags = {name: options.pop(name) for name in known if name in options}
    given = overlay({name: value for name, value in file.items() if name in known}, flags)
    stream = _named_stream(command, options.get("stream") or file.get("stream"))
    setting = make_setting({name: value for name, value in given.items() if name in SETTING_HINTS})
    values = {name: value for name, value in given.items() if name in hints}
    fork = _fork(options)
    return commands.Request(stream, method, values, setting, "json" in options, fork), options


def _named_stream(command: str, name: Any) -> str:
    if name is None:
        raise InputError(
            f"stream: none was named; say `reprise {command} STREAM` with one of {', '.join(STREAMS)}."
        )
    stream_kind(str(name))
    return str(name)


def _protocol(words: Sequence[str], method: str | None) -> dict[str, Any]:
    """What the named stream says of its fields, for the defaults that help shows."""
    return STREAMS[words[0]].protocol_of(method or "") if words and words[0] in STREAMS else {}


def _fork(options: Mapping[str, Any]) -> Fork | None:
    """`--from RUN --task K`: neither means anything without the other."""
    if not {"from", "task"} & set(options):
        return None
    for name, other in (("from", "task"), ("task", "from")):
        if name not in options:
            raise InputError(f"{name}: --{other} was given without it; say --from RUN --task K.")
    task = read_value("task", options["task"], int)
    if task < 1:
        raise InputError(f"task: {task} is no number of tasks; give 1 or more.")
    return Fork(Path(options["from"]), task)


def _peek(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag that decides which other flags there are."""
    found = None
    for word, following in itertools.pairwise([*words, ""]):
        if word == flag:
            found = following or None
        elif word.startswith(f"{flag}="):
            found = word.removeprefix(f"{flag}=")
    return found


def _full_parser(
    command: str, about: str, method: str | None, protocol: Mapping[str, Any]
) -> tuple[ArgumentParser, dict[str, Any]]:
    """A parser that knows every field, and the experiment's fields with their types; for help, of all methods."""
    parser = _parser(command, about, "STREAM --method NAME [--FIELD VALUE ...] ")
    _add_what(parser)
    parser.add_argument("--config", metavar="FILE", help="YAML file of fields; flags outweigh it")
    parser.add_argument("--json", action="store_true", help="print one JSON record per run and nothing else")
    if command == "run":
        parser.add_argument(
            "--from", metavar="RUN", help="folder of a run to go on from, with other settings"
        )
        parser.add_argument("--task", metavar="K", help="how many of its tasks to take over")
    if command == "tune":
        about = "values of a field to try (may be repeated)"
        parser.add_argument("--grid", action="append", metavar="FIELD=X,Y", help=about)
    _add_fields(parser, "how it is run", Setting, SETTING_HINTS)
    return parser, _add_experiment(parser, method, protocol)


def _add_what(parser: ArgumentParser) -> None:
    parser.add_argument("stream", nargs="?", help=f"one of {', '.join(STREAMS)}")
    parser.add_argument("--method", metavar="NAME", help=f"one of {', '.join(METHODS)}")


def _add_experiment(
    parser: ArgumentParser, method: str | None, protocol: Mapping[str, Any]
) -> dict[str, Any]:
    """Flags for the fields of an experiment, and their types; of all methods where none is named."""
    hints: dict[str, Any] = {}
    for name in METHODS if method is None else [method]:
        new = {field: hint for field, hint in field_hints(name).items() if field not in hints}
        for title, kind in (("the experiment", Experiment), (name, METHODS[name])):
            _add_fields(parser, title, kind, new, protocol)
        hints |= new
    return hints


def _parser(command: str, about: str, usage: str = "") -> ArgumentParser:
    prog = f"reprise {command}"
    return ArgumentParser(
        prog=prog,
        usage=f"{prog} {usage}[--help]",
        description=about,
        exit_on_error=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )


def _add_fields(
    parser: ArgumentParser,
    title: str,
    kind: type,
    hints: Mapping[str, Any],
    protocol: Mapping[str, Any] | None = None,
) -> None:
    """A flag for each of a class's fields, as text: `config.py` reads it as it reads a file. The protocol of a
    stream that is named stands in for defaults."""
    group, docs = parser.add_argument_group(title), field_docs(kind)
    for field in fields(kind):
        if field.name in hints:
            value = (protocol or {}).get(field.name, field.default)
            said = value is None or "(default" in docs.get(field.name, "")
            default = "" if said else f" (default: {show_value(value)})"
            flags = dict.fromkeys((f"--{field.name}", f"--{field.name.replace('_', '-')}"))
            about = docs.get(field.name, "") + default
            group.add_argument(*flags, metavar=placeholder(hints[field.name]), help=about)


def _read(
    parser: ArgumentParser, words: list[str], known: Iterable[str] = (), method: str | None = None
) -> dict[str, Any]:
    """The parsed words; what the parser does not like becomes our sentence."""
    try:
        return vars(parser.parse_args(words))
    except argparse.ArgumentError as error:
        problem = str(error)
    more = f"`{parser.prog}{f' --method {method}' if method else ''} --help` lists what there is"
    unknown = problem.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
    if unknown.startswith("-"):
        raise no_such_field(unknown, method or f"`{parser.prog}`", known)
    if unknown:
        raise InputError(f"{unknown!r} is one word too many; {more}.")
    raise InputError(f"{problem.removeprefix('argument ')}; {more}.")
