"""How fast rooms are rendered and labelled: scenes a second, after one building to warm up.

OMP_NUM_THREADS=2 python benchmarks/rooms_speed.py [size] [views a building] [buildings]
"""

from __future__ import annotations

import sys
import time

import torch

from reprise.streams.rooms import render


def main(size: int = 64, views: int = 64, buildings: int = 10) -> None:
    render(0, views, size)
    start, cpu = time.perf_counter(), time.process_time()
    for building in range(1, 1 + buildings):
        render(building, views, size)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    scenes = views * buildings
    print(f"{scenes} labelled scenes at {size}x{size}, {torch.get_num_threads()} threads: ", end="")
    print(f"{seconds:.2f} s, {scenes / seconds:.0f} scenes/s ({scenes / cpu:.0f} a processor second)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
