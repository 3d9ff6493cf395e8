"""Wrong input costs the view it concerns, or is named in a sentence; it never crashes a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streams.taskonomy_files import BUILDINGS, VIEWS, path_of, write_array, write_taskonomy

from reprise.build import Cell
from reprise.config import make_experiment
from reprise.errors import InputError
from reprise.ledger import settle
from reprise.streams import stream_kind, stream_of
from reprise.streams.loading import Wanted, load_taskonomy
from reprise.streams.scenes import Scenes
from reprise.streams.taskonomy.domains import TASKS
from reprise.train import Outcome, Trainer

SMALL: dict[str, Any] = {
    **{"size": 16, "buildings": "points", "encoder": "convnet-small", "batch": 2, "steps": 1},
    **{"sequence": "depth,class_object,segment_semantic,normal"},
}
CHECKED = len(BUILDINGS) * len(VIEWS)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "cache"))
    return write_taskonomy(tmp_path / "files")


def loaded(root: Path) -> Scenes:
    return load_taskonomy(root, Wanted(16, "points", workers=1))


def trained(pool: Scenes, **fields: Any) -> Outcome:
    wanted = make_experiment("taskonomy", "sgd", SMALL | fields, stream_kind("taskonomy").protocol_of("sgd"))
    stream = stream_of(wanted, 0, pool)
    return Trainer([Cell(settle(wanted, stream), 0, stream)], torch.device("cpu")).run()[0]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def enlarge(path: Path) -> None:
    write_array(path, np.full((24, 24), 300, np.uint16))


def without_depth(path: Path) -> None:
    write_array(path, np.full((16, 16), 65535, np.uint16))


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (truncate, "1 depth_zbuffer unreadable"),
        (enlarge, "1 depth_zbuffer mismatching"),
        (without_depth, "1 depth_zbuffer empty"),
        (remove, "1 depth_zbuffer missing"),
    ],
    ids=["truncated PNG", "wrong size", "all-missing depth", "a view without its label"],
)
def test_a_view_with_a_bad_label_is_left_out_of_its_tasks(
    files: Path, harm: Callable[[Path], None], why: str
) -> None:
    harm(path_of(files, "depth_zbuffer"))
    pool = loaded(files)
    assert pool.warnings(("depth", "normal", "class_object")) == [
        f"depth: 1 of {CHECKED} views left out ({why})",
        f"normal: 1 of {CHECKED} views left out ({why})",
    ]
    assert len(pool.packed.rows("depth")) == CHECKED - 1
    assert len(pool.packed.rows("class_object")) == CHECKED
    assert np.isfinite(np.array(trained(pool).loss[-1], float)).all()


def test_an_unknown_task_is_named_with_those_there_are(files: Path) -> None:
    with pytest.raises(InputError, match="sequence: 'detph' is no Taskonomy task; choose from curvature"):
        trained(loaded(files), sequence="detph")


def test_an_unreadable_folder_costs_the_tasks_that_need_it(files: Path) -> None:
    for building in BUILDINGS:
        folder = path_of(files, "normal", building).parent
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.write_text("a file, no folder")
    pool = loaded(files)
    assert len(pool.packed.rows("normal")) == 0
    assert len(pool.packed.rows("depth")) == CHECKED
    with pytest.raises(InputError, match="task 'normal' has no train examples"):
        trained(pool, sequence="normal")


def test_an_unreadable_image_folder_is_named(files: Path) -> None:
    folder = path_of(files, "rgb", "adams").parent
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(InputError, match="adams holds no image"):
        loaded(files)


def test_logits_where_probabilities_are_expected_become_probabilities(files: Path) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (1, 1000)).astype(np.float32)
    write_array(path_of(files, "class_object"), logits)
    pool = loaded(files)
    assert len(pool.packed.rows("class_object")) == CHECKED
    names = pool.source.names(TASKS["class_object"], masks=True)
    y = pool.source.take(torch.arange(1), names)["y"][0].double().numpy()
    expected = np.exp(logits[0].astype(np.float64))
    assert np.allclose(y, expected / expected.sum(), atol=1e-7)
