"""Write docs/costs.md: what methods keep and take, counted from shapes, beside what the paper prints.

    python benchmarks/costs_page.py [--check]

`--check` writes nothing and fails where the page is not what is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from pages import write_page
from recorded import ROOT, records, table

from reprise.config import make_experiment
from reprise.errors import InputError
from reprise.estimate import Estimate
from reprise.experiments.places import printed_table
from reprise.methods import METHODS
from reprise.streams import stream_kind
from reprise.values import show_bytes, show_count

PAGE = ROOT / "docs" / "costs.md"
OLD = 10
"""Tasks that are remembered while the last of 11 is trained."""
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "MT": ("multitask", {}),
    "SGD": ("sgd", {}),
    "Side-Tuning": ("side_tuning", {}),
    "EWC": ("ewc", {"variant": "per_task"}),
    "A-GEM": ("agem", {"m": 256}),
    "ER-64": ("er", {"m": 64}),
    "ER-256": ("er", {"m": 256}),
    "CAR-64": ("car", {"m": 64}),
}
"""Rows of Table 1, and CAR, which has none there."""


@cache
def count(stream: str, method: str, **fields: Any) -> Estimate:
    return Estimate(make_experiment(stream, method, fields, stream_kind(stream).protocol_of(method)))


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g}"


def table_1() -> str:
    printed, plain = printed_table("taskonomy_1"), count("taskonomy", "sgd", precision="bf16")
    rows = []
    for row, (method, fields) in ROWS.items():
        whole = count("taskonomy", method, precision="bf16", **fields)
        # What is remembered of 10 tasks; EWC's state is that of 10 old tasks as it is.
        kept = count("taskonomy", method, tasks=OLD, **fields) if "m" in fields else whole
        # The paper counts side networks as storage.
        stored = kept.kept_in_all if method != "side_tuning" else whole.model - plain.model
        mean, base = whole.steps["mean"], plain.steps["mean"]
        rows.append(
            [
                *(row, gigabytes(stored), f"{printed['extra_storage_gb'].get(row, '–')}"),
                *(gigabytes(whole.model), f"{printed['final_model_size_gb'].get(row, '–')}"),
                f"{show_count(whole.macs_per_query[0])} → {show_count(whole.macs_per_query[-1])}",
                *(
                    f"{mean.flops / base.flops:.2f}",
                    f"{mean.moved / base.moved:.3f}",
                    show_bytes(whole.training),
                ),
            ]
        )
    head = [
        "",
        "kept, GB",
        "printed",
        "model, GB",
        "printed",
        "query, MAC",
        "step / SGD's",
        "moved / SGD's",
        "to train",
    ]
    return table(head, rows)


def table_4() -> str:
    printed, sizes = printed_table("taskonomy_compression"), (64, 128, 256, 512)
    rows = []
    for compress, cells in printed.items():
        row = [f"`{compress}`"]
        for m in sizes:
            kept = count("taskonomy", "car", tasks=OLD, m=m, compress=compress).kept["activation"]
            cell = cells.get(f"m{m}", {}).get("mem")
            row += [f"{kept / 1e6:,.2f}", "–" if cell is None else str(cell)]
        rows.append(row)
    return table(["", *(head for m in sizes for head in (f"m = {m}", "printed"))], rows)


def every_method(stream: str, **fields: Any) -> str:
    rows = []
    for method in METHODS:
        own = {name: value for name, value in fields.items() if name != "m" or METHODS[method].replays}
        try:
            one = count(stream, method, **own)
        except InputError:  # a method that the stream does not take
            continue
        mean = one.steps["mean"]
        rows.append(
            [
                *(f"`{method}`", "–" if one.experiment.m is None else str(one.experiment.m)),
                *(show_bytes(one.kept_in_all), show_bytes(one.model)),
                *(show_count(one.macs_per_query[0]), show_count(one.macs_per_query[-1])),
                *(show_count(mean.flops), show_bytes(mean.moved), show_bytes(one.training)),
            ]
        )
    head = ["method", "m", "kept", "model", "query, MAC", "last query", "step, FLOP", "moved", "to train"]
    return table(head, rows)


def peaks_table() -> str:
    lowest: dict[tuple[str, int | None], int] = {}
    for record in records("building.jsonl"):
        key, peak = (record["method"], record["m"]), record["cost"]["peak_memory"]
        lowest[key] = min(peak, lowest.get(key, peak))
    rows = []
    for (method, m), peak in sorted(lowest.items(), key=str):
        own = {"m": m} if m is not None else {}
        counted = count("taskonomy", method, size=128, batch=32, precision="bf16", **own).training
        name = f"`{method}`" + ("" if m is None else f", {m}")
        rows.append([name, gigabytes(counted), gigabytes(peak), f"{peak / counted:.2f}"])
    return table(["method, m a task", "counted, GB", "recorded, GB", "ratio"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "TABLE 1": table_1,
    "TABLE 4": table_4,
    "TASKONOMY": lambda: every_method("taskonomy", precision="bf16"),
    "SPLIT": lambda: every_method("split-cifar", m=425),
    "PEAKS": peaks_table,
}


if __name__ == "__main__":
    sys.exit(write_page(PAGE, __file__, PARTS))
