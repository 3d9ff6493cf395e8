"""Whole commands as a user runs them, and real data where it is at hand (REPRISE_DATA names its root)."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import furthest, train, weights

from reprise.build import Cell
from reprise.config import make_experiment
from reprise.group_run import load_pool
from reprise.ledger import settle
from reprise.results import read_store
from reprise.runner import run_experiments
from reprise.streams import STREAMS, stream_of

pytestmark = pytest.mark.slow
DATA = os.environ.get("REPRISE_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="REPRISE_DATA names no data folder")


def test_the_demo_learns_and_replay_helps(tmp_path: Path) -> None:
    """Catches a replay that shows wrong rows, a head that reads the wrong slice, a memory that is never filled."""
    done = subprocess.run(
        [sys.executable, "-m", "reprise", "demo", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "multitask" in done.stdout
    (forgotten,) = [{r["method"]: r["forgetting_percent"] for r in read_store(tmp_path)}]
    assert forgotten["er"] < 0.75 * forgotten["sgd"]
    assert forgotten["car"] < 0.75 * forgotten["sgd"]


@pytest.mark.parametrize("method", ["sgd", "er", "car", "multitask"])
def test_lanes_equal_single_runs_on_the_published_network(method: str) -> None:
    pool = load_pool("split-shapes", None)
    fields = {"encoder": "resnet18-reduced", "precision": "float64", "tasks": 3, "steps": 3}
    cells = []
    for seed in range(3):
        experiment = make_experiment("split-shapes", method, fields, STREAMS["split-shapes"].protocol)
        stream = stream_of(experiment, seed, pool)
        cells.append(Cell(settle(experiment, stream), seed, stream))
    together = train(*cells)
    for lane, cell in enumerate(cells):
        assert furthest(weights(together, lane), weights(train(cell))) < 1e-10


def test_the_wheel_holds_the_package_and_its_type_marker(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(root)]
    subprocess.run(command, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("reprise_cl-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(path.relative_to(root / "src")) for path in (root / "src" / "reprise").rglob("*.py")}
    assert modules <= set(names)
    assert "reprise/py.typed" in names


@needs_data
@pytest.mark.parametrize("stream", ["split-cifar", "split-mini-imagenet"])
def test_real_images_train_and_stay_above_chance(stream: str) -> None:
    torch.set_num_threads(1)
    fields = {"tasks": 2, "steps": 60, "m_per_class": 1}
    experiment = make_experiment(stream, "er", fields, STREAMS[stream].protocol)
    (record,) = run_experiments([experiment], [0], Path(str(DATA)))
    assert record["learning_accuracy"] > 0.3
    assert record["bytes"]["inputs"] == 10 * int(
        np.prod(load_pool(stream, Path(str(DATA))).source.columns["x"].shape[1:])
    )
