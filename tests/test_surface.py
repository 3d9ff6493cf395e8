"""What other people's code may rely on, frozen: a change here is a change of the interface and is meant."""

import re
from pathlib import Path

import pytest
import torch
from tiny import CPU, cell

import reprise
from reprise.method import Method
from reprise.methods import METHODS
from reprise.train import Trainer

SOURCE = Path(reprise.__file__).parent


def test_the_hooks_of_a_method() -> None:
    hooks = {name for name in vars(Method) if not name.startswith("_")}
    assert hooks == {
        *("replays", "merged", "refresh", "needs", "taps", "resolve", "wrap", "grow", "trains", "start"),
        *("objective", "step", "select", "keep", "end_task", "predict", "score", "neutral"),
        *("captures", "divides", "first_task_is_sgd", "inert", "holds_heads"),
    }


def test_the_methods_and_public_names() -> None:
    assert list(METHODS) == [
        *(
            "sgd",
            "multitask",
            "ewc",
            "agem",
            "er",
            "car",
            "icarl",
            "mer",
            "hal",
            "side_tuning",
            "derpp",
            "lwf",
        )
    ]
    assert set(reprise.__all__) == {
        *(
            "CAR",
            "ER",
            "METHODS",
            "SGD",
            "Batch",
            "Diverged",
            "ImageFolder",
            "InputError",
            "Learner",
            "Method",
            "MultiTask",
            "Needs",
            "Output",
            "Task",
        ),
    }


@pytest.mark.parametrize(
    "module",
    [
        *("train", "engine", "lanes", "net", "plan", "memory", "remember", "feed", "stepper"),
        *("build", "groups", "fit", "runner"),
    ],
)
def test_the_machinery_contains_no_method_name(module: str) -> None:
    """Planted once: `if type(method).__name__ == "CAR"` in train.py is found."""
    words = set(re.findall(r"[A-Za-z_]+", (SOURCE / f"{module}.py").read_text()))
    # torch's optimizer is called SGD too.
    names = {kind.__name__ for kind in METHODS.values()} | set(METHODS)
    assert not words & (names - {"SGD", "sgd"})
    assert "reprise.methods" not in (SOURCE / f"{module}.py").read_text()


def test_only_the_command_line_imports_the_argument_parser() -> None:
    users = [
        p.name
        for p in SOURCE.rglob("*.py")
        if re.search(r"^(from|import) (jsonargparse|argparse)", p.read_text(), re.M)
    ]
    assert users == ["cli.py"]


@pytest.mark.parametrize("stacked", [False, True])
def test_a_step_found_by_a_device_counter_is_the_step_found_by_its_number(stacked: bool) -> None:
    """What a captured step replays: the table's row is read through a tensor, not through the host."""
    trainer = Trainer([cell("car", 0)], CPU, stacked=stacked)
    feed = trainer.skip_to(1)
    assert feed.uniform
    for step in range(feed.steps):
        for batch, twin in zip(feed.batches(step), feed.batches_at(torch.tensor([step])), strict=True):
            assert batch.role == twin.role
            assert all(torch.equal(t, twin.tensors()[name]) for name, t in batch.tensors().items())
