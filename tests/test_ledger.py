"""The byte ledger: m in all the ways it can be given, and the largest m a budget allows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tiny import MIXED, POOL, cell

from reprise.build import Cell
from reprise.config import Experiment, make_experiment
from reprise.errors import InputError
from reprise.ledger import make_model, model_bytes, quota_of, settle
from reprise.method import Needs
from reprise.methods.er import ER
from reprise.streams.split import split_stream
from reprise.streams.stream import Stream
from reprise.train import Trainer

STREAM = split_stream("tiny", POOL, 0)
ROW = 3 * 8 * 8 + 1 + 1  # an image, its label and its task, a byte each
REPLAYING = [
    ("er", {}),
    ("car", {}),
    ("car", {"distance": "weighted_l1"}),
    ("car", {"compress": "intermediate"}),
]


def asked(method: str = "er", stream: Stream = STREAM, **fields: Any) -> Experiment:
    given = {"encoder": "convnet-small", "steps": 1, "batch": 4} | fields
    return settle(make_experiment("split-shapes", method, given), stream)


def kept(experiment: Experiment, stream: Stream = STREAM) -> dict[str, int]:
    """What a record's `bytes` will say."""
    trainer = Trainer([Cell(experiment, 0, stream)], torch.device("cpu"))
    return trainer.outcomes[0].bytes


# ---- m


def test_three_ways_of_counting_agree() -> None:
    assert asked(m=30) == asked(m_per_class=2) == asked(m_per_task=10)
    assert (asked(m=30).m, asked(m=30).m_per_class, asked(m=30).memory) == (30, None, None)
    assert asked(m=30).hash("data") == asked(m_per_class=2).hash("data")
    assert quota_of(asked(m=30), STREAM, 30).per_class == 2


def test_m_counts_the_whole_stream_whatever_tasks_are_trained() -> None:
    short = STREAM.first(2)
    assert quota_of(asked(m=30, stream=short), short, 30).capacity == 20
    assert asked(m_per_class=2, stream=short).m == 30


def test_m_counts_a_task_where_tasks_are_of_different_kinds() -> None:
    experiment = asked(stream=MIXED, m=6, optimizer="adam")
    assert (experiment.m, experiment.fill) == (6, "uniform_task")
    assert asked(stream=MIXED, m_per_task=6, optimizer="adam") == experiment
    with pytest.raises(InputError, match="m_per_class: the tasks of this stream have no classes in common"):
        asked(stream=MIXED, m_per_class=1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "m: er remembers examples; say how many with --m or --memory"),
        ({"m": 7}, "m: 7 cannot be divided evenly over 15 classes; use 0 or 15"),
        ({"m": 7, "fill": "uniform_task"}, "m: 7 cannot be divided evenly over 3 tasks; use 6 or 9"),
        ({"m": 195}, "m: 195 is more than there are examples to remember; use 180 or less"),
        ({"m": 183, "fill": "uniform_task"}, "use 180 or less"),
    ],
)
def test_an_impossible_m(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        asked(**fields)


def test_a_reservoir_takes_any_m() -> None:
    assert asked(m=7, fill="reservoir").m == 7
    assert asked(m=10_000, fill="reservoir").m == 10_000


@pytest.mark.parametrize("method", ["sgd", "multitask"])
def test_a_method_that_remembers_nothing_has_no_m(method: str) -> None:
    for fields in ({"m": 15}, {"memory": "1MB"}, {"m_per_class": 1}, {}):
        assert asked(method, **fields).m is None


# ---- bytes


@pytest.mark.parametrize(("method", "fields"), REPLAYING)
@pytest.mark.parametrize("fill", ["uniform_class", "uniform_task", "reservoir"])
def test_the_largest_m_of_a_budget(method: str, fields: dict[str, Any], fill: str) -> None:
    fields = fields | {"fill": fill}
    unit = {"uniform_class": 15, "uniform_task": 3, "reservoir": 1}[fill]
    one, two = (kept(asked(method, m=count * unit, **fields))["total"] for count in (1, 2))
    per_unit, state = two - one, 2 * one - two
    for spare in (0, 1, per_unit - 1):
        found = asked(method, memory=f"{state + 3 * per_unit + spare}B", **fields)
        assert (found.m, found.memory) == (3 * unit, None)
        assert kept(found)["total"] == state + 3 * per_unit
    too_little = f"{one - 1:,} bytes are less than the {one:,} that the smallest memory \\(m = {unit}\\)"
    with pytest.raises(InputError, match=too_little):
        asked(method, memory=f"{one - 1}B", **fields)


def test_a_budget_beyond_all_examples_keeps_them_all() -> None:
    assert asked(memory="1GB").m == 180
    assert asked(memory="1GB", fill="uniform_task").m == 180
    assert asked(memory="1GB", fill="reservoir").m == 180


def test_a_budget_on_tasks_of_different_kinds() -> None:
    found = asked(stream=MIXED, memory="5kB", optimizer="adam")
    assert found.m is not None
    total = kept(found, MIXED)["total"]
    more = kept(replace(found, m=found.m + 1), MIXED)["total"]
    assert total <= 5_000 < more


def test_the_ledger_by_hand() -> None:
    sizes = kept(asked(m=30))
    assert sizes["total"] == 30 * ROW
    assert (sizes["inputs"], sizes["labels"], sizes["tasks"]) == (30 * 192, 30, 30)
    experiment = asked("car", m=30)
    model = make_model(experiment, STREAM, 0)
    channels, height, width = model.layer_shapes(STREAM.input_shape)["features"]
    size = channels + height * width  # the means over places and over channels
    found = kept(experiment)
    assert found["activation"] == 30 * size * 4
    assert found["total"] == 30 * (ROW + size * 4)
    assert found["model"] == model_bytes(model)
    weighted = kept(asked("car", m=30, distance="weighted_l2"))
    assert weighted["importance"] == 3 * size * 4
    assert weighted["total"] == found["total"] + weighted["importance"]


def test_double_precision_costs_double() -> None:
    single, double = (kept(asked("car", m=30, precision=p)) for p in ("float32", "float64"))
    assert double["activation"] == 2 * single["activation"]
    assert double["inputs"] == single["inputs"]


# ---- settling


def test_auto_fields_are_settled_before_the_hash() -> None:
    assert asked("car", m=15, compress="auto") == asked("car", m=15, compress="spatial_channel")


def test_settling_twice_changes_nothing() -> None:
    for method, fields in REPLAYING:
        once = asked(method, m=15, **fields)
        assert settle(once, STREAM) == once


def test_adam_would_move_stacked_heads() -> None:
    with pytest.raises(InputError, match="optimizer: adam would move the heads"):
        asked(m=15, optimizer="adam")


def test_what_a_method_insists_on_is_stored() -> None:
    """Resolved values are hashed: a method's own replay size and scope stand in the settled experiment."""

    @dataclass(frozen=True)
    class Insisting(ER):
        def needs(self, stream: Stream) -> Needs:
            return Needs(replay=7, scope="each_task", fill="ring_class")

    settled = cell(Insisting()).experiment
    assert (settled.replay, settled.scope, settled.fill) == (7, "each_task", "ring_class")
