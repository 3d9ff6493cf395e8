"""Draw the README's chart from the recorded runs.

python docs/figures/split_cifar.py results/split-cifar-core.jsonl docs/figures/split_cifar.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "reprise"
from matplotlib import pyplot as plt  # noqa: E402 (the backend is chosen first)

LINES = (
    ("multitask", None, "all tasks at once (reference)", "#8c8c8c"),
    ("car", 425, "CAR, 5 images a class", "#b3382c"),
    ("er", 425, "ER, 5 images a class", "#2c6fb3"),
    ("car", 85, "CAR, 1 image a class", "#e08a80"),
    ("er", 85, "ER, 1 image a class", "#86b3dd"),
    ("sgd", None, "SGD, no memory", "#333333"),
)


def seen_accuracy(record: dict) -> np.ndarray:
    """Mean accuracy in percent over the tasks seen, after each task."""
    rows = record["matrix"]["accuracy"]
    return np.array([100 * np.mean([a for a in row if a is not None]) for row in rows if row[0] is not None])


def main(source: Path, target: Path) -> None:
    records = [json.loads(line) for line in source.read_text().splitlines()]
    figure, axes = plt.subplots(figsize=(7.2, 4.3))
    for method, m, label, colour in LINES:
        mine = [
            r
            for r in records
            if r["method"] == method and r["m"] == m and r["configuration"].get("lam_fm", 5.0) == 5.0
        ]
        curves = np.stack([seen_accuracy(record) for record in mine])
        mean, deviation = curves.mean(0), curves.std(0)
        if len(mean) == 1:
            axes.axhline(mean[0], color=colour, linestyle="--", linewidth=1)
            axes.text(1.2, mean[0] + 0.8, label, color=colour, fontsize=9)
            continue
        tasks = np.arange(1, len(mean) + 1)
        axes.plot(tasks, mean, color=colour, linewidth=1.8, label=label)
        axes.fill_between(tasks, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
    axes.set(
        xlabel="tasks learned", ylabel="accuracy on all tasks seen, %", xlim=(1, 17), xticks=range(1, 18, 2)
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncol=3)
    axes.set_title(
        "Split-CIFAR, 17 tasks of 5 classes, one pass each, 5 seeds (band: one deviation)", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
