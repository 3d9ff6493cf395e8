"""Records made up for tests: what a run would write, with numbers chosen by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from reprise.artifacts import write_arrays
from reprise.config import make_experiment
from reprise.streams import STREAMS

Record = dict[str, Any]
NASTY = "<script>alert(1)</script>"
"""A name that somebody may give."""


def make_record(
    method: str,
    seed: int,
    accuracy: float,
    forgetting: float = 0.1,
    stream: str = "split-cifar",
    **fields: Any,
) -> Record:
    """A finished run of three tasks whose matrix ends at the given accuracy."""
    experiment = make_experiment(stream, method, fields, STREAMS[stream].protocol)
    a = accuracy
    matrix = [[a + 0.2, None, None], [a + 0.1, a + 0.1, None], [a, a, a]]
    loss = [[0.5, None, None], [0.7, 0.4, None], [1.0, 0.8, 0.6]]
    m = experiment.m if experiment.method.replays else None
    return {
        **{"method": method, "stream": stream, "scenario": "task", "m": m, "m_per_task": None, "seed": seed},
        **{
            "accuracy": a,
            "forgetting": forgetting,
            "forgetting_agem": forgetting,
            "learning_accuracy": a + 0.1,
        },
        **{
            "forgetting_percent": 50.0,
            "performance_drop_percent": None,
            "initial": [0.2] * 3,
            "next": [0.2] * 3,
        },
        **{"matrix": {"accuracy": matrix, "loss": loss}, "curve": None, "reference": None},
        **{"bytes": {"total": 1000 * (m or 0), "model": 10**6}, "cost": {}, "seconds": {"total": 1.5}},
        "configuration": experiment.to_dict() | {"m": m, "data": "made-up", "results_version": 1},
        "environment": {"commit": "abc", "device": "cpu", "torch": "2"},
        "version": "0.1.0",
    }


def lines(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def study() -> list[Record]:
    """ER and CAR at m = 85 with 5 seeds each, near the paper's numbers (56.2 ± 1.9, 62.4 ± 1.5); SGD; other m."""
    steps = (-0.02, -0.01, 0.0, 0.01, 0.02)
    records = [make_record("er", seed, 0.562 + step, 0.13, m=85) for seed, step in enumerate(steps)]
    records += [make_record("car", seed, 0.560 + step, 0.06, m=85) for seed, step in enumerate(steps)]
    records += [
        make_record("car", seed, 0.50 + step, 0.06, m=85, lam_fm=1.0) for seed, step in enumerate(steps)
    ]
    records += [make_record("sgd", seed, 0.35, 0.3) for seed in range(5)]
    return records


def store_with_pictures(folder: Path, stream: str) -> Path:
    """A run that left features of 3 tasks, a memory of 2 rows and answers to one dense task."""
    rng = np.random.default_rng(0)
    seed = folder / "er" / "seed-0"
    seed.mkdir(parents=True)
    (seed / "record.json").write_text(json.dumps(make_record("er", 0, 0.5, stream=stream, m=85)))
    names = np.array(["first", "second", "third"])
    then = rng.normal(size=(3, 20, 4)).astype(np.float32)
    for task in range(3):
        write_arrays(seed / "artifacts" / f"features-{task:02d}.npz", {"then": then[task]})
    now = {f"now_{task:02d}": then[task] + task for task in range(3)}
    write_arrays(seed / "artifacts" / "features-end.npz", {"names": names} | now)
    pixels = rng.integers(0, 255, (2, 3, 8, 8), dtype=np.uint8)
    memory = {"x": pixels, "task": np.array([0, 2]), "label": np.array([NASTY, "cat"]), "names": names}
    write_arrays(seed / "artifacts" / "memory.npz", memory)
    depth = rng.normal(size=(2, 1, 8, 8)).astype(np.float16)
    samples = {"depth.input": pixels, "depth.truth": depth, "depth.answer": depth, "depth.mask": depth > 0}
    samples |= {"scene.input": pixels, "scene.truth": depth[:, 0, 0], "scene.answer": depth[:, 0, 0]}
    write_arrays(seed / "samples.npz", samples)
    return folder
