"""On a GPU: final accuracies of lanes by our kernels against single runs by torch's operators, for every method.

    python benchmarks/precision.py --data DIR --out DIR [--chosen FILE] [--seeds 5]

Split-CIFAR's validation tasks, m = 85. Arithmetic in TF32 and bf16 rounds differently in both, and training amplifies
it: what must agree is the accuracy in the end, within the spread over seeds. A single run is one model whose step is
captured as a CUDA graph, in TF32. Writes precision.json after each method and prints a table.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reprise.build import Cell
from reprise.config import make_experiment
from reprise.group_run import load_pool
from reprise.ledger import settle
from reprise.machine import set_arithmetic
from reprise.methods import METHODS
from reprise.results import environment
from reprise.streams import STREAMS, stream_of
from reprise.train import Trainer

STREAM = "split-cifar"
MODES = {
    "single, tf32": ("tf32", False),
    "lanes, tf32": ("tf32", True),
    "lanes, bf16": ("bf16", True),
}
"""What is compared: the precision, and whether the seeds are lanes of one group."""


def accuracies(cells: list[Cell], device: torch.device, lanes: bool) -> list[float]:
    """The mean accuracy over tasks of each cell in the end."""
    set_arithmetic(cells[0].experiment.precision)
    groups = [cells] if lanes else [[one] for one in cells]
    kernels = lanes and device.type == "cuda"
    found: list[float] = []
    for group in groups:
        outcomes = Trainer(group, device, stacked=lanes, kernels=kernels).run()
        found += [float(np.mean([value for value in o.accuracy[-1] if value is not None])) for o in outcomes]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--chosen", type=Path, help="JSON: each method's settings, those to use first")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    device = torch.device(options.device)
    chosen: dict[str, Any] = json.loads(options.chosen.read_text()) if options.chosen else {}
    pool, rows = load_pool(STREAM, options.data), list[dict[str, Any]]()
    for method in options.methods.split(","):
        own = chosen.get(method, [{}])[0] | ({"m": 85} if METHODS[method].replays else {})
        for mode, (precision, lanes) in MODES.items():
            given = own | {"split": "validation", "precision": precision, "steps": options.steps}
            experiment = make_experiment(STREAM, method, given, STREAMS[STREAM].protocol)
            cells = []
            for seed in range(options.seeds):
                stream = stream_of(experiment, seed, pool)
                cells.append(Cell(settle(experiment, stream), seed, stream))
            began = time.perf_counter()
            found = accuracies(cells, device, lanes)
            row = {"method": method, "mode": mode, "accuracy": found, "seconds": time.perf_counter() - began}
            rows.append(row | {"configuration": cells[0].experiment.configuration(pool.fingerprint)})
            print(
                f"{method:<12} {mode:<14} {100 * np.mean(found):5.1f} ± {100 * np.std(found):.1f} %"
                f"  ({row['seconds']:.1f} s)",
                flush=True,
            )
        content = {"what": __doc__, "rows": rows, "environment": environment(device)}
        (options.out / "precision.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
