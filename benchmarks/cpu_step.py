"""One ER step of Reprise beside one of Avalanche 0.6.0, on the CPU, in turns.

    python benchmarks/cpu_step.py [--steps 100] [--threads 2] [--out benchmarks/results]

Both sides train the reduced ResNet-18 (Avalanche its own SlimResNet18) with 10 current and 5 replayed 3x32x32 images
in one joint pass, plain SGD. Blocks of 20 steps alternate, so that both meet the same noise and both find their own
data in the caches, as in a real training; the first two steps of a block are left out, and the ratio of medians is
what counts. Avalanche is timed as its users run it (contiguous tensors) and, for fairness, with a channels-last
encoder. Without Avalanche (see src/reprise/peers.py for how to install it) the script says so and stops.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reprise import peers
from reprise.build import Cell
from reprise.config import make_experiment
from reprise.ledger import settle
from reprise.results import environment
from reprise.streams import CIFAR_MEAN, CIFAR_STD, STREAMS
from reprise.streams.files import Images
from reprise.streams.split import make_pool, split_stream
from reprise.train import Trainer

BLOCK = 20


class ChannelsLast(nn.Module):
    """The encoder an Avalanche user gets who knows about memory formats."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = peers.own_encoder().to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x.contiguous(memory_format=torch.channels_last))


def our_step() -> Callable[[], float]:
    """A function that takes one ER step in the second task and returns its seconds, data gathering included."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(25), 500)
    names = tuple(str(c) for c in range(25))
    train = Images(rng.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8), labels, names)
    test = Images(train.x[::50], labels[::50], names)
    pool = make_pool(train, test, CIFAR_MEAN, CIFAR_STD, "random")
    stream = split_stream("split-cifar", pool, seed=0)
    experiment = make_experiment("split-cifar", "er", {"m": 50}, STREAMS["split-cifar"].protocol)
    experiment = settle(experiment, stream)
    trainer = Trainer([Cell(experiment, 0, stream)], torch.device("cpu"))
    feed = trainer.skip_to(1)
    position = iter(range(10**9))

    def step() -> float:
        started = time.perf_counter()
        batches = feed.batches(next(position) % feed.steps)
        trainer.method.step(trainer.engine, batches)
        return time.perf_counter() - started

    return step


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    reason = peers.available()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    torch.set_num_threads(options.threads)
    rows = {}
    for name, encoder in (
        ("as its users run it", peers.own_encoder),
        ("channels-last encoder", ChannelsLast),
    ):
        ours: list[float] = []
        step, calls = our_step(), itertools.count(1)

        def our_turn(
            step: Callable[[], float] = step, calls: Iterator[int] = calls, ours: list = ours
        ) -> None:
            if next(calls) % BLOCK == 0:
                ours += [step() for _ in range(BLOCK)][2:]

        timed = peers.er_step_times("cpu", encoder, options.steps, warmup=BLOCK, between=our_turn)
        theirs = [seconds for i, seconds in enumerate(timed.loop) if i % BLOCK >= 2]
        ours = ours[BLOCK - 2 :]
        rows[name] = {
            "avalanche_ms": 1000 * statistics.median(theirs),
            "reprise_ms": 1000 * statistics.median(ours),
            "ratio": statistics.median(ours) / statistics.median(theirs),
            "ratio_of_quartiles": float(np.quantile(ours, 0.25) / np.quantile(theirs, 0.25)),
        }
        print(f"Avalanche {name}: {json.dumps(rows[name])}")
    options.out.mkdir(parents=True, exist_ok=True)
    content = {
        "what": "one ER step, 10 + 5 images, reduced ResNet-18, joint pass",
        "steps": options.steps,
        "avalanche": "0.6.0",
        "rows": rows,
        "environment": environment(torch.device("cpu")),
    }
    path = options.out / f"cpu_step-{options.threads}threads-torch{torch.__version__}-{date.today()}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
