"""The strict reader and its report: both layouts, every wrong input, what is usable for what."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from taskonomy_files import SIZE, VIEWS, official, path_of, write_array, write_taskonomy

from reprise.errors import InputError
from reprise.streams.taskonomy import check_taskonomy
from reprise.streams.taskonomy.domains import DOMAINS, TASKS
from reprise.streams.taskonomy.layout import building_names, decode, find_root, obstacle, read_view, scan

RNG = np.random.default_rng(1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_taskonomy(tmp_path / "taskonomy")


def state(path: Path, domain: str) -> str:
    found = decode(path, DOMAINS[domain])
    assert isinstance(found, str)
    return found


def usable(root: Path, view: tuple[int, int] = (0, 0), masks: bool = True) -> set[str]:
    building = scan(root, "adams", DOMAINS.values())
    _, problems, _ = read_view(building, view, DOMAINS.values())
    return {name for name, task in TASKS.items() if not obstacle(task, problems, building.absent, masks)}


MASKED = {name for name, task in TASKS.items() if task.masked}


@pytest.mark.parametrize("short", [False, True])
def test_both_layouts(tmp_path: Path, short: bool) -> None:
    root = write_taskonomy(tmp_path / "taskonomy", short)
    assert find_root(tmp_path) == find_root(root) == root
    assert building_names(root) == ["adams", "brown"]
    building = scan(root, "brown", DOMAINS.values())
    assert building.views == VIEWS  # in the order of numbers: 2 before 10
    assert (dict(building.absent), building.without_image) == ({}, 0)
    arrays, problems, pixels = read_view(building, (10, 3), DOMAINS.values())
    assert (problems, pixels) == ({}, SIZE)
    for name, domain in DOMAINS.items():
        assert arrays[name].shape == domain.shape(SIZE)
        assert arrays[name].dtype == domain.dtype
    assert check_taskonomy(tmp_path).ok


def test_layouts_may_differ_between_domains(root: Path) -> None:
    os.rename(root / "depth_zbuffer" / "taskonomy" / "adams", root / "depth_zbuffer" / "adams")
    assert usable(root) == set(TASKS)


def test_decoded_values(root: Path) -> None:
    depth = np.arange(SIZE * SIZE, dtype=np.uint16).reshape(SIZE, SIZE) * 257
    write_array(path_of(root, "depth_zbuffer"), depth)
    found = decode(path_of(root, "depth_zbuffer"), DOMAINS["depth_zbuffer"])
    assert (found == depth[None]).all()
    curvature = official("principal_curvature", RNG)
    write_array(path_of(root, "principal_curvature"), curvature)
    found = decode(path_of(root, "principal_curvature"), DOMAINS["principal_curvature"])
    assert (found == curvature[..., :2].transpose(2, 0, 1)).all()
    logits = RNG.normal(size=(1, 1000))  # the sample building's shape, and float64
    write_array(path_of(root, "class_object"), logits)
    found = decode(path_of(root, "class_object"), DOMAINS["class_object"])
    assert (found == logits[0].astype(np.float32)).all()


# One wrong file


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.9, 0.99])
def test_truncated_png(root: Path, keep: float) -> None:
    for domain in ("rgb", "normal", "depth_zbuffer", "segment_semantic"):
        path = path_of(root, domain)
        content = path.read_bytes()
        path.write_bytes(content[: int(keep * len(content))])
        assert state(path, domain).startswith("unreadable: ")
    assert usable(root) == set()
    assert usable(root, (0, 1)) == set(TASKS)


def test_every_flipped_byte_is_noticed(root: Path) -> None:
    path = path_of(root, "segment_semantic")
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 16]) + content[position + 1 :])
        assert isinstance(decode(path, DOMAINS["segment_semantic"]), str), position


def test_a_label_of_another_size(root: Path) -> None:
    write_array(path_of(root, "normal"), official("normal", RNG, 8))
    building = scan(root, "adams", DOMAINS.values())
    _, problems, _ = read_view(building, (0, 0), DOMAINS.values())
    assert problems == {"normal": "mismatching: 8 x 8 pixels, but its image has 16 x 16"}
    assert usable(root) == set(TASKS) - {"normal"}
    write_array(path_of(root, "normal"), official("normal", RNG)[:8])
    assert state(path_of(root, "normal"), "normal") == "mismatching: 16 x 8 pixels is not a square picture"


@pytest.mark.parametrize(
    ("domain", "mode"),
    [("rgb", "L"), ("rgb", "RGBA"), ("depth_zbuffer", "L"), ("normal", "P"), ("segment_semantic", "I;16")],
)
def test_a_picture_of_another_mode(root: Path, domain: str, mode: str) -> None:
    path = path_of(root, domain)
    Image.new(mode, (SIZE, SIZE)).save(path)
    assert state(path, domain) == f"mismatching: a picture of mode {mode}, not {DOMAINS[domain].mode}"


def test_a_jpeg_called_png(root: Path) -> None:
    Image.new("RGB", (SIZE, SIZE)).save(path_of(root, "rgb"), "JPEG")
    assert state(path_of(root, "rgb"), "rgb") == "unreadable: it is no PNG"


def test_a_segment_class_that_does_not_exist(root: Path) -> None:
    write_array(path_of(root, "segment_semantic"), np.full((SIZE, SIZE), 18, np.uint8))
    assert state(path_of(root, "segment_semantic"), "segment_semantic").startswith(
        "mismatching: it holds class 18"
    )


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.ones(999, np.float32), r"mismatching: it holds float32 \(999,\), not float \(1000,\)"),
        (np.ones((1000, 1), np.float32), "mismatching: it holds float32"),
        (np.ones(1000, np.int64), "mismatching: it holds int64"),
        (np.full(1000, np.nan, np.float32), "mismatching: 1000 of 1000 values are not finite"),
        (np.array([1e300] + [0.0] * 999), "mismatching: 1 of 1000 values are not finite"),
        (np.array([object()]), "unreadable: .*pickle"),
    ],
)
def test_wrong_vectors(root: Path, array: np.ndarray, sentence: str) -> None:
    np.save(path_of(root, "class_object"), array, allow_pickle=True)
    found = state(path_of(root, "class_object"), "class_object")
    assert re.match(sentence, found), found
    assert usable(root) == set(TASKS) - {"class_object"}


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04 no npz", b"\x80\x04N."])
def test_damaged_vectors(root: Path, content: bytes) -> None:
    path_of(root, "class_scene").write_bytes(content)
    assert state(path_of(root, "class_scene"), "class_scene").startswith("unreadable: ")


def test_a_cut_vector(root: Path) -> None:
    path = path_of(root, "class_scene")
    path.write_bytes(path.read_bytes()[:-4])
    assert state(path, "class_scene").startswith("unreadable: ")


def test_a_folder_or_a_pipe_in_place_of_a_file(root: Path) -> None:
    for make in (os.mkdir, os.mkfifo):
        path = path_of(root, "reshading")
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)
        assert state(path, "reshading").startswith("unreadable: ")
        assert usable(root) == set(TASKS) - {"reshading"}


# Labels without content


def test_all_missing_depth_costs_every_masked_task(root: Path) -> None:
    write_array(path_of(root, "depth_zbuffer"), np.full((SIZE, SIZE), 65535, np.uint16))
    _, problems, _ = read_view(scan(root, "adams", DOMAINS.values()), (0, 0), DOMAINS.values())
    assert problems == {"depth_zbuffer": "empty: no pixel has a depth"}
    assert usable(root) == set(TASKS) - MASKED
    assert usable(root, masks=False) == set(TASKS) - {"depth"}
    report = check_taskonomy(root)
    assert report.ok  # it is so in the world, not a defect of the copy
    assert "adams/depth_zbuffer: 1 empty of 4 files" in report.lines
    assert "normal: 1 of 8 views left out (1 depth_zbuffer empty)" in report.lines


@pytest.mark.parametrize(
    ("domain", "array", "sentence"),
    [
        ("segment_semantic", np.zeros((SIZE, SIZE), np.uint8), "empty: every pixel is uncertain"),
        ("class_object", np.zeros(1000, np.float32), "empty: all classes have the same value"),
        ("class_scene", np.eye(365, dtype=np.float32)[0], "empty: no probability on the 63 scene classes"),
    ],
)
def test_labels_that_say_nothing(root: Path, domain: str, array: np.ndarray, sentence: str) -> None:
    write_array(path_of(root, domain), array)
    _, problems, _ = read_view(scan(root, "adams", DOMAINS.values()), (0, 0), DOMAINS.values())
    assert problems == {domain: sentence}
    assert usable(root) == set(TASKS) - {domain}


# Views and folders


def test_a_view_without_its_label(root: Path) -> None:
    path_of(root, "keypoints2d").unlink()
    assert usable(root) == set(TASKS) - {"keypoints2d"}
    report = check_taskonomy(root)
    assert report.ok
    assert "adams/keypoints2d: 1 missing of 4 files" in report.lines
    assert "keypoints2d: 1 of 8 views left out (1 keypoints2d missing)" in report.lines
    assert "depth: all 8 views usable" in report.lines


def test_a_view_without_its_image(root: Path) -> None:
    path_of(root, "rgb").unlink()
    building = scan(root, "adams", DOMAINS.values())
    assert (building.views, building.without_image) == (VIEWS[1:], 1)
    assert "adams: 1 more views have labels but no image" in check_taskonomy(root).lines


def test_foreign_files_are_passed_over(root: Path) -> None:
    folder = path_of(root, "rgb").parent
    for name in (
        "point_00_view_0_domain_rgb.png",
        "point_0_view_0_domain_rgb.png.part",
        "point_0_view_9_domain_depth_zbuffer.png",
        ".DS_Store",
        "notes.txt",
    ):
        (folder / name).write_bytes(b"x")
    assert scan(root, "adams", DOMAINS.values()).views == VIEWS


def test_an_absent_domain(root: Path) -> None:
    for building in ("adams", "brown"):
        for view in VIEWS:
            path_of(root, "reshading", building, view).unlink()
    os.rmdir(root / "reshading" / "taskonomy" / "adams")
    assert usable(root) == set(TASKS) - {"reshading"}
    report = check_taskonomy(root)
    assert not report.ok  # a task without any view
    assert "adams/reshading: missing" in report.lines
    assert "reshading: 8 of 8 views left out (8 reshading missing)" in report.lines
    assert check_taskonomy(root, tasks=["depth", "normal"]).ok


def test_an_unreadable_folder_of_labels(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, listdir = path_of(root, "normal").parent, os.listdir

    def refuse(path: str | Path) -> list[str]:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert usable(root) == set(TASKS) - {"normal"}
    report = check_taskonomy(root)
    assert not report.ok
    assert "adams/normal: folder unreadable: Permission denied" in report.lines
    assert "normal: 4 of 8 views left out (4 normal unreadable)" in report.lines


def test_a_file_in_place_of_a_folder(root: Path) -> None:
    os.rename(root / "normal", root / "elsewhere")
    (root / "normal" / "taskonomy").mkdir(parents=True)
    (root / "normal" / "taskonomy" / "adams").write_bytes(b"")
    assert usable(root) == set(TASKS) - {"normal"}
    assert "adams/normal: folder unreadable: Not a directory" in check_taskonomy(root).lines


def test_an_unreadable_folder_of_images(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, listdir = path_of(root, "rgb").parent, os.listdir

    def refuse(path: str | Path) -> list[str]:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(InputError, match="adams cannot be listed .Permission denied."):
        scan(root, "adams", DOMAINS.values())
    report = check_taskonomy(root)
    assert not report.ok
    assert "depth: all 4 views usable" in report.lines  # of the other building


def test_the_report_names_every_broken_file(root: Path) -> None:
    for domain in ("normal", "rgb"):
        for view in VIEWS[:2]:
            path_of(root, domain, view=view).write_bytes(b"not a picture")
    report = check_taskonomy(root)
    assert not report.ok
    assert "adams: 4 views of 3 points, 16 x 16 pixels" in report.lines
    assert "adams/normal: 2 unreadable of 4 files" in report.lines
    assert "  point_0_view_1_domain_normal.png: unreadable: it is no PNG" in report.lines
    assert "depth: 2 of 8 views left out (2 rgb unreadable)" in report.lines


def test_long_lists_are_cut(root: Path) -> None:
    for number in range(20):
        path_of(root, "rgb", view=(100, number)).write_bytes(b"")
    assert "  and 10 more" in check_taskonomy(root, ["edge_texture"]).lines


def test_nothing_there(tmp_path: Path) -> None:
    report = check_taskonomy(tmp_path)
    assert not report.ok
    assert "holds no folder `taskonomy`; put <domain>/taskonomy/<building>/" in report.lines[0]
    (tmp_path / "rgb").mkdir()
    assert "holds no buildings" in check_taskonomy(tmp_path).lines[0]
    with pytest.raises(InputError, match="'dpeth' is no Taskonomy task"):
        check_taskonomy(tmp_path, ["dpeth"])
