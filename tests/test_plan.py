"""The tables of a task: which examples each step sees and which memory rows it replays."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.errors import InputError
from reprise.examples import Examples, Source
from reprise.feed import Feed, Reader
from reprise.fill import reservoir_rows, reservoir_slots
from reprise.memory import Memory, Shelf
from reprise.plan import Draws, Plan, draw_order, draw_plan, draw_reservoir_replay
from reprise.randomness import rng
from reprise.streams.stream import Normalise, Phase

quick = settings(max_examples=60, deadline=None, database=None)
FIVE = Draws({"replay": 5})
ROWS = {0: np.arange(0, 12), 1: np.arange(12, 20), 2: np.arange(20, 40)}
"""Memory rows of three old tasks, of unequal size."""


def order_of(steps: int, seed: int = 0, task: int = 3) -> np.ndarray:
    return draw_order(seed, task, n=10 * steps, batch=10, epochs=1, steps=None)


def distinct(step: np.ndarray) -> bool:
    return len(set(step.tolist())) == len(step)


# The order of the current task


@quick
@given(st.integers(1, 60), st.data(), st.integers(1, 3))
def test_a_pass_sees_each_example_once_and_drops_the_partial_batch(
    n: int, data: st.DataObject, epochs: int
) -> None:
    batch = data.draw(st.integers(1, n))
    order = draw_order(seed=0, task=1, n=n, batch=batch, epochs=epochs, steps=None)
    a_pass = n // batch
    assert order.shape == (epochs * a_pass, batch)
    for epoch in range(epochs):
        seen = order[epoch * a_pass : (epoch + 1) * a_pass].reshape(-1)
        assert distinct(seen)
        assert set(seen.tolist()) <= set(range(n))
        if n % batch == 0:
            assert sorted(seen.tolist()) == list(range(n))


def test_every_pass_has_an_order_of_its_own() -> None:
    first, second = draw_order(0, 0, n=40, batch=10, epochs=2, steps=None).reshape(2, 40)
    assert first.tolist() != second.tolist()
    assert first.tolist() != list(range(40)), "file order is no random order"


def test_what_a_pass_drops_is_random() -> None:
    dropped = Counter[int]()
    for seed in range(200):
        dropped.update(set(range(11)) - set(draw_order(seed, 0, 11, 10, 1, None).reshape(-1).tolist()))
    assert len(dropped) == 11
    assert max(dropped.values()) < 50, "one of 11, 200 times: 18 each on average"


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("epochs", [1, 2])
def test_steps_cut_or_extend_whatever_the_epochs(steps: int, epochs: int) -> None:
    endless = draw_order(5, 1, n=32, batch=10, epochs=10, steps=None)  # 3 steps a pass
    assert draw_order(5, 1, n=32, batch=10, epochs=epochs, steps=steps).tolist() == endless[:steps].tolist()


def test_a_task_smaller_than_a_batch_is_refused() -> None:
    assert draw_order(0, 3, n=10, batch=10, epochs=1, steps=None).shape == (1, 10)
    with pytest.raises(InputError, match="batch: 11 is more than the 10 examples of task 3"):
        draw_order(0, 3, n=10, batch=11, epochs=1, steps=None)
    with pytest.raises(InputError, match="batch: 11"):
        draw_order(0, 3, n=10, batch=11, epochs=1, steps=4)


def test_the_order_belongs_to_the_seed_and_the_task() -> None:
    first = order_of(5, seed=1, task=2).tolist()
    assert order_of(5, seed=1, task=2).tolist() == first
    assert order_of(5, seed=2, task=2).tolist() != first
    assert order_of(5, seed=1, task=3).tolist() != first


@pytest.mark.parametrize("p_replay", [None, 0.5])
@pytest.mark.parametrize("scope", ["union", "one_task", "each_task"])
def test_no_method_changes_the_order_of_the_data(scope: str, p_replay: float | None) -> None:
    order = order_of(30)
    plan = draw_plan(0, 3, order, Draws({"replay": 5, "more": 2}, scope), ROWS, p_replay=p_replay)
    assert plan.current.tolist() == order_of(30).tolist()


# Joint mode


@st.composite
def memories(draw: st.DrawFn) -> dict[int, np.ndarray]:
    """Rows of some old tasks, scattered over a shelf."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    scattered = np.array(draw(st.permutations(range(sum(sizes) + 3))))
    ends = np.cumsum(sizes)
    return {
        task: np.sort(scattered[end - size : end])
        for task, (end, size) in enumerate(zip(ends, sizes, strict=True))
    }


@quick
@given(memories(), st.integers(1, 12))
def test_union_replays_distinct_rows_of_old_tasks_as_many_as_there_are(
    rows: dict[int, np.ndarray], n: int
) -> None:
    held = np.concatenate(list(rows.values()))
    plan = draw_plan(0, len(rows), order_of(4), Draws({"replay": n}), rows)
    table = plan.replay["replay"]
    assert table.shape == (4, min(n, len(held)))
    assert set(table.reshape(-1).tolist()) <= set(held.tolist())
    assert all(distinct(step) for step in table)
    assert plan.old_task is None
    assert plan.trains.tolist() == plan.replays.tolist() == [True] * 4
    assert plan.steps == 4


def test_union_gives_every_row_the_same_chance_whatever_its_task() -> None:
    plan = draw_plan(0, 3, order_of(800), FIVE, ROWS)
    counts = np.bincount(plan.replay["replay"].reshape(-1), minlength=40)
    # 5 of 40, 800 times: mean 100, deviation √(800 · 1/8 · 7/8) ≈ 9.4
    assert np.abs(counts - 100).max() < 5 * 9.4


@pytest.mark.parametrize("p_replay", [None, 0.5])
@pytest.mark.parametrize("scope", ["union", "one_task", "each_task", "each_class"])
def test_the_first_task_replays_nothing(scope: str, p_replay: float | None) -> None:
    plan = draw_plan(0, 0, order_of(6), Draws({"replay": 5}, scope), {}, p_replay=p_replay)
    assert plan.replay == {}
    assert plan.old_task is None
    assert plan.trains.tolist() == [True] * 6
    assert plan.replays.tolist() == [False] * 6


@pytest.mark.parametrize("draws", [Draws(), Draws({"replay": 0})])
def test_a_method_that_asks_for_nothing_gets_nothing(draws: Draws) -> None:
    plan = draw_plan(0, 3, order_of(6), draws, ROWS, p_replay=0.5)
    assert (plan.replay, plan.steps, plan.replays.any()) == ({}, 6, False)


def test_replay_belongs_to_the_seed_and_the_task() -> None:
    def table(seed: int, task: int) -> list[list[int]]:
        return draw_plan(seed, task, order_of(6), FIVE, ROWS).replay["replay"].tolist()

    assert table(1, 3) == table(1, 3)
    assert table(2, 3) != table(1, 3)
    assert table(1, 4) != table(1, 3)


def test_a_further_draw_is_its_own_and_leaves_the_first_as_it_was() -> None:
    alone = draw_plan(0, 3, order_of(6), FIVE, ROWS).replay["replay"]
    both = draw_plan(0, 3, order_of(6), Draws({"second": 5, "replay": 5}), ROWS).replay
    assert both["replay"].tolist() == alone.tolist()
    assert both["second"].tolist() != alone.tolist()


def test_one_task_replays_a_single_task_each_step_and_all_of_them_equally_often() -> None:
    plan = draw_plan(0, 3, order_of(900), Draws({"replay": 5, "second": 3}, "one_task"), ROWS)
    assert plan.old_task is not None
    assert plan.replay["replay"].shape == (900, 5)
    assert plan.replay["second"].shape == (900, 3)
    for step, task in enumerate(plan.old_task):
        for table in plan.replay.values():
            assert set(table[step].tolist()) <= set(ROWS[int(task)].tolist())
            assert distinct(table[step])
    # One of 3, 900 times, however many rows a task has: mean 300, deviation √(900 · 1/3 · 2/3) ≈ 14
    assert np.abs(np.bincount(plan.old_task) - 300).max() < 5 * 14.2


def test_one_task_takes_all_rows_where_every_task_has_fewer_than_asked() -> None:
    rows = {0: np.array([4, 5]), 1: np.array([1, 8])}
    plan = draw_plan(0, 2, order_of(20), Draws({"replay": 5}, "one_task"), rows)
    assert plan.old_task is not None
    for step, task in zip(plan.replay["replay"], plan.old_task, strict=True):
        assert sorted(step.tolist()) == rows[int(task)].tolist()


def test_one_task_refuses_tasks_that_cannot_give_batches_of_one_size() -> None:
    # A reservoir may hold 2 rows of one task and 9 of another; a table has rows of one length.
    rows = {0: np.arange(2), 1: np.arange(2, 11)}
    with pytest.raises(InputError, match="scope: one_task"):
        draw_plan(0, 2, order_of(20), Draws({"replay": 5}, "one_task"), rows)


@quick
@given(memories(), st.integers(1, 5))
def test_each_task_replays_so_many_of_every_old_task(rows: dict[int, np.ndarray], n: int) -> None:
    plan = draw_plan(0, len(rows), order_of(3), Draws({"replay": n}, "each_task"), rows)
    assert plan.old_task is None
    for step in plan.replay["replay"]:
        assert distinct(step)
        assert len(step) == sum(min(n, len(own)) for own in rows.values())
        for own in rows.values():
            assert len(set(own.tolist()) & set(step.tolist())) == min(n, len(own))


@quick
@given(memories(), st.integers(1, 3), st.integers(1, 4))
def test_each_class_replays_so_many_of_every_class_of_every_old_task(
    rows: dict[int, np.ndarray], n: int, classes: int
) -> None:
    # Classes are counted within their task: class 0 of one task is not class 0 of another.
    labels = np.arange(60) % classes
    plan = draw_plan(0, len(rows), order_of(3), Draws({"replay": n}, "each_class"), rows, labels)
    held = Counter((task, labels[row]) for task, own in rows.items() for row in own)
    owner = {row: task for task, own in rows.items() for row in own.tolist()}
    for step in plan.replay["replay"]:
        assert distinct(step)
        drawn = Counter((owner[row], labels[row]) for row in step.tolist())
        assert drawn == {group: min(n, count) for group, count in held.items()}


# Stochastic mode


@pytest.mark.parametrize("scope", ["union", "one_task", "each_task"])
@pytest.mark.parametrize("p_replay", [0.1, 0.5, 0.8])
def test_replay_steps_come_on_top_of_all_current_steps(scope: str, p_replay: float) -> None:
    n = 1000
    plan = draw_plan(0, 3, order_of(n), Draws({"replay": 5}, scope), ROWS, p_replay=p_replay)
    assert plan.trains.sum() == len(plan.current) == n
    assert (plan.trains ^ plan.replays).all(), "a step trains or replays, never both"
    assert plan.trains[-1], "tossing ends with the last current step"
    assert len(plan.replay["replay"]) == plan.replays.sum() == plan.steps - n
    deviation = np.sqrt(p_replay * (1 - p_replay) / plan.steps)
    assert abs(plan.replays.mean() - p_replay) < 5 * deviation
    if scope == "one_task":
        assert plan.old_task is not None
        assert len(plan.old_task) == plan.replays.sum()


def test_the_coin_has_no_memory() -> None:
    replays = draw_plan(0, 3, order_of(2000), FIVE, ROWS, p_replay=0.5).replays
    after_replay = replays[1:][replays[:-1]].mean()
    after_current = replays[1:][~replays[:-1]].mean()
    assert abs(after_replay - after_current) < 5 * np.sqrt(0.5 / 2000)


@pytest.mark.parametrize("p_replay", [None, 0.5])
def test_lanes_of_any_seed_agree_on_coin_and_old_task_but_not_on_rows(p_replay: float | None) -> None:
    def plan(seed: int, task: int = 3, plan_seed: int = 0) -> Plan:
        draws = Draws({"replay": 5}, "one_task")
        return draw_plan(seed, task, order_of(60, seed), draws, ROWS, p_replay=p_replay, plan_seed=plan_seed)

    def decided(plan: Plan) -> tuple[list[bool], list[int]]:
        assert plan.old_task is not None
        return plan.replays.tolist(), plan.old_task.tolist()

    one, other = plan(seed=1), plan(seed=2)
    assert decided(one) == decided(other)
    assert one.replay["replay"].tolist() != other.replay["replay"].tolist()
    for changed in (plan(seed=1, plan_seed=7), plan(seed=1, task=4)):
        assert decided(changed)[1] != decided(one)[1]
        assert (changed.replays.tolist() != one.replays.tolist()) == (p_replay is not None)


@pytest.mark.parametrize("scope", ["union", "one_task", "each_task"])
def test_a_short_task_whose_coin_never_comes_up_replays_nothing(scope: str) -> None:
    plan = draw_plan(0, 3, order_of(2), Draws({"replay": 5}, scope), ROWS, p_replay=0.001)
    assert plan.trains.tolist() == [True, True]
    assert not plan.replays.any()
    assert all(len(table) == 0 for table in plan.replay.values())


# A reservoir that fills while the task runs


@quick
@given(st.data())
def test_what_is_replayed_is_in_the_reservoir_at_that_step(data: st.DataObject) -> None:
    n, batch, epochs = data.draw(st.tuples(st.integers(4, 40), st.integers(1, 4), st.integers(1, 2)))
    capacity, seen, seed = data.draw(st.tuples(st.integers(1, 12), st.integers(0, 30), st.integers(0, 9)))
    sizes = {"replay": data.draw(st.integers(1, 6)), "second": data.draw(st.integers(1, 6))}
    order = draw_order(seed, 2, n, batch, epochs, None)
    a_pass = n // batch * batch
    plan = draw_reservoir_replay(seed, 2, order, a_pass, sizes, seen, capacity)

    # The same reservoir as a plain dictionary: slot to memory row, or to `capacity +` a position of this task.
    slots = reservoir_slots(seen, a_pass, capacity, rng(seed, "select", 2)).tolist()
    held = {row: row for row in range(min(seen, capacity))}
    enough = min(capacity, max(sizes.values()))
    replayed = 0
    for step, positions in enumerate(order.tolist()):
        assert plan.replays[step] == (len(held) >= enough)
        if plan.replays[step]:
            for role, size in sizes.items():
                drawn = plan.replay[role][replayed]
                assert len(drawn) == min(size, len(held))
                assert distinct(drawn)
                assert set(drawn.tolist()) <= set(held.values())
            replayed += 1
        for example, position in enumerate(positions, start=step * batch):
            if example < a_pass and slots[example] >= 0:  # a second pass brings nothing new
                held[slots[example]] = capacity + position
    assert all(len(table) == replayed for table in plan.replay.values())
    assert plan.trains.all()
    assert plan.current.tolist() == order.tolist()

    # What the simulation ends with is what the end of the task writes down.
    rows, kept = reservoir_rows(np.array(slots), order.reshape(-1)[:a_pass])
    assert {row: capacity + p for row, p in zip(rows.tolist(), kept.tolist(), strict=True)} == {
        row: item for row, item in held.items() if item >= capacity
    }


def test_a_task_cut_short_fills_the_reservoir_with_what_it_has_seen() -> None:
    order = draw_order(0, 0, n=100, batch=10, epochs=1, steps=3)
    plan = draw_reservoir_replay(0, 0, order, first_pass=100, sizes={"replay": 10}, seen=0, capacity=20)
    assert plan.replays.tolist() == [False, True, True]
    first, second = plan.replay["replay"]
    assert sorted(first.tolist()) == sorted((20 + order[0]).tolist())
    assert set(second.tolist()) <= set((20 + order[:2].reshape(-1)).tolist())


def test_everything_in_the_reservoir_is_replayed_equally_often() -> None:
    # The reservoir is full of old rows, and the task, already seen, writes nothing: first_pass is 0.
    order = draw_order(0, 1, n=10, batch=10, epochs=1, steps=800)
    plan = draw_reservoir_replay(0, 1, order, first_pass=0, sizes={"replay": 5}, seen=500, capacity=20)
    counts = np.bincount(plan.replay["replay"].reshape(-1), minlength=20)
    assert np.abs(counts - 200).max() < 5 * np.sqrt(800 * 0.25 * 0.75)


def test_old_and_new_examples_are_both_replayed() -> None:
    order = draw_order(0, 1, n=100, batch=10, epochs=1, steps=None)
    plan = draw_reservoir_replay(0, 1, order, first_pass=100, sizes={"replay": 5}, seen=100, capacity=20)
    new = plan.replay["replay"] >= 20
    assert not new[0].any(), "the first step finds old rows only"
    assert 0.1 < new.mean() < 0.6
    assert new[-3:].mean() > new[:3].mean()


@pytest.mark.parametrize(("sizes", "capacity"), [({"replay": 5}, 0), ({"replay": 0}, 20), ({}, 20)])
def test_an_empty_reservoir_or_an_empty_draw_replays_nothing(sizes: dict[str, int], capacity: int) -> None:
    plan = draw_reservoir_replay(0, 1, order_of(4), 40, sizes, seen=50, capacity=capacity)
    assert plan.replay == {}
    assert not plan.replays.any()
    assert plan.trains.all()


def test_lanes_of_different_capacity_are_shown_what_their_own_reservoir_holds() -> None:
    # Example p is the number p; the first step writes its ten examples, the second replays five of them.
    column = {"x": torch.arange(100.0).view(100, 1)}
    own = {"y": torch.arange(100), "task": torch.zeros(100, dtype=torch.long)}
    lane = Examples(Source(column), torch.arange(100), own)
    spec = {name: (tuple(c.shape[1:]), c.dtype) for name, c in (column | own).items()}
    memory = Memory([Shelf([10, 20], spec, True, torch.device("cpu"))], tasks=1)
    memory.replays_current = True
    order = draw_order(0, 0, n=100, batch=10, epochs=1, steps=2)
    plans = [draw_reservoir_replay(0, 0, order, 100, {"replay": 5}, seen=0, capacity=c) for c in (10, 20)]
    reader = Reader(Normalise(torch.zeros(1), torch.ones(1)), torch.float32, shared_head=True)
    phase = Phase("task-0", ((None, Examples.stack([lane, lane])),), last=0)
    _, replayed = Feed(phase, plans, memory, reader, stacked=True).batches(1)
    for shown in replayed.x.flatten(1).tolist():
        assert set(shown) <= set(order[0].tolist())


@pytest.mark.parametrize(("field", "epochs", "steps"), [("steps", 1, 10**12), ("epochs", 10**11, None)])
def test_a_plan_too_large_for_any_memory_is_refused(field: str, epochs: int, steps: int | None) -> None:
    with pytest.raises(InputError, match=f"^{field}: .* more than a plan can hold"):
        draw_order(0, 0, 100, 10, epochs, steps)
