"""Intervals and verdicts against numbers worked out by hand."""

import math

import pytest

from reprise.experiments import METRICS, Printed
from reprise.report.statistics import paired, verdict


def test_a_paired_difference_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, t(0.975, 2) = 4.3027, so 4.3027 / √3 = 2.4841 either way."""
    found = paired({0: 2.0, 1: 4.0, 2: 6.0, 9: 100.0}, {2: 3.0, 1: 2.0, 0: 1.0, 7: -100.0})
    assert found is not None
    assert found.mean == pytest.approx(2.0)
    assert found.half == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert found.n == 3
    assert not found.clear


def test_a_difference_of_one_seed_has_no_interval_and_of_none_no_mean() -> None:
    one = paired({0: 2.0}, {0: 1.5})
    assert one is not None
    assert (one.mean, one.half, one.clear) == (0.5, None, False)
    assert paired({0: 2.0}, {1: 1.5}) is None


def test_a_verdict_by_hand() -> None:
    """Ours 60 ± 1 (5 seeds, ddof 1), printed 62 ± 1 (5): the difference's error is √0.4 = 0.632 at 8 degrees of
    freedom, t = 2.306: 1.458 and 0.05 of rounding. 2 is beyond, 1.4 is not."""
    unit = math.sqrt(0.4)  # five values at these steps have a deviation of 1
    ours = [60 + unit * step for step in (-2, -1, 0, 1, 2)]
    accuracy = METRICS["acc"]
    assert verdict(ours, Printed(62.0, 1.0), 5, accuracy) == "worse than printed"
    assert verdict(ours, Printed(58.0, 1.0), 5, accuracy) == "better than printed"
    assert verdict(ours, Printed(61.4, 1.0), 5, accuracy) == "agrees"
    assert verdict(ours, Printed(61.52, 1.0), 5, accuracy) == "worse than printed"


def test_less_forgetting_is_better() -> None:
    forgetting = METRICS["fgt"]
    assert verdict([0.05, 0.06], Printed(0.5, 0.01), 5, forgetting) == "better than printed"
    assert verdict([0.05, 0.06], Printed(0.01, 0.001), 5, METRICS["storage"]) is None


def test_without_a_printed_deviation_only_ours_counts() -> None:
    """60 ± 1 of 5: t(0.975, 4) = 2.776, 2.776 / √5 = 1.242 and 0.05 of rounding."""
    unit = math.sqrt(0.4)
    ours = [60 + unit * step for step in (-2, -1, 0, 1, 2)]
    assert verdict(ours, Printed(61.28), 5, METRICS["acc"]) == "agrees"
    assert verdict(ours, Printed(61.31), 5, METRICS["acc"]) == "worse than printed"


def test_one_seed_allows_no_verdict() -> None:
    assert verdict([60.0], Printed(60.0, 1.0), 5, METRICS["acc"]) is None
