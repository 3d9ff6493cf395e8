"""What each choice of a search is worth: the mean over all runs that made it, as a Markdown table.

python benchmarks/margins.py results/split-cifar-search.jsonl car old_heads bn old_heads+bn store replay lam_fm
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def main(path: Path, method: str, names: list[str]) -> None:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records = [record for record in records if record["method"] == method]
    print("| choice | value | runs | accuracy % (± error of the mean) | forgetting |")
    print("|---|---|---|---|---|")
    for name in names:
        groups: dict[str, list[dict]] = {}
        for record in records:
            value = ", ".join(str(record["configuration"][part]) for part in name.split("+"))
            groups.setdefault(value, []).append(record)
        for value, mine in groups.items():
            accuracy = 100 * np.array([r["accuracy"] for r in mine])
            error = accuracy.std(ddof=1) / np.sqrt(len(mine))
            forgetting = np.mean([r["forgetting"] for r in mine])
            print(
                f"| {name} | {value} | {len(mine)} | {accuracy.mean():.1f} ± {error:.1f} | {forgetting:.3f} |"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
