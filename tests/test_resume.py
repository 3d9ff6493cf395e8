"""A run that was paused, captured and restored into a fresh trainer ends as one that was left alone: bit for bit."""

from typing import Any

import pytest
import torch
from test_hooks import Distilled, LookAhead, Running, Streaming
from tiny import CPU, cell, mixed_cell, train, weights

from reprise.build import Cell
from reprise.checkpoint import capture, restore
from reprise.method import Method
from reprise.train import Cursor, Trainer


def interrupted(cells: list[Cell], phase: int, step: int) -> Trainer:
    first = Trainer(cells, CPU)
    first.run(pause=lambda i, s: (i, s) == (phase, step))
    assert first.cursor == Cursor(phase, step + 1)
    saved = capture(first)
    first.run()  # what was captured must not be touched by what comes after
    second = Trainer(cells, CPU)
    restore(second, saved)
    second.run()
    return second


def same(one: Trainer, other: Trainer) -> None:
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name
    for a, b in zip(one.outcomes, other.outcomes, strict=True):
        assert (a.accuracy, a.loss, a.initial, a.next, a.curve) == (
            b.accuracy,
            b.loss,
            b.initial,
            b.next,
            b.curve,
        )
    if one.memory is not None:
        assert other.memory is not None
        for shelf, twin in zip(one.memory.shelves, other.memory.shelves, strict=True):
            assert all(torch.equal(column, twin.columns[name]) for name, column in shelf.columns.items())
            assert (shelf.owner == twin.owner).all()


@pytest.mark.parametrize(("phase", "step"), [(0, 0), (1, 1), (2, 2)])
@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("sgd", {}),
        ("er", {"fill": "reservoir", "m": 10, "curve": 2}),
        ("car", {"p_replay": 0.5, "scope": "one_task", "steps": 6}),
        ("car", {"distance": "weighted_l1"}),
        (Running(strength=0.5), {}),
        (Streaming(), {"m": 10}),
        (Distilled(), {}),
        (LookAhead(), {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else str(value),
)
def test_resume_is_exact(method: str | Method, fields: dict[str, Any], phase: int, step: int) -> None:
    cells = [cell(method, 3, **fields)]
    same(interrupted(cells, phase, step), train(*cells))


@pytest.mark.parametrize("method", ["sgd", "er", "car"])
def test_resume_is_exact_with_adam_and_heads_of_different_shapes(method: str) -> None:
    cells = [mixed_cell(method)]
    same(interrupted(cells, 1, 2), train(*cells))


def test_lanes_resume_too() -> None:
    cells = [cell("car", seed) for seed in range(2)]
    same(interrupted(cells, 1, 1), train(*cells))


def test_a_checkpoint_without_the_memory_is_noticed() -> None:
    """The comparison above sees a memory that was not restored."""
    cells = [cell("er", 0)]
    paused = Trainer(cells, CPU)
    paused.run(pause=lambda i, s: (i, s) == (1, 1))
    saved = capture(paused)
    for name in saved.tensors:
        if name.startswith("memory.0.x"):
            saved.tensors[name].zero_()
    second = Trainer(cells, CPU)
    restore(second, saved)
    second.run()
    with pytest.raises(AssertionError):
        same(second, train(*cells))
