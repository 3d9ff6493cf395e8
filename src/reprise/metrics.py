"""Every number a run reports: pure functions of the matrices in its record.

A[i][j] is the accuracy (a fraction) and E[i][j] the loss on task j's test set after training task i, for t
tasks. Entries j > i belong to tasks not seen yet: they are None or NaN, and they are never read.

Two rules hold throughout. A metric without meaning for this run is None: one of old tasks when there is only
one task, or one that needs an entry nobody measured. A matrix that is no record of a finished run (empty, not
square, a gap in its last row) is a ValueError, since no metric of it could be right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

Vector = Sequence[float | None] | NDArray[np.float64]
Matrix = Sequence[Sequence[float | None]] | NDArray[np.float64]

SMALLEST_REFERENCE = 1e-8
"""A loss below this divides nothing: a relative change of it says more about rounding than about learning."""


class Summary(TypedDict):
    """A metric over seeds: n values, their mean, and both standard deviations (ddof 0 and ddof 1)."""

    mean: float | None
    std: float | None
    std1: float | None
    n: int


# Accuracy matrices


def average_accuracy(matrix: Matrix) -> float:
    """(1/t) Σ_j A[t,j]: how good the final model is on all tasks."""
    return float(_finished(matrix)[-1].mean())


def learning_accuracy(matrix: Matrix) -> float | None:
    """(1/t) Σ_j A[j,j]: how well each task was learnt when it was its turn."""
    return _mean(_finished(matrix).diagonal())


def forgetting(matrix: Matrix) -> float | None:
    """The paper's: (1/t) Σ_j max_{i>=j} (A[i,j] − A[t,j]).

    The maximum includes the last row, so no term is negative, and the last task's term, always 0, is counted.
    """
    accuracy = _finished(matrix)
    return _mean(_best(accuracy) - accuracy[-1])


def forgetting_agem(matrix: Matrix) -> float | None:
    """A-GEM's: (1/(t−1)) Σ_{j<t} (max_{j<=i<t} A[i,j] − A[t,j]). Negative where old tasks improve."""
    accuracy = _finished(matrix)
    return _mean(_best(accuracy[:-1, :-1]) - accuracy[-1, :-1])


def backward_transfer(matrix: Matrix) -> float | None:
    """(1/(t−1)) Σ_{j<t} (A[t,j] − A[j,j]): what later tasks did to earlier ones."""
    accuracy = _finished(matrix)
    return _mean((accuracy[-1] - accuracy.diagonal())[:-1])


def worst_accuracy(matrix: Matrix) -> float | None:
    """min_{j<i} A[i,j]: the lowest an old task ever fell. A gap makes it None, it may hide the minimum."""
    accuracy = _finished(matrix)
    old = accuracy[np.tril_indices_from(accuracy, -1)]
    return None if old.size == 0 or np.isnan(old).any() else float(old.min())


def forward_transfer(next: Vector, initial: Vector) -> float | None:
    """(1/(t−1)) Σ_{j>=2} (A[j−1,j] − b_j): what earlier tasks did for a task before it was trained.

    next[j] is the accuracy on task j just before its training, initial[j] = b_j that of the untrained model.
    The first task has no earlier one: its entries are not read.
    """
    before, untrained = _vector("next", next), _vector("initial", initial)
    _same_length("initial", untrained, "next", before.size)
    return _mean((before - untrained)[1:])


def learning_curve_area(curve: Matrix, trapezoid: bool = False) -> float | None:
    """LCA_β = (1/(β+1)) Σ_{b=0..β} Z_b with Z_b = mean_j curve[j][b]: how fast a task is learnt.

    curve[j][b] is the accuracy on task j after b of its own batches, [t, β+1]. With `trapezoid`, as in the
    code of A-GEM, it is the integral of Z over [0, β] divided by β; both give c for a constant curve c.
    """
    height = _array("curve", curve).mean(axis=0)
    if trapezoid and height.size > 1:  # over a single point there is no interval: LCA_0 = Z_0
        height = (height[1:] + height[:-1]) / 2
    return _mean(height)


def intransigence(reference: Vector, matrix: Matrix) -> float | None:
    """(1/t) Σ_j (a*_j − A[j,j]), with a*_j = reference[j] of a joint model: what was never learnt."""
    learnt = _finished(matrix).diagonal()
    joint = _vector("reference", reference)
    _same_length("reference", joint, "matrix", learnt.size)
    return _mean(joint - learnt)


# Loss matrices: the paper's relative measures for tasks that have no accuracy


def forgetting_percent(matrix: Matrix) -> float | None:
    """(100/t) Σ_j (E[t,j] − E[j,j]) / E[j,j]. Negative where later tasks helped an old one.

    Terms whose E[j,j] is below 1e-8 are left out, and the mean is over the others.
    """
    return _mean_percent(matrix, _finished(matrix).diagonal())


def forgetting_percent_per_task(matrix: Matrix) -> list[float]:
    """The t terms behind `forgetting_percent`; NaN where E[j,j] is below 1e-8 or was not measured."""
    return _percent(matrix, _finished(matrix).diagonal()).tolist()


def performance_drop_percent(matrix: Matrix, reference: Vector) -> float | None:
    """(100/t) Σ_j (E[t,j] − E^MT_j) / E^MT_j, with E^MT_j = reference[j] the loss of a multi-task model.

    Terms whose reference is below 1e-8 are left out, and the mean is over the others.
    """
    return _mean_percent(matrix, _vector("reference", reference))


def performance_drop_percent_per_task(matrix: Matrix, reference: Vector) -> list[float]:
    """The t terms behind `performance_drop_percent`; NaN where the reference is below 1e-8 or missing."""
    return _percent(matrix, _vector("reference", reference)).tolist()


# Seeds


def summarise(values: Vector) -> Summary:
    """Mean and standard deviations over seeds: `std` with ddof 0, as A-GEM prints it, `std1` with ddof 1.

    Seeds without a value (None or NaN) do not count, and n says how many did; `std1` needs two of them.
    """
    known = np.array(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if known.size == 0:
        return Summary(mean=None, std=None, std1=None, n=0)
    std1 = float(known.std(ddof=1)) if known.size > 1 else None
    return Summary(mean=float(known.mean()), std=float(known.std()), std1=std1, n=int(known.size))


# What the metrics share


def _finished(matrix: Matrix) -> NDArray[np.float64]:
    """The matrix of a finished run, [t, t]; NaN where nothing was measured."""
    values = _array("matrix", matrix)
    rows, columns = values.shape
    if rows != columns:
        raise ValueError(f"matrix: {rows} rows of {columns} entries, expected one of each per task")
    gaps = np.flatnonzero(np.isnan(values[-1])).tolist()
    if gaps:
        raise ValueError(f"matrix: the last row has no value for tasks {gaps}, the run is not finished")
    return values


def _best(accuracy: NDArray[np.float64]) -> NDArray[np.float64]:
    """max_{i>=j} A[i,j] for each task j; NaN where one of these was not measured, it may be the maximum."""
    seen = np.tri(len(accuracy), dtype=bool)
    return np.max(accuracy, axis=0, where=seen, initial=-np.inf)


def _percent(matrix: Matrix, reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """100 (E[t,j] − reference[j]) / reference[j], [t]; NaN where the reference is too small to divide by."""
    final = _finished(matrix)[-1]
    _same_length("reference", reference, "matrix", final.size)
    divisor = np.where(reference < SMALLEST_REFERENCE, np.nan, reference)
    return 100 * (final - divisor) / divisor


def _mean_percent(matrix: Matrix, reference: NDArray[np.float64]) -> float | None:
    terms = _percent(matrix, reference)
    if np.isnan(reference).any():  # not measured, which is not the same as too small
        return None
    return _mean(terms[~np.isnan(terms)])


def _mean(terms: NDArray[np.float64]) -> float | None:
    """The mean, or None where there is nothing to average or a term was not measured."""
    return None if terms.size == 0 or np.isnan(terms).any() else float(terms.mean())


def _array(name: str, values: Matrix) -> NDArray[np.float64]:
    """A float table with at least one row and one column; None becomes NaN."""
    try:
        table = np.array(values, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{name}: not a table of numbers with rows of equal length ({error})") from error
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"{name}: expected a table with a row for each task, got shape {table.shape}")
    return table


def _vector(name: str, values: Vector) -> NDArray[np.float64]:
    """A float vector with at least one entry; None becomes NaN."""
    vector = np.array(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"{name}: expected one number per task, got shape {vector.shape}")
    return vector


def _same_length(name: str, values: NDArray[np.float64], other: str, tasks: int) -> None:
    if values.size != tasks:
        raise ValueError(f"{name}: {values.size} entries, but {other} has {tasks} tasks")
