"""On a GPU: does the same group of lanes give the same record twice, and what does that cost?

    python benchmarks/gpu_repeat.py --data DIR --out DIR [--lanes 20] [--tasks 3]

Trains CAR lanes of equal seeds (every second lane repeats the one before) twice with deterministic convolutions and
once without; compares records and times in one run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from reprise.build import Cell
from reprise.config import make_experiment
from reprise.group_run import load_pool
from reprise.ledger import settle
from reprise.results import environment
from reprise.streams import STREAMS, stream_of
from reprise.train import Outcome, Trainer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stream", default="split-cifar")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lanes", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=250)
    options = parser.parse_args()
    pool = load_pool(options.stream, options.data)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    given = {"precision": "tf32", "tasks": options.tasks, "steps": options.steps}
    experiment = make_experiment(options.stream, "car", given, STREAMS[options.stream].protocol)
    cells = []
    for lane in range(options.lanes):
        stream = stream_of(experiment, lane // 2, pool)
        cells.append(Cell(settle(experiment, stream), lane // 2, stream))

    def run(deterministic: bool) -> tuple[list[Outcome], float]:
        torch.backends.cudnn.deterministic = deterministic
        started = time.perf_counter()
        outcomes = Trainer(cells, torch.device(options.device), stacked=True).run()
        return outcomes, time.perf_counter() - started

    run(True)  # warm-up
    (first, seconds), (second, _), (loose, loose_seconds) = run(True), run(True), run(False)
    steps = options.tasks * options.steps * options.lanes
    content = {
        "same_record_twice": all(a.loss == b.loss for a, b in zip(first, second, strict=True)),
        "equal_lanes_are_equal": all(a.loss == b.loss for a, b in zip(first[::2], first[1::2], strict=True)),
        "same_without_determinism": all(a.loss == b.loss for a, b in zip(first, loose, strict=True)),
        "ms_per_lane_step": 1000 * first[0].seconds["train"] * options.lanes / steps,
        "ms_per_lane_step_without": 1000 * loose[0].seconds["train"] * options.lanes / steps,
        "seconds": seconds,
        "seconds_without": loose_seconds,
        "lanes": options.lanes,
        "environment": environment(torch.device(options.device)),
    }
    (options.out / "repeat.json").write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content))


if __name__ == "__main__":
    main()
