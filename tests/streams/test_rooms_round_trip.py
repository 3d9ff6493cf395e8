"""Rooms written in the official layout come back from the Taskonomy reader as the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reprise.streams.rooms import DOMAINS, point_view, render, write_official
from reprise.streams.taskonomy import TASKS, check_taskonomy, load_pack, pack, target

VIEWS, SIZE = 8, 32


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    return render(building=3, views=VIEWS, size=SIZE)


@pytest.mark.parametrize("long_layout", [True, False])
def test_files_and_pack_hold_what_was_rendered(
    arrays: dict[str, np.ndarray], tmp_path: Path, long_layout: bool
) -> None:
    numbers = [point_view(view) for view in range(VIEWS)]
    write_official(tmp_path / "files", "world", arrays, numbers, long_layout)
    assert check_taskonomy(tmp_path / "files").ok
    pack(tmp_path / "files", tmp_path / "pack", size=SIZE)
    packed = load_pack(tmp_path / "pack")
    order = [numbers.index((point, view)) for _, point, view in packed.views.tolist()]
    for domain in DOMAINS:
        found, rendered = packed.take(domain, np.arange(VIEWS)), arrays[domain][order]
        if rendered.ndim == 4:  # packed channels first, without those that carry nothing
            rendered = np.moveaxis(rendered, -1, 1)[:, : found.shape[1] if found.ndim == 4 else 1]
        assert found.size == rendered.size, domain
        rendered = rendered.reshape(found.shape)
        assert np.array_equal(found, rendered), domain


def test_every_target_is_made_of_what_was_rendered(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    numbers = [point_view(view) for view in range(VIEWS)]
    write_official(tmp_path / "files", "world", arrays, numbers)
    pack(tmp_path / "files", tmp_path / "pack", size=SIZE)
    packed = load_pack(tmp_path / "pack")
    order = [numbers.index((point, view)) for _, point, view in packed.views.tolist()]
    for name, task in TASKS.items():
        rows = packed.rows(name)
        assert len(rows) > 0, name
        x, y, mask = packed.batch(name, rows)
        assert np.isfinite(y).all(), name
        again, _ = target(name, packed.take(task.domain, rows))
        assert np.array_equal(y, again), name
        assert np.array_equal(np.moveaxis(x, 1, -1), arrays["rgb"][order][rows]), name
        assert mask is None or 0 < mask.mean() <= 1
