"""Metrics against numbers worked by hand, and properties that hold for every matrix."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from reprise import metrics

#              task 1  task 2  task 3
ACCURACY = [
    [0.70, None, None],  # after task 1
    [0.80, 0.75, None],  # after task 2: task 1 has improved
    [0.50, 0.90, 0.60],  # after task 3: task 1 has fallen, task 2 is at its best
]
LOSS = [[2.0, None, None], [3.0, 1.0, None], [2.5, 0.8, 4.0]]
Metric = Callable[..., float | None]
Array = NDArray[np.float64]
OF_ACCURACY: list[Metric] = [
    metrics.average_accuracy,
    metrics.learning_accuracy,
    metrics.forgetting,
    metrics.forgetting_agem,
    metrics.backward_transfer,
    metrics.worst_accuracy,
]
OF_MATRIX: list[Metric] = [
    *OF_ACCURACY,
    metrics.forgetting_percent,
    lambda matrix: metrics.performance_drop_percent(matrix, [0.5] * max(len(matrix), 1)),
    lambda matrix: metrics.intransigence([0.5] * len(matrix), matrix),
]


@pytest.mark.parametrize(
    ("metric", "by_hand"),
    [
        (metrics.average_accuracy, 2.0 / 3),  # (0.50 + 0.90 + 0.60) / 3
        (metrics.learning_accuracy, 2.05 / 3),  # (0.70 + 0.75 + 0.60) / 3
        (metrics.forgetting, 0.1),  # (0.80 − 0.50) + (0.90 − 0.90) + 0 = 0.30, over 3
        (metrics.forgetting_agem, 0.075),  # (0.80 − 0.50) + (0.75 − 0.90) = 0.15, over 2
        (metrics.backward_transfer, -0.025),  # (0.50 − 0.70) + (0.90 − 0.75) = −0.05, over 2
        (metrics.worst_accuracy, 0.5),  # min of 0.80, 0.50, 0.90
    ],
)
def test_accuracy_metrics_by_hand(metric: Metric, by_hand: float) -> None:
    value = metric(ACCURACY)
    assert value == pytest.approx(by_hand, abs=1e-12)
    assert type(value) is float, "NumPy's own floats do not belong in a record"
    assert metric(np.array(ACCURACY, dtype=float)) == value


def test_worst_accuracy_looks_at_all_of_training_and_at_old_tasks_only() -> None:
    # 0.1 is the current task's and does not count; 0.3 in the middle row does.
    assert metrics.worst_accuracy([[0.9, None, None], [0.3, 0.1, None], [0.8, 0.7, 0.2]]) == 0.3


def test_forward_transfer_by_hand() -> None:
    # (0.30 − 0.20) + (0.50 − 0.25) = 0.35, over 2; the first task has nothing before it.
    assert metrics.forward_transfer([None, 0.3, 0.5], [0.2, 0.2, 0.25]) == pytest.approx(0.175, abs=1e-12)
    assert metrics.forward_transfer([0.9, 0.3, 0.5], [0.2, 0.2, 0.25]) == pytest.approx(0.175, abs=1e-12)
    assert metrics.forward_transfer([0.2], [0.2]) is None
    assert metrics.forward_transfer([None, 0.3, None], [0.2, 0.2, 0.2]) is None


def test_learning_curve_area_by_hand() -> None:
    curve = [[0.2, 0.4, 0.6], [0.2, 0.6, 0.8]]  # Z = 0.2, 0.5, 0.7
    assert metrics.learning_curve_area(curve) == pytest.approx(1.4 / 3, abs=1e-12)
    # Trapezoids (0.2 + 0.5) / 2 = 0.35 and (0.5 + 0.7) / 2 = 0.60, over β = 2.
    assert metrics.learning_curve_area(curve, trapezoid=True) == pytest.approx(0.475, abs=1e-12)
    for trapezoid in (False, True):
        assert metrics.learning_curve_area([[0.4], [0.2]], trapezoid) == pytest.approx(0.3)
        assert metrics.learning_curve_area([[0.7] * 11], trapezoid) == pytest.approx(0.7)
    assert metrics.learning_curve_area([[0.2, None]]) is None


def test_intransigence_by_hand() -> None:
    # (0.90 − 0.70) + (0.80 − 0.75) + (0.70 − 0.60) = 0.35, over 3
    assert metrics.intransigence([0.9, 0.8, 0.7], ACCURACY) == pytest.approx(0.35 / 3, abs=1e-12)
    assert metrics.intransigence([0.9, None, 0.7], ACCURACY) is None


def test_loss_metrics_by_hand() -> None:
    # (2.5 − 2) / 2 = 25 %, (0.8 − 1) / 1 = −20 %, the last task 0 %: 5 % over 3
    assert metrics.forgetting_percent_per_task(LOSS) == pytest.approx([25, -20, 0], abs=1e-9)
    assert metrics.forgetting_percent(LOSS) == pytest.approx(5 / 3, abs=1e-9)
    # Against a multi-task model of losses 2, 1, 5: 25 %, −20 % and (4 − 5) / 5 = −20 %, so −15 % over 3
    terms = metrics.performance_drop_percent_per_task(LOSS, [2, 1, 5])
    assert terms == pytest.approx([25, -20, -20], abs=1e-9)
    assert metrics.performance_drop_percent(LOSS, [2, 1, 5]) == pytest.approx(-5, abs=1e-9)
    # It may be negative: a loss that goes from 2.0 to 1.9 is −5 %, over 2 tasks
    assert metrics.forgetting_percent([[2.0, None], [1.9, 1.0]]) == pytest.approx(-2.5, abs=1e-9)


def test_a_reference_too_small_to_divide_by_is_left_out() -> None:
    losses = [[1e-9, None, None], [1.0, 2.0, None], [1.0, 3.0, 4.0]]  # NaN, 50 %, 0 %
    assert metrics.forgetting_percent_per_task(losses) == pytest.approx([math.nan, 50, 0], nan_ok=True)
    assert metrics.forgetting_percent(losses) == pytest.approx(25)
    assert metrics.performance_drop_percent(losses, [2.0, 0.0, 5.0]) == pytest.approx((-50 - 20) / 2)
    assert metrics.performance_drop_percent(losses, [0.0, 0.0, 0.0]) is None
    assert metrics.forgetting_percent_per_task([[1e-8, None], [2e-8, 1.0]]) == pytest.approx([100, 0])


def test_a_single_task() -> None:
    assert metrics.average_accuracy([[0.7]]) == metrics.learning_accuracy([[0.7]]) == 0.7
    assert metrics.forgetting([[0.7]]) == metrics.forgetting_percent([[0.7]]) == 0.0
    assert metrics.intransigence([0.9], [[0.7]]) == pytest.approx(0.2)
    for metric in (metrics.forgetting_agem, metrics.backward_transfer, metrics.worst_accuracy):
        assert metric([[0.7]]) is None


def test_a_run_measured_only_at_its_end_has_an_accuracy_and_no_history() -> None:
    joint = [[None, None], [0.6, 0.8]]  # multi-task training: one row
    assert metrics.average_accuracy(joint) == pytest.approx(0.7)
    assert metrics.performance_drop_percent(joint, [0.5, 0.5]) == pytest.approx(40)
    for metric in (*OF_ACCURACY[1:5], metrics.forgetting_percent):
        assert metric(joint) is None
    hole = [[0.7, None, None], [None, 0.75, None], [0.5, 0.9, 0.6]]
    assert metrics.learning_accuracy(hole) == metrics.learning_accuracy(ACCURACY)
    for metric in (metrics.forgetting, metrics.forgetting_agem, metrics.worst_accuracy):
        assert metric(hole) is None, "the missing entry may be the extreme one"


@pytest.mark.parametrize("metric", OF_MATRIX)
@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        ([], "table"),
        ([[]], "table"),
        ([0.5], "table"),
        ([[0.5, 0.6]], "1 rows of 2 entries"),
        ([[0.5], [0.6]], "2 rows of 1 entries"),
        ([[0.5], [0.6, 0.7]], "rows of equal length"),
        ([[0.5, None], [0.6, None]], r"last row has no value for tasks \[1\]"),
        ([[0.5, None], [math.nan, 0.6]], r"last row has no value for tasks \[0\]"),
    ],
)
def test_what_is_no_finished_run_is_refused(metric: Metric, matrix: metrics.Matrix, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"matrix: .*{sentence}"):
        metric(matrix)


def test_vectors_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="reference: 2 entries, but matrix has 3 tasks"):
        metrics.intransigence([0.5, 0.5], ACCURACY)
    with pytest.raises(ValueError, match="reference: 1 entries, but matrix has 3 tasks"):
        metrics.performance_drop_percent(LOSS, [0.5])
    with pytest.raises(ValueError, match="initial: 1 entries, but next has 2 tasks"):
        metrics.forward_transfer([0.5, 0.5], [0.5])
    with pytest.raises(ValueError, match="next: expected one number per task"):
        metrics.forward_transfer([], [])


def test_summarise_by_hand() -> None:
    # mean 3; squares (4 + 0 + 4) = 8: over 3 and over 2
    summary = metrics.summarise([1.0, 3.0, 5.0])
    assert summary == {
        "mean": 3.0,
        "std": pytest.approx(math.sqrt(8 / 3)),
        "std1": pytest.approx(2.0),
        "n": 3,
    }
    assert metrics.summarise([5.0, 1.0, 3.0]) == pytest.approx(summary)
    assert metrics.summarise([4.0]) == {"mean": 4.0, "std": 0.0, "std1": None, "n": 1}
    assert metrics.summarise([4.0, None, math.nan]) == metrics.summarise([4.0])
    assert metrics.summarise([None]) == {"mean": None, "std": None, "std1": None, "n": 0}
    assert json.loads(json.dumps(summary)) == summary


# Properties

quick = settings(max_examples=60, deadline=None, database=None)


@st.composite
def matrices(draw: st.DrawFn, fewest: int = 1) -> Array:
    """Accuracies on a grid of 1/64, so that sums are exact; NaN above the diagonal."""
    t = draw(st.integers(fewest, 6))
    grid = draw(st.lists(st.integers(0, 64), min_size=t * t, max_size=t * t))
    return np.where(np.tri(t, dtype=bool), np.reshape(grid, (t, t)) / 64, np.nan)


@quick
@given(matrices())
def test_forgetting_is_the_positive_part_of_agems_terms(accuracy: Array) -> None:
    t = len(accuracy)
    terms = [max(accuracy[j : t - 1, j]) - accuracy[-1, j] for j in range(t - 1)]
    value = metrics.forgetting(accuracy)
    assert value is not None
    assert value >= 0
    assert value == pytest.approx(sum(max(term, 0) for term in terms) / t)
    assert metrics.forgetting_agem(accuracy) == (pytest.approx(sum(terms) / (t - 1)) if terms else None)


@quick
@given(matrices(fewest=2))
def test_the_two_forgettings_differ_by_a_factor_when_old_tasks_only_lose(accuracy: Array) -> None:
    t = len(accuracy)
    accuracy[-1, :-1] = 0  # no maximum is at the last row
    agem = metrics.forgetting_agem(accuracy)
    assert agem is not None
    assert metrics.forgetting(accuracy) == pytest.approx(agem * (t - 1) / t)


@quick
@given(matrices(), st.sampled_from([0.0, 1.0, 7.0, -3.0, math.inf]))
def test_what_stands_above_the_diagonal_is_never_read(accuracy: Array, junk: float) -> None:
    for metric in OF_MATRIX:
        assert metric(np.where(np.isnan(accuracy), junk, accuracy)) == metric(accuracy)


@quick
@given(matrices(fewest=2), st.randoms())
def test_the_order_of_a_tasks_history_does_not_matter(accuracy: Array, random: Random) -> None:
    shuffled = accuracy.copy()
    for j in range(len(accuracy) - 1):
        history = accuracy[j:-1, j].tolist()
        random.shuffle(history)
        shuffled[j:-1, j] = history
    for metric in (metrics.forgetting, metrics.forgetting_agem, metrics.average_accuracy):
        assert metric(shuffled) == metric(accuracy)


@quick
@given(matrices(), st.integers(-64, 64))
def test_a_constant_moves_levels_and_leaves_differences(accuracy: Array, step: int) -> None:
    higher = accuracy + step / 64
    for metric in (metrics.forgetting, metrics.forgetting_agem, metrics.backward_transfer):
        assert metric(higher) == metric(accuracy)
    for metric in (metrics.average_accuracy, metrics.learning_accuracy, metrics.worst_accuracy):
        level = metric(accuracy)
        assert metric(higher) == (None if level is None else pytest.approx(level + step / 64))


@quick
@given(matrices(), st.sampled_from([0.01, 3.0, 1000.0]))
def test_percentages_do_not_depend_on_the_unit_of_the_loss(matrix: Array, unit: float) -> None:
    losses = matrix + 0.5
    reference = losses[-1][::-1] + 0.25
    assert metrics.forgetting_percent(losses * unit) == pytest.approx(metrics.forgetting_percent(losses))
    drop = metrics.performance_drop_percent(losses, reference)
    assert metrics.performance_drop_percent(losses * unit, reference * unit) == pytest.approx(drop)
