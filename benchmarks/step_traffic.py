"""Where a step of ResNet-50 and its decoder goes: bytes that operators read and write, ours and a plain loop's.

    python benchmarks/step_traffic.py --out DIR [--batch 2] [--size 128]

Counted on a CPU, in bf16 as on a GPU, by the operators that are called; nothing is timed. A GPU spends such a step on
moving bytes more than on products. The optimizer is left out: its bytes do not grow with the batch, and the two loops
call it in other forms. Writes step_traffic-….json, gigabytes a step of 64 images of 256 x 256 by operator.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from taskonomy_speed import OurSteps, plain_step

from reprise.models.norm import allow_mixed, allow_rows
from reprise.results import environment
from reprise.step_cost import Operators

FULL = 64 * 256 * 256
"""Pixels of the batch that numbers are given for."""


def count(step: Callable[[], object]) -> Counter[str]:
    """The second step: the first one makes the optimizer's moments."""
    step()
    with Operators() as done:
        step()
    return done.moved


def growing(count_at: Callable[[int], Counter[str]], batch: int, size: int) -> dict[str, float]:
    """Gigabytes by operator that a full batch adds: what weights and the optimizer move is the same at any batch."""
    small, large = count_at(batch), count_at(2 * batch)
    a_pixel = {name: (large[name] - small[name]) / (batch * size * size) for name in large}
    return {name: FULL * found / 1e9 for name, found in a_pixel.items() if FULL * found > 1e6}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=128)
    options = parser.parse_args()
    device = torch.device("cpu")

    def plain(batch: int) -> Counter[str]:
        return count(plain_step(device, batch, options.size, "bf16"))

    def ours(batch: int) -> Counter[str]:
        wanted = argparse.Namespace(batch=batch, size=options.size, encoder="resnet50")
        run = OurSteps("er", device, wanted, captured=False)
        model = run.trainer.engine.model
        allow_rows(model, False)
        allow_mixed(model, True)  # as on a GPU
        return count(lambda: run.run_of(False, 1))

    found = {
        name: growing(how, options.batch, options.size) for name, how in (("plain", plain), ("ours", ours))
    }
    names = sorted({*found["plain"], *found["ours"]}, key=lambda name: -found["ours"].get(name, 0.0))
    for name in names:
        a, b = (found[who].get(name, 0.0) for who in ("plain", "ours"))
        if abs(a - b) > 0.02:
            print(f"{name:<40}{a:8.2f}{b:8.2f}{b - a:+8.2f} GB")
    totals = {who: sum(own.values()) for who, own in found.items()}
    print(
        f"{'in all':<40}{totals['plain']:8.2f}{totals['ours']:8.2f}{totals['ours'] - totals['plain']:+8.2f} GB"
    )
    content = {
        "what": "gigabytes that operators read and write in a step of 64 images of 256 x 256, weights aside",
        "counted_at": {"batch": options.batch, "size": options.size},
        "totals": totals,
        "operators": found,
        "environment": environment(device),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"step_traffic-torch{torch.__version__}-{date.today()}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
