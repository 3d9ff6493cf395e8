"""Drift, CKA and MMD against numbers worked out by hand."""

import math

import numpy as np
import pytest

from reprise.drift import linear_cka, mmd, relative_drift

SQUARE = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


def test_relative_drift_by_hand() -> None:
    """Each of four points lies 1 from the centre; all move by 3, 4: 5 times their spread."""
    assert relative_drift(SQUARE, SQUARE) == 0.0
    assert relative_drift(SQUARE, SQUARE + np.array([3.0, 4.0])) == pytest.approx(5.0)
    assert relative_drift(2 * SQUARE + 7, 4 * SQUARE + 7) == pytest.approx(1.0)
    assert math.isnan(relative_drift(np.ones((3, 2)), SQUARE[:3]))


def test_linear_cka_does_not_see_rotation_shift_and_scale() -> None:
    turned = 3 * SQUARE @ np.array([[0.0, 1.0], [-1.0, 0.0]]) + 5
    assert linear_cka(SQUARE, turned) == pytest.approx(1.0)


def test_linear_cka_by_hand() -> None:
    """One column (1, −1, 0, 0) against another (1, −1, 1, −1): (2)² / (2 · 4) = 1/2."""
    one, other = np.array([[1.0], [-1], [0], [0]]), np.array([[1.0], [-1], [1], [-1]])
    assert linear_cka(one, other) == pytest.approx(0.5)
    assert linear_cka(one, np.array([[0.0], [0], [1], [-1]])) == pytest.approx(0.0)


def test_mmd_by_hand() -> None:
    """Clouds {0, 0} and {1, 1}: six distances 0, 0, 1, 1, 1, 1 with median 1, so k = 1 within and 1/e across."""
    assert mmd(np.zeros((2, 1)), np.ones((2, 1))) == pytest.approx(math.sqrt(2 - 2 / math.e))


def test_mmd_does_not_see_who_went_where() -> None:
    assert mmd(SQUARE, SQUARE[::-1]) == pytest.approx(0.0, abs=1e-7)


def test_features_of_different_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="the same 2 or more examples"):
        relative_drift(SQUARE, SQUARE[:3])
    with pytest.raises(ValueError, match="the same 2 or more examples"):
        mmd(SQUARE[:1], SQUARE[:1])
