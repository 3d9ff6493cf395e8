"""The limit cases of the contracts: what must be equal, exactly."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import CPU, cell, furthest, mixed_cell, train, weights

from reprise.train import Trainer

REPLAY: list[dict[str, Any]] = [
    {},
    {"bn": "separate"},
    {"p_replay": 0.5, "scope": "one_task"},
    {"scenario": "class"},
]


@pytest.mark.parametrize("fields", REPLAY, ids=str)
def test_car_without_feature_matching_is_er(fields: dict[str, Any]) -> None:
    er, car = train(cell("er", **fields)), train(cell("car", lam_fm=0.0, **fields))
    assert furthest(weights(er), weights(car)) == 0
    assert er.outcomes[0].accuracy == car.outcomes[0].accuracy


@pytest.mark.parametrize("fields", REPLAY[:3], ids=str)
def test_feature_matching_changes_the_weights(fields: dict[str, Any]) -> None:
    """The test above could pass because the penalty never reaches the gradient; it does reach it."""
    er, car = train(cell("er", **fields)), train(cell("car", lam_fm=5.0, **fields))
    assert furthest(weights(er), weights(car)) > 1e-4


def test_er_with_an_empty_memory_is_sgd() -> None:
    sgd, er = train(cell("sgd")), train(cell("er", m=0))
    assert furthest(weights(sgd), weights(er)) == 0
    assert er.outcomes[0].bytes["total"] == 0


def test_er_without_weight_on_replay_moves_only_the_statistics() -> None:
    sgd, er = train(cell("sgd", bn="separate")), train(cell("er", lam=0.0, bn="separate"))
    one, other = weights(sgd), weights(er)
    moved = {name for name in one if not torch.equal(one[name], other[name])}
    assert moved
    assert all("running" in name for name in moved)


def test_the_first_task_is_plain_sgd_for_every_replay_method() -> None:
    sgd = train(cell("sgd", tasks=1))
    for method in ("er", "car"):
        assert furthest(weights(sgd), weights(train(cell(method, tasks=1)))) == 0


def test_replay_protects_the_first_task() -> None:
    """A tiny run learns, and replay forgets less than fine-tuning."""
    long = {"steps": 60, "lr": 0.03, "m": 60, "replay": 8}
    sgd, er = (train(cell(method, **long)).outcomes[0].accuracy for method in ("sgd", "er"))
    assert er[0][0] is not None
    assert er[0][0] > 0.6
    assert sum(er[-1]) > sum(sgd[-1]) + 0.3


# ---- lanes


LANES: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("sgd", [{}, {"lr": 0.1}, {}], {}),
    ("multitask", [{}, {}, {}], {}),
    ("er", [{}, {"lam": 0.5}, {"m": 45}], {}),
    ("er", [{}, {}, {}], {"fill": "ring_class", "bn": "separate"}),
    ("er", [{}, {}, {}], {"fill": "uniform_task", "scope": "each_task", "old_heads": "hold"}),
    ("er", [{}, {}, {}], {"scenario": "class", "old_heads": "hold"}),
    ("er", [{}, {}, {}], {"fill": "reservoir", "m": 10, "clip": 0.5}),
    ("car", [{}, {"lam_fm": 1.0}, {"m": 45}], {}),
    ("car", [{}, {}, {}], {"store": "eval", "scenario": "class"}),
    ("car", [{}, {}, {}], {"fill": "reservoir", "m": 10}),
    ("car", [{}, {}, {}], {"distance": "mmd", "compress": "spatial"}),
    ("car", [{}, {}, {}], {"distance": "weighted_l2", "compress": "intermediate"}),
    ("car", [{}, {}, {}], {"p_replay": 0.5, "scope": "one_task", "distance": "weighted_l1"}),
]


@pytest.mark.parametrize(("method", "lanes", "common"), LANES, ids=str)
def test_three_lanes_are_three_single_runs(
    method: str, lanes: list[dict[str, Any]], common: dict[str, Any]
) -> None:
    cells = [cell(method, seed, **common, **own) for seed, own in enumerate(lanes)]
    together = train(*cells)
    for lane, one in enumerate(cells):
        alone = train(one)
        assert furthest(weights(together, lane), weights(alone)) < 1e-12
        assert together.outcomes[lane].accuracy == alone.outcomes[0].accuracy
        assert together.outcomes[lane].bytes == alone.outcomes[0].bytes


def test_lanes_with_different_settings_really_differ() -> None:
    """Equality above would mean little if the settings were ignored in both."""
    trainer = train(*(cell("car", 0, lam_fm=lam_fm) for lam_fm in (0.0, 5.0)))
    assert furthest(weights(trainer, 0), weights(trainer, 1)) > 1e-4


def test_a_lane_that_diverges_leaves_the_others_alone() -> None:
    good, bad = cell("er", 0), cell("er", 1, lr=1e200)
    together = train(good, bad)
    assert together.outcomes[1].diverged is not None
    assert "task-0" in together.outcomes[1].diverged
    assert together.outcomes[0].diverged is None
    assert furthest(weights(together, 0), weights(train(good))) < 1e-12


# ---- heads of different shapes


@pytest.mark.parametrize("method", ["sgd", "er", "car", "multitask"])
@pytest.mark.parametrize("p_replay", [0.5, None])
def test_mixed_tasks_train_and_lanes_equal_single_runs(method: str, p_replay: float | None) -> None:
    cells = [mixed_cell(method, seed, p_replay=p_replay) for seed in (0, 1)]
    together, alone = train(*cells), train(cells[1])
    assert furthest(weights(together, 1), weights(alone)) < 1e-11
    losses = alone.outcomes[0].loss[-1]
    assert all(loss is not None and loss > 0 for loss in losses)
    assert alone.outcomes[0].accuracy[-1][2] is None


def test_old_heads_of_their_own_stand_still_without_replay() -> None:
    """Adam must not move a head that gets no gradient: its moments would."""
    after_one, after_three = train(mixed_cell("sgd", tasks=1)), train(mixed_cell("sgd"))
    heads = [
        {name: t for name, t in weights(trainer).items() if name.startswith("heads.of_task.0")}
        for trainer in (after_one, after_three)
    ]
    assert heads[0]
    assert furthest(*heads) == 0


@pytest.mark.parametrize("method", ["er", "car"])
@pytest.mark.parametrize("p_replay", [0.5, None])
def test_held_heads_stand_still_and_the_encoder_still_feels_replay(
    method: str, p_replay: float | None
) -> None:
    common: dict[str, Any] = {"p_replay": p_replay, "old_heads": "hold"}
    after_one, after_three = (train(mixed_cell(method, tasks=tasks, **common)) for tasks in (1, 3))
    heads = [
        {name: t for name, t in weights(trainer).items() if name.startswith("heads.of_task.0")}
        for trainer in (after_one, after_three)
    ]
    assert heads[0]
    assert furthest(*heads) == 0
    deaf = train(
        mixed_cell(method, tasks=3, lam=0.0, **common, **({"lam_fm": 0.0} if method == "car" else {}))
    )
    encoders = [
        {name: t for name, t in weights(trainer).items() if name.startswith("encoder.")}
        for trainer in (after_three, deaf)
    ]
    assert furthest(*encoders) > 1e-6


def test_a_held_head_answers_once_a_step() -> None:
    trainer = Trainer([mixed_cell("er", old_heads="hold")], CPU)
    engine, asked = trainer.engine, []
    engine.model.heads.of_task[0].register_forward_hook(lambda *_: asked.append(0))
    engine.enter(1)
    batch = trainer.reader.batch(trainer.phases[0].train.take(torch.arange(4)), 0)
    grads, _ = engine.gradient(trainer.method.objective, [replace(batch, role="replay")])
    assert len(asked) == 1
    assert grads
    assert all(name.startswith("encoder.") for name in grads)
