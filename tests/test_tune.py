"""The search: a grid on the validation tasks, ranked by accuracy there, its file, its best command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reprise import group_run, runner, tune
from reprise.cli import main
from reprise.config import make_experiment
from reprise.errors import InputError
from reprise.streams.split import Pool
from reprise.streams.stream import Stream

SHORT = ["tune", "split-shapes", "--tasks", "2", "--steps", "3", "--encoder", "convnet-small"]


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def record(accuracy: float | None, seed: int = 0, **configuration: Any) -> dict[str, Any]:
    return {"accuracy": accuracy, "forgetting": 0.1, "seed": seed, "configuration": configuration}


def test_a_grid_is_read_as_the_fields_types() -> None:
    grid = tune.parse_grid(["lam-fm=1,5e-1", "compress=auto,none", "m=50,100,"], "car")
    assert grid == {"lam_fm": [1.0, 0.5], "compress": ["auto", "none"], "m": [50, 100]}
    for line in ("lam", "lam=", "lam=,", "=1"):
        with pytest.raises(InputError):
            tune.parse_grid([line], "car")


def test_the_default_grid_is_what_matters_most() -> None:
    names = {"sgd": "lr", "er": "lam", "car": "lam_fm"}
    for method, name in names.items():
        assert list(tune.default_grid(make_experiment("split-shapes", method, {}))) == [name]


def test_every_point_is_on_the_validation_tasks() -> None:
    grid = {"lam": [0.5, 1.0], "lr": [0.1, 0.2, 0.3]}
    points = tune.grid_experiments("split-shapes", "er", {"batch": 5}, grid, {"m": 50})
    assert len(set(points)) == 6
    assert {(p.split, p.batch, p.m) for p in points} == {("validation", 5, 50)}
    for given, searched in (({"split": "report"}, grid), ({}, {"split": ["report"]})):
        with pytest.raises(InputError, match="split: a search sees the validation tasks only"):
            tune.grid_experiments("split-shapes", "er", given, searched, {})


def test_a_searched_memory_displaces_a_given_m() -> None:
    (point,) = tune.grid_experiments("split-shapes", "er", {"m": 50}, {"memory": ["1MB"]}, {"m": 85})
    assert (point.m, point.memory) == (None, "1MB")


def test_ranked_by_mean_accuracy_and_what_diverged_last() -> None:
    records = [
        record(a, seed, lr=lr) for lr, *pair in ((1, 0.2, 0.4), (2, 0.5, 0.3)) for seed, a in enumerate(pair)
    ]
    ranked = tune.rank([*records, record(0.9, lr=3)], ["lr"])
    assert [row["setting"] for row in ranked] == [{"lr": 2}, {"lr": 1}, {"lr": 3}]
    assert [row["seeds"] for row in ranked] == [2, 2, 1]
    assert ranked[0]["accuracy"]["mean"] == pytest.approx(0.4)


def test_bytes_are_ranked_by_the_m_they_became() -> None:
    ranked = tune.rank([record(0.2, m=50, memory=None), record(0.3, m=100, memory=None)], ["memory"])
    assert [row["setting"] for row in ranked] == [{"m": 100}, {"m": 50}]


def test_tasks_without_accuracy_are_ranked_by_losses_that_no_scale_decides() -> None:
    def lossy(lr: float, losses: list[float]) -> dict[str, Any]:
        plain = {"accuracy": None, "forgetting_percent": 1.0, "matrix": {"loss": [losses]}}
        return plain | {"configuration": {"lr": lr}}

    ranked = tune.rank([lossy(1, [100.0, 0.002]), lossy(2, [105.0, 0.001])], ["lr"])
    assert [row["setting"]["lr"] for row in ranked] == [2, 1]
    assert ranked[0]["loss"]["mean"] == pytest.approx((105 * 0.001) ** 0.5)


def test_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: set[int] = set()
    original = group_run.stream_of

    def watched(experiment: Any, seed: int, pool: Pool) -> Stream:
        stream = original(experiment, seed, pool)
        rows = [int(row) for task in stream.tasks for part in (task.train, task.test) for row in part.rows]
        seen.update(pool.labels[rows].tolist())
        return stream

    monkeypatch.setattr(group_run, "stream_of", watched)
    line = [*SHORT, "--method", "er", "--grid", "lr=0.01,0.1", "--grid", "lam=1", "--seeds", "0,1"]
    assert main([*line, "--out", str(tmp_path), "--json"]) == 0
    out, _ = capsys.readouterr()
    records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 4
    assert {r["configuration"]["split"] for r in records} == {"validation"}
    assert seen <= set(range(15))  # the classes of the 3 validation tasks: no reported class was looked at
    content = json.loads((tmp_path / "tune-split-shapes-er.json").read_text())
    assert content["grid"] == {"lr": [0.01, 0.1], "lam": [1.0]}
    means = [row["accuracy"]["mean"] for row in content["ranked"]]
    assert means == sorted(means, reverse=True)
    assert [row["seeds"] for row in content["ranked"]] == [2, 2]
    # Again, for people, and without training anything.
    monkeypatch.setattr(runner, "train_group", None)
    assert main([*line, "--out", str(tmp_path)]) == 0
    out, _ = capsys.readouterr()
    best = content["ranked"][0]["setting"]
    assert f"Best: reprise run split-shapes --method er --lr {best['lr']:g} --lam 1\n" in out


def test_a_point_that_diverges_does_not_end_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*SHORT, "--method", "sgd", "--out", str(tmp_path)]
    assert main([*line, "--grid", "lr=1e30,0.01"]) == 0
    out, err = capsys.readouterr()
    assert "--lr 0.01" in out
    assert "the loss was not finite" in err
    assert main([*line, "--grid", "lr=1e30"]) == 3
