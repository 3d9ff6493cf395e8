"""Kill trainings with SIGKILL at random moments, resume them, and compare what they leave with an undisturbed run.

    python benchmarks/crash_test.py                 # the long form: 300 kills, all methods, all streams
    python benchmarks/crash_test.py --kills 15      # the form of the slow tests
    python benchmarks/crash_test.py --streams rooms # only the rendered scenes: maps, classes and masks

Every training is a process of its own, forked from one that has imported everything, so that a kill costs a second.
Checkpoints are written after every step, so that many a kill hits a file that is being written. What is compared,
byte for byte: the record but for its times, the log, and the weights, memory and state at the end of every task. One
line a run; the counts go to a JSON file; the exit code is 1 where anything differed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import scenes
from tiny import FIELDS, MIXED, POOL

from reprise import group_run, runner
from reprise.archive import Archive
from reprise.config import make_experiment
from reprise.errors import InputError
from reprise.keeping import Saving
from reprise.methods import METHODS
from reprise.results import TIMES, commit
from reprise.streams import stream_of
from reprise.streams.split import split_stream

RESULTS = Path(__file__).parent / "results"
SAVING = Saving(steps=1, keep=2, tasks=True)


@dataclass(frozen=True)
class Case:
    """A training small enough to be done a hundred times."""

    method: str
    stream: str
    lanes: int = 1

    @property
    def name(self) -> str:
        return f"{self.method} on {self.stream}" + (f", {self.lanes} lanes" if self.lanes > 1 else "")

    def experiment(self) -> Any:
        if self.stream == "rooms":
            return scenes.experiment(self.method)
        fields = dict(FIELDS)
        if self.stream == "class-incremental":
            fields["scenario"] = "class"
        if self.stream == "heterogeneous":
            fields |= {"optimizer": "adam", "lr": 0.01, "m": 6}
        return make_experiment("split-shapes", self.method, fields)

    def train(self, folder: Path, readers: int) -> None:
        # The runner as it is, on streams small enough: the tests' own.
        pool = scenes.scenes(readers) if self.stream == "rooms" else POOL
        group_run.load_pool = lambda stream, data, wanted=None: pool  # type: ignore[assignment]
        if self.stream == "rooms":
            group_run.stream_of = stream_of
        elif self.stream == "heterogeneous":
            group_run.stream_of = lambda e, seed, pool: MIXED.first(e.tasks)
        else:
            group_run.stream_of = lambda e, seed, pool: split_stream(
                e.stream, pool, seed, e.scenario, e.split, e.normalise
            ).first(e.tasks)
        runs = runner.run_experiments(
            [self.experiment()], range(self.lanes), out=folder, lanes=self.lanes, saving=SAVING
        )
        if len([*runs]) != self.lanes:
            raise SystemExit("a record is missing")


STREAMS = ("task-incremental", "class-incremental", "heterogeneous", "rooms")
LANES = ("task-incremental", "rooms")


def cases(streams: Sequence[str]) -> list[Case]:
    """Every method on every stream that it does not refuse, and all methods as lanes."""
    found = [Case(method, stream) for stream in streams for method in METHODS]
    found += [Case(method, stream, 2) for stream in LANES if stream in streams for method in METHODS]
    return [case for case in found if _accepted(case)]


def _accepted(case: Case) -> bool:
    from reprise.ledger import settle

    stream = MIXED if case.stream == "heterogeneous" else split_stream("split-shapes", POOL, 0, "task")
    if case.stream == "rooms":
        stream = stream_of(case.experiment(), 0, scenes.scenes())
    if case.stream == "class-incremental":
        stream = replace(stream, scenario="class")
    try:
        settle(case.experiment(), stream)
    except InputError:
        return False
    return True


# ---- trainings that may be killed


def begin(case: Case, folder: Path, readers: int = 0) -> int:
    """A child that trains, with so many threads that read ahead; its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        case.train(folder, readers)
        code = 0
    finally:
        if code:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)


def finish(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit("a training failed; its error stands above")


def kill_after(child: int, delay: float) -> bool:
    """Whether the kill came before the child was done."""
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


# ---- what is compared


def left(folder: Path) -> dict[str, Any]:
    """Everything a run leaves that must not depend on interruptions."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if path.name == "record.json":
            record = json.loads(path.read_text())
            found[name] = {key: value for key, value in record.items() if key not in TIMES}
        elif path.name.startswith(("task-", "step-")):
            body = json.loads(path.read_text())["body"]
            body["values"].pop("seconds")
            found[name] = body
        else:
            found[name] = path.read_bytes()
    return found


def differences(straight: dict[str, Any], disturbed: dict[str, Any]) -> list[str]:
    return [name for name in sorted(straight | disturbed) if straight.get(name) != disturbed.get(name)]


def crash(case: Case, kills: int, chance: random.Random, counts: Counter[str], root: Path) -> list[str]:
    """Kill a training up to so many times on its way, let it finish, and compare."""
    straight, disturbed = root / "straight", root / "disturbed"
    began = time.perf_counter()
    finish(begin(case, straight))
    took = time.perf_counter() - began
    done = 0
    for turn in range(2 * kills):
        if done == kills:
            break
        child = begin(case, disturbed, readers=turn % 3)
        if not kill_after(child, chance.uniform(0.3, 1.05) * took):
            shutil.rmtree(disturbed)  # it was faster: another try from the start
            continue
        done += 1
        counts["kills"] += 1
        counts["kills while a file was being written"] += any(disturbed.rglob("*.part"))
        archives = [Archive(p) for p in disturbed.rglob("checkpoints")]
        counts["kills with a checkpoint to go on from"] += any(a.positions() for a in archives)
        if all((disturbed / f"seed-{seed}" / "record.json").exists() for seed in range(case.lanes)):
            break
    finish(begin(case, disturbed))
    counts["runs compared"] += 1
    return differences(left(straight), left(disturbed))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=300, help="how often to kill, at least")
    parser.add_argument("--each", type=int, default=4, help="kills of one run at most")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--streams", nargs="+", default=STREAMS, choices=STREAMS, help="only these")
    parser.add_argument("--out", type=Path, help="the JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance, counts, methods = random.Random(options.seed), Counter[str](), Counter[str]()
    streams, failures = Counter[str](), []
    everything = cases(options.streams)
    chance.shuffle(everything)
    began = time.perf_counter()
    # Every case once in the long form, and over again until there are enough kills.
    for number, case in enumerate(itertools.cycle(everything)):
        if counts["kills"] >= options.kills and (options.kills < 100 or number >= len(everything)):
            break
        with tempfile.TemporaryDirectory() as root:
            before = counts["kills"]
            differing = crash(case, options.each, chance, counts, Path(root))
        methods[case.method] += counts["kills"] - before
        streams[case.stream + (", lanes" if case.lanes > 1 else "")] += counts["kills"] - before
        print(f"{case.name}: {counts['kills'] - before} kills, {differing or 'the same bytes'}", flush=True)
        failures += [f"{case.name}: {name}" for name in differing]
    report = {
        "counts": dict(counts),
        "differing files": failures,
        "kills by method": dict(sorted(methods.items())),
        "kills by stream": dict(sorted(streams.items())),
        "seconds": round(time.perf_counter() - began),
        "environment": {"torch": torch.__version__, "python": platform.python_version(), "commit": commit()},
        "seed": options.seed,
    }
    which = "" if options.streams == STREAMS else "-".join(["", *options.streams])
    path = (
        options.out
        or RESULTS / f"crash_test{which}-torch{torch.__version__}-{time.strftime('%Y-%m-%d')}.json"
    )
    shutil.rmtree(scenes.folder().parent)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{dict(counts)}\nFile: {path}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
