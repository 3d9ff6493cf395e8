"""Write docs/results.md from the records in results/: tables, and the paper's claims with what our runs say of them.

    python benchmarks/results_page.py [--check]

Every number of the page is computed here; the text around them is results_page.md. A comparison is made seed by seed
(the same seed has the same data order and weights). `--check` writes nothing and fails where the page is not what the
records say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reprise.experiments.places import Metric, printed_table
from reprise.metrics import forgetting_percent_per_task, performance_drop_percent_per_task
from reprise.report.statistics import paired
from reprise.results import Record
from reprise.streams.scenes import task_names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"


@cache
def records(file: str) -> tuple[Record, ...]:
    path = ROOT / "results" / file
    return tuple(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else ()


FORGETTING = Metric("forgetting", ("forgetting",), digits=3, lower_is_better=True)
ACCURACY = Metric("accuracy %", ("accuracy",), 100.0)
LEARNING = Metric("learning accuracy %", ("learning_accuracy",), 100.0)
FORGETTING_PERCENT = Metric("forgetting %", ("forgetting_percent",), lower_is_better=True)
DROP = Metric("drop %", ("performance_drop_percent",), lower_is_better=True)


@dataclass(frozen=True)
class Cell:
    """The runs of one experiment: those of a file with this method and these fields."""

    file: str
    method: str
    fields: dict[str, Any] = field(default_factory=dict)

    def runs(self) -> list[Record]:
        return [
            r
            for r in records(self.file)
            if r["method"] == self.method
            and all(r["configuration"].get(name) == value for name, value in self.fields.items())
        ]

    def values(self, metric: Metric) -> dict[int, float]:
        """By seed."""
        found = {r["seed"]: metric.of(r) for r in self.runs()}
        return {seed: value for seed, value in found.items() if value is not None}

    def show(self, metric: Metric) -> str:
        values = list(self.values(metric).values())
        if not values:
            return "–"
        return f"{np.mean(values):.{metric.digits}f} ± {np.std(values):.{metric.digits}f}"


@dataclass(frozen=True)
class Comparison:
    """Whether `mine` is better (lower where less is better) than `theirs`."""

    about: str
    mine: Cell
    theirs: Cell
    metric: Metric
    claim: str = "better"
    """What the paper says of mine: `better`, `worse`, or `alike`."""

    def line(self) -> list[str]:
        difference = paired(self.mine.values(self.metric), self.theirs.values(self.metric))
        if difference is None or difference.half is None:
            return [self.about, self.metric.title, "not yet run", ""]
        digits = self.metric.digits
        shown = f"{difference.mean:+.{digits}f} ± {difference.half:.{digits}f} ({difference.n} seeds)"
        better = (difference.mean < 0) == self.metric.lower_is_better
        if self.claim == "alike":
            verdict = "no difference seen" if not difference.clear else f"{'better' if better else 'worse'}"
        else:
            verdict = "yes" if better == (self.claim == "better") else "no"
            if not difference.clear:
                verdict = f"{verdict}, in every seed" if self.unanimous() else "open"
        return [self.about, self.metric.title, shown, verdict]

    def unanimous(self) -> bool:
        mine, theirs = self.mine.values(self.metric), self.theirs.values(self.metric)
        return len({mine[seed] < theirs[seed] for seed in mine.keys() & theirs.keys()}) == 1


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


# ---- cells

METHODS, ABLATIONS, ROOMS = "split-cifar-methods.jsonl", "split-cifar-ablations.jsonl", "rooms.jsonl"
CHOSEN = {"lam_fm": 0.1, "compress": "spatial_channel", "m": 16}
"""CAR on rooms as the validation worlds chose it."""
COMPRESSIONS = ("spatial_channel", "none", "spatial", "channel", "intermediate")


def cifar(method: str, m: int | None = None) -> Cell:
    return Cell(METHODS, method, {"m": m} if m else {})


def car_cifar(m: int, distance: str = "l2", lam_fm: float = 5.0) -> Cell:
    return Cell(ABLATIONS, "car", {"m": m, "distance": distance, "lam_fm": lam_fm})


def rooms(method: str, sequence: str = "1", **fields: Any) -> Cell:
    own = {"sequence": sequence} | (
        CHOSEN if method == "car" else {"m": 16} if method in ("er", "agem") else {}
    )
    return Cell(ROOMS, method, own | fields)


def squeezed(compress: str, sequence: str) -> Cell:
    return rooms("car", sequence, lam_fm=5.0, compress=compress)


# ---- the claims


def claims() -> list[tuple[str, str, list[Comparison]]]:
    """The paper's sentence, the records, the comparisons."""
    sequences = (("1", "rooms, sequence 1"), ("2", "rooms, sequence 2"))
    return [
        (
            "ER beats SGD, EWC and A-GEM on heterogeneous tasks",
            ROOMS,
            [
                Comparison(f"{where}: ER against {other}", rooms("er", s), rooms(other, s), metric)
                for s, where in sequences
                for other in (("sgd", "ewc", "agem") if s == "1" else ("sgd", "agem"))
                for metric in (FORGETTING_PERCENT, DROP)
            ],
        ),
        (
            "A small memory hurts ER",
            f"{METHODS}, {ROOMS}",
            [
                *(
                    Comparison(
                        f"Split-CIFAR: m = {a} against {b}", cifar("er", a), cifar("er", b), metric, "worse"
                    )
                    for a, b in ((85, 255), (255, 425))
                    for metric in (FORGETTING, ACCURACY)
                ),
                *(
                    Comparison(
                        f"rooms: m = {a} against {b} a task",
                        rooms("er", m=a),
                        rooms("er", m=b),
                        DROP,
                        "worse",
                    )
                    for a, b in ((4, 16), (16, 64))
                ),
            ],
        ),
        (
            "CAR forgets less than ER",
            f"{METHODS}, {ROOMS}",
            [
                *(
                    Comparison(f"Split-CIFAR, m = {m}", cifar("car", m), cifar("er", m), metric)
                    for m in (85, 255, 425)
                    for metric in (FORGETTING, ACCURACY)
                ),
                *(
                    Comparison(where, rooms("car", s), rooms("er", s), FORGETTING_PERCENT)
                    for s, where in sequences
                ),
            ],
        ),
        (
            "CAR's performance drop is slightly higher than ER's",
            ROOMS,
            [Comparison(where, rooms("car", s), rooms("er", s), DROP, "worse") for s, where in sequences],
        ),
        (
            "Compressed activations are about as good as uncompressed ones",
            ROOMS,
            [
                Comparison(where, squeezed("spatial_channel", s), squeezed("none", s), metric, "alike")
                for s, where in sequences
                for metric in (FORGETTING_PERCENT, DROP)
            ],
        ),
        (
            "Both means (spatial and channel) are the best compression",
            ROOMS,
            [
                Comparison(
                    f"{where}: against {other}", squeezed("spatial_channel", s), squeezed(other, s), metric
                )
                for s, where in sequences
                for other in ("spatial", "channel")
                for metric in (FORGETTING_PERCENT, DROP)
            ],
        ),
        (
            "Distances are alike, but MMD is worse",
            ABLATIONS,
            [
                Comparison(
                    f"Split-CIFAR, m = {m}: {other} against l2",
                    car_cifar(m, other),
                    car_cifar(m),
                    ACCURACY,
                    "worse" if other == "mmd" else "alike",
                )
                for m in (85, 425)
                for other in ("l1", "l1_l2", "weighted_l1", "weighted_l2", "mmd")
            ],
        ),
        (
            "Intermediate layers bring nothing",
            ROOMS,
            [
                Comparison(
                    where, squeezed("intermediate", s), squeezed("spatial_channel", s), metric, "alike"
                )
                for s, where in sequences
                for metric in (FORGETTING_PERCENT, DROP)
            ],
        ),
        (
            "More λ_fm forgets less and learns less",
            ABLATIONS,
            [
                Comparison(
                    f"Split-CIFAR, m = {m}: λ_fm = {high:g} against {low:g}",
                    car_cifar(m, lam_fm=high),
                    car_cifar(m, lam_fm=low),
                    metric,
                    claim,
                )
                for m in (85, 425)
                for low, high in ((0.25, 5.0), (5.0, 25.0), (25.0, 100.0))
                for metric, claim in ((FORGETTING, "better"), (LEARNING, "worse"))
            ],
        ),
    ]


def side_tuning() -> str:
    """What Side-Tuning costs: bytes of the model and multiplications of a query."""
    (own, *_), (other, *_) = rooms("side_tuning").runs(), rooms("sgd").runs()
    forgotten = max(abs(v) for v in rooms("side_tuning").values(FORGETTING_PERCENT).values())
    size = own["bytes"]["model"] / other["bytes"]["model"]
    work = np.mean(np.array(own["cost"]["macs_per_query"]) / np.array(other["cost"]["macs_per_query"]))
    return (
        f"**Side-Tuning forgets nothing, at a larger model and slower inference.** On rooms its forgetting is "
        f"{forgotten:g} in every seed; its model has {size:.2f} times the bytes after 11 tasks, and a query takes "
        f"{work:.2f} times the multiplications. Yes."
    )


# ---- the page


def distances_table() -> str:
    printed = printed_table("split_cls_distribution_matching")
    names = {"l1_l2": "l1_plus_l2", "mmd": "MMD"}
    rows = []
    for distance in ("l1", "l2", "l1_l2", "weighted_l1", "weighted_l2", "mmd"):
        row = [f"`{distance}`"]
        for m in (85, 425):
            theirs = printed[names.get(distance, distance)]["split_cifar"][f"m{m}"]
            row += [car_cifar(m, distance).show(ACCURACY), _printed(theirs["acc"])]
            row += [car_cifar(m, distance).show(FORGETTING), _printed(theirs["fgt"])]
        rows.append(row)
    return table(["distance", *_split_head()], rows)


def strengths_table() -> str:
    printed = printed_table("split_cifar_sensitivity")
    rows = []
    for lam_fm in (0.25, 1.0, 5.0, 10.0, 25.0, 100.0):
        row = [f"{lam_fm:g}"]
        for m in (85, 425):
            theirs = next(own for name, own in printed.items() if float(name) == lam_fm)["split_cifar"][
                f"m{m}"
            ]
            row += [car_cifar(m, lam_fm=lam_fm).show(ACCURACY), _printed(theirs["acc"])]
            row += [car_cifar(m, lam_fm=lam_fm).show(FORGETTING), _printed(theirs["fgt"])]
        rows.append(row)
    return table(["λ_fm", *_split_head()], rows)


def _split_head() -> list[str]:
    return [f"{name}, m = {m}" if name != "paper" else name for m in (85, 425) for name in _COLUMNS]


_COLUMNS = ("accuracy %", "paper", "forgetting", "paper")


def _printed(value: Any) -> str:
    return (
        "–"
        if value is None
        else " ± ".join(str(v) for v in value if v is not None)
        if isinstance(value, list)
        else str(value)
    )


def rooms_table() -> str:
    rows = []
    for method in ("sgd", "ewc", "agem", "er", "car", "side_tuning"):
        cells = [rooms(method, s) for s in "12"]
        first = cells[0].runs()[0]["bytes"]
        rows.append(
            [f"`{method}`"]
            + [cell.show(metric) for cell in cells for metric in (FORGETTING_PERCENT, DROP)]
            + [f"{first['total'] / 1e6:.2f}", f"{first['model'] / 1e6:.2f}"]
        )
    head = [f"{name}, sequence {s}" for s in "12" for name in ("forgetting %", "drop %")]
    return table(["method", *head, "kept, MB", "model, MB"], rows)


def tasks_table() -> str:
    """Forgetting and drop of each task of the first sequence, means over seeds."""
    methods = ("sgd", "ewc", "agem", "er", "car", "side_tuning")
    found = {}
    for method in methods:
        runs = rooms(method).runs()
        found[method] = [
            np.mean([forgetting_percent_per_task(r["matrix"]["loss"]) for r in runs], axis=0),
            np.mean(
                [performance_drop_percent_per_task(r["matrix"]["loss"], r["reference"]) for r in runs], axis=0
            ),
        ]
    rows = [
        [task, *(f"{found[name][0][j]:.0f} / {found[name][1][j]:.0f}" for name in methods)]
        for j, task in enumerate(task_names("1"))
    ]
    return table(["task", *(f"`{name}`" for name in methods)], rows)


def compressions_table() -> str:
    rows = []
    for compress in COMPRESSIONS:
        cells = [squeezed(compress, s) for s in "12"]
        runs = cells[0].runs() or cells[1].runs()
        size = f"{runs[0]['bytes']['activation'] / 1e6:.2f}" if runs else "–"
        rows.append(
            [f"`{compress}`", size]
            + [cell.show(metric) for cell in cells for metric in (FORGETTING_PERCENT, DROP)]
        )
    head = [f"{name}, sequence {s}" for s in "12" for name in ("forgetting %", "drop %")]
    return table(["compression", "activations, MB", *head], rows)


def claims_text() -> str:
    parts = []
    for sentence, files, comparisons in claims():
        links = ", ".join(f"[{name}](../results/{name})" for name in files.split(", "))
        rows = [comparison.line() for comparison in comparisons]
        parts += [
            f"**{sentence}.** {links}",
            table(["comparison", "of", "difference", "as the paper says"], rows),
        ]
    return "\n\n".join([*parts, side_tuning()])


def page() -> str:
    text = Path(__file__).with_suffix(".md").read_text()
    for name, make in {
        "CLAIMS": claims_text,
        "DISTANCES": distances_table,
        "STRENGTHS": strengths_table,
        "ROOMS": rooms_table,
        "TASKS": tasks_table,
        "COMPRESSIONS": compressions_table,
    }.items():
        text = text.replace(f"<!-- {name} -->", make())
    return text


def main() -> int:
    made = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != made:
            print(f"{PAGE} is not what the records say; run python benchmarks/results_page.py.")
            return 1
        return 0
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
