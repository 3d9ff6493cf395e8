"""What checkpoints cost: seconds and bytes of saving, against the whole of a short run.

python benchmarks/save_cost.py      # ER on 5 short tasks of split-shapes, saved at task ends, and every 5 steps
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from reprise.config import make_experiment
from reprise.keeping import GroupKeeper, Saving
from reprise.results import commit
from reprise.runner import run_experiments
from reprise.streams import STREAMS

RESULTS = Path(__file__).parent / "results"


def measure(encoder: str, saving: Saving) -> dict[str, Any]:
    experiment = make_experiment(
        "split-shapes", "er", {"encoder": encoder, "steps": 20, "tasks": 5}, STREAMS["split-shapes"].protocol
    )
    seconds: list[float] = []
    save = GroupKeeper._save

    def timed(self: GroupKeeper, *given: Any, **named: Any) -> None:
        began = time.perf_counter()
        save(self, *given, **named)
        seconds.append(time.perf_counter() - began)

    GroupKeeper._save = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            (record,) = run_experiments([experiment], [0], out=Path(folder) / "run", saving=saving)
            left = sum(p.stat().st_size for p in Path(folder).rglob("*.safetensors"))
    finally:
        GroupKeeper._save = save  # type: ignore[method-assign]
    total = record["seconds"]["total"]
    return {
        "encoder": encoder,
        "saved": "task ends" if saving.steps is None else f"task ends and every {saving.steps} steps",
        "saves": len(seconds),
        "ms_per_save": round(1e3 * sum(seconds) / max(1, len(seconds)), 2),
        "seconds_of_run": round(total, 2),
        "part_of_run": round(sum(seconds) / total, 4),
        "bytes_left": left,
        "model_bytes": record["bytes"]["model"],
    }


def main() -> int:
    torch.set_num_threads(1)
    rows = [
        measure(encoder, Saving(steps, tasks=True))
        for encoder in ("resnet18-tiny", "resnet18-reduced")
        for steps in (None, 5)
    ]
    for row in rows:
        print(row)
    place = {"torch": torch.__version__, "python": platform.python_version(), "commit": commit()}
    path = RESULTS / f"save_cost-torch{torch.__version__}-{time.strftime('%Y-%m-%d')}.json"
    path.write_text(json.dumps({"rows": rows, "environment": place}, indent=1) + "\n")
    print(f"File: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
