"""ResNet-50 on real buildings: every method of the paper's Taskonomy table, settings chosen on validation points.

    python benchmarks/taskonomy_study.py choose --data PACK --out DIR [--size 128] [--steps 200] [--batch 32]
    python benchmarks/taskonomy_study.py report --data PACK --out DIR [--seeds 0,1] [--memories 16,64]

choose  on the validation points, seed 0: the learning rate, and whether replay trains old heads, by ER at the largest
        memory: the lowest losses, relative to those of the middle rate; then, by the lowest performance drop, CAR's
        λ_fm and EWC's λ. Writes validation.jsonl and chosen.json.
report  with these settings every cell of {SGD, EWC, Side-Tuning, multi-task, and ER, CAR, A-GEM at each memory} for
        each seed. Writes records.jsonl. Pictures of test views by every method are written into DIR/store: look at
        them, do not publish them.

Several processes at once (--jobs). What is in DIR/store is not trained again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reprise.config import Experiment, make_experiment
from reprise.errors import Diverged
from reprise.keeping import Saving
from reprise.pictures import draw_grids
from reprise.reference import run_compared
from reprise.results import Record, to_json
from reprise.runner import run_experiments
from reprise.streams import stream_kind

RATES = (1e-4, 3e-4, 1e-3)
WEIGHTS: dict[str, tuple[str, Sequence[float]]] = {
    "car": ("lam_fm", (0.1, 1.0, 5.0, 20.0, 50.0)),
    "ewc": ("lam", (1e2, 1e3, 1e4, 1e5, 1e6)),
}
HEADS = ("train", "hold")
ALONE = ("multitask", "side_tuning", "ewc", "sgd")
"""Methods without a memory."""
REMEMBERING = ("agem", "car", "er")


class Study:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.store = options, options.out / "store"

    def experiment(self, method: str, **fields: Any) -> Experiment:
        options, kind = self.options, stream_kind("taskonomy")
        steps = options.steps * (kind.reference_steps or 1) if method == "multitask" else options.steps
        given = {"size": options.size, "steps": steps, "precision": options.precision}
        given |= {"encoder": options.encoder, "batch": options.batch}
        return make_experiment("taskonomy", method, given | fields, kind.protocol_of(method))

    def run(self, experiments: Sequence[Experiment], seeds: Sequence[int]) -> list[Record]:
        """The records, with performance drops where the multi-task reference is among the experiments."""
        lost: set[Experiment] = set()
        threads = max(1, torch.get_num_threads() // self.options.jobs)
        how = self.options.data, self.options.device, self.store, threads
        began, context = time.perf_counter(), multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.options.jobs, context) as pool:
            running = {pool.submit(_train, e, seed, *how): (e, seed) for seed in seeds for e in experiments}
            for future in as_completed(running):
                e, seed = running[future]
                about = f"{time.perf_counter() - began:7.0f} s  {_label(e)} seed {seed}"
                try:
                    (record,) = future.result()
                except Diverged as error:
                    lost.add(e)
                    print(f"{about}: {error}", flush=True)
                    continue
                print(f"{about}: {record['seconds']['total']:.0f} s", flush=True)
        there = [e for e in experiments if e not in lost]
        found = run_compared(there, seeds, self.store, data=self.options.data, device=self.options.device)
        return list(found)

    # ---- settings
    def choose(self) -> dict[str, Any]:
        m = max(self.options.memories)
        common: dict[str, Any] = {"split": "validation"}
        settings = [{"lr": lr, "old_heads": heads} for lr in RATES for heads in HEADS]
        tried = self.run([self.experiment("er", m=m, **one, **common) for one in settings], [0])
        final = {
            (r["configuration"]["lr"], r["configuration"]["old_heads"]): np.array(r["matrix"]["loss"][-1])
            for r in tried
        }
        usual = final.get((RATES[1], HEADS[0]), next(iter(final.values())))
        for (lr, heads), losses in final.items():
            print(f"er lr={lr:g} old_heads={heads}: {np.mean(losses / usual):.3f} of the usual losses")
        lr, heads = min(final, key=lambda one: float(np.mean(final[one] / usual)))
        chosen: dict[str, Any] = {"lr": lr, "er": {"old_heads": heads}}
        cells = [self.experiment("multitask", lr=lr, **common)]
        for method, (field, values) in WEIGHTS.items():
            fixed = {"m": m, "old_heads": heads} if method == "car" else {}
            cells += [self.experiment(method, lr=lr, **common, **fixed, **{field: value}) for value in values]
        tried += (more := self.run(cells, [0]))
        for method, (field, _) in WEIGHTS.items():
            runs = [r for r in more if r["method"] == method]
            winner = min(runs, key=lambda r: r["performance_drop_percent"])
            chosen[method] = {field: winner["configuration"][field]}
            for r in runs:
                print(f"{method} {field}={r['configuration'][field]}: {r['performance_drop_percent']}")
        chosen["car"]["old_heads"] = heads
        _write(self.options.out / "validation.jsonl", tried)
        (self.options.out / "chosen.json").write_text(json.dumps(chosen, indent=1) + "\n")
        print(json.dumps(chosen), flush=True)
        return chosen

    # ---- the report
    def report(self, chosen: dict[str, Any]) -> list[Record]:
        cells = [(name, dict[str, Any]()) for name in ALONE]
        cells += [(name, {"m": m}) for m in self.options.memories for name in REMEMBERING]
        experiments = [
            self.experiment(name, lr=chosen["lr"], **own, **chosen.get(name, {})) for name, own in cells
        ]
        return self.run(experiments, self.options.seeds)


def _train(
    experiment: Experiment, seed: int, data: Path, device: str, store: Path, threads: int
) -> list[Record]:
    torch.set_num_threads(threads)
    # A checkpoint of 343 million parameters and their optimizer is 4 GB: runs of minutes do without.
    saving = Saving(minutes=1e9, tasks=False)
    how: dict[str, Any] = {"data": data, "device": device, "store": store, "workers": 2, "saving": saving}
    return list(run_experiments([experiment], [seed], **how))


def _label(e: Experiment) -> str:
    fields = {"m": e.m if e.method.replays else None, "lr": e.lr}
    fields |= {name: getattr(e.method, name, None) for name in ("lam_fm", "lam")}
    return " ".join([e.method_name, *(f"{name}={v:g}" for name, v in fields.items() if v is not None)])


def _write(path: Path, records: Sequence[Record]) -> None:
    path.write_text("".join(to_json(record) + "\n" for record in records))


def table(records: Sequence[dict[str, Any]]) -> None:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["method"], record["m"]), []).append(record)
    print(f"{'method':<12}{'m':>5}{'seeds':>7}{'forgetting %':>16}{'drop %':>16}")
    for (method, m), own in groups.items():
        shown = [_spread([r[key] for r in own]) for key in ("forgetting_percent", "performance_drop_percent")]
        print(f"{method:<12}{m or '–':>5}{len(own):>7}{shown[0]:>16}{shown[1]:>16}")


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.1f} ± {np.std(known):.1f}" if known else "–"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("choose", "report"))
    parser.add_argument("--data", type=Path, required=True, help="a pack, or official folders")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0, 1])
    parser.add_argument("--memories", type=lambda text: [int(m) for m in text.split(",")], default=[16, 64])
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    study, settings = Study(options), options.out / "chosen.json"
    if options.what == "choose":
        study.choose()
        return 0
    if not settings.exists():
        parser.error(f"{settings} is not there; run choose first.")
    records = study.report(json.loads(settings.read_text()))
    _write(options.out / "records.jsonl", records)
    table(records)
    for seed in options.seeds:
        draw_grids(records, study.store, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
