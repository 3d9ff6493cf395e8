"""Write docs/results.md from the records in results/: tables, and the paper's claims with what our runs say of them.

    python benchmarks/results_page.py [--check]

Every number of the page is computed here; the text around them is results_page.md. A comparison is made seed by seed
(the same seed has the same data order and weights). `--check` writes nothing and fails where the page is not what the
records say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from claims import (
    BUILDING_VALIDATION,
    DRIFTS,
    HEADS_VALIDATION,
    LONGER,
    LONGER_VALIDATION,
    TWICE,
    building,
    car_cifar,
    claims_text,
    heads,
    longer,
    rooms,
    squeezed,
    summary,
)
from pages import write_page
from recorded import (
    ACCURACY,
    DROP,
    FIRST_FORGETTING,
    FORGETTING,
    FORGETTING_PERCENT,
    LEARNING,
    ROOT,
    Cell,
    records,
    spread,
    table,
)

from reprise.experiments.places import Metric, printed_table
from reprise.metrics import forgetting_percent_per_task, performance_drop_percent_per_task
from reprise.report.leftovers import MEASURES
from reprise.results import Record
from reprise.streams.scenes import task_names

PAGE = ROOT / "docs" / "results.md"
COMPRESSIONS = ("spatial_channel", "none", "spatial", "channel", "intermediate")
MINI, ALTERNATIVES = "split-mini-imagenet-methods.jsonl", "split-cifar-alternatives.jsonl"


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


ON_ROOMS = ("sgd", "ewc", "agem", "er", "car", "side_tuning")


def rooms_table() -> str:
    """Every method on both sequences, over the runs of both studies."""
    rows = []
    for method in ON_ROOMS:
        runs = [[r for _, study in TWICE for r in study(method, s).runs()] for s in "12"]
        kept = runs[0][0]["bytes"]
        rows.append(
            [f"`{method}`"]
            + [_over(own, metric) for own in runs for metric in (FORGETTING_PERCENT, DROP)]
            + [f"{kept['total'] / 1e6:.2f}", f"{kept['model'] / 1e6:.2f}"]
        )
    return table(["method", *_by_sequence(), "kept, MB", "model, MB"], rows)


def studies_table() -> str:
    """The two studies apart."""
    rows = [
        [f"`{method}`{note}"]
        + [study(method, s).show(metric) for s in "12" for metric in (FORGETTING_PERCENT, DROP)]
        for method in ON_ROOMS
        for note, study in TWICE
    ]
    return table(["method", *_by_sequence()], rows)


def _over(runs: list[Record], metric: Metric) -> str:
    values = [value for r in runs if (value := metric.of(r)) is not None]
    return f"{spread(values, metric.digits)} ({len(values)})"


def _by_sequence() -> list[str]:
    return [f"{name}, sequence {s}" for s in "12" for name in ("forgetting %", "drop %")]


def tasks_table(cells: dict[str, Cell]) -> str:
    """Forgetting and drop of each task of the first sequence, means over seeds."""
    columns = []
    for cell in cells.values():
        matrices = [(r["matrix"]["loss"], r["reference"]) for r in cell.runs()]
        forgotten = np.mean([forgetting_percent_per_task(own) for own, _ in matrices], axis=0)
        lost = np.mean([performance_drop_percent_per_task(own, other) for own, other in matrices], axis=0)
        columns.append([f"{f:.0f} / {d:.0f}" for f, d in zip(forgotten, lost, strict=True)])
    rows = [[task, *(column[j] for column in columns)] for j, task in enumerate(task_names("1"))]
    return table(["task", *cells], rows)


def rooms_tasks_table() -> str:
    return tasks_table({f"`{name}`": rooms(name) for name in ON_ROOMS})


def _buildings() -> dict[str, Cell]:
    alone = ("sgd", "ewc", "side_tuning")
    cells = {f"`{name}`": building(name) for name in alone}
    return cells | {f"`{name}`, {m}": building(name, m) for m in (16, 64) for name in ("agem", "er", "car")}


def building_table() -> str:
    cells = _buildings() | {f"`car`, {m}, λ_fm = 50": building("car", m, lam_fm=50.0) for m in (16, 64)}
    rows = []
    for name, cell in (cells | {"`ewc`, λ = 1e4": building("ewc", lam=1e4)}).items():
        sizes = [cell.runs()[0]["bytes"][what] / 1e6 for what in ("total", "model")]
        shown = [cell.show(metric) for metric in (FORGETTING_PERCENT, DROP)]
        rows.append([name, *shown, f"{sizes[0]:.1f}", f"{sizes[1]:.0f}"])
    return table(["method, m a task", "forgetting %", "drop %", "kept, MB", "model, MB"], rows)


def building_rates_table() -> str:
    """ER on the validation points: final losses in units of those of the rate and heads that were chosen."""
    runs = {
        (r["configuration"]["lr"], r["configuration"]["old_heads"]): np.array(r["matrix"]["loss"][-1])
        for r in records(BUILDING_VALIDATION)
        if r["method"] == "er"
    }
    heads = ("train", "hold")
    rows = [
        [f"{lr:g}", *(f"{np.mean(runs[lr, how] / runs[3e-4, 'train']):.3f}" for how in heads)]
        for lr in sorted({lr for lr, _ in runs})
    ]
    return table(["learning rate", *(f"`--old_heads {how}`" for how in heads)], rows)


def building_weights_table() -> str:
    """CAR's and EWC's weights on the validation points, below ER, which is CAR without matching."""
    tried = [("ER", Cell(BUILDING_VALIDATION, "er", {"lr": 3e-4, "old_heads": "train"}))]
    for method, field, name in (("car", "lam_fm", "CAR, λ_fm"), ("ewc", "lam", "EWC, λ")):
        values = {r["configuration"][field] for r in records(BUILDING_VALIDATION) if r["method"] == method}
        tried += [(f"{name} = {v:,g}", Cell(BUILDING_VALIDATION, method, {field: v})) for v in sorted(values)]
    rows = []
    for name, cell in tried:
        (run,) = cell.runs()
        rows.append([name, *(f"{metric.of(run):.1f}" for metric in (FORGETTING_PERCENT, DROP))])
    return table(["", "forgetting %", "drop %"], rows)


def mini_table() -> str:
    rows = []
    names = list(dict.fromkeys((r["method"], r["m"]) for r in records(MINI)))
    for method, m in sorted(names, key=lambda own: (own[1] or 0, own[0])):
        cell = Cell(MINI, method, {"m": m} if m else {})
        values = [cell.show(metric) for metric in (ACCURACY, FORGETTING, LEARNING)]
        rows.append([f"`{method}`", str(m or "–"), str(len(cell.runs())), *values])
    return table(["method", "m", "seeds", "accuracy %", "forgetting", "learning accuracy %"], rows)


USUAL = {
    **{"fill": "uniform_class", "scope": "union", "replay": 5, "bn": "joint", "old_heads": "train"},
    **{"normalise": "channel", "store": "train", "reduction": "mean"},
}
"""The default readings on the Split streams."""


def alternatives_table() -> str:
    """ER and CAR with one reading changed at a time."""
    found: dict[str, dict[str, Any]] = {}
    for record in records(ALTERNATIVES):
        values = record["configuration"]
        other = {name: values[name] for name, usual in USUAL.items() if values.get(name, usual) != usual}
        about = ", ".join(f"`{name}={value}`" for name, value in other.items()) or "the defaults"
        found.setdefault(about, other)
    rows = []
    for about, other in found.items():
        row = [about]
        for method in ("er", "car"):
            # What ER does not have finds none of its runs.
            own = {
                name: value
                for name, value in (USUAL | other).items()
                if method == "car" or name in other or name not in CAR_ONLY
            }
            cell = Cell(ALTERNATIVES, method, own)
            row += [cell.show(metric) for metric in (ACCURACY, FORGETTING)]
        rows.append(row)
    return table(["reading", "ER, accuracy %", "forgetting", "CAR, accuracy %", "forgetting"], rows)


CAR_ONLY = {"store", "reduction"}


def drift_table() -> str:
    """The measures of feature drift, mean over seeds: the first task, the later ones, and how many runs."""
    rows = []
    for method in ("er", "car"):
        runs = Cell(DRIFTS, method).runs()
        row = [f"`{method}`", str(len(runs))]
        for measure in MEASURES:
            values = np.array([r["drift"][measure] for r in runs])
            for own in (values[:, 0], values[:, 1:-1].mean(axis=1)):
                row.append(f"{own.mean():.2f} ± {own.std():.2f}")
        rows.append(row)
    names = {"drift": "relative drift", "CKA": "linear CKA", "MMD": "MMD"}
    head = [f"{names[measure]}, {which}" for measure in MEASURES for which in ("first task", "later tasks")]
    return table(["method", "seeds", *head], rows)


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
    return table(["compression", "activations, MB", *_by_sequence()], rows)


def heads_table() -> str:
    """Replay that trains old heads beside replay that holds them: validation worlds, then test worlds."""

    def er(sequence: str, lr: float) -> list[Cell]:
        own = {"sequence": sequence, "lr": lr, "p_replay": 0.5}
        return [Cell(HEADS_VALIDATION, "er", own | {"old_heads": how}) for how in ("train", "hold")]

    pairs = {
        **{f"validation worlds, sequence 1, `er`, rate {lr:g}": er("1", lr) for lr in (3e-4, 1e-3, 3e-3)},
        "validation worlds, sequence 2, `er`, rate 0.003": er("2", 3e-3),
    }
    for sequence in "12":
        for method in ("er", "car"):
            name = f"test worlds, sequence {sequence}, `{method}`"
            pairs[name] = [heads(method, how, sequence) for how in ("train", "hold")]
    metrics = (FORGETTING_PERCENT, FIRST_FORGETTING, DROP)
    rows = [
        [name, *(cell.show(m) for cell in cells for m in metrics), _less_forgotten(*cells)]
        for name, cells in pairs.items()
    ]
    titles = ("forgetting %", "of the first task", "drop %")
    head = [f"{how}: {title}" for how in ("trained", "held") for title in titles]
    return table(["", *head, "tasks of which held heads forget less"], rows)


def _less_forgotten(trained: Cell, held: Cell) -> str:
    """How many tasks, by the mean over seeds. The last task ends with the run: nothing of it can be forgotten."""
    means = [
        np.mean([forgetting_percent_per_task(r["matrix"]["loss"])[:-1] for r in cell.runs()], axis=0)
        for cell in (trained, held)
    ]
    return f"{int((means[1] < means[0]).sum())} of {len(means[0])}"


def longer_table() -> str:
    """400 steps a task: every weight on validation worlds, the chosen and a large one on test worlds."""
    validated = {"train": (0.1, 1.0, 5.0, 20.0), "hold": (1.0, 5.0, 20.0, 50.0)}
    tested = {(s, how): own for s in "12" for how, own in (("train", (0.1,)), ("hold", (1.0, 20.0)))}
    rows = []
    for how, weights in validated.items():
        rows += _longer_rows("validation worlds, sequence 1", "1", how, weights, LONGER_VALIDATION)
    for (sequence, how), weights in tested.items():
        rows += _longer_rows(f"test worlds, sequence {sequence}", sequence, how, weights, LONGER)
    return table(
        ["", "old heads", "method", "forgetting %", "of the first task", "final losses / ER's"], rows
    )


def _longer_rows(where: str, sequence: str, how: str, weights: Sequence[float], file: str) -> list[list[str]]:
    er = longer("er", how, sequence, file=file)
    cells = {"`er`": er} | {
        f"`car`, λ_fm = {weight:g}": longer("car", how, sequence, weight, file) for weight in weights
    }
    rows = []
    for name, cell in cells.items():
        shown = [cell.show(metric) for metric in (FORGETTING_PERCENT, FIRST_FORGETTING)]
        word = {"train": "trained", "hold": "held"}[how]
        rows.append([where, word, name, *shown, spread(_relative_losses(cell, er), 3)])
    return rows


def _relative_losses(mine: Cell, theirs: Cell) -> list[float]:
    """Final losses in units of the other's, mean over the tasks; by seed."""
    last = [{r["seed"]: np.array(r["matrix"]["loss"][-1]) for r in cell.runs()} for cell in (mine, theirs)]
    return [float(np.mean(last[0][seed] / last[1][seed])) for seed in sorted(last[0].keys() & last[1].keys())]


PARTS: dict[str, Callable[[], str]] = {
    "SUMMARY": summary,
    "CLAIMS": claims_text,
    "DRIFT": drift_table,
    "DISTANCES": distances_table,
    "STRENGTHS": strengths_table,
    "ALTERNATIVES": alternatives_table,
    "MINI": mini_table,
    "BUILDING": building_table,
    "BUILDING RATES": building_rates_table,
    "BUILDING WEIGHTS": building_weights_table,
    "BUILDING TASKS": lambda: tasks_table(_buildings()),
    "ROOMS": rooms_table,
    "STUDIES": studies_table,
    "TASKS": rooms_tasks_table,
    "COMPRESSIONS": compressions_table,
    "HEADS": heads_table,
    "LONGER": longer_table,
}


if __name__ == "__main__":
    sys.exit(write_page(PAGE, __file__, PARTS))
