"""Split-CIFAR on a GPU: the cells this project reports for the core methods, and the search behind CAR at m = 85.

    python benchmarks/split_cifar.py SET --data DIR --out DIR [--warm]

core      17 tasks, 5 seeds: SGD, ER and CAR at m = 85 and 425, multi-task
study     17 tasks, 5 seeds: SGD, ER and CAR at m = 85 and 425: the 25 runs whose time is reported
search    the 3 validation tasks, 8 seeds (--seeds 8): readings of CAR that the paper leaves open
distances the same tasks and seeds: distances, weights and learning rates
readings  17 tasks, 5 seeds: what the search found worth reporting beside the default
slower    17 tasks, 5 seeds: the same at the learning rate the search prefers
grids     the validation tasks, 5 seeds: hyper-parameters of every method; chosen.json gets the best ones
mer       the validation tasks, 5 seeds: MER whose remembered examples move BatchNorm's running statistics
methods   17 tasks, 5 seeds, m = 85, 255 and 425: every method (--chosen FILE: as the grids chose; --second: only
          those for which another rate than the paper's was better, with it)
ablations 17 tasks, 5 seeds, m = 85 and 425: CAR's distances and weights
alternatives  17 tasks, 5 seeds, m = 85: ER and CAR under each other reading of what the paper leaves open

Writes records.jsonl (one record a run) and time.json, and prints a table last. `--warm` first makes a few steps of
every cell, so that kernels are compiled; the time is that of what follows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from reprise.config import make_experiment
from reprise.errors import Diverged
from reprise.metrics import summarise
from reprise.runner import run_experiments
from reprise.streams import STREAMS

Settings = dict[str, object]
SHOWN = (
    *("m", "lr", "distance", "lam_fm", "store", "reduction", "old_heads", "bn", "replay", "fill", "scope"),
    *("normalise", "lam", "reg", "beta", "s", "lam_anchor", "gamma", "alpha", "old_statistics"),
)


def core() -> list[tuple[str, Settings]]:
    cells: list[tuple[str, Settings]] = [("sgd", {}), ("multitask", {})]
    for m in (85, 425):
        cells += [("er", {"m": m}), ("car", {"m": m})]
    cells += [("car", {"m": m, "lam_fm": 1.0}) for m in (85, 425)]
    return cells


def study() -> list[tuple[str, Settings]]:
    return [("sgd", {}), *((method, {"m": m}) for m in (85, 425) for method in ("er", "car"))]


def search() -> list[tuple[str, Settings]]:
    """Every combination of the open choices, on the validation tasks only."""
    cells: list[tuple[str, Settings]] = []
    for heads, bn, replay in itertools.product(("train", "hold"), ("joint", "separate"), (5, 10)):
        common: Settings = {"m": 85, "split": "validation", "old_heads": heads, "bn": bn, "replay": replay}
        cells.append(("er", common))
        for store, lam_fm in itertools.product(("train", "eval"), (1.0, 5.0)):
            cells.append(("car", common | {"store": store, "lam_fm": lam_fm}))
    return cells


def distances() -> list[tuple[str, Settings]]:
    """Distances, weights and rates, for the default reading and the best of the search; validation tasks only."""
    cells: list[tuple[str, Settings]] = []
    for reading in ({}, {"old_heads": "hold", "bn": "separate"}):
        for distance, lam_fm, lr in itertools.product(
            ("l1", "l2", "weighted_l1"), (1.0, 5.0), (0.01, 0.03, 0.1)
        ):
            own: Settings = {"m": 85, "split": "validation", "distance": distance, "lam_fm": lam_fm, "lr": lr}
            cells.append(("car", own | reading))
    return cells


def readings() -> list[tuple[str, Settings]]:
    cells: list[tuple[str, Settings]] = []
    for m, heads, bn in itertools.product((85, 425), ("hold",), ("joint", "separate")):
        common: Settings = {"m": m, "old_heads": heads, "bn": bn}
        cells.append(("er", common))
        cells += [("car", common | {"lam_fm": lam_fm}) for lam_fm in (1.0, 5.0)]
    return cells


def slower() -> list[tuple[str, Settings]]:
    """The learning rate the validation tasks prefer, on the reported tasks."""
    cells: list[tuple[str, Settings]] = []
    for reading in ({}, {"old_heads": "hold", "bn": "separate"}):
        cells += [(method, {"m": 85, "lr": 0.01} | reading) for method in ("er", "car")]
    return cells


RATES = (0.01, 0.03, 0.1)
PAPER_RATE = 0.03
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "ewc": {"lam": (0.1, 1.0, 10.0, 100.0)},
    "agem": {},
    "icarl": {"reg": (0.1, 0.3, 1.0, 3.0, 10.0)},
    "mer": {"beta": (0.1, 0.3, 1.0), "s": (1.0, 5.0)},
    "hal": {"lam_anchor": (0.03, 0.1, 0.3, 1.0), "gamma": (0.1, 1.0)},
    "side_tuning": {},
    "derpp": {"alpha": (0.1, 0.3, 1.0), "beta": (0.5, 1.0)},
    "lwf": {"lam": (0.1, 1.0, 10.0)},
}
MEMORY_FREE = ("sgd", "multitask", "ewc", "side_tuning", "lwf")
SIZES = (85, 255, 425)


def grids() -> list[tuple[str, Settings]]:
    """Each method's grid and the rates, at m = 85 where it has a memory; on the validation tasks only."""
    cells: list[tuple[str, Settings]] = []
    for method, grid in GRIDS.items():
        own: Settings = {"split": "validation"} | ({} if method in MEMORY_FREE else {"m": 85})
        for lr, *values in itertools.product(RATES, *grid.values()):
            cells.append((method, own | {"lr": lr} | dict(zip(grid, values, strict=True))))
    return cells


def mer() -> list[tuple[str, Settings]]:
    """The grid of MER again, with the other reading of BatchNorm on single images; on the validation tasks only."""
    return [
        (method, own | {"old_statistics": True})
        for method, own in grids()
        if method == "mer" and own["lr"] == PAPER_RATE
    ]


def methods() -> list[tuple[str, Settings]]:
    cells: list[tuple[str, Settings]] = [(name, {}) for name in MEMORY_FREE]
    for m in SIZES:
        cells += [(name, {"m": m}) for name in ("agem", "er", "car", "icarl", "mer", "hal", "derpp")]
    return cells


def ablations() -> list[tuple[str, Settings]]:
    """CAR with every distance of the paper's table, and every weight of its other one."""
    cells: list[tuple[str, Settings]] = []
    for m in (85, 425):
        for distance in ("l1", "l2", "l1_l2", "weighted_l1", "weighted_l2", "mmd"):
            cells.append(("car", {"m": m, "distance": distance}))
        cells += [("car", {"m": m, "lam_fm": lam_fm}) for lam_fm in (0.25, 1.0, 10.0, 25.0, 100.0)]
    return cells


def alternatives() -> list[tuple[str, Settings]]:
    """One choice of docs/protocol.md changed at a time; the defaults first."""
    readings: list[Settings] = [
        {},
        *({"fill": fill} for fill in ("uniform_task", "ring_class", "reservoir")),
        *({"scope": scope} for scope in ("one_task", "each_task")),
        {"replay": 10},
        {"bn": "separate"},
        {"old_heads": "hold"},
        {"normalise": "mean_image"},
    ]
    cells = [(method, {"m": 85} | own) for own in readings for method in ("er", "car")]
    return [*cells, ("car", {"m": 85, "store": "eval"}), ("car", {"m": 85, "reduction": "sum"})]


def choose(records: list[dict]) -> dict[str, list[Settings]]:
    """For each method its best settings at the paper's rate and, where another rate is better, the best of all."""
    scores: dict[str, dict[str, list[float]]] = {}
    for record in records:
        values = record["configuration"]
        searched = ("lr", *GRIDS[record["method"]])
        fields = json.dumps({name: values[name] for name in searched} | _beside(values))
        scores.setdefault(record["method"], {}).setdefault(fields, []).append(record["accuracy"])
    chosen: dict[str, list[Settings]] = {}
    for method, found in scores.items():
        # A setting some of whose runs diverged has no mean to compare.
        most = max(len(runs) for runs in found.values())
        means = {fields: sum(runs) / most for fields, runs in found.items() if len(runs) == most}
        ranked = [json.loads(fields) for fields in sorted(means, key=lambda fields: -means[fields])]
        usual = next(fields for fields in ranked if fields["lr"] == PAPER_RATE)
        chosen[method] = [usual] if ranked[0] == usual else [usual, ranked[0]]
    return chosen


def _beside(values: Settings) -> Settings:
    """What a set settles besides its grid."""
    return {name: values[name] for name in ("old_statistics",) if values.get(name)}


VALIDATION = (search, distances, grids, mer)
REPORTED = (core, study, readings, slower, methods, ablations, alternatives)
SETS = {f.__name__: f for f in (*VALIDATION, *REPORTED)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=tuple(SETS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--only", help="some methods of the set, for example ewc,lwf")
    parser.add_argument("--cells", help="some cells of the set by their place, for example 18:22")
    parser.add_argument("--sizes", help="some memory sizes of the set, for example 0,85")
    parser.add_argument(
        "--split", default=None, help="validation: the validation tasks, whatever the set says"
    )
    parser.add_argument("--chosen", type=Path, help="JSON: each method's settings, the paper's rate first")
    parser.add_argument("--second", action="store_true", help="of the chosen settings only the second")
    parser.add_argument("--stream", default="split-cifar")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = SETS[options.which]()
    if options.cells:
        first, end = (int(text) for text in options.cells.split(":"))
        cells = cells[first:end]
    if options.only:
        cells = [cell for cell in cells if cell[0] in options.only.split(",")]
    if options.sizes:
        cells = [cell for cell in cells if str(cell[1].get("m", 0)) in options.sizes.split(",")]
    if options.chosen:
        chosen = json.loads(options.chosen.read_text())
        cells = [
            (method, own | settings)
            for method, settings in cells
            for own in (chosen.get(method, [{}])[1:] if options.second else chosen.get(method, [{}])[:1])
        ]
    more = {"precision": options.precision, "tasks": options.tasks, "steps": options.steps}
    if options.split:
        more["split"] = options.split
    experiments = [
        make_experiment(options.stream, method, settings | more, STREAMS[options.stream].protocol)
        for method, settings in cells
    ]
    if options.warm:
        began = time.perf_counter()
        short = [replace(e, tasks=2, steps=8) for e in experiments]
        list(run_experiments(short, range(options.seeds), options.data, options.device))
        print(f"warm-up: {time.perf_counter() - began:.1f} s")
    started = time.perf_counter()
    records = []
    with (options.out / "records.jsonl").open("w") as file:
        try:
            for record in run_experiments(experiments, range(options.seeds), options.data, options.device):
                records.append(record)
                file.write(json.dumps(record) + "\n")
                file.flush()
        except Diverged as error:  # raised last, after all other runs
            print(error)
    if options.which in ("grids", "mer"):
        (options.out / "chosen.json").write_text(json.dumps(choose(records), indent=1))
    seconds = time.perf_counter() - started
    parts = {name: sum(r["seconds"][name] for r in records) for name in records[0]["seconds"]}
    content = {
        "set": options.which,
        "precision": options.precision,
        "runs": len(records),
        "seconds": seconds,
        "of_the_groups": parts,
        "warm": options.warm,
        "environment": records[0]["environment"],
    }
    (options.out / "time.json").write_text(json.dumps(content, indent=1))
    groups: dict[str, list[dict]] = {}
    for record in records:
        values = record["configuration"]
        shown = " ".join(f"{name}={values[name]}" for name in SHOWN if name in values)
        groups.setdefault(f"{record['method']:10s} {shown}", []).append(record)
    for about, mine in groups.items():
        accuracy, forgetting, learning = (
            summarise([r[name] for r in mine]) for name in ("accuracy", "forgetting", "learning_accuracy")
        )
        print(
            f"{about:88s} n={accuracy['n']} acc {100 * accuracy['mean']:.1f}±{100 * accuracy['std']:.1f} "
            f"fgt {_number(forgetting['mean']):.3f} learn {100 * _number(learning['mean']):.1f}"
        )
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    print(f"{len(records)} runs in {seconds:.1f} s {parts}, peak {peak:.1f} GiB")
    return 0


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


if __name__ == "__main__":
    sys.exit(main())
