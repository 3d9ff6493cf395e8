"""Captured steps of several sorts on a real GPU are the steps themselves: `pytest -m gpu`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scenes import scene_cell
from tiny import furthest, weights

from reprise.checkpoint import capture, restore
from reprise.feed import Feed
from reprise.machine import set_arithmetic
from reprise.stepper import SortStepper, Stepper
from reprise.streams import packs
from reprise.train import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine shows no GPU"),
]
METHODS = ("sgd", "er", "car", "agem", "ewc", "side_tuning", "multitask")


def trainer(method: str, captured: bool, **fields: Any) -> Trainer:
    set_arithmetic(fields.get("precision", "float32"))
    made = Trainer([scene_cell(method, workers=2, steps=24, **fields)], torch.device("cuda"))
    usual = made.steppers.stepper

    def stepper(feed: Feed, start: int) -> Stepper:
        found = usual(feed, start)
        assert isinstance(found, SortStepper)
        return found if captured else Stepper(made.method, made.engine, feed, start)

    made.steppers.stepper = stepper  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("method", METHODS)
def test_captured_steps_give_the_same_bits(
    method: str, precision: str, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "COMFORT", 0.0 if mapped else 0.5)
    runs = [trainer(method, captured, precision=precision) for captured in (False, True)]
    losses = [run.run()[0].loss for run in runs]
    assert furthest(*(weights(run) for run in runs)) == 0
    assert losses[0] == losses[1]


@pytest.mark.parametrize("method", ["er", "car", "ewc"])
def test_a_captured_run_goes_on_where_it_was_left(method: str) -> None:
    whole = trainer(method, captured=True, precision="float32")
    whole.run()
    first = trainer(method, captured=True, precision="float32")
    first.run(pause=lambda phase, step: (phase, step) == (2, 13))
    second = trainer(method, captured=True, precision="float32")
    restore(second, capture(first))
    second.run()
    assert furthest(weights(whole), weights(second)) == 0
