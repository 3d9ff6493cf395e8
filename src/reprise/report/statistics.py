"""Paired differences with an interval, and what may be said against a printed number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from reprise.experiments import Metric, Printed

LEVEL = 0.95
Verdict = Literal["agrees", "better than printed", "worse than printed"]


@dataclass(frozen=True)
class Difference:
    """A mean difference over n seeds and its 95 % interval (Student's t); no interval from a single seed."""

    mean: float
    half: float | None
    n: int

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.half is not None and abs(self.mean) > self.half


def paired(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """mine − theirs, seed by seed: both saw the same classes, order and weights."""
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        return None
    values = np.array([mine[seed] - theirs[seed] for seed in common])
    return Difference(float(values.mean()), _half_width(values), len(values))


def _half_width(values: np.ndarray) -> float | None:
    n = len(values)
    if n < 2:
        return None
    return float(stats.t.ppf((1 + LEVEL) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n))


def verdict(values: Sequence[float], printed: Printed, printed_n: int, metric: Metric) -> Verdict | None:
    """Whether a measured mean agrees with a printed one: Welch's 95 % interval, widened by the paper's rounding.

    The printed deviation is taken as that of a sample. Without one only ours is known, and the interval is that of
    our mean. A single seed allows no verdict.
    """
    n = len(values)
    if n < 2 or not metric.judged:
        return None
    own = float(np.var(values, ddof=1)) / n
    other = 0.0 if printed.std is None else printed.std**2 / printed_n
    freedom = float(n - 1)
    if other > 0:
        freedom = (own + other) ** 2 / (own**2 / (n - 1) + other**2 / (printed_n - 1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(own + other)
    half += 0.5 * 10.0**-metric.digits
    difference = float(np.mean(values)) - printed.mean
    if abs(difference) <= half:
        return "agrees"
    better = (difference < 0) == metric.lower_is_better
    return "better than printed" if better else "worse than printed"
