"""Grids of answers: what a person sees of them."""

from __future__ import annotations

import numpy as np
import pytest

from reprise.pictures import _shown, draw_grid

SIDE = 8


def samples(truth: np.ndarray, answer: np.ndarray, mask: np.ndarray | None = None) -> dict[str, np.ndarray]:
    found = {
        "depth.input": np.zeros((1, 3, SIDE, SIDE), np.uint8),
        "depth.truth": truth[None],
        "depth.answer": answer[None],
    }
    return found if mask is None else found | {"depth.mask": mask[None]}


def ramp() -> np.ndarray:
    """Values in a hundredth of [-1, 1], as depth has them."""
    return np.linspace(0.10, 0.12, SIDE * SIDE, dtype=np.float32).reshape(1, SIDE, SIDE)


def test_a_map_is_stretched_to_where_the_truth_lies() -> None:
    own = samples(ramp(), ramp())
    truth, answer = (_shown("depth", own, what, 0) for what in ("truth", "answer"))
    assert truth.min() < 5
    assert truth.max() > 250
    assert np.array_equal(truth, answer)
    flat = _shown("depth", samples(ramp(), np.zeros_like(ramp())), "answer", 0)
    assert flat.max() == 0, "below all of the truth"


def test_pixels_without_a_label_do_not_set_the_range() -> None:
    truth, mask = ramp(), np.ones((1, SIDE, SIDE), bool)
    truth[0, 0], mask[0, 0] = 1.0, False
    shown = _shown("depth", samples(truth, truth, mask), "truth", 0)
    assert np.ptp(shown[1:]) > 200
    assert (shown[0] == 235).all()


@pytest.mark.filterwarnings("error")
def test_a_truth_of_one_value_is_shown_in_the_whole_range() -> None:
    same = np.zeros((1, SIDE, SIDE), np.float32)
    assert (_shown("depth", samples(same, same), "truth", 0) == 127).all()


def test_a_grid_has_a_column_for_each_run() -> None:
    one, two = ({name: samples(ramp(), ramp()) for name in names} for names in (("er",), ("er", "car")))
    assert draw_grid(two).width > draw_grid(one).width
