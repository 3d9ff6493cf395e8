"""How the norm kernels' tiles were chosen: forward and backward over the maps of the reduced ResNet-18, on a GPU.

python benchmarks/tune_norm.py --out DIR [--lanes 60]
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from pathlib import Path

import torch
from tune_tiles import seconds

from reprise.kernels import norm
from reprise.kernels.conv import channels_last

MAPS = {"stage0": (20, 32, 5), "stage1": (40, 16, 5), "stage2": (80, 8, 5), "stage3": (160, 4, 5)}
"""Channels, height, and how many norms have such a map."""
CHOICES = [*itertools.product((8, 16, 32, 64), (1024, 2048, 4096))]


def run(name: str, dtype: torch.dtype, lanes: int) -> tuple[float, float]:
    channels, height, _ = MAPS[name]
    x, g = (
        channels_last(torch.randn(lanes, 15, channels, height, height, device="cuda").to(dtype))
        for _ in range(2)
    )
    weight, bias, mean, var = (torch.rand(lanes, channels, device="cuda") for _ in range(4))
    _, middle, inverse = norm.normalise(x, None, weight, bias, (mean, var), 0.1, 1e-5, True)
    forward = seconds(lambda: norm.normalise(x, None, weight, bias, (mean, var), 0.1, 1e-5, True))
    backward = seconds(lambda: norm.gradients(g, x, None, middle, inverse, weight, bias, True, False))
    return forward, backward


def use(choice: tuple[int, int]) -> None:
    norm.CHUNKS, norm.TILE = choice


def compile_one(job: tuple[str, torch.dtype, tuple[int, int]]) -> None:
    use(job[2])
    run(job[0], job[1], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lanes", type=int, default=60)
    options = parser.parse_args()
    jobs = [(m, d, c) for m in MAPS for d in (torch.float32, torch.bfloat16) for c in CHOICES]
    with multiprocessing.get_context("spawn").Pool(14) as pool:
        pool.map(compile_one, jobs, chunksize=4)
    rows = []
    for dtype, choice in itertools.product((torch.float32, torch.bfloat16), CHOICES):
        use(choice)
        times = {name: run(name, dtype, options.lanes) for name in MAPS}
        us = {n: [1e6 * t / options.lanes for t in found] for n, found in times.items()}
        total = sum(MAPS[n][2] * sum(found) for n, found in us.items())
        rows.append({"dtype": str(dtype), "choice": choice, "us": us, "total_us_per_lane_step": total})
    (options.out / "norm.json").write_text(json.dumps(rows, indent=1))
    for row in sorted(rows, key=lambda r: (r["dtype"], r["total_us_per_lane_step"])):
        shown = {n: [round(t, 2) for t in ts] for n, ts in row["us"].items()}
        print(row["dtype"], row["choice"], round(row["total_us_per_lane_step"], 1), shown)


if __name__ == "__main__":
    main()
