"""A run that is stopped, written to disk and taken up by a fresh trainer ends as one left alone: bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance import WORLDS
from test_hooks import Distilled, LookAhead, Running, Streaming
from tiny import CPU, cell, mixed_cell, train, weights

from reprise.build import Cell
from reprise.checkpoint import capture, restore
from reprise.errors import InputError
from reprise.keeping import GroupKeeper, Saving, Seat, go_on
from reprise.method import Method
from reprise.methods import METHODS
from reprise.stopping import Stopped
from reprise.train import Cursor, Trainer


def seats(folder: Path, count: int) -> list[Seat]:
    found = [Seat(folder / f"seed-{lane}", f"hash/{lane}") for lane in range(count)]
    for seat in found:
        seat.folder.mkdir(parents=True, exist_ok=True)
    return found


class StopsAt(GroupKeeper):
    """Saves and stops after so many steps."""

    def __init__(self, places: list[Seat], step: int) -> None:
        self.left = step
        super().__init__(places, Saving(minutes=1e9), lambda: 15 if self.left <= 0 else None)

    def due(self) -> bool:
        self.left -= 1
        return super().due()


def interrupted(
    cells: list[Cell], folder: Path, steps: tuple[int, ...], stacked: bool | None = None
) -> Trainer:
    """Stopped after so many steps, each time taken up from disk by a fresh trainer; then run to the end."""
    places = seats(folder, len(cells))
    for step in steps:
        trainer = Trainer(cells, CPU, stacked)
        go_on(trainer, places, pytest.fail)
        with pytest.raises(Stopped):
            trainer.run(keeper=StopsAt(places, step))
    trainer = Trainer(cells, CPU, stacked)
    assert go_on(trainer, places, pytest.fail)
    trainer.run(keeper=GroupKeeper(places, Saving(), lambda: None))
    return trainer


def same(one: Trainer, other: Trainer) -> None:
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name
        assert tensor.stride() == weights(other)[name].stride(), name
    for name, tensor in one.engine.state.items():
        assert torch.equal(tensor, other.engine.state[name]), name
    for a, b in zip(one.outcomes, other.outcomes, strict=True):
        for name in ("accuracy", "loss", "initial", "next", "curve", "log", "bytes"):
            assert getattr(a, name) == getattr(b, name), name
    if one.memory is not None:
        assert other.memory is not None
        for shelf, twin in zip(one.memory.shelves, other.memory.shelves, strict=True):
            assert all(torch.equal(column, twin.columns[name]) for name, column in shelf.columns.items())
            assert (shelf.owner == twin.owner).all()
            assert (shelf.label == twin.label).all()


@pytest.mark.parametrize("stacked", [False, True], ids=["single", "stacked"])
@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("sgd", {}),
        ("er", {"fill": "reservoir", "m": 10, "curve": 2}),
        ("car", {"p_replay": 0.5, "scope": "one_task", "steps": 6}),
        ("car", {"distance": "weighted_l1", "evaluate_every": 2}),
        (Running(strength=0.5), {}),
        (Streaming(), {"m": 10}),
        (Distilled(), {}),
        (LookAhead(), {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else str(value),
)
def test_resume_is_exact(method: str | Method, fields: dict[str, Any], stacked: bool, tmp_path: Path) -> None:
    cells = [cell(method, 3, **fields)]
    # In the first task, after a single step, across a task's end, in the last task.
    same(interrupted(cells, tmp_path, (2, 1, 4, 2), stacked), train(*cells, stacked=stacked))


@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_every_kind_of_stream(world: Any, method: str, tmp_path: Path) -> None:
    try:
        cells = [world.cell(method, 3)]
    except InputError:  # refused on this stream, which the checks of every method cover
        return
    steps = (1, 2) if cells[0].experiment.method.merged else (1, 6)
    same(interrupted(cells, tmp_path, steps), train(*cells))


@pytest.mark.parametrize("method", METHODS)
def test_lanes_resume_too(method: str, tmp_path: Path) -> None:
    fields = {"m": 30} if method in ("er", "car", "derpp") else {}
    cells = [cell(method, 0), cell(method, 1, **fields)]
    same(interrupted(cells, tmp_path, (2, 3)), train(*cells))


def test_a_mixed_group_resumes(tmp_path: Path) -> None:
    cells = [cell("er", 0), cell("car", 0), cell("er", 1, lam=0.5)]
    same(interrupted(cells, tmp_path, (5,)), train(*cells))


@pytest.mark.parametrize("method", ["sgd", "er", "car"])
def test_adam_and_heads_of_different_shapes(method: str, tmp_path: Path) -> None:
    cells = [mixed_cell(method)]
    same(interrupted(cells, tmp_path, (3, 2)), train(*cells))


@pytest.mark.parametrize("method", ["er", "side_tuning"])
def test_lanes_with_adam(method: str, tmp_path: Path) -> None:
    """Side-Tuning's mixing weight is a single number: what Adam knows of it is no counter that lanes share."""
    cells = [mixed_cell(method, seed) for seed in (0, 1)]
    same(interrupted(cells, tmp_path, (3, 2, 3)), train(*cells))


def test_a_look_at_the_loss_in_the_middle_of_two(tmp_path: Path) -> None:
    """A log line is the mean over its steps also where a run was interrupted between them."""
    cells = [cell("sgd", 0, steps=120, tasks=1)]
    straight = train(*cells)
    assert [line["step"] for line in straight.outcomes[0].log] == [100, 120]
    same(interrupted(cells, tmp_path, (30, 30, 45)), straight)


def test_a_group_goes_on_as_a_part_of_it(tmp_path: Path) -> None:
    """Runs have checkpoints of their own: one may go on alone, as good as bit for bit."""
    cells = [cell("er", 0), cell("car", 0, m=45)]
    places = seats(tmp_path, 2)
    with pytest.raises(Stopped):
        Trainer(cells, CPU).run(keeper=StopsAt(places, 6))
    for lane in range(2):
        alone = Trainer(cells[lane : lane + 1], CPU)
        assert go_on(alone, places[lane : lane + 1], pytest.fail)
        alone.run()
        straight = train(cells[lane])
        assert alone.outcomes[0].accuracy == straight.outcomes[0].accuracy
        assert np.allclose(alone.outcomes[0].loss[-1], straight.outcomes[0].loss[-1], atol=1e-12)


def test_a_checkpoint_without_the_memory_is_noticed() -> None:
    """The comparison above sees a memory that was not restored."""
    cells = [cell("er", 0)]
    paused = Trainer(cells, CPU)
    paused.run(pause=lambda i, s: (i, s) == (1, 1))
    assert paused.cursor == Cursor(1, 2)
    saved = capture(paused)
    for name in saved.tensors:
        if name.startswith("memory.0.x"):
            saved.tensors[name].zero_()
    second = Trainer(cells, CPU)
    restore(second, saved)
    second.run()
    with pytest.raises(AssertionError):
        same(second, train(*cells))
