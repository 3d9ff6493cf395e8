"""The paper's claims, and the comparisons of recorded runs that speak for or against each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from recorded import (
    ACCURACY,
    DRIFT,
    DROP,
    FIRST_DRIFT,
    FORGETTING,
    FORGETTING_PERCENT,
    LATER_DRIFT,
    LEARNING,
    Cell,
    Comparison,
    table,
)

METHODS, ABLATIONS, DRIFTS = (f"split-cifar-{name}.jsonl" for name in ("methods", "ablations", "drift"))
ROOMS, BUILDING, BUILDING_VALIDATION = "rooms.jsonl", "building.jsonl", "building-validation.jsonl"
HEADS, HEADS_VALIDATION = "rooms-heads.jsonl", "rooms-heads-validation.jsonl"
LONGER, LONGER_VALIDATION = "rooms-longer.jsonl", "rooms-longer-validation.jsonl"
LONGER_CHOSEN = {"train": 0.1, "hold": 1.0}
"""CAR's λ_fm at 400 steps a task, by what replay does with old heads, as the validation worlds chose it."""
CHOSEN = {"lam_fm": 0.1, "compress": "spatial_channel", "m": 16}
"""CAR on rooms as the validation worlds chose it."""
ON_POINTS: dict[str, dict[str, Any]] = {"car": {"lam_fm": 0.1}, "ewc": {"lam": 1e6}}
"""CAR and EWC on the building as the validation points chose them."""


def cifar(method: str, m: int | None = None) -> Cell:
    return Cell(METHODS, method, {"m": m} if m else {})


def car_cifar(m: int, distance: str = "l2", lam_fm: float = 5.0) -> Cell:
    return Cell(ABLATIONS, "car", {"m": m, "distance": distance, "lam_fm": lam_fm})


def rooms(method: str, sequence: str = "1", **fields: Any) -> Cell:
    own = {"sequence": sequence} | (
        CHOSEN if method == "car" else {"m": 16} if method in ("er", "agem") else {}
    )
    return Cell(ROOMS, method, own | fields)


def heads(method: str, how: str, sequence: str) -> Cell:
    """ER or CAR on rooms where replay trains old heads, or holds them."""
    return Cell(HEADS, method, rooms(method, sequence).fields | {"old_heads": how})


def held(method: str, sequence: str) -> Cell:
    return heads(method, "hold", sequence)


def longer(
    method: str, how: str, sequence: str = "1", lam_fm: float | None = None, file: str = LONGER
) -> Cell:
    """ER or CAR on rooms with 400 steps a task."""
    own = {"lam_fm": lam_fm or LONGER_CHOSEN[how]} if method == "car" else {}
    return Cell(file, method, {"sequence": sequence, "old_heads": how} | own)


def again(method: str, sequence: str = "1") -> Cell:
    """The second study on rooms: the same settings and seeds on another kind of CPU."""
    if method in ("er", "car"):
        return heads(method, "train", sequence)
    return Cell(HEADS, method, rooms(method, sequence).fields)


def squeezed(compress: str, sequence: str) -> Cell:
    return rooms("car", sequence, lam_fm=5.0, compress=compress)


def building(method: str, m: int | None = None, **fields: Any) -> Cell:
    return Cell(BUILDING, method, ({"m": m} if m else {}) | ON_POINTS.get(method, {}) | fields)


SEQUENCES = (("1", "rooms, sequence 1"), ("2", "rooms, sequence 2"))
TWICE = (("", rooms), (", again", again))
"""The two studies on rooms."""
STUDIES = tuple((f"{where}{note}", s, study) for s, where in SEQUENCES for note, study in TWICE)
HELD = tuple((f"{where}, old heads held", s, held) for s, where in SEQUENCES)


# ---- the claims


SIDES = ("clearly for", "weakly for", "open", "weakly against", "clearly against")


@dataclass(frozen=True)
class Claim:
    sentence: str
    comparisons: list[Comparison]

    def files(self) -> list[str]:
        found = [cell.file for c in self.comparisons for cell in (c.mine, c.theirs)]
        return list(dict.fromkeys(found))

    def counts(self) -> dict[str, int]:
        sides = [comparison.answer().side for comparison in self.comparisons]
        return {side: sides.count(side) for side in SIDES}


def claims() -> list[Claim]:
    """In the paper's order."""
    return [
        Claim(
            "ER beats SGD, EWC and A-GEM on heterogeneous tasks",
            [
                *(
                    Comparison(f"{where}: ER against {other}", study("er", s), study(other, s), metric)
                    for where, s, study in STUDIES
                    for other in ("sgd", "ewc", "agem")
                    if study(other, s).runs()
                    for metric in (FORGETTING_PERCENT, DROP)
                ),
                *(
                    Comparison(
                        f"building, m = {m}: ER against {other}",
                        building("er", m),
                        building(other, m if other == "agem" else None),
                        metric,
                    )
                    for m in (16, 64)
                    for other in ("sgd", "ewc", "agem")
                    for metric in (FORGETTING_PERCENT, DROP)
                ),
            ],
        ),
        Claim(
            "A small memory hurts ER",
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
                        f"rooms: m = {a} against {b}", rooms("er", m=a), rooms("er", m=b), DROP, "worse"
                    )
                    for a, b in ((4, 16), (16, 64))
                ),
                Comparison(
                    "building: m = 16 against 64", building("er", 16), building("er", 64), DROP, "worse"
                ),
            ],
        ),
        Claim(
            "Features drift under ER, and less under CAR; those of the first task still drift",
            [
                Comparison(
                    "Split-CIFAR, m = 85: CAR against ER", Cell(DRIFTS, "car"), Cell(DRIFTS, "er"), DRIFT
                ),
                Comparison(
                    "the first task, CAR against ER", Cell(DRIFTS, "car"), Cell(DRIFTS, "er"), FIRST_DRIFT
                ),
                *(
                    Comparison(
                        f"{name}: the first task against later ones",
                        Cell(DRIFTS, method),
                        Cell(DRIFTS, method),
                        FIRST_DRIFT,
                        "worse",
                        LATER_DRIFT,
                    )
                    for method, name in (("er", "ER"), ("car", "CAR"))
                ),
            ],
        ),
        Claim(
            "CAR forgets less than ER",
            [
                *(
                    Comparison(f"Split-CIFAR, m = {m}", cifar("car", m), cifar("er", m), metric)
                    for m in (85, 255, 425)
                    for metric in (FORGETTING, ACCURACY)
                ),
                *(
                    Comparison(where, study("car", s), study("er", s), FORGETTING_PERCENT)
                    for where, s, study in (*STUDIES, *HELD)
                ),
                *(
                    Comparison(
                        f"rooms, 400 steps, sequence {s}, old heads {how}",
                        longer("car", wish, s),
                        longer("er", wish, s),
                        FORGETTING_PERCENT,
                    )
                    for s in "12"
                    for how, wish in (("trained", "train"), ("held", "hold"))
                ),
                *(
                    Comparison(
                        f"building, m = {m}", building("car", m), building("er", m), FORGETTING_PERCENT
                    )
                    for m in (16, 64)
                ),
            ],
        ),
        Claim(
            "CAR's performance drop is slightly higher than ER's",
            [
                *(
                    Comparison(where, study("car", s), study("er", s), DROP, "worse")
                    for where, s, study in (*STUDIES, *HELD)
                ),
                *(
                    Comparison(f"building, m = {m}", building("car", m), building("er", m), DROP, "worse")
                    for m in (16, 64)
                ),
            ],
        ),
        Claim(
            "Compressed activations are about as good as uncompressed ones",
            [
                Comparison(where, squeezed("spatial_channel", s), squeezed("none", s), metric, "alike")
                for s, where in SEQUENCES
                for metric in (FORGETTING_PERCENT, DROP)
            ],
        ),
        Claim(
            "Both means (spatial and channel) are the best compression",
            [
                Comparison(
                    f"{where}: against {other}", squeezed("spatial_channel", s), squeezed(other, s), metric
                )
                for s, where in SEQUENCES
                for other in ("spatial", "channel")
                for metric in (FORGETTING_PERCENT, DROP)
            ],
        ),
        Claim(
            "Distances are alike, but MMD is worse",
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
        Claim(
            "Intermediate layers bring nothing",
            [
                Comparison(
                    where, squeezed("intermediate", s), squeezed("spatial_channel", s), metric, "alike"
                )
                for s, where in SEQUENCES
                for metric in (FORGETTING_PERCENT, DROP)
            ],
        ),
        Claim(
            "More λ_fm forgets less and learns less",
            [
                *(
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
                ),
                *(
                    Comparison(
                        f"rooms: λ_fm = {high:g} against {low:g}",
                        rooms("car", lam_fm=high),
                        rooms("car", lam_fm=low),
                        metric,
                        claim,
                    )
                    for low, high in ((0.1, 1.0), (1.0, 20.0))
                    for metric, claim in ((FORGETTING_PERCENT, "better"), (DROP, "worse"))
                ),
                *(
                    Comparison(
                        f"rooms, 400 steps, sequence {s}, old heads held: λ_fm = 20 against 1",
                        longer("car", "hold", s, 20.0),
                        longer("car", "hold", s, 1.0),
                        FORGETTING_PERCENT,
                    )
                    for s in "12"
                ),
            ],
        ),
    ]


SIDE_TUNING = "Side-Tuning forgets nothing, at a larger model and slower inference"


def side_tuning() -> tuple[bool, str]:
    """Whether it is so, and what Side-Tuning costs: bytes of the model and multiplications of a query."""
    parts, so = [], True
    for where, cell, plain in (
        ("ResNet-50, the building", building("side_tuning"), building("sgd")),
        ("rooms", rooms("side_tuning"), rooms("sgd")),
    ):
        (own, *_), (other, *_) = cell.runs(), plain.runs()
        forgotten = max(abs(v) for v in cell.values(FORGETTING_PERCENT).values())
        size = own["bytes"]["model"] / other["bytes"]["model"]
        work = np.mean(np.array(own["cost"]["macs_per_query"]) / np.array(other["cost"]["macs_per_query"]))
        so = so and forgotten == 0 and size > 1 and bool(work > 1)
        parts.append(
            f"{where}: forgetting {forgotten:g} in every seed, {size:.2f} times the bytes of SGD's model after 11 "
            f"tasks, {work:.2f} times the multiplications of a query"
        )
    return so, f"**{SIDE_TUNING}.** {'; '.join(parts)}. {'Yes' if so else 'No'}."


def summary() -> str:
    """A line a claim: how many comparisons speak for it, against it, or leave it open, and how clearly."""
    rows = [[c.sentence, *(str(n) if n else "–" for n in c.counts().values())] for c in claims()]
    so, _ = side_tuning()
    rows.append([SIDE_TUNING, "yes" if so else "–", "–", "–", "–", "–" if so else "no"])
    return table(["the paper says", *SIDES], rows)


def claims_text() -> str:
    parts = []
    for claim in claims():
        links = ", ".join(f"[{name}](../results/{name})" for name in claim.files())
        rows = []
        for comparison in claim.comparisons:
            answer = comparison.answer()
            rows.append([comparison.about, comparison.metric.title, answer.difference, answer.words])
        parts += [
            f"**{claim.sentence}.** {links}",
            table(["comparison", "of", "difference", "as the paper says"], rows),
        ]
    return "\n\n".join([*parts, side_tuning()[1]])
