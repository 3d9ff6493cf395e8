"""On a GPU: stacked lanes, captured as a CUDA graph, against single runs; float64, Split-CIFAR shapes.

python benchmarks/gpu_equality.py --data DIR [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from reprise.build import Cell
from reprise.config import make_experiment
from reprise.ledger import settle
from reprise.runner import load_pool, stream_of
from reprise.streams import STREAMS
from reprise.train import Trainer

CASES = {
    "sgd": [{}, {"lr": 0.01}],
    "er": [{}, {"m_per_class": 5}, {"lam": 0.5}],
    "car": [{}, {"m_per_class": 5}, {"lam_fm": 1.0}],
    "multitask": [{}, {}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--stream", default="split-cifar")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device)
    pool = load_pool(options.stream, options.data)
    for method, settings in CASES.items():
        cells = []
        for seed, extra in enumerate(settings):
            given = {"precision": "float64", "tasks": 3, "steps": 8, **extra}
            experiment = make_experiment(options.stream, method, given, STREAMS[options.stream].protocol)
            stream = stream_of(experiment, seed, pool)
            cells.append(Cell(settle(experiment, stream), seed, stream))
        started = time.perf_counter()
        lanes = Trainer(cells, device, stacked=True)
        lanes.run()
        worst = 0.0
        for lane, cell in enumerate(cells):
            single = Trainer([cell], device, stacked=False)
            single.run()
            for name, value in [*single.engine.params.items(), *single.engine.buffers.items()]:
                stacked = lanes.engine.params | lanes.engine.buffers
                worst = max(worst, (stacked[name][lane].double() - value.double()).abs().max().item())
        print(
            json.dumps(
                {
                    "method": method,
                    "lanes": len(cells),
                    "worst": worst,
                    "seconds": time.perf_counter() - started,
                }
            )
        )


if __name__ == "__main__":
    main()
