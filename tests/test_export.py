"""Leaving with the result: exported programs, and `reprise predict` on a folder of pictures."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from PIL import Image
from test_learner import SHORT, net, own_tasks, scenes

import reprise
from reprise.cli import main
from reprise.errors import InputError
from reprise.export import Answer, load_program
from reprise.learner import Learner
from reprise.methods import METHODS
from reprise.own_tasks import OwnTask

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning"
)  # torch.export's own


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    made = Learner(
        net(), reprise.CAR(), m_per_task=6, out=tmp_path_factory.mktemp("learner") / "run", batch=4
    )
    for task in own_tasks():
        made.learn(task)
    return made


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, image in enumerate(scenes(3, 7)[0]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((20, 12)).save(folder / f"{i}.png")
    return folder


@pytest.mark.parametrize("task", ["colour", "bright", "grey"])
def test_a_program_answers_as_the_learner_does(learner: Learner, task: str, tmp_path: Path) -> None:
    program = load_program(learner.export(task, tmp_path / f"{task}.pt2"))
    x = scenes(5, 3)[0]
    assert torch.allclose(program(x), learner.predict(task, x, scores=True), atol=1e-5)
    assert program.about["task"] == task


def test_weights_are_plain_tensors(learner: Learner, tmp_path: Path) -> None:
    path = learner.export("colour", tmp_path / "colour.safetensors")
    with safetensors.safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["about"])["task"] == "colour"
        assert {"head.fc.weight", "encoder.stem.0.weight", "mean"} <= set(file.keys())


def test_weights_of_our_own_encoders_are_written_and_read_again(tmp_path: Path) -> None:
    """Their norms have no counter of batches."""
    x, colour, *_ = scenes()
    learner = Learner("resnet18-tiny", "sgd", **SHORT)
    learner.learn(OwnTask.classify("colour", (x, colour), (x, colour), 3), steps=2)
    assert learner.export("colour", tmp_path / "colour.safetensors").exists()


def test_a_program_that_answers_otherwise_is_not_left_there(
    learner: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Answer.forward
    monkeypatch.setattr(Answer, "forward", lambda self, images: right(self, images) + 0.1)
    with pytest.raises(InputError, match="would answer otherwise than the learner"):
        learner.export("colour", tmp_path / "colour.pt2")
    assert not list(tmp_path.iterdir())


def test_stacked_heads_and_named_encoders_are_exported(tmp_path: Path) -> None:
    x, colour, *_ = scenes()
    made = Learner("convnet-small", reprise.ER(), m_per_class=1, heads="stacked", **SHORT)
    for name in ("a", "b"):
        made.learn(OwnTask.classify(name, (x, colour), (x, colour), 3))
    program = load_program(made.export("b", tmp_path / "b.pt2"))
    assert torch.allclose(program(x), made.predict("b", x, scores=True).float(), atol=1e-5)


def test_what_cannot_be_exported_is_said(learner: Learner, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ends in none of .pt2, .onnx, .safetensors"):
        learner.export("colour", tmp_path / "model.pth")
    with pytest.raises(InputError, match="'shade' was not learned; the learner knows colour, bright, grey"):
        learner.export("shade", tmp_path / "model.pt2")
    x, colour, *_ = scenes()
    means = Learner("convnet-small", METHODS["icarl"](), m_per_class=1, heads="stacked", **SHORT)
    means.learn(OwnTask.classify("a", (x, colour), (x, colour), 3))
    with pytest.raises(InputError, match="ICaRL answers by looking into the memory"):
        means.export("a", tmp_path / "model.pt2")


def test_onnx(learner: Learner, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert learner.export("bright", tmp_path / "bright.onnx").exists()


# ---- the command


def test_predict_writes_a_table_of_classes(
    learner: Learner, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = learner.export("colour", tmp_path / "colour.pt2")
    assert main(["predict", str(program), "--out", str(tmp_path / "out"), str(pictures)]) == 0
    assert "3 answers" in capsys.readouterr().out
    rows = list(csv.reader((tmp_path / "out" / "colour.csv").read_text().splitlines()))
    assert rows[0] == ["file", "class", "probability"]
    shown = [np.asarray(Image.open(pictures / f"{i}.png").resize((8, 8))) for i in range(3)]
    expected = learner.predict("colour", np.stack(shown).transpose(0, 3, 1, 2))
    assert [int(row[1]) for row in rows[1:]] == expected.tolist()


def test_predict_calls_classes_by_their_names_and_needs_no_task_where_there_is_one(
    pictures: Path, tmp_path: Path
) -> None:
    x, colour, *_ = scenes()
    made = Learner("convnet-small", reprise.SGD(), out=tmp_path / "run", batch=4)
    made.learn(OwnTask.classify("colour", (x, colour), (x, colour), classes=["red", "green", "blue"]))
    program = made.export("colour", tmp_path / "colour.pt2")
    tables = []
    for run in (tmp_path / "run", program):
        assert main(["predict", str(run), str(pictures), "--out", str(tmp_path / run.stem)]) == 0
        tables.append((tmp_path / run.stem / "colour.csv").read_text())
    assert {row[1] for row in csv.reader(tables[0].splitlines()[1:])} <= {"red", "green", "blue"}
    assert [line.split(",")[:2] for line in tables[0].splitlines()] == [
        line.split(",")[:2] for line in tables[1].splitlines()
    ]


def test_predict_reads_a_learner_built_from_names(pictures: Path, tmp_path: Path) -> None:
    x, _, bright, grey = scenes()
    made = Learner("convnet-small", reprise.ER(), m_per_task=4, out=tmp_path / "run", batch=4)
    made.learn(OwnTask.segment("bright", (x, bright), (x, bright), 2))
    made.learn(OwnTask.regress("grey", (x, grey), (x, grey)))
    out = tmp_path / "out"
    for task in ("bright", "grey"):
        assert main(["predict", str(tmp_path / "run"), "--task", task, str(pictures), "--out", str(out)]) == 0
    with Image.open(out / "0.bright.png") as shown:
        assert shown.mode == "P", "classes, each in a colour"
        assert np.asarray(shown).shape == (8, 8)
        assert np.asarray(shown).max() < 2
    assert np.load(out / "0.grey.npy").shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["RUN", "--task", "colour", "PICTURES"], "has modules of your own"),
        (["nowhere", "--task", "a", "PICTURES"], "nowhere holds no learner"),
        (["RUN"], "folder: none was named"),
    ],
)
def test_predict_says_what_is_wrong(
    learner: Learner, pictures: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    given = [{"RUN": str(learner.out), "PICTURES": str(pictures)}.get(word, word) for word in words]
    assert main(["predict", *given]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
