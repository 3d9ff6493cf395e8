"""Curves in other people's tools: the right numbers at the right steps, and sentences where a tool is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import CPU, cell

from reprise import loggers
from reprise.cli import main
from reprise.errors import InputError
from reprise.loggers import TensorBoard, WeightsAndBiases, check_loggers
from reprise.train import Trainer


def test_tensorboard_gets_losses_and_scores_of_every_lane(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folders = [tmp_path / "seed-0", tmp_path / "seed-1"]
    trainer = Trainer([cell("er", 0), cell("er", 1)], CPU, observer=TensorBoard(folders, [{}, {}]))
    outcomes = trainer.run()
    for folder, outcome in zip(folders, outcomes, strict=True):
        read = EventAccumulator(str(folder / "tensorboard"))
        read.Reload()
        (loss,) = read.Scalars("loss/task-1")
        assert (loss.step, loss.value) == (4, pytest.approx(outcome.log[1]["loss"]))
        accuracy = read.Scalars("accuracy/task-0")
        assert [point.step for point in accuracy] == [1, 2, 3]
        assert [point.value for point in accuracy] == pytest.approx([row[0] for row in outcome.accuracy])
        assert [point.step for point in read.Scalars("test loss/task-2")] == [3]


def test_weights_and_biases_gets_a_run_for_each_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in with the same three calls: the real one wants an account."""
    began: list[dict[str, Any]] = []
    noted: list[dict[str, float]] = []

    def init(**given: Any) -> SimpleNamespace:
        began.append(given)
        return SimpleNamespace(log=noted.append, finish=lambda: noted.append({"finished": 1.0}))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    observer = WeightsAndBiases([tmp_path / "exp" / "seed-3"], [{"lr": 0.1}])
    (outcome,) = Trainer([cell("sgd", tasks=1)], CPU, observer=observer).run()
    assert began[0]["name"] == "exp/seed-3"
    assert began[0]["project"] == "reprise"
    assert began[0]["config"] == {"lr": 0.1}
    assert noted == [
        {"loss/task-0": outcome.log[0]["loss"], "step": 4},
        {"test loss/task-0": outcome.loss[0][0], "accuracy/task-0": outcome.accuracy[0][0], "step": 1},
        {"finished": 1.0},
    ]


def test_missing_and_unknown_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="log: 'paper' is not known; choose from tensorboard, wandb"):
        check_loggers(["paper"])
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"log: wandb is not installed; .*'reprise-cl\[wandb\]'"):
        check_loggers(["wandb"])


def test_the_command_line_leaves_what_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--tasks", "2", "--steps", "3", "--encoder", "convnet-small"]
    command = ["run", "split-shapes", "--method", "er", *short, "--out", str(tmp_path / "run")]
    assert main([*command, "--artifacts", "features,memory", "--log", "tensorboard"]) == 0
    capsys.readouterr()
    seed = tmp_path / "run" / "seed-0"
    assert (seed / "artifacts" / "memory.npz").exists()
    assert list((seed / "tensorboard").glob("events.*"))
    assert main([*command, "--artifacts", "everything"]) == 2
    assert "artifacts: 'everything' is not known" in capsys.readouterr().err
