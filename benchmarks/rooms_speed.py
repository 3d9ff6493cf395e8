"""How fast rooms are rendered and labelled: scenes a second, by processes of one thread each.

    python benchmarks/rooms_speed.py --out DIR [--size 64] [--views 64] [--worlds 40] [--processes 2]

Every scene has its image and the labels of all 11 tasks, quantised to the official formats. Each process renders
worlds of its own after one to warm up; the clock runs from the first to the last. Writes rooms_speed-….json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import torch

from reprise.machine import cores
from reprise.results import environment
from reprise.streams.rooms import render


def warm_up(views: int, size: int) -> None:
    torch.set_num_threads(1)
    render(0, views, size)


def timed(world: int, views: int, size: int) -> float:
    began = time.process_time()
    render(world, views, size)
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--views", type=int, default=64, help="of a world")
    parser.add_argument("--worlds", type=int, default=40, help="in a block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--processes", type=int, default=cores())
    options = parser.parse_args()
    views, size, worlds = options.views, options.size, options.worlds
    blocks, processor = [], []
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        list(pool.map(warm_up, [views] * options.processes, [size] * options.processes))
        for block in range(options.blocks):
            numbers = range(1 + block * worlds, 1 + (block + 1) * worlds)
            began = time.perf_counter()
            processor += list(pool.map(timed, numbers, [views] * worlds, [size] * worlds))
            blocks.append(views * worlds / (time.perf_counter() - began))
    content = {
        "what": f"rooms of {size} x {size} pixels with the labels of 11 tasks",
        "processes": options.processes,
        "scenes_per_block": views * worlds,
        "scenes_per_second": {"median": statistics.median(blocks), "blocks": blocks},
        "scenes_per_processor_second": views / statistics.median(processor),
        "environment": environment(torch.device("cpu")),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"rooms_speed-{options.processes}cores-torch{torch.__version__}-{date.today()}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{statistics.median(blocks):.0f} scenes a second by {options.processes} processes: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
