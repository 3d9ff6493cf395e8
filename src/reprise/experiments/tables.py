"""One function for each table and figure of the paper.

`reprise reproduce NAME` runs a function's cells; NAME is the function's own, as in `paper_results.yaml`, which holds
the printed numbers that stand as "expected" beside what is measured. Times of `--scale smoke` were
measured on 2 CPU cores (`benchmarks/reproduce_times.py`), those of Split-CIFAR are the sums of its recorded runs, and
those of Taskonomy follow from one measured step (`docs/taskonomy.md`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reprise.experiments.places import Place, Sheet, as_printed, paper, printed_table

METHODS = {
    **{"MT": "multitask", "SGD": "sgd", "EWC": "ewc", "A-GEM": "agem", "ER": "er", "CAR": "car"},
    **{"iCaRL": "icarl", "MER": "mer", "HAL": "hal", "Side-Tuning": "side_tuning"},
}
"""The paper's names of the methods, and ours."""
REMEMBERS = ("agem", "er", "car", "icarl", "mer", "hal")
DISTANCES = {"l1_plus_l2": "l1_l2", "MMD": "mmd"}
"""The paper's names of distances, where ours differ."""


def taskonomy_1() -> Sheet:
    """Table 1: what each method keeps, forgets and loses on Taskonomy's first sequence.

    Command: `reprise reproduce taskonomy_1 --scale paper --data DIR`.
    Time: smoke 25 s. A replaying run of the full setting would take 2.8 h on one H200: 262,500 steps of 38 ms.
    Expected: replay (ER) forgets a fraction of what SGD and EWC do, more memory helps, Side-Tuning forgets nothing.
    """
    table, places = printed_table("taskonomy_1"), list[Place]()
    for row in table["kind"]:
        name, _, m = (
            row.partition("-") if row.startswith("ER-") else (row, "", "256" if row == "A-GEM" else "")
        )
        fields: dict[str, Any] = {"sequence": "1"} | ({"m": int(m)} if m else {})
        printed = {
            "storage": as_printed(table["extra_storage_gb"][row]),
            "model": as_printed(table["final_model_size_gb"][row]),
            "fgt_percent": as_printed(table["forgetting_pct"][row]),
            "dperf": as_printed(table["delta_performance_pct"][row]),
        }
        places.append(Place("sequence_1", row, "all", "taskonomy", METHODS[name], fields, printed))
    note = (
        "Storage in GB of 1e9 bytes; the paper counts the training data of a multi-task model as its storage."
    )
    return Sheet("taskonomy_1", "Table 1: methods on Taskonomy", tuple(places), "SGD", note=note)


def taskonomy() -> Sheet:
    """Table 2: SGD, A-GEM, ER and CAR on both task sequences, 64 to 512 examples a task.

    Command: `reprise reproduce taskonomy --scale paper --data DIR`.
    Time: smoke 63 s; the full setting as for `taskonomy_1`.
    Expected: CAR forgets less than ER at every m, at a slightly larger performance drop; A-GEM lies between.
    """
    places: list[Place] = []
    for part, rows in printed_table("taskonomy").items():
        for row, cells in rows.items():
            own = {"sequence": part[-1]}
            places += _taskonomy_row(part, row, METHODS[row], own, cells)
    return Sheet("taskonomy", "Table 2: two Taskonomy sequences", tuple(places), "ER", note=_LAM_FM_NOTE)


def split_cifar() -> Sheet:
    """Table 3: all methods on Split-CIFAR and Split-miniImageNet at m = 85 and 425.

    Command: `reprise reproduce split_cifar --scale paper --data DIR --device cuda`.
    Time: smoke 15 s; Split-CIFAR's half of the full setting 27 min on one H200, 13 of them HAL's.
    Expected: CAR has the highest accuracy and the least forgetting on Split-CIFAR, ahead of HAL and ER.
    """
    places = _split_rows("split_cifar", lambda row: (METHODS[row], {}))
    return Sheet("split_cifar", "Table 3: Split-CIFAR and Split-miniImageNet", tuple(places), "ER")


def split_cifar_255() -> Sheet:
    """Appendix: the same methods at m = 255.

    Command: `reprise reproduce split_cifar_255 --scale paper --data DIR --device cuda`.
    Time: smoke 12 s; Split-CIFAR's half of the full setting 10 min on one H200, 7 of them HAL's.
    Expected: between the columns of table 3.
    """
    places = _split_rows("split_cifar_255", lambda row: (METHODS[row], {}))
    return Sheet("split_cifar_255", "Split streams at m = 255", tuple(places), "ER")


def taskonomy_compression() -> Sheet:
    """Table 4: how CAR's activations are compressed, first sequence.

    Command: `reprise reproduce taskonomy_compression --scale paper --data DIR`.
    Time: smoke 37 s; the full setting as for `taskonomy_1`.
    Expected: pooling over space and channels is the best compression, near uncompressed at a sixtieth of its bytes.
    """
    places: list[Place] = []
    for row, cells in printed_table("taskonomy_compression").items():
        own = {"sequence": "1", "compress": row}
        places += _taskonomy_row("sequence_1", row, "car", own, cells)
    return Sheet(
        "taskonomy_compression", "Table 4: compression techniques", tuple(places), "none", note=_LAM_FM_NOTE
    )


def split_cls_distribution_matching() -> Sheet:
    """Appendix A: the distance between activations now and then.

    Command: `reprise reproduce split_cls_distribution_matching --scale paper --data DIR --device cuda`.
    Time: smoke 11 s; Split-CIFAR's half of the full setting 147 s on one H200.
    Expected: the distances are alike, and MMD is worse.
    """
    places = _split_rows(
        "split_cls_distribution_matching", lambda row: ("car", {"distance": DISTANCES.get(row, row)})
    )
    title = "Regularisation functions"
    return Sheet("split_cls_distribution_matching", title, tuple(places), "l2")


def taskonomy_intermediate() -> Sheet:
    """Appendix B: intermediate layers beside the last one.

    Command: `reprise reproduce taskonomy_intermediate --scale paper --data DIR`.
    Time: smoke 27 s; the full setting as for `taskonomy_1`.
    Expected: storing intermediate layers too brings nothing consistent.
    """
    places: list[Place] = []
    for row, cells in printed_table("taskonomy_intermediate").items():
        own = {
            "sequence": "1",
            "compress": "intermediate" if row == "CAR_intermediate" else "spatial_channel",
        }
        places += _taskonomy_row("sequence_1", row, "car", own, cells)
    return Sheet("taskonomy_intermediate", "Intermediate layers", tuple(places), "CAR", note=_LAM_FM_NOTE)


def taskonomy_sensitivity_analysis() -> Sheet:
    """Appendix C: λ_fm on Taskonomy's first sequence.

    Command: `reprise reproduce taskonomy_sensitivity_analysis --scale paper --data DIR`.
    Time: smoke 47 s; the full setting as for `taskonomy_1`.
    Expected: the larger λ_fm, the less is forgotten, and at large m the less is learnt.
    """
    places: list[Place] = []
    for row, cells in printed_table("taskonomy_sensitivity_analysis").items():
        places += _taskonomy_row("sequence_1", row, "car", {"sequence": "1", "lam_fm": float(row)}, cells)
    return Sheet("taskonomy_sensitivity_analysis", "λ_fm on Taskonomy", tuple(places), "5.0")


def split_cifar_sensitivity() -> Sheet:
    """Appendix C: λ_fm on the Split streams.

    Command: `reprise reproduce split_cifar_sensitivity --scale paper --data DIR --device cuda`.
    Time: smoke 11 s; Split-CIFAR's half of the full setting 70 s on one H200.
    Expected: forgetting falls as λ_fm grows; accuracy is best near 5 and falls beyond.
    """
    places = _split_rows("split_cifar_sensitivity", lambda row: ("car", {"lam_fm": float(row)}))
    return Sheet("split_cifar_sensitivity", "λ_fm on the Split streams", tuple(places), "5.0")


def tsne() -> Sheet:
    """Figure 2: features right after a task and at the end, under ER and CAR, on Split-CIFAR.

    Command: `reprise reproduce tsne --scale paper --data DIR --device cuda`.
    Time: smoke 16 s; the full setting 108 s on one H200.
    Expected: features drift under ER and less under CAR; those of the first task drift under both.
    """
    places = [
        Place("split_cifar", row, "m85", "split_cifar", METHODS[row], {"m": 85}) for row in ("ER", "CAR")
    ]
    title = "Figure 2: features right after a task and at the end"
    return Sheet("tsne", title, tuple(places), artifacts=("features", "memory"))


def predictions() -> Sheet:
    """Figure 3: dense predictions of SGD, ER and CAR after the whole Taskonomy sequence.

    Command: `reprise reproduce predictions --scale paper --data DIR`.
    Time: smoke 19 s; the full setting as for `taskonomy_1`.
    Expected: CAR's predictions on old tasks are nearer to the truth than ER's, SGD's are lost.
    """
    rows: dict[str, dict[str, Any]] = {"SGD": {}, "ER": {"m": 64}, "CAR": {"m": 64, "lam_fm": _lam_fm("m64")}}
    places = [
        Place("sequence_1", row, "m64", "taskonomy", METHODS[row], {"sequence": "1"} | own)
        for row, own in rows.items()
    ]
    title = "Figure 3: predictions after the whole sequence"
    return Sheet("predictions", title, tuple(places), artifacts=("memory",))


SHEETS = {
    make.__name__: make
    for make in (
        *(taskonomy_1, taskonomy, split_cifar, split_cifar_255, taskonomy_compression),
        *(split_cls_distribution_matching, taskonomy_intermediate, taskonomy_sensitivity_analysis),
        *(split_cifar_sensitivity, tsne, predictions),
    )
}
"""Every table and figure by name."""

_LAM_FM_NOTE = (
    "CAR's λ_fm is not printed for Taskonomy; that of each m is inferred from the sensitivity table."
)


def _lam_fm(column: str) -> float:
    return paper()["inferred"]["taskonomy_lambda_fm"][column]


def _taskonomy_row(
    part: str, row: str, method: str, own: Mapping[str, Any], cells: Mapping[str, Any]
) -> Iterator[Place]:
    for column, cell in cells.items():
        fields = {**own, **({"m": int(column[1:])} if method in REMEMBERS else {})}
        if method == "car":
            fields = {"lam_fm": _lam_fm(column)} | fields
        printed = {"fgt_percent": as_printed(cell["fgt"]), "dperf": as_printed(cell["dperf"])}
        if "mem" in cell:
            printed["activations"] = as_printed(_megabytes(cell["mem"]))
        yield Place(part, row, column, "taskonomy", method, fields, printed)


def _split_rows(table: str, what: Any) -> list[Place]:
    places: list[Place] = []
    for row, parts in printed_table(table).items():
        method, own = what(row)
        for part, cells in parts.items():
            for column, cell in cells.items():
                fields = {**own, **({"m": int(column[1:])} if method in REMEMBERS else {})}
                if method == "car":
                    fields = {"lam_fm": 5.0, "distance": "l2"} | fields
                printed = {name: as_printed(cell[name]) for name in ("acc", "fgt")}
                places.append(Place(part, row, column, part, method, fields, printed))
    return places


def _megabytes(text: str) -> float:
    """`671.0 M` and `1.3 G` in MB."""
    number, unit = text.rstrip("MG "), text.rstrip()[-1]
    return float(number) * {"M": 1.0, "G": 1000.0}[unit]
