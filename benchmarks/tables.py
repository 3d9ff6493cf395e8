"""Markdown tables of recorded runs: mean ± deviation over seeds for each distinct setting.

python benchmarks/tables.py results/split-cifar-core.jsonl m lam_fm
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from reprise.terminal import spread


def main(path: Path, names: list[str]) -> None:
    groups: dict[tuple[str, ...], list[dict]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        values = record["configuration"]
        key = (record["method"], *(str(values.get(name, "–")) for name in names))
        groups.setdefault(key, []).append(record)
    headings = [
        "method",
        *names,
        "seeds",
        "accuracy %",
        "forgetting",
        "forgetting (A-GEM)",
        "learning accuracy %",
    ]
    print("| " + " | ".join(headings) + " |")
    print("|" + "---|" * len(headings))
    for key, mine in groups.items():
        cells = [
            *("–" if value == "None" else value for value in key),
            str(len(mine)),
            spread([r["accuracy"] for r in mine], 100, 1),
            spread([r["forgetting"] for r in mine], 1, 3),
            spread([r["forgetting_agem"] for r in mine], 1, 3),
            spread([r["learning_accuracy"] for r in mine], 100, 1),
        ]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
