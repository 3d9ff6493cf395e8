"""On a GPU: stacked lanes, captured as a CUDA graph, against single runs, for every method; Split-CIFAR shapes.

    python benchmarks/gpu_equality.py --out DIR [--device cuda]

step       float64, lanes of different seeds and settings against single runs, each step from the same numbers
float64    lanes of different seeds and settings (ER and CAR also as one mixed group) against single runs driven step
           by step, after a short and a longer training: rounding differs, and training amplifies it
kernels    our kernels in float64 and float32 against torch's operators in float64, after the short training
company    tf32 and bf16: a run alone, and the same run among other lanes, bit for bit

Images are random. Writes equality.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from reprise.bench import random_pool
from reprise.build import Cell
from reprise.config import make_experiment
from reprise.ledger import settle
from reprise.machine import set_arithmetic
from reprise.methods import METHODS
from reprise.results import environment
from reprise.stepper import Stepper
from reprise.streams import STREAMS, stream_of
from reprise.train import Trainer

STREAM = "split-cifar"
POOL = random_pool()
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "sgd": [{}, {"lr": 0.01}],
    "er": [{}, {"m_per_class": 5}, {"lam": 0.5}],
    "car": [{}, {"m_per_class": 5}, {"lam_fm": 1.0}],
    "ewc": [{"every": 4}, {"every": 4, "lam": 3.0}],
    "hal": [
        {"anchor_steps": 3, "finetune_steps": 2},
        {"anchor_steps": 3, "finetune_steps": 2, "lam_anchor": 0.3},
    ],
}
"""What lanes of a group may differ in; methods not named here run twice as they are."""
SHORT, LONG = {"tasks": 2, "steps": 6}, {"tasks": 3, "steps": 8}


def cell(method: str, seed: int, **fields: Any) -> Cell:
    experiment = make_experiment(STREAM, method, fields, STREAMS[STREAM].protocol)
    stream = stream_of(experiment, seed, POOL)
    return Cell(settle(experiment, stream), seed, stream)


def group(method: str, **fields: Any) -> list[Cell]:
    if method == "er + car":
        return [cell("er", 0, **fields), cell("car", 1, **fields), cell("er", 2, lam=0.5, **fields)]
    return [cell(method, seed, **fields, **own) for seed, own in enumerate(SETTINGS.get(method, [{}, {}]))]


def trained(cells: list[Cell], device: torch.device, stacked: bool, kernels: bool = False) -> Trainer:
    set_arithmetic(cells[0].experiment.precision)
    trainer = Trainer(cells, device, stacked=stacked, kernels=kernels)
    trainer.run()
    return trainer


def furthest(lanes: Trainer, lane: int, other: Trainer, other_lane: int | None) -> float:
    """The largest difference of a parameter or statistic between a lane and another run, where its tensor has numbers
    above 1 in parts of the largest of them."""
    theirs = other.engine.params | other.engine.buffers
    worst = 0.0
    for name, value in (lanes.engine.params | lanes.engine.buffers).items():
        twin = theirs[name] if other_lane is None else theirs[name][other_lane]
        apart = (value[lane].double() - twin.double()).abs().max()
        worst = max(worst, (apart / twin.double().abs().max().clamp(min=1.0)).item())
    return worst


def against_single(method: str, device: torch.device, length: dict[str, int]) -> float:
    cells = group(method, precision="float64", **length)
    lanes = trained(cells, device, stacked=True)
    return max(furthest(lanes, i, trained([one], device, stacked=False), None) for i, one in enumerate(cells))


def step_by_step(method: str, device: torch.device, steps: int) -> float:
    """Each step of the second task from the same numbers on both sides: what rounding does in one step.

    Training amplifies it, MER's steps on single images ten thousand times and more a step.
    """
    cells = group(method, precision="float64", tasks=2, steps=steps)
    set_arithmetic("float64")
    lanes = Trainer(cells, device, stacked=True, kernels=False)
    second = min(1, len(lanes.phases) - 1)
    stepper = lanes.steppers.stepper(lanes.skip_to(second))
    singles = [Trainer([one], device, stacked=False, kernels=False) for one in cells]
    alone = [Stepper(single.method, single.engine, single.skip_to(second), 0) for single in singles]
    worst = 0.0
    for step in range(steps):
        for lane, single in enumerate(singles):
            for part in ("params", "buffers", "state"):
                for name, value in getattr(single.engine, part).items():
                    value.data.copy_(getattr(lanes.engine, part)[name][lane])
        stepper.run(step)
        for lane, single in enumerate(singles):
            alone[lane].run(step)
            worst = max(worst, furthest(lanes, lane, single, None))
    return worst


def kernels_against_plain(method: str, device: torch.device, precision: str) -> float:
    exact = trained(group(method, precision="float64", **SHORT), device, stacked=True)
    fast = trained(group(method, precision=precision, **SHORT), device, stacked=True, kernels=True)
    return max(furthest(fast, lane, exact, lane) for lane in range(len(fast.cells)))


def in_company(method: str, device: torch.device, precision: str) -> float:
    own = SETTINGS.get(method, [{}])[0]
    cells = [cell(method, seed, precision=precision, **LONG, **own) for seed in range(9)]
    many = trained(cells, device, stacked=True, kernels=True)
    return max(
        furthest(many, lane, trained([cells[lane]], device, stacked=True, kernels=True), 0) for lane in (0, 8)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="checks whose name has these words")
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    device, rows = torch.device(options.device), []

    methods = options.methods.split(",")

    def note(check: str, method: str, fn: Any, *arguments: Any) -> None:
        if options.only not in check:
            return
        try:
            row = {"check": check, "method": method, "furthest": fn(method, device, *arguments)}
        except Exception as error:  # noqa: BLE001 (one check that fails must not hide the others)
            row = {"check": check, "method": method, "error": f"{type(error).__name__}: {str(error)[:200]}"}
        rows.append(row)
        print(json.dumps(row), flush=True)
        content = {"rows": rows, "short": SHORT, "long": LONG, "environment": environment(device)}
        (options.out / "equality.json").write_text(json.dumps(content, indent=1))

    for method in methods:
        note("float64, step by step: lanes against single", method, step_by_step, 12)
    for method in methods:
        note("float64, short: lanes against single", method, against_single, SHORT)
    note("float64, short: lanes against single", "er + car", against_single, SHORT)
    for method in methods:
        note("float64, long: lanes against single", method, against_single, LONG)
    for method in methods:
        if device.type == "cuda":
            note("float64, short: kernels against plain", method, kernels_against_plain, "float64")
            note("float32, short: kernels against plain float64", method, kernels_against_plain, "float32")
            note("tf32, long: alone against nine lanes", method, in_company, "tf32")
            note("bf16, long: alone against nine lanes", method, in_company, "bf16")


if __name__ == "__main__":
    main()
