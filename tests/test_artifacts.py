"""What a run may leave beside its record: the right numbers, and no trace in the result."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import CPU, cell, furthest, mixed_cell, weights

from reprise.artifacts import EXAMPLES, ArtifactWriter, Asked, read_arrays, read_features
from reprise.build import Cell
from reprise.config import make_experiment
from reprise.errors import InputError
from reprise.observe import Observer, Several
from reprise.results import TIMES
from reprise.runner import run_experiments
from reprise.streams import STREAMS
from reprise.train import Trainer

BOTH = ("features", "memory")


def kept(folder: Path, *cells: Cell) -> Trainer:
    """Train the cells, each of which leaves everything in a numbered folder."""
    torch.set_num_threads(1)
    writer = ArtifactWriter([Asked(folder / str(lane), BOTH) for lane in range(len(cells))])
    trainer = Trainer(cells, CPU, observer=writer)
    trainer.run()
    return trainer


@pytest.mark.parametrize("make", [cell, mixed_cell])
@pytest.mark.parametrize("method", ["sgd", "car", "multitask"])
def test_looking_on_changes_nothing(tmp_path: Path, make: type, method: str) -> None:
    alone = Trainer([make(method)], CPU)
    alone.run()
    watched = kept(tmp_path, make(method))
    assert furthest(weights(alone), weights(watched)) == 0.0
    one, other = (asdict(trainer.outcomes[0]) for trainer in (alone, watched))
    assert {k: v for k, v in one.items() if k not in TIMES} == {
        k: v for k, v in other.items() if k not in TIMES
    }


def test_features_are_the_encoders_then_and_now(tmp_path: Path) -> None:
    trainer = kept(tmp_path, cell("er", encoder="resnet18-tiny"))
    features = read_features(tmp_path / "0")
    assert list(features) == ["task-0", "task-1", "task-2"]
    for task, (then, now) in enumerate(features.values()):
        assert then.shape == now.shape == (min(EXAMPLES, len(trainer.tests[task])), then.shape[1])
    then, now = features["task-2"]
    assert np.array_equal(then, now)  # nothing was learnt after the last task
    assert not np.array_equal(*features["task-0"])
    batch = next(trainer.engine.batches(trainer.tests[0], 0))
    expected = trainer.engine.compute(lambda net, batch: net(batch.x, batch.task).features, batch)
    np.testing.assert_allclose(features["task-0"][1], expected.float().numpy(), rtol=1e-6)


def test_maps_are_averaged_over_space(tmp_path: Path) -> None:
    trainer = kept(tmp_path, mixed_cell("er"))
    (_, now), *_ = read_features(tmp_path / "0").values()
    batch = next(trainer.engine.batches(trainer.tests[0], 0))
    maps = trainer.engine.compute(lambda net, batch: net(batch.x, batch.task).features, batch)
    assert maps.dim() == 4
    np.testing.assert_allclose(now, maps.mean((2, 3)).float().numpy(), rtol=1e-5)


def test_lanes_leave_what_single_runs_leave(tmp_path: Path) -> None:
    kept(tmp_path / "lanes", cell("car", 0), cell("car", 1))
    for seed in (0, 1):
        kept(tmp_path / f"single-{seed}", cell("car", seed))
        mine, theirs = tmp_path / "lanes" / str(seed), tmp_path / f"single-{seed}" / "0"
        assert {path.name for path in mine.iterdir()} == {path.name for path in theirs.iterdir()}
        for path in mine.iterdir():
            one, other = read_arrays(path), read_arrays(theirs / path.name)
            assert one.keys() == other.keys()
            for name in one:
                if one[name].dtype == np.float32:
                    np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)
                else:
                    assert np.array_equal(one[name], other[name])


def test_the_memory_is_what_was_remembered(tmp_path: Path) -> None:
    trainer = kept(tmp_path, cell("er"))
    found = read_arrays(tmp_path / "0" / "memory.npz")
    assert trainer.memory is not None
    shelf = trainer.memory.shelf(0)
    assert found["task"].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    for row in range(len(found["x"])):
        assert any(np.array_equal(found["x"][row], stored) for stored in shelf.columns["x"].numpy())
    for task, label in zip(found["task"], found["label"], strict=True):
        assert label in trainer.stream.class_names[task]
    kept(tmp_path / "sgd", cell("sgd"))
    assert len(read_arrays(tmp_path / "sgd" / "0" / "memory.npz")["x"]) == 0


def test_a_finished_run_that_left_nothing_runs_again_and_gives_the_same_record(tmp_path: Path) -> None:
    fields = {"tasks": 2, "steps": 3, "encoder": "convnet-small"}
    experiment = make_experiment("split-shapes", "er", fields, STREAMS["split-shapes"].protocol)
    (first,) = run_experiments([experiment], [0], store=tmp_path)
    assert not list(tmp_path.rglob("*.npz"))
    (again,) = run_experiments([experiment], [0], store=tmp_path, artifacts=BOTH)
    assert {p.name for p in tmp_path.rglob("*.npz")} == {
        *("features-00.npz", "features-01.npz", "features-end.npz", "memory.npz"),
    }
    assert {k: v for k, v in first.items() if k not in TIMES} == {
        k: v for k, v in again.items() if k not in TIMES
    }
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    list(run_experiments([experiment], [0], store=tmp_path, artifacts=BOTH))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_unknown_kinds_and_broken_files_are_named(tmp_path: Path) -> None:
    experiment = make_experiment("split-shapes", "er", {}, STREAMS["split-shapes"].protocol)
    with pytest.raises(InputError, match="artifacts: 'weights' is not known; choose from features, memory"):
        next(run_experiments([experiment], [0], artifacts=["weights"]))
    (tmp_path / "memory.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="is no readable .npz file"):
        read_arrays(tmp_path / "memory.npz")


def test_several_observers_hear_everything() -> None:
    heard: list[str] = []

    class Listener(Observer):
        def logged(self, trainer: Trainer, lane: int, line: object) -> None:
            heard.append(f"lane {lane}")

        def task_ended(self, trainer: Trainer, phase: int) -> None:
            heard.append(f"task {phase}")

        def ended(self, trainer: Trainer) -> None:
            heard.append("end")

    Trainer([cell("er", tasks=2)], CPU, observer=Several([Listener(), Listener()])).run()
    assert heard == ["lane 0"] * 2 + ["task 0"] * 2 + ["lane 0"] * 2 + ["task 1"] * 2 + ["end"] * 2
