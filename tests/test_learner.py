"""The learner: one task at a time, equal to a stream of the same tasks; guard rails; resuming and loading."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import CPU, FIELDS, cell, train
from torch import Tensor, nn

import reprise
from reprise import stopping
from reprise.build import Cell
from reprise.config import Experiment, make_experiment
from reprise.errors import InputError
from reprise.group_run import load_pool
from reprise.learner import Learner
from reprise.ledger import settle
from reprise.methods import METHODS
from reprise.models.parts import OwnParts
from reprise.own_tasks import OwnTask, look_at
from reprise.runner import run_experiments
from reprise.streams import CIFAR_MEAN, CIFAR_STD, stream_of
from reprise.streams.stream import Normalise, Stream
from reprise.tasks import Task
from reprise.train import Outcome, Trainer

Pair = tuple[Tensor, ...]
SHORT = {"batch": 4, "replay": 3, "precision": "float64"}


def pair(task: Task, part: str) -> Pair:
    examples = getattr(task, part)
    columns = examples.take(torch.arange(len(examples)))
    return columns["x"], columns["y"]


class Net(nn.Module):
    """A user's encoder, with norms and dropout of its own."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.stem(x))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def scenes(n: int = 16, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, and of each its strongest colour, which pixels are bright, and how grey they are."""
    x = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, 3, 8, 8), dtype=np.uint8))
    grey = x.float().mean(1) / 255
    return x, x.float().mean((2, 3)).argmax(1), (grey > 0.5).long(), grey


def own_tasks() -> list[OwnTask]:
    (x, colour, bright, grey), (tx, tcolour, tbright, tgrey) = scenes(16), scenes(8, 1)
    bright, grey = bright.clone(), grey.clone()
    bright[0, 0, 0], grey[0, 0, 0] = 255, float("nan")
    return [
        OwnTask.classify("colour", (x, colour), (tx, tcolour), classes=3),
        OwnTask.segment("bright", (x, bright), (tx, tbright), classes=2, ignore=255),
        OwnTask.regress("grey", (x, grey), (tx, tgrey), norm="l1"),
    ]


def as_stream(tasks: list[OwnTask]) -> Stream:
    """The same tasks, all known from the start."""
    seen = [look_at(task, j, 0, False) for j, task in enumerate(tasks)]
    half, quarter = (torch.full((1, 1, 1), value, dtype=torch.float64) for value in (0.5, 0.25))
    return Stream(
        name="own",
        tasks=tuple(Task(own.name, own.kind, own.train, own.test) for own in seen),
        input_shape=(3, 8, 8),
        normalise=Normalise(half, quarter),
        fingerprint="own",
        shared_head=False,
        full_tasks=len(tasks),
    )


def matrices(outcome: Outcome) -> dict[str, Any]:
    return {"accuracy": outcome.accuracy, "loss": outcome.loss}


# ---- open-ended equals a fixed stream


@pytest.mark.parametrize("name", [name for name in METHODS if name != "multitask"])
def test_split_tasks_one_by_one_give_the_streams_matrix(name: str) -> None:
    """Bit for bit, every method: matrices, transfer, bytes and weights. (Planted once: a head of task j that was
    initialised from the generator of task 0 is found.)"""
    fixed = cell(name)
    straight = train(fixed)
    learner = Learner(
        *("convnet-small", METHODS[name]()),
        **{**SHORT, "m_per_class": 1, "heads": "stacked", "room": 3, "lr": FIELDS["lr"]},
    )
    for task in fixed.stream.tasks:
        learner.learn(OwnTask.classify(task.name, pair(task, "train"), pair(task, "test"), 5), steps=4)
    assert learner.matrix == matrices(straight.outcomes[0])
    own, outcome = learner.standing().outcomes[0], straight.outcomes[0]
    assert (own.initial, own.next, own.bytes) == (outcome.initial, outcome.next, outcome.bytes)
    for parameter, value in learner.standing().engine.params.items():
        assert torch.equal(value, straight.engine.params[parameter]), parameter


@pytest.mark.slow
@pytest.mark.skipif("REPRISE_DATA" not in os.environ, reason="REPRISE_DATA names no data folder")
@pytest.mark.parametrize("method", [reprise.ER(), reprise.CAR()], ids=["er", "car"])
def test_split_cifar_one_by_one_gives_the_matrix_of_the_command(
    method: reprise.Method, tmp_path: Path
) -> None:
    """On the real data, in float32, the first 4 of 17 tasks, 40 steps each: the records' matrices are equal."""
    fields = {"steps": 40, "tasks": 4, "m": 85}
    name = "car" if isinstance(method, reprise.CAR) else "er"
    experiment = make_experiment("split-cifar", name, fields)
    data = Path(os.environ["REPRISE_DATA"])
    [record] = run_experiments([experiment], [0], data=data, out=tmp_path / "run")
    stream = stream_of(experiment, 0, load_pool("split-cifar", data))
    learner = Learner(
        *("resnet18-reduced", method),
        **{"m_per_class": 1, "heads": "stacked", "room": 4, "batch": 10, "replay": 5, "lr": 0.03},
        **{"mean": CIFAR_MEAN, "std": CIFAR_STD},
    )
    for task in stream.tasks:
        learner.learn(OwnTask.classify(task.name, pair(task, "train"), pair(task, "test"), 5), steps=40)
    assert learner.matrix == record["matrix"]


@pytest.mark.parametrize(
    "method",
    [
        *(
            reprise.SGD(),
            reprise.ER(),
            reprise.CAR(),
            reprise.CAR(distance="weighted_l1"),
            METHODS["derpp"](),
        ),
        *(METHODS["ewc"](), METHODS["ewc"](variant="per_task"), METHODS["hal"](anchor_steps=2)),
        *(METHODS["agem"](), METHODS["side_tuning"]()),
        reprise.CAR(compress="intermediate"),
    ],
    ids=str,
)
def test_tasks_of_all_kinds_one_by_one_give_the_streams_matrix(method: reprise.Method) -> None:
    tasks = own_tasks()
    stream, parts = as_stream(tasks), OwnParts(net())
    fields = {"optimizer": "adam", "lr": 0.01, "bn": "joint", "epochs": 1, **SHORT}
    m = {"m_per_task": 6} if method.replays else {}
    experiment = settle(Experiment("own", method, encoder="own", **fields, **m), stream, parts)
    trainer = Trainer([Cell(experiment, 0, stream, parts)], CPU)
    trainer.run()
    learner = Learner(net(), method, m_per_task=6, lr=0.01, **SHORT)
    for task in tasks:
        learner.learn(task)
    assert learner.matrix == matrices(trainer.outcomes[0])
    assert learner.standing().outcomes[0].initial == trainer.outcomes[0].initial
    for name, value in learner.standing().engine.params.items():
        assert torch.equal(value, trainer.engine.params[name]), name


@pytest.mark.parametrize(
    ("parts", "capturable"),
    [
        (None, True),
        (OwnParts(None, "convnet-small"), True),
        (OwnParts(net()), False),
        (OwnParts(None, "convnet-small", heads={0: nn.Identity()}), False),
    ],
)
def test_modules_of_other_people_are_not_captured(parts: OwnParts | None, capturable: bool) -> None:
    """They may ask something of the host in a step, which a CUDA graph cannot repeat."""
    stream = as_stream(own_tasks())
    experiment = settle(Experiment("own", reprise.SGD(), encoder="convnet-small", **SHORT), stream)
    trainer = Trainer([Cell(experiment, 0, stream, parts)], CPU)
    assert trainer.steppers.captures is capturable
    assert not trainer.evaluator.captures, "a CPU has no graphs"


def test_learning_holds_off_forgetting_and_answers_have_the_right_form() -> None:
    x, colour, _, grey = scenes(64)
    learner = Learner(net(), reprise.ER(), m_per_task=32, lr=0.01, batch=8)
    learner.learn(OwnTask.regress("grey", (x, grey), (x, grey)), epochs=8)
    learner.learn(OwnTask.classify("colour", (x, colour), (x, colour), 3), epochs=4)
    plain = Learner(net(), reprise.SGD(), lr=0.01, batch=8)
    plain.learn(OwnTask.regress("grey", (x, grey), (x, grey)), epochs=8)
    plain.learn(OwnTask.classify("colour", (x, colour), (x, colour), 3), epochs=4)
    kept, lost = learner.forgetting["grey"], plain.forgetting["grey"]
    assert kept is not None
    assert lost is not None
    assert kept < lost
    assert learner.predict("colour", x[:5]).shape == (5,)
    assert learner.predict("colour", x[:5], scores=True).shape == (5, 3)
    assert learner.predict("grey", x[:5]).shape == (5, 1, 8, 8)
    right = float((learner.predict("colour", x) == colour).double().mean())
    assert right == pytest.approx(learner.evaluate()["colour"]["accuracy"])


def test_the_users_encoder_is_never_changed() -> None:
    encoder = net()
    before = {name: t.clone() for name, t in encoder.state_dict().items()}
    Learner(encoder, reprise.SGD(), **SHORT).learn(own_tasks()[0])
    assert encoder.training
    assert all(torch.equal(t, before[name]) for name, t in encoder.state_dict().items())


# ---- the memory


def test_shares_of_a_byte_budget_shrink_fairly_and_the_ledger_shows_it() -> None:
    tasks = own_tasks()
    learner = Learner(net(), reprise.ER(), memory="5KB", **{**SHORT, "batch": 4})
    held: list[Tensor] = []
    shares = []
    for task in tasks:
        learner.learn(task)
        memory = learner.standing().memory
        assert memory is not None
        counts = [len(rows) for rows in memory.rows_by_task(0, len(shares) + 1).values()]
        assert len(set(counts)) == 1
        shares.append(counts[0])
        held.append(memory.shelf(0).columns["x"][: counts[0]].clone())
        assert learner.ledger[-1]["m_per_task"] == counts[0]
        assert learner.ledger[-1]["bytes"]["total"] <= 5000
    assert shares[0] > shares[1] > shares[2] > 0
    assert torch.equal(held[2], held[0][: shares[2]])  # the first picked are the last to go


def test_with_examples_per_task_nothing_shrinks() -> None:
    learner = Learner(net(), reprise.CAR(), m_per_task=5, **SHORT)
    for task in own_tasks():
        learner.learn(task)
    assert [line["m_per_task"] for line in learner.ledger] == [5, 5, 5]


def test_a_reservoir_that_is_full_cannot_grow() -> None:
    tasks = cell("mer").stream.tasks
    learner = Learner("convnet-small", METHODS["mer"](), m_per_task=5, heads="stacked", lr=0.05, **SHORT)
    learner.learn(OwnTask.classify("a", pair(tasks[0], "train"), pair(tasks[0], "test"), 5))
    with pytest.raises(InputError, match="a full reservoir of 5 examples cannot become one of 10"):
        learner.learn(OwnTask.classify("b", pair(tasks[1], "train"), pair(tasks[1], "test"), 5))


# ---- going on


def interrupted(learner: Learner, task: OwnTask, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Learn until a signal asks to stop after so many steps."""
    asked = [0]

    def ask() -> int | None:
        asked[0] += 1
        return signal.SIGINT if asked[0] > steps else None

    with monkeypatch.context() as patch:
        patch.setattr(stopping, "asked", ask)
        with pytest.raises(KeyboardInterrupt, match="stopped where it can go on"):
            learner.learn(task, epochs=2)


def test_an_interrupted_task_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = own_tasks()

    def make(out: Path) -> Learner:
        return Learner(net(), reprise.CAR(), m_per_task=6, out=out, **SHORT)

    straight, broken = make(tmp_path / "a"), make(tmp_path / "b")
    for task in tasks:
        straight.learn(task, epochs=2)
    broken.learn(tasks[0], epochs=2)
    interrupted(broken, tasks[1], monkeypatch, steps=3)
    with pytest.raises(InputError, match="'bright': it was interrupted and is to be learned first"):
        make(tmp_path / "b").learn(tasks[2])
    again = make(tmp_path / "b")
    assert again.tasks == ["colour"]
    for task in tasks:
        again.learn(task, epochs=2)
    assert again.matrix == straight.matrix
    for name, value in straight.standing().engine.params.items():
        assert torch.equal(value, again.standing().engine.params[name])


def test_a_finished_task_returns_at_once_and_another_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tasks = own_tasks()
    learner = Learner(net(), reprise.ER(), m_per_task=6, out=tmp_path / "run", **SHORT)
    for task in tasks:
        learner.learn(task)
    scores = learner.scores
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", None)
        assert learner.learn(tasks[1]) == scores
    x, colour, *_ = scenes(16, seed=5)
    other = OwnTask.classify("colour", (x, colour), tasks[0].test, 3)
    sentence = "'colour': it was learned with other data; .* replace=True, which learns anew .and drops bright, grey."
    with pytest.raises(InputError, match=sentence):
        learner.learn(other)
    with pytest.raises(InputError, match="was learned with epochs=1, not 2"):
        learner.learn(tasks[2], epochs=2)
    learner.learn(other, replace=True)
    assert learner.tasks == ["colour"]
    learner.learn(tasks[1])
    assert Learner.load(tmp_path / "run", encoder=net()).tasks == ["colour", "bright"]


def test_loading_gives_the_same_answers_and_can_go_on(tmp_path: Path) -> None:
    tasks = own_tasks()
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    tasks[0] = OwnTask.classify("colour", tasks[0].train, tasks[0].test, 3, head=head)
    straight = Learner(net(), reprise.CAR(), m_per_task=6, **SHORT)
    left = Learner(net(), reprise.CAR(), m_per_task=6, out=tmp_path / "run", **SHORT)
    for task in tasks:
        straight.learn(task)
    for task in tasks[:2]:
        left.learn(task)
    x = scenes(8, 3)[0]
    expected = left.predict("bright", x, scores=True)
    with pytest.raises(InputError, match="encoder: the learner in .* has one of your own"):
        Learner.load(tmp_path / "run")
    with pytest.raises(InputError, match="heads: 'colour' has a head of your own"):
        Learner.load(tmp_path / "run", encoder=net())
    loaded = Learner.load(tmp_path / "run", encoder=net(seed=9), heads={"colour": head})
    assert torch.equal(loaded.predict("bright", x, scores=True), expected)
    with pytest.raises(InputError, match="evaluate: the test data of 'colour' is not here any more"):
        loaded.evaluate()
    tests = {task.name: task.test for task in tasks[:2]}
    tests["bright"] = (tests["bright"][0], torch.where(tests["bright"][1] == 0, 0, 1))
    assert loaded.evaluate(tests) == left.scores
    given = {"encoder": net(seed=9), "heads": {"colour": head}, "tests": tests}
    loaded = Learner.load(tmp_path / "run", **given)
    loaded.learn(tasks[2])
    assert loaded.matrix == straight.matrix


def test_test_data_given_anew_is_read_as_the_task_was(tmp_path: Path) -> None:
    """Pixels marked as unknown stay so."""
    x, _, bright, _ = scenes()
    bright = bright.clone()
    bright[:, 0] = 255
    learner = Learner(net(), reprise.SGD(), out=tmp_path / "run", **SHORT)
    learner.learn(OwnTask.segment("bright", (x, bright), (x, bright), 2, ignore=255))
    loaded = Learner.load(tmp_path / "run", encoder=net())
    assert loaded.evaluate({"bright": (x, bright)}) == learner.scores


@pytest.mark.filterwarnings("ignore:tests. the test data")
def test_without_the_old_test_data_a_row_has_gaps(tmp_path: Path) -> None:
    tasks = own_tasks()
    Learner(net(), reprise.ER(), m_per_task=6, out=tmp_path / "run", **SHORT).learn(tasks[0])
    loaded = Learner.load(tmp_path / "run", encoder=net())
    loaded.learn(tasks[1])
    assert loaded.matrix["loss"][1][0] is None
    assert loaded.matrix["loss"][1][1] is not None


def test_gaps_are_said_and_filled_in_where_the_test_data_is_given_later(tmp_path: Path) -> None:
    tasks = own_tasks()[:2]
    how: dict[str, Any] = {"m_per_task": 6, **SHORT}
    straight = Learner(net(), reprise.ER(), **how)
    for task in tasks:
        straight.learn(task)
    Learner(net(), reprise.ER(), out=tmp_path / "run", **how).learn(tasks[0])
    loaded = Learner.load(tmp_path / "run", encoder=net())
    with pytest.warns(UserWarning, match=f"tests: the test data of {tasks[0].name!r} is not here"):
        loaded.learn(tasks[1])
    assert loaded.forgetting == {tasks[0].name: None}
    later = Learner.load(tmp_path / "run", encoder=net(), tests={task.name: task.test for task in tasks})
    assert later.matrix == straight.matrix
    assert later.forgetting == straight.forgetting


def test_data_given_to_evaluate_is_used_once() -> None:
    tasks = own_tasks()[:2]
    twin, learner = (Learner(net(), reprise.ER(), m_per_task=6, **SHORT) for _ in range(2))
    for own in (twin, learner):
        own.learn(tasks[0])
    usual = learner.evaluate()
    assert learner.evaluate({tasks[0].name: tasks[0].train}) != usual
    assert learner.evaluate() == usual
    for own in (twin, learner):
        own.learn(tasks[1])
    assert learner.matrix == twin.matrix


def test_methods_have_names() -> None:
    assert Learner(net(), "er", m_per_task=6, **SHORT).method == reprise.ER()
    with pytest.raises(InputError, match="method: 'carr' is not known; the nearest one is car"):
        Learner(net(), "carr", m_per_task=6)
    with pytest.raises(InputError, match="method: 3 is no method"):
        Learner(net(), 3, m_per_task=6)  # type: ignore[arg-type]


def test_images_are_all_of_one_sort() -> None:
    x, colour, *_ = scenes()
    learner = Learner(net(), "sgd", **SHORT)
    learner.learn(OwnTask.classify("counts", (x, colour), (x, colour), 3))
    with pytest.raises(InputError, match="predict: images are float32; this learner takes uint8"):
        learner.predict("counts", x.float())
    real = (x.float() / 255, colour)
    with pytest.raises(InputError, match="task 'real': images are float32, those of 'counts' uint8"):
        learner.learn(OwnTask.classify("real", real, real, 3))


# ---- guard rails


def test_touching_an_old_tasks_data_raises() -> None:
    tasks = own_tasks()
    learner = Learner(net(), reprise.ER(), m_per_task=6, **SHORT)
    for task in tasks[:2]:
        learner.learn(task)
    trainer = learner.standing()
    sentence = "'colour': its training data was touched while 'bright' is being learned"
    for touch in (
        lambda: trainer.phases[0].train.take(torch.arange(1)),
        lambda: trainer.phases[0].train.subset(np.arange(1)),
        lambda: next(trainer.engine.chunks(trainer.phases[0].train, 4)),
    ):
        with pytest.raises(InputError, match=sentence):
            touch()


X, COLOUR, BRIGHT, GREY = scenes()
WRONG = {
    "classes": (
        lambda: OwnTask.classify("a", (X, COLOUR), (X, COLOUR), 2),
        "task 'a', train: a target is class 2, and classes=2 allows 0 to 1",
    ),
    "dtype": (
        lambda: OwnTask.classify("a", (X, COLOUR.float()), (X, COLOUR), 3),
        "task 'a', train: a target is torch.float32; class indices are whole numbers.",
    ),
    "shape": (
        lambda: OwnTask.classify("a", (X, BRIGHT), (X, BRIGHT), 3),
        "task 'a', train: a target has the shape [8, 8]; give one class index per example.",
    ),
    "segments": (
        lambda: OwnTask.segment("a", (X, COLOUR), (X, COLOUR), 3),
        "a target has the shape []; give [height, width] class indices.",
    ),
    "channels last": (
        lambda: OwnTask.classify("a", (X.permute(0, 2, 3, 1), COLOUR), (X, COLOUR), 3),
        "an image is [8, 8, 3], channels last; permute it to [channels, height, width].",
    ),
    "lengths": (
        lambda: OwnTask.classify("a", (X, COLOUR[:3]), (X, COLOUR), 3),
        "there are 16 images and 3 targets",
    ),
    "test": (
        lambda: OwnTask.regress("a", (X, GREY), (X[:, :, :4], GREY)),
        "task 'a': x is [3, 8, 8] in train and [3, 4, 8] in test",
    ),
    "head": (
        lambda: OwnTask.classify("a", (X, COLOUR), (X, COLOUR), 3, head=nn.Flatten()),
        "task 'a': its head answers [32] to an image, and the target asks for [3]",
    ),
    "data": (lambda: OwnTask.classify("a", 3, 4, 3), "task 'a', train: the data is int; give a pair"),
    "integers": (
        lambda: OwnTask.classify("a", (X.long(), COLOUR), (X, COLOUR), 3),
        "an image is torch.int64; give uint8",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_is_named_before_training_starts(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, sentence = WRONG[case]
    monkeypatch.setattr(Trainer, "run", None)
    with pytest.raises(InputError) as error:
        Learner(net(), reprise.SGD(), **SHORT).learn(make())
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": reprise.ER()}, "memory: this method remembers examples"),
        ({"method": reprise.ER(), "memory": "much"}, "memory: 'much' is not a size"),
        ({"method": METHODS["multitask"]()}, "method: multitask needs all tasks at once"),
        ({"method": reprise.SGD(), "precision": "bf16"}, "precision: bf16 is for the encoders of Reprise"),
        ({"method": reprise.SGD(), "room": 3}, "room: 3 tasks"),
        ({"method": reprise.SGD(), "heads": "one"}, "heads: 'one' is not known"),
        ({"method": reprise.SGD(), "device": "tpu"}, "device: 'tpu' is not known"),
        ({"method": reprise.SGD(), "lr": -1.0}, "lr: -1.0 is not positive"),
        ({"encoder": "vgg"}, "encoder: 'vgg' is not known"),
        ({"encoder": "timm:resnet18:old"}, "encoder: 'old' in 'timm:resnet18:old' is not known"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], sentence: str) -> None:
    given = {"encoder": net(), "method": reprise.SGD()} | settings
    with pytest.raises(InputError, match=sentence):
        Learner(**given)


def test_a_task_that_was_refused_may_be_given_again_in_any_form() -> None:
    learner = Learner(net(), reprise.SGD(), **SHORT)
    x, colour, *_ = scenes()
    with pytest.raises(InputError, match="its head answers"):
        learner.learn(OwnTask.classify("a", (x, colour), (x, colour), 3, head=nn.Flatten()))
    with pytest.raises(InputError, match="steps: 0"):
        learner.learn(OwnTask.classify("a", (x, colour), (x, colour), 3), steps=0)
    learner.learn(OwnTask.classify("a", (x, colour), (x, colour), 3))
    assert learner.tasks == ["a"]


def test_a_folder_of_another_learner_is_refused(tmp_path: Path) -> None:
    Learner(net(), reprise.SGD(), out=tmp_path / "run")
    with pytest.raises(InputError, match="holds a learner with lr 0.001, here it is 0.1"):
        Learner(net(), reprise.SGD(), out=tmp_path / "run", lr=0.1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(InputError, match="is not empty and holds no learner"):
        Learner(net(), reprise.SGD(), out=tmp_path / "other")
    with pytest.raises(InputError, match="holds no learner; name the folder"):
        Learner.load(tmp_path / "nowhere")


def test_the_page_of_a_report_names_the_tasks(tmp_path: Path) -> None:
    learner = Learner(net(), reprise.ER(), m_per_task=4, out=tmp_path / "run", **SHORT)
    for task in own_tasks():
        learner.learn(task)
    said = learner.report()
    assert "points" in said
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert str(tmp_path / "run" / "report" / "index.html") in said
    for name in ("colour", "bright", "grey"):
        assert f"<h3>{name}</h3>" in page, "its answers to test images"
        assert f"<span>{name}</span> <small>4 kept</small>" in page
    assert page.count("data:image/png") == 3 * (3 + 4) + 2 * (3 + 3), (
        "tests, memory, and the maps of two tasks"
    )


@pytest.mark.filterwarnings("ignore:tests. the test data")
def test_a_page_of_a_learner_without_test_data_has_gaps_and_no_answers(tmp_path: Path) -> None:
    first, second, _ = own_tasks()
    learner = Learner(net(), reprise.SGD(), out=tmp_path / "<run>", **SHORT)
    learner.learn(first)
    learner = Learner.load(tmp_path / "<run>", encoder=net())
    learner.learn(second)
    assert "not measured" in learner.report()
    page = (tmp_path / "<run>" / "report" / "index.html").read_text()
    assert "not measured" in page
    assert 'id="answers"' not in page
    assert "Learner: &lt;run&gt;" in page


# ---- names of classes


def test_classes_have_names_where_they_were_given(tmp_path: Path) -> None:
    first, second, third = own_tasks()
    named = OwnTask.classify("colour", first.train, first.test, classes=["red", "green", "blue"])
    learner = Learner(net(), reprise.SGD(), out=tmp_path / "run", **SHORT)
    for task in (named, second, third):
        learner.learn(task)
    assert repr(learner).endswith("run', tasks: colour, bright, grey)")
    found = [learner.classes(name) for name in learner.tasks]
    assert found == [["red", "green", "blue"], ["0", "1"], []]
    assert Learner.load(tmp_path / "run", encoder=net()).classes("colour") == found[0]


def test_a_table_names_its_classes() -> None:
    class Label:
        names = ("red", "green", "blue")

    table = Table()
    table.features = {"img": object(), "fine_label": Label()}  # type: ignore[attr-defined]
    assert OwnTask.classify("a", table, table).names == Label.names


def test_parts_that_count_classes_otherwise_are_refused() -> None:
    data, other = Dataset(), Dataset()
    data.classes, other.classes = ["a", "b", "c"], ["b", "a", "c"]  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="task 'a', test: its classes are b, a, c, and the task's a, b, c"):
        OwnTask.classify("a", data, other)


# ---- encoders of other people


class Tokens(nn.Module):
    """As a vision transformer answers: [n, tokens, d], and only to images of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == 8, f"Input width ({x.shape[-1]}) doesn't match model (8)."
        return self.fc(x.flatten(2).transpose(1, 2))


def test_an_encoder_that_does_not_fit_is_named_before_training() -> None:
    x, colour, *_ = scenes()
    with pytest.raises(InputError, match=r"encoder: it answers \[2, 64, 6\] to two images, and features are"):
        Learner(Tokens(), reprise.SGD()).learn(OwnTask.classify("a", (x, colour), (x, colour), 3))
    small = x[..., :4]
    with pytest.raises(InputError, match=r"does not take images \[3, 8, 4\] \(Input width \(4\) doesn't"):
        Learner(Tokens(), reprise.SGD()).learn(OwnTask.classify("a", (small, colour), (small, colour), 3))


def test_encoders_by_the_names_of_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for timm: what it is asked, that a name is enough to load, and what is said where it fails."""
    asked = []

    class Timm:
        @staticmethod
        def create_model(name: str, **how: Any) -> nn.Module:
            asked.append((name, how))
            if name == "nothing":
                raise RuntimeError("Unknown model (nothing)")
            return net()

    monkeypatch.setitem(sys.modules, "timm", Timm())  # type: ignore[arg-type]
    x, colour, *_ = scenes()
    learner = Learner("timm:small:pretrained", reprise.SGD(), out=tmp_path / "run", **SHORT)
    learner.learn(OwnTask.classify("a", (x, colour), (x, colour), 3))
    again = Learner.load(tmp_path / "run")
    assert torch.equal(again.predict("a", x, scores=True), learner.predict("a", x, scores=True))
    assert asked[0] == ("small", {"pretrained": True, "num_classes": 0, "global_pool": ""})
    with pytest.raises(InputError, match=r"timm has no 'nothing' \(Unknown model"):
        Learner("timm:nothing", reprise.SGD())

    def broken(name: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(InputError, match="timm cannot be imported .* must be of one release"):
        Learner("timm:small", reprise.SGD())


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        (None, "task 'a': classes: none were given; give 2 or more, or their names"),
        (["one"], "task 'a': classes=1 is no number of classes"),
        (["one", "one"], "task 'a': two classes have one name"),
    ],
)
def test_classes_that_cannot_be_counted_are_named(classes: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        OwnTask.classify("a", Dataset(), Dataset(), classes)


# ---- tasks of few examples


def test_a_task_smaller_than_a_batch_is_learned_whole_and_others_keep_their_batch(tmp_path: Path) -> None:
    x, colour, *_ = scenes()
    sizes = {"first": 16, "few": 3, "last": 16}
    learner = Learner(net(), reprise.ER(), m_per_task=4, out=tmp_path / "run", batch=8)
    steps: dict[str, int] = {}
    for name, n in sizes.items():
        task = OwnTask.classify(name, (x[:n], colour[:n]), (x, colour), 3)
        learner.learn(task, epochs=2, progress=lambda done, total, what: steps.update({what: total}))
        assert learner.standing().experiment.batch == min(8, n)
    assert steps == {"first": 4, "few": 2, "last": 4}, "of the task alone, whatever came before"
    memory = learner.standing().memory
    assert memory is not None
    assert [len(memory.shelf(j).rows_of(0, j)) for j in range(3)] == [4, 3, 4], "few examples: all of them"
    again = Learner.load(tmp_path / "run", encoder=net())
    assert torch.equal(again.predict("few", x, scores=True), learner.predict("few", x, scores=True))


def test_a_small_task_that_joins_a_byte_budget_leaves_the_others_what_they_remember(tmp_path: Path) -> None:
    """The budget would do for all examples: nobody loses any, and the ledger counts what is there."""
    x, colour, *_ = scenes()
    learner = Learner(net(), reprise.ER(), memory="100KB", out=tmp_path / "run", batch=4)
    for name, n in (("first", 16), ("few", 3), ("last", 9)):
        learner.learn(OwnTask.classify(name, (x[:n], colour[:n]), (x, colour), 3))
        memory = learner.standing().memory
        assert memory is not None
        held = [len(memory.shelf(j).rows_of(0, j)) for j in range(len(learner.tasks))]
        assert held == [16, 3, 9][: len(held)]
        assert learner.ledger[-1]["bytes"]["inputs"] == sum(held) * 3 * 8 * 8
    assert [row.split("│")[-2].strip() for row in learner.report().splitlines() if "%" in row] == [
        "16",
        "3",
        "9",
    ]


# ---- progress


def test_steps_are_told_to_whoever_asks(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int]] = []
    learner = Learner(net(), reprise.SGD(), **SHORT)
    first, second, third = own_tasks()
    learner.learn(first, progress=lambda done, total, what: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
    learner.learn(second, progress=False)
    learner.learn(third)
    assert capsys.readouterr().err == "", "no terminal, no bar"


# ---- data of any origin


class Dataset:
    """Items with random transforms of all three generators."""

    def __init__(self, n: int = 16, seed: int = 0, noise: bool = True) -> None:
        self.x, self.y, *_ = scenes(n, seed)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self.x[index].float() / 255
        if self.noise:
            x = x + random.random() + float(np.random.rand()) + torch.rand(3, 1, 1)  # noqa: NPY002
        return x, int(self.y[index])


class Table:
    """What a Hugging Face dataset looks like."""

    column_names = ("img", "fine_label")

    def __init__(self) -> None:
        self.column_names = ["img", "fine_label"]
        self.x, self.y, *_ = scenes()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.y.tolist()
        from PIL import Image

        return {"img": Image.fromarray(self.x[key].permute(1, 2, 0).numpy()), "fine_label": int(self.y[key])}


def test_random_transforms_are_drawn_by_name() -> None:
    """Whatever else draws numbers, two learners see the same; and generators are left as they were."""
    found = []
    for start in (1, 2):
        random.seed(start)
        np.random.seed(start)  # noqa: NPY002
        torch.manual_seed(start)
        before = torch.get_rng_state()
        learner = Learner(net(3), reprise.ER(), m_per_task=4, **SHORT)
        torch.set_rng_state(before)
        learner.learn(OwnTask.classify("a", Dataset(), Dataset(8, 1), 3), epochs=2)
        assert torch.equal(torch.get_rng_state(), before)
        found.append(learner.matrix)
    assert found[0] == found[1]


def test_the_same_item_is_drawn_anew_in_every_step() -> None:
    seen = look_at(OwnTask.classify("a", Dataset(), Dataset(), 3), 0, 0, False)
    index = torch.zeros(2, dtype=torch.long)
    one, two = (seen.train.fetch(index, step=step)["x"] for step in (0, 1))
    assert not torch.equal(one, two)
    assert not torch.equal(one[0], one[1])
    assert torch.equal(one, seen.train.fetch(index, step=0)["x"])


def test_a_table_of_pictures_is_what_the_tensors_are() -> None:
    x, colour, *_ = scenes()
    matrices = []
    for data in ((x, colour), Table()):
        learner = Learner(net(), reprise.ER(), m_per_task=4, **SHORT)
        learner.learn(OwnTask.classify("a", data, data, 3))
        learner.learn(own_tasks()[1])
        matrices.append(learner.matrix)
    assert matrices[0] == matrices[1]


def test_pictures_in_folders(tmp_path: Path) -> None:
    from PIL import Image

    x, colour, *_ = scenes()
    for index, (image, label) in enumerate(zip(x, colour.tolist(), strict=True)):
        folder = tmp_path / "pictures" / f"class-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{index:02d}.png")
    data = reprise.ImageFolder(tmp_path / "pictures", size=8)
    assert data.classes == ["class-0", "class-1", "class-2"]
    assert sorted(data.targets) == sorted(colour.tolist())
    image, label = data[0]
    assert torch.equal(image, x[int(data.files[0].stem)])
    assert label == colour[int(data.files[0].stem)]
    learner = Learner(net(), reprise.ER(), m_per_task=4, **SHORT)
    learner.learn(OwnTask.classify("a", data, data, 3))
    with pytest.raises(InputError, match="holds a folder 'class-2', which is no class"):
        reprise.ImageFolder(tmp_path / "pictures", size=8, classes=["class-0", "class-1"])
    with pytest.raises(InputError, match="is no folder; name one that holds a folder of pictures"):
        reprise.ImageFolder(tmp_path / "nowhere", size=8)
    with pytest.raises(InputError, match="holds no pictures in folders"):
        reprise.ImageFolder(tmp_path / "pictures" / "class-0", size=8)


def test_vectors_are_regressed_by_a_pooled_head() -> None:
    x, _, _, grey = scenes()
    y = grey.flatten(1)[:, :2]
    learner = Learner(net(), reprise.SGD(), **SHORT)
    learner.learn(OwnTask.regress("pair", (x, y), (x, y)))
    assert learner.predict("pair", x).shape == (16, 2)
