"""Where the time of a lane-step goes on a GPU: ER on Split-CIFAR shapes, one CUDA graph a step, kernel by kernel.

    python benchmarks/profile_step.py --out DIR [--lanes 60] [--precision tf32,bf16] [--method er] [--plain]

Times replays of the captured step, then profiles a few of them and adds up the kernels by kind. Writes JSON, prints
tables. `--plain` runs torch's own operators under vmap instead of our kernels.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from reprise.bench import random_pool
from reprise.build import Cell
from reprise.config import make_experiment
from reprise.ledger import settle
from reprise.results import environment
from reprise.streams import STREAMS, make_stream
from reprise.train import Trainer

KINDS = (
    (
        "norm",
        r"^(partial_moments|merge_moments|normalise|partial_gradients|merge_gradients|gradient)$|batch_norm|bn_",
    ),
    (
        "convolution",
        r"^(product|spread|filters|lines|line_filters)$|conv|cudnn|implicit|gemm|gemv|cutlass|xmma|sm90",
    ),
    ("update", r"multi_tensor"),
    ("copy", r"copy|cat|Memcpy|index|gather|Memset"),
)


def trainer_of(lanes: int, precision: str, method: str, kernels: bool, images) -> Trainer:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.deterministic = True
    cells = []
    for seed in range(lanes):
        given = {"precision": precision, "steps": 6, **({"m": 85} if method in ("er", "car") else {})}
        experiment = make_experiment("split-cifar", method, given, STREAMS["split-cifar"].protocol)
        e = experiment
        stream = make_stream(e.stream, images, seed, e.scenario, e.split, e.normalise, e.tasks)
        settled = settle(experiment, stream) if seed == 0 else cells[0].experiment
        cells.append(Cell(settled, seed, stream))
    return Trainer(cells, torch.device("cuda"), stacked=True, kernels=kernels)


def kind_of(name: str) -> str:
    for kind, pattern in KINDS:
        if re.search(pattern, name):
            return kind
    return "other"


def measure(lanes: int, precision: str, method: str, kernels: bool, images) -> dict:
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    trainer = trainer_of(lanes, precision, method, kernels, images)
    feed = trainer.skip_to(1)
    stepper = trainer.steppers.stepper(feed)
    for step in range(5):
        stepper.run(step)
    torch.cuda.synchronize()
    warm_up = time.perf_counter() - started

    def replay(count: int) -> None:
        for _ in range(count):
            stepper._cursor.fill_(4)
            stepper._graph.replay()

    replay(20)
    blocks = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        replay(40)
        torch.cuda.synchronize()
        blocks.append((time.perf_counter() - began) / 40)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        replay(5)
        torch.cuda.synchronize()
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event in found.key_averages():
        us = event.self_device_time_total / 5 / lanes
        kinds[kind_of(event.key)] += us
        names[event.key[:90]][0] += us
        names[event.key[:90]][1] += event.count / 5
    return {
        "lanes": lanes,
        "precision": precision,
        "method": method,
        "kernels": kernels,
        "ms_per_lane_step": 1000 * sorted(blocks)[2] / lanes,
        "blocks_ms_per_lane_step": [1000 * b / lanes for b in blocks],
        "warm_up_seconds": warm_up,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "us_per_lane_step_by_kind": dict(sorted(kinds.items(), key=lambda kv: -kv[1])),
        "us_per_lane_step_by_kernel": {
            n: {"us": v[0], "launches": v[1]} for n, v in sorted(names.items(), key=lambda kv: -kv[1][0])
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lanes", default="60")
    parser.add_argument("--precision", default="tf32,bf16")
    parser.add_argument("--method", default="er")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    images, rows = random_pool(), []
    for lanes in map(int, options.lanes.split(",")):
        for precision in options.precision.split(","):
            row = measure(lanes, precision, options.method, not options.plain, images)
            rows.append(row)
            torch.cuda.empty_cache()
            content = {"rows": rows, "environment": environment(torch.device("cuda"))}
            (options.out / "profile.json").write_text(json.dumps(content, indent=1))
            print(
                f"K={lanes} {precision} {row['ms_per_lane_step']:.4f} ms/lane-step  "
                f"warm-up {row['warm_up_seconds']:.1f} s  "
                f"{row['peak_reserved_bytes'] / 2**30:.1f} GiB  "
                + str({k: round(v, 1) for k, v in row["us_per_lane_step_by_kind"].items()})
            )
            if lanes in (25, 60):
                for name, value in list(row["us_per_lane_step_by_kernel"].items())[:14]:
                    print(f"    {value['us']:7.2f} us {value['launches']:6.1f}x {name}")


if __name__ == "__main__":
    main()
