"""Rooms on a CPU: every method of the paper's Taskonomy table, with settings chosen on validation worlds.

    OMP_NUM_THREADS=1 python benchmarks/rooms_study.py --out DIR [--seeds 0,1,2] [--steps 150]

1. The learning rate, by ER on the validation worlds: the lowest losses, relative to those of the default rate.
2. CAR's λ_fm and EWC's λ at that rate, on the validation worlds: the lowest performance drop.
3. The report: SGD, ER, CAR, A-GEM, EWC, Side-Tuning and multi-task, trained for every seed and scored on test worlds,
   which nothing was chosen by.
4. With --ablations also the second sequence, other memory sizes and λ_fm, CAR's compressions, intermediate layers.
5. With --readings also ER and CAR under other readings of what the paper leaves open (docs/protocol.md).

One process per core. Writes records.jsonl (the report), ablations.jsonl, readings.jsonl, chosen.json and
validation.jsonl, a table with a line per task, and pictures. A run that was stopped goes on where it was: finished
runs are in DIR/store.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reprise.config import Experiment, hash_of, make_experiment
from reprise.metrics import forgetting_percent_per_task, performance_drop_percent_per_task
from reprise.pictures import draw_grids
from reprise.progress import Report
from reprise.reference import run_compared
from reprise.results import Record, to_json
from reprise.streams import stream_kind

RATES = (3e-4, 1e-3, 3e-3)
WEIGHTS: dict[str, tuple[str, Sequence[float]]] = {
    "car": ("lam_fm", (0.1, 1.0, 5.0, 20.0, 50.0)),
    "ewc": ("lam", (1e1, 1e2, 1e3, 1e4, 1e5)),
}
# The longest first: the last process to end decides the time.
METHODS = ("agem", "car", "er", "multitask", "ewc", "side_tuning", "sgd")
SIZES = (4, 64)
"""Examples a task, besides the protocol's."""
COMPRESSIONS = ("spatial_channel", "none", "spatial", "channel", "intermediate")
STRENGTHS = (1.0, 20.0)
"""λ_fm besides the chosen one and that of the compressions."""
MATCHING = 5.0
"""λ_fm under which compressions are compared: strong enough that what is matched makes a difference."""
READINGS: Sequence[dict[str, Any]] = (
    *({"p_replay": p} for p in (0.0, 0.25, 0.75)),
    {"flip": False},
    {"masks": False},
    {"old_heads": "hold"},
    {"store": "eval"},
)
OF_CAR = ("store",)
"""Fields that ER does not have."""


class Study:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.store = options, options.out / "store"
        self.common: dict[str, Any] = {"steps": options.steps}
        self.common |= dict(pair.split("=", 1) for pair in options.set)

    def experiment(self, method: str, **fields: Any) -> Experiment:
        kind = stream_kind("rooms")
        given = self.common | fields
        if method == "multitask":
            given["steps"] = int(given["steps"]) * (kind.reference_steps or 1)
        return make_experiment("rooms", method, given, kind.protocol_of(method))

    def run(self, experiments: Sequence[Experiment], seeds: Sequence[int]) -> list[Record]:
        return list(run_compared(experiments, seeds, self.store, train=True, watch=tell))

    def choose(self, began: float) -> dict[str, Any]:
        """The rate and the weights; what an interrupted study has chosen it does not choose again."""
        path = self.options.out / "chosen.json"
        if path.exists():
            return json.loads(path.read_text())
        (self.options.out / "validation.jsonl").unlink(missing_ok=True)
        lr = self.choose_rate()
        print(f"learning rate {lr:g} after {time.perf_counter() - began:.0f} s", flush=True)
        chosen = {"lr": lr, **self.choose_weights(lr)}
        print(f"{json.dumps(chosen)} after {time.perf_counter() - began:.0f} s", flush=True)
        path.write_text(json.dumps(chosen, indent=1) + "\n")
        return chosen

    def choose_rate(self) -> float:
        runs = self.run([self.experiment("er", split="validation", lr=lr) for lr in RATES], [0])
        self.note(runs)
        final = {
            r["configuration"]["lr"]: np.array(r["matrix"]["loss"][-1]) for r in runs if r["method"] == "er"
        }
        middle = final[RATES[1]]
        return min(RATES, key=lambda lr: float(np.mean(final[lr] / middle)))

    def choose_weights(self, lr: float) -> dict[str, dict[str, float]]:
        cells = [
            self.experiment(method, split="validation", lr=lr, **{field: value})
            for method, (field, values) in WEIGHTS.items()
            for value in values
        ]
        runs = self.run(cells, [0])
        self.note([r for r in runs if r["method"] != "multitask"])
        chosen = {}
        for method, (field, _) in WEIGHTS.items():
            own = [r for r in runs if r["method"] == method]
            best = min(own, key=lambda r: r["performance_drop_percent"])
            chosen[method] = {field: best["configuration"][field]}
        return chosen

    def report(self, chosen: dict[str, Any]) -> list[Experiment]:
        return [self.experiment(method, **_settings(chosen, method)) for method in METHODS]

    def ablations(self, chosen: dict[str, Any]) -> list[Experiment]:
        lr = chosen["lr"]
        return [
            *(self.experiment(method, sequence="2", **_settings(chosen, method)) for method in METHODS),
            *(
                self.experiment("car", sequence=sequence, compress=compress, lr=lr, lam_fm=MATCHING)
                for sequence in "12"
                for compress in COMPRESSIONS
            ),
            *(self.experiment("car", lr=lr, lam_fm=lam_fm) for lam_fm in STRENGTHS),
            *(
                self.experiment(method, m=m, **_settings(chosen, method))
                for m in SIZES
                for method in ("car", "er")
            ),
        ]

    def readings(self, chosen: dict[str, Any]) -> list[Experiment]:
        strengths: dict[str, Any] = {"car": {"lam_fm": MATCHING}, "er": {}}
        return [
            self.experiment(method, **own, lr=chosen["lr"], **strengths[method])
            for own in READINGS
            for method in ("car", "er")
            if method == "car" or not own.keys() & set(OF_CAR)
        ]

    def note(self, records: Sequence[Record]) -> None:
        with (self.options.out / "validation.jsonl").open("a") as file:
            file.writelines(to_json(record) + "\n" for record in records)


def _settings(chosen: dict[str, Any], method: str) -> dict[str, Any]:
    return {"lr": chosen["lr"], **chosen.get(method, {})}


def tell(said: object) -> None:
    """A line for each run that ends."""
    if isinstance(said, Report) and said.over and said.runs:
        print(f"  {said.name}: {said.what} after {said.seconds:.0f} s", flush=True)


def table(records: Sequence[Record]) -> str:
    lines = [f"{'':<12}{'seeds':>6}{'forgetting %':>16}{'drop %':>16}{'kept MB':>10}{'model MB':>10}"]
    for method in METHODS[::-1]:
        own = [r for r in records if r["method"] == method]
        shown = [_spread([r[key] for r in own]) for key in ("forgetting_percent", "performance_drop_percent")]
        kept, model = own[0]["bytes"]["total"] / 1e6, own[0]["bytes"]["model"] / 1e6
        lines.append(f"{method:<12}{len(own):>6}{shown[0]:>16}{shown[1]:>16}{kept:>10.2f}{model:>10.2f}")
    return "\n".join(lines)


def groups(records: Sequence[Record]) -> str:
    """A line for each experiment, by the fields in which they differ."""
    shown = tuple(
        dict.fromkeys(["sequence", "m", "lam_fm", "compress", *(name for own in READINGS for name in own)])
    )
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        values = record["configuration"]
        found.setdefault((record["method"], *(values.get(name) for name in shown)), []).append(record)
    lines = []
    for key, own in sorted(found.items(), key=str):
        numbers = [
            _spread([r[name] for r in own]) for name in ("forgetting_percent", "performance_drop_percent")
        ]
        about = " ".join(f"{name}={value}" for name, value in zip(("method", *shown), key, strict=True))
        lines.append(
            f"{about:<110}{len(own):>4}{numbers[0]:>16}{numbers[1]:>16}"
            f"{own[0]['bytes'].get('activation', 0) / 1e6:>10.3f} MB"
        )
    return "\n".join(lines)


def _write(path: Path, records: Sequence[Record]) -> None:
    path.write_text("".join(to_json(record) + "\n" for record in records))


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.1f} ± {np.std(known):.1f}" if known else "–"


def per_task(records: Sequence[Record]) -> str:
    """Forgetting and drop of each task in %, means over seeds."""
    tasks = _tasks(records[0])
    lines = [f"{'':<18}" + "".join(f"{name:>24}" for name in METHODS[::-1] if name != "multitask")]
    for j, task in enumerate(tasks):
        cells = []
        for method in [name for name in METHODS[::-1] if name != "multitask"]:
            own = [r for r in records if r["method"] == method]
            forgotten = np.mean([forgetting_percent_per_task(r["matrix"]["loss"])[j] for r in own])
            lost = [performance_drop_percent_per_task(r["matrix"]["loss"], r["reference"])[j] for r in own]
            cells.append(f"{forgotten:12.1f} / {np.mean(lost):9.1f}")
        lines.append(f"{task:<18}" + "".join(cells))
    return "\n".join(lines)


def _tasks(record: Record) -> Sequence[str]:
    from reprise.streams.scenes import task_names

    return task_names(record["configuration"]["sequence"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="for every run")
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--readings", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    study, began = Study(options), time.perf_counter()
    chosen = study.choose(began)
    found, known = {}, set[str]()
    for name, wanted, experiments in (
        ("records", True, study.report),
        ("ablations", options.ablations, study.ablations),
        ("readings", options.readings, study.readings),
    ):
        # Each set keeps what the sets before it have not.
        runs = study.run(experiments(chosen), options.seeds) if wanted else []
        found[name] = [run for run in runs if hash_of(run["configuration"]) not in known]
        known |= {hash_of(run["configuration"]) for run in runs}
        found[name].sort(key=lambda r: (-METHODS.index(r["method"]), r["seed"]))
        if wanted:
            _write(options.out / f"{name}.jsonl", found[name])
    records = found["records"]
    print(f"rooms, {options.steps} steps a task ({time.perf_counter() - began:.0f} s in all)")
    print(table(records))
    print("forgetting % / performance drop % of each task")
    print(per_task(records))
    for name in ("ablations", "readings"):
        if found[name]:
            print(groups([*records, *found[name]]))
    draw_grids(records, study.store, options.seeds[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
