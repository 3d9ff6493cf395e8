"""What is remembered: shares of m, and the four policies in index space."""

from __future__ import annotations

import re
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CPU, cell

from reprise import train
from reprise.errors import InputError
from reprise.fill import POLICIES, Quota, choose, make_quota, reservoir_rows, reservoir_slots
from reprise.train import Trainer

TASKS, CLASSES = 17, 5  # Split-CIFAR and Split-mini-ImageNet
quick = settings(max_examples=80, deadline=None, database=None)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def per_class(policy: str, k: int, classes: int) -> Quota:
    return make_quota(policy, k * classes, tasks=1, full_tasks=1, classes_per_task=classes)


# Shares of m


@pytest.mark.parametrize(("m", "a_class"), [(0, 0), (85, 1), (255, 3), (425, 5)])
@pytest.mark.parametrize("policy", ["uniform_class", "ring_class"])
def test_the_papers_memory_sizes_are_1_3_and_5_a_class(policy: str, m: int, a_class: int) -> None:
    quota = make_quota(policy, m, TASKS, TASKS, CLASSES)
    assert quota == Quota(policy, m, per_task=Fraction(5 * a_class), per_class=a_class, capacity=m)


def test_a_shortened_stream_keeps_the_share_of_a_class_and_needs_fewer_rows() -> None:
    quota = make_quota("uniform_class", 255, tasks=3, full_tasks=TASKS, classes_per_task=CLASSES)
    assert (quota.per_class, quota.per_task, quota.capacity) == (3, 15, 45)


def test_uniform_task_divides_by_tasks_only() -> None:
    quota = make_quota("uniform_task", 51, tasks=4, full_tasks=TASKS, classes_per_task=CLASSES)
    assert quota == Quota("uniform_task", 51, per_task=Fraction(3), per_class=None, capacity=12)


@pytest.mark.parametrize("m", [0, 1, 86, 100])
def test_a_reservoir_takes_any_m_and_a_task_has_its_share_on_average(m: int) -> None:
    quota = make_quota("reservoir", m, TASKS, TASKS, CLASSES)
    assert quota == Quota("reservoir", m, per_task=Fraction(m, 17), per_class=None, capacity=m)


@pytest.mark.parametrize("m", [0, 7, 64])
def test_where_tasks_differ_in_kind_m_counts_each_task(m: int) -> None:
    quota = make_quota("uniform_task", m, tasks=3, full_tasks=11, classes_per_task=None)
    assert quota == Quota("uniform_task", m, per_task=Fraction(m), per_class=None, capacity=m)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "uniform_task"])
def test_where_tasks_differ_in_kind_only_uniform_task_makes_sense(policy: str) -> None:
    with pytest.raises(InputError, match=f"fill: '{policy}' needs one class per example.*use uniform_task"):
        make_quota(policy, 64, 11, 11, None)


@pytest.mark.parametrize(
    ("policy", "m", "sentence"),
    [
        ("uniform_class", 100, "m: 100 cannot be divided evenly over 85 classes; use 85 or 170,"),
        ("uniform_class", 84, "m: 84 cannot be divided evenly over 85 classes; use 0 or 85,"),
        ("ring_class", 256, "m: 256 cannot be divided evenly over 85 classes; use 255 or 340,"),
        ("uniform_task", 86, "m: 86 cannot be divided evenly over 17 tasks; use 85 or 102,"),
    ],
)
def test_an_indivisible_m_is_refused_with_both_neighbours(policy: str, m: int, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_quota(policy, m, TASKS, TASKS, CLASSES)
    with pytest.raises(InputError, match=sentence):
        make_quota(policy, m, 3, TASKS, CLASSES)


@quick
@given(
    st.sampled_from(["uniform_class", "ring_class", "uniform_task"]),
    st.integers(0, 2000),
    st.integers(1, 20),
    st.integers(1, 10),
)
def test_an_m_is_divided_without_rest_or_its_neighbours_are(
    policy: str, m: int, tasks: int, classes: int
) -> None:
    try:
        quota = make_quota(policy, m, tasks, tasks, classes)
    except InputError as error:
        named = re.search(r"use (\d+) or (\d+)", str(error))
        assert named is not None
        below, above = map(int, named.groups())
        assert below < m < above
        assert make_quota(policy, below, tasks, tasks, classes).m == below
        assert make_quota(policy, above, tasks, tasks, classes).m == above
    else:
        assert quota.per_task * tasks == quota.capacity == m
        assert quota.per_class is None or quota.per_class * classes == quota.per_task


@pytest.mark.parametrize("classes", [CLASSES, None])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_negative_m_is_refused(policy: str, classes: int | None) -> None:
    with pytest.raises(InputError, match="m: -85 is negative"):
        make_quota(policy, -85, TASKS, TASKS, classes)


def test_an_unknown_policy_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(
        InputError, match="fill: 'ring' is not known; choose one of uniform_class, ring_class"
    ):
        make_quota("ring", 85, TASKS, TASKS, CLASSES)


# Uniform


@st.composite
def classified(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Labels of a task in any order, and a number of examples that every class has."""
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    first = draw(st.integers(0, 40))  # class-incremental labels do not start at 0
    labels = draw(st.permutations(np.repeat(np.arange(first, first + len(sizes)), sizes).tolist()))
    return np.array(labels), draw(st.integers(0, min(sizes)))


@quick
@given(classified(), st.integers(0, 5))
def test_uniform_class_holds_k_of_each_class_and_so_does_every_whole_prefix(
    task: tuple[np.ndarray, int], seed: int
) -> None:
    labels, k = task
    classes = np.unique(labels)
    quota = per_class("uniform_class", k, len(classes))
    picks = choose(quota, labels, np.arange(len(labels)), len(labels), generator(seed))
    assert len(set(picks.tolist())) == len(picks) == k * len(classes)
    for share in range(k + 1):
        prefix = labels[picks[: share * len(classes)]]
        assert all(np.sum(prefix == c) == share for c in classes)


def test_uniform_class_gives_every_example_of_a_class_the_same_chance() -> None:
    labels = np.array([0, 1, 0, 1, 1, 0, 1, 0, 0, 1])
    quota = per_class("uniform_class", 2, 2)
    draws = 1000
    counts = np.zeros(10)
    for seed in range(draws):
        counts[choose(quota, labels, np.arange(10), 10, generator(seed))] += 1
    # 2 of 5 each time: a binomial of mean 400 and deviation √(1000 · 0.4 · 0.6) ≈ 15.5
    assert counts.sum() == 4 * draws
    assert np.abs(counts - 400).max() < 5 * 15.5


@quick
@given(st.integers(1, 40), st.data())
def test_uniform_task_holds_so_many_of_a_task_whatever_their_class(n: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, n))
    quota = make_quota("uniform_task", count, 1, 1, None)
    picks = choose(quota, None, np.arange(n), n, generator(n))
    assert len(set(picks.tolist())) == len(picks) == count
    assert set(picks.tolist()) <= set(range(n))


def test_uniform_task_gives_every_example_the_same_chance() -> None:
    quota = make_quota("uniform_task", 3, 1, 1, None)
    counts = np.zeros(12)
    for seed in range(1000):
        counts[choose(quota, None, np.arange(12), 12, generator(seed))] += 1
    assert np.abs(counts - 250).max() < 5 * np.sqrt(1000 * 0.25 * 0.75)


def test_the_generator_decides_what_is_remembered() -> None:
    labels, order = np.repeat(np.arange(5), 20), np.arange(100)
    for quota in (per_class("uniform_class", 3, 5), make_quota("uniform_task", 15, 1, 1, 5)):
        first, again, other = (choose(quota, labels, order, 100, generator(seed)) for seed in (0, 0, 1))
        assert first.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize("policy", ["uniform_class", "ring_class"])
def test_more_than_the_smallest_class_has_is_refused(policy: str) -> None:
    labels = np.array([0] * 6 + [1] * 4)
    assert len(choose(per_class(policy, 4, 2), labels, np.arange(10), 10, generator())) == 8
    with pytest.raises(InputError, match="m: 5 examples a class were asked for, but a class has only 4"):
        choose(per_class(policy, 5, 2), labels, np.arange(10), 10, generator())


def test_more_than_a_task_has_is_refused() -> None:
    assert len(choose(make_quota("uniform_task", 10, 1, 1, None), None, np.arange(10), 10, generator())) == 10
    with pytest.raises(InputError, match="m: 11 examples a task were asked for, but a task has only 10"):
        choose(make_quota("uniform_task", 11, 1, 1, None), None, np.arange(10), 10, generator())


# Ring


def test_a_ring_holds_the_last_of_each_class_the_latest_first() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    order = np.array([4, 0, 3, 2, 5, 1])  # class 0 was seen as 0, 2, 1 and class 1 as 4, 3, 5
    assert choose(per_class("ring_class", 1, 2), labels, order, 6, generator()).tolist() == [1, 5]
    assert choose(per_class("ring_class", 2, 2), labels, order, 6, generator()).tolist() == [1, 5, 2, 3]


def test_a_ring_holds_an_example_once_however_often_it_was_seen() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    order = np.array([0, 3, 1, 4, 2, 5, 2, 4])  # a whole pass, then 2 and 4 again
    assert choose(per_class("ring_class", 2, 2), labels, order, 6, generator()).tolist() == [2, 4, 1, 5]


@quick
@given(classified(), st.randoms(), st.integers(1, 3))
def test_a_ring_equals_a_queue_that_forgets_its_oldest(
    task: tuple[np.ndarray, int], random: Random, passes: int
) -> None:
    labels, k = task
    classes = np.unique(labels)
    order: list[int] = []
    for _ in range(passes):
        a_pass = list(range(len(labels)))
        random.shuffle(a_pass)
        order += a_pass
    queues: dict[int, list[int]] = {c: [] for c in classes}
    for position in order:
        queue = queues[labels[position]]
        if position in queue:
            queue.remove(position)
        queue.append(position)
    picks = choose(
        per_class("ring_class", k, len(classes)), labels, np.array(order), len(labels), generator()
    )
    for i, c in enumerate(classes):
        assert picks[i :: len(classes)].tolist() == queues[c][::-1][:k]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 5], [0, 5]])
def test_a_ring_cannot_hold_more_of_a_class_than_training_has_seen(order: list[int]) -> None:
    # Few steps, or a last partial batch that was dropped: the examples exist, but were never seen.
    labels = np.array([0] * 5 + [1] * 5)
    with pytest.raises(InputError, match="m: 3 examples a class were asked for, but .*only 1"):
        choose(per_class("ring_class", 3, 2), labels, np.array(order), 10, generator())


def test_what_a_ring_will_not_have_seen_is_refused_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One step of 4 images cannot have shown 5 classes."""
    monkeypatch.setattr(Trainer, "_train", None)
    for lanes in (1, 2):
        cells = [cell("er", seed, fill="ring_class", steps=1) for seed in range(lanes)]
        with pytest.raises(
            InputError, match="m: 1 examples a class were asked for, but training sees only 0"
        ):
            Trainer(cells, CPU).run()


def test_the_order_of_a_task_is_drawn_when_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's orders together would take 8 bytes for every example that is ever seen."""
    drawn: list[int] = []
    draw = train.draw_order

    def noted(seed: int, task: int, *rest: Any) -> np.ndarray:
        drawn.append(task)
        return draw(seed, task, *rest)

    monkeypatch.setattr(train, "draw_order", noted)
    Trainer([cell("er")], CPU).run(pause=lambda phase, step: phase == 1)
    assert drawn == [0, 1]


# Reservoir


def run_reservoir(parts: tuple[int, ...], capacity: int, random: np.random.Generator) -> dict[int, int]:
    """Slot to example after a stream that comes in parts."""
    held: dict[int, int] = {}
    seen = 0
    for count in parts:
        slots = reservoir_slots(seen, count, capacity, random)
        rows, positions = reservoir_rows(slots, seen + np.arange(count))
        held |= dict(zip(rows.tolist(), positions.tolist(), strict=True))
        seen += count
    return held


@pytest.mark.parametrize("parts", [(20,), (3, 9, 8)])
def test_a_reservoir_holds_every_example_of_the_stream_with_the_same_chance(parts: tuple[int, ...]) -> None:
    runs, n, capacity, random = 4000, 20, 5, generator()
    counts = np.zeros(n)
    for _ in range(runs):
        held = run_reservoir(parts, capacity, random)
        assert len(held) == capacity
        counts[list(held.values())] += 1
    share = capacity / n
    statistic = np.sum((counts - runs * share) ** 2) / (runs * share * (1 - share)) * (n - 1) / n
    assert statistic < 43.8, "the 99.9 % point of χ² with 19 degrees of freedom"


@quick
@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 9), st.integers(0, 5))
def test_a_reservoir_fills_up_in_order_and_never_exceeds_its_capacity(
    parts: list[int], capacity: int, seed: int
) -> None:
    random, seen = generator(seed), 0
    for count in parts:
        slots = reservoir_slots(seen, count, capacity, random)
        assert len(slots) == count
        room = max(0, min(capacity - seen, count))
        assert slots[:room].tolist() == list(range(seen, seen + room))
        assert all(-1 <= slot < capacity for slot in slots)
        seen += count
    held = run_reservoir(tuple(parts), capacity, generator(seed))
    assert sorted(held) == list(range(min(seen, capacity)))


def test_the_last_writer_of_a_slot_wins() -> None:
    slots = np.array([0, 1, -1, 1, 3, 0])
    positions = np.array([7, 3, 9, 4, 5, 8])
    rows, held = reservoir_rows(slots, positions)
    assert rows.tolist() == [0, 1, 3]
    assert held.tolist() == [8, 4, 5]


def test_nothing_written_is_no_row() -> None:
    rows, held = reservoir_rows(np.array([-1, -1]), np.array([0, 1]))
    assert rows.dtype == held.dtype == np.int64
    assert len(rows) == len(held) == 0
