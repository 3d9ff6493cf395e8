"""A long stream: many tiny tasks in a row. Resident memory and the cost of a step against the tasks seen.

    python benchmarks/long_stream.py                        # 1,000 tasks, one head for all and a head each
    python benchmarks/long_stream.py --tasks 200 --calls    # the form of the slow tests

The cost is the process's own time, which does not count what others do on the machine but still feels them; with
--calls it is the number of functions called, Python's and C's, which no other process changes. All memory a run may
ever need is there when it starts (a captured step needs fixed addresses), so the ledger's bytes are in the first row
already. The rows go to a JSON file; the exit code is 1 where memory or a step's cost grew.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from reprise.build import Cell
from reprise.config import make_experiment
from reprise.examples import Examples, Source
from reprise.ledger import settle
from reprise.results import commit
from reprise.streams.stream import Normalise, Stream
from reprise.tasks import Classify, Task
from reprise.train import Line, Trainer

RESULTS = Path(__file__).parent / "results"
EXAMPLES, STEPS = 40, 4
MEMORY_MAY_GROW = 8e6
"""Bytes from the tenth part of the stream to its end: the log, the losses, the allocator's rounding."""


class Seconds:
    """The process's own time."""

    name, unit, scale, may_grow = "ms_per_step", "ms", 1e3, 1.3

    def __call__(self) -> float:
        return time.process_time()


class Calls:
    """Functions called so far on this thread. A head for each task seen would add some with every task."""

    name, unit, scale, may_grow = "calls_per_step", "calls", 1, 1.0

    def __init__(self) -> None:
        self._seen = 0
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, about: Any) -> None:
        self._seen += event in ("call", "c_call")

    def __call__(self) -> float:
        return self._seen


Clock = Seconds | Calls


def long_stream(tasks: int, shared: bool) -> Stream:
    """Binary tasks on the same few images, each with labels of its own; one stacked head, or a head each."""
    rng = np.random.default_rng(0)
    source = Source({"x": torch.from_numpy(rng.integers(0, 256, (2 * EXAMPLES, 3, 8, 8), dtype=np.uint8))})
    made = []
    for task in range(tasks):
        own = {"y": torch.from_numpy(rng.permutation(2 * EXAMPLES) % 2)}
        if shared:
            own["task"] = torch.full((2 * EXAMPLES,), task)
        both = Examples(source, torch.arange(2 * EXAMPLES), own)
        halves = [both.subset(np.arange(start, start + EXAMPLES)) for start in (0, EXAMPLES)]
        made.append(Task(f"task-{task}", Classify(2), *halves))
    half = torch.full((3, 1, 1), 0.5)
    return Stream(
        name="long",
        tasks=tuple(made),
        input_shape=(3, 8, 8),
        normalise=Normalise(half, half),
        fingerprint="long",
        shared_head=shared,
        full_tasks=tasks,
        classes_per_task=2 if shared else None,
    )


class Meter:
    """Stands where a keeper does: notes the cost of each step, and the resident memory at task ends."""

    def __init__(self, every: int, clock: Clock) -> None:
        self.every, self.clock = every, clock
        self.rows: list[dict[str, Any]] = []
        self._steps: list[float] = []
        self._since = self._task = clock()

    def due(self) -> bool:
        now = self.clock()
        self._steps.append(now - self._since)
        self._since = self.clock()
        return False

    def save(self, trainer: Trainer) -> None:
        raise AssertionError("nothing was due")

    def end_task(self, trainer: Trainer) -> None:
        seen, now, clock = trainer.cursor.phase, self.clock(), self.clock
        if seen % self.every == 0:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            step = clock.scale * statistics.median(self._steps)
            self.rows.append(
                {
                    "tasks": seen,
                    "resident_bytes": resident,
                    clock.name: round(step, 3),
                    clock.name.replace("step", "task"): round(
                        clock.scale * (now - self._task) / self.every, 2
                    ),
                }
            )
            print(f"{seen:>6} tasks  {resident / 1e6:7.1f} MB  {step:8.6g} {clock.unit} a step", flush=True)
            self._steps, self._task = [], now
        self._since = self.clock()

    def write(self, lane: int, line: Line) -> None:
        """The log goes nowhere."""


def measure(tasks: int, shared: bool, method: str, clock: Clock) -> dict[str, Any]:
    stream = long_stream(tasks, shared)
    fields = {"encoder": "convnet-small", "batch": 4, "replay": 4, "steps": STEPS, "evaluate_every": tasks}
    experiment = settle(
        make_experiment("split-shapes", method, fields | {"m": 2 * tasks if shared else 2}), stream
    )
    trainer = Trainer([Cell(experiment, 0, stream)], torch.device("cpu"))
    meter = Meter(tasks // 10, clock)
    trainer.run(keeper=meter)
    first, last = meter.rows[0], meter.rows[-1]
    grown = last["resident_bytes"] - first["resident_bytes"]
    # Medians of the halves: a single row may have met a busy machine.
    halves = [meter.rows[: len(meter.rows) // 2], meter.rows[len(meter.rows) // 2 :]]
    early, late = (statistics.median(row[clock.name] for row in rows) for rows in halves)
    return {
        "method": method,
        "heads": "one tensor for all" if shared else "one module a task",
        "kept": trainer.outcomes[0].bytes["total"],
        "rows": meter.rows,
        "resident bytes grown": grown,
        "late step over early step": round(late / early, 3),
        "flat": grown < MEMORY_MAY_GROW and late / early <= clock.may_grow,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--calls", action="store_true", help="count calls of functions, not time")
    parser.add_argument("--out", type=Path, help="the JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = Calls() if options.calls else Seconds()
    found = []
    for shared, method in ((True, "er"), (True, "car"), (False, "er"), (False, "car")):
        print(f"{method}, {'one stacked head' if shared else 'a head a task'}")
        found.append(measure(options.tasks, shared, method, clock))
    report = {
        "runs": found,
        "environment": {"torch": torch.__version__, "python": platform.python_version(), "commit": commit()},
    }
    path = options.out or RESULTS / f"long_stream-torch{torch.__version__}-{time.strftime('%Y-%m-%d')}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"File: {path}")
    return 0 if all(run["flat"] for run in found) else 1


if __name__ == "__main__":
    sys.exit(main())
