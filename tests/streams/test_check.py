"""The report on data files: every file with its state, every problem, not only the first."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reprise.errors import InputError
from reprise.streams import check as module
from reprise.streams import files
from reprise.streams.check import check
from reprise.streams.fetch import md5_of

CIFAR = "cifar-100-python"
WNIDS = [f"n{number:08d}" for number in range(100)]
UNOFFICIAL = "well-formed, not the official files"


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-100 with 2 training images and 1 test image of each class."""
    monkeypatch.setattr(files, "CIFAR_PER_CLASS", {"train": 2, "test": 1})
    content: dict[str, Any] = {"meta": {"fine_label_names": [f"class {label}" for label in range(100)]}}
    for part, count in files.CIFAR_PER_CLASS.items():
        labels = list(range(100)) * count
        content[part] = {"data": np.zeros((len(labels), 3072), np.uint8), "fine_labels": labels}
    (tmp_path / CIFAR).mkdir()
    for name, value in content.items():
        (tmp_path / CIFAR / name).write_bytes(pickle.dumps(value))
    return tmp_path


@pytest.fixture(scope="module")
def jpeg_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jpegs") / "mini-imagenet"
    for part, count in (("train", 2), ("val", 1)):
        for number, wnid in enumerate(WNIDS):
            (root / part / wnid).mkdir(parents=True)
            for name in range(count):
                Image.new("RGB", (84, 84), (number, name, 0)).save(root / part / wnid / f"{name}.jpg")
    return root


@pytest.fixture
def jpegs(jpeg_tree: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(jpeg_tree, tmp_path / "mini-imagenet"))


def write_pickles(folder: Path, count: int = 6) -> Path:
    folder.mkdir()
    for split, wnids in {"train": WNIDS[36:], "val": WNIDS[:16], "test": WNIDS[16:36]}.items():
        images = np.zeros((len(wnids) * count, 84, 84, 3), np.uint8)
        rows = {wnid: list(range(k * count, (k + 1) * count)) for k, wnid in enumerate(wnids)}
        content = {"image_data": images, "class_dict": rows}
        (folder / f"mini-imagenet-cache-{split}.pkl").write_bytes(pickle.dumps(content))
    return folder


def test_an_unknown_stream_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="stream: 'cifar' has no data .*choose one of split-cifar, split-mini-imagenet"
    ):
        check("cifar", tmp_path)


@pytest.mark.parametrize("below", ["", CIFAR])
def test_an_unofficial_cifar_is_well_formed(below: str, cifar: Path) -> None:
    report = check("split-cifar", cifar / below)
    assert report.ok
    assert report.lines == [
        f"{CIFAR}/train: {UNOFFICIAL}",
        "train: 200 images of 100 classes, 2 a class",
        f"{CIFAR}/test: {UNOFFICIAL}",
        "test: 100 images of 100 classes, 1 a class",
        f"{CIFAR}/meta: {UNOFFICIAL}",
    ]


def test_a_file_with_the_published_md5_is_official(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official = module.OFFICIAL_FILES | {"test": md5_of(cifar / CIFAR / "test")}
    monkeypatch.setattr(module, "OFFICIAL_FILES", official)
    report = check("split-cifar", cifar)
    assert report.ok
    assert f"{CIFAR}/test: official" in report.lines
    assert f"{CIFAR}/train: {UNOFFICIAL}" in report.lines


def test_all_problems_of_cifar_are_listed(cifar: Path) -> None:
    (cifar / CIFAR / "train").write_bytes(b"<html>")
    (cifar / CIFAR / "test").unlink()
    report = check("split-cifar", cifar)
    assert not report.ok
    assert report.lines[0].startswith(
        f"{CIFAR}/train: corrupt: {cifar}/{CIFAR}/train is not a readable pickle"
    )
    assert report.lines[1:3] == [f"{CIFAR}/test: missing", f"{CIFAR}/meta: {UNOFFICIAL}"]
    assert report.lines[3].endswith("get it with `reprise data fetch cifar100 --data DIR`")


def test_a_class_of_cifar_with_too_few_images_is_named(cifar: Path) -> None:
    labels = [*range(99), 0]
    content = {"data": np.zeros((100, 3072), np.uint8), "fine_labels": labels}
    (cifar / CIFAR / "test").write_bytes(pickle.dumps(content))
    report = check("split-cifar", cifar)
    assert not report.ok
    assert "100 images, 100 labels, 2 of class 0, 0 of class 99, not 1 of each class" in report.lines[2]


def test_a_folder_in_the_place_of_a_file_is_corrupt(cifar: Path) -> None:
    (cifar / CIFAR / "meta").unlink()
    (cifar / CIFAR / "meta").mkdir()
    (cifar / CIFAR / "test").unlink()
    (cifar / CIFAR / "test").symlink_to("test")
    report = check("split-cifar", cifar)
    assert not report.ok
    assert "test cannot be read (Too many levels of symbolic links)" in report.lines[2]
    assert "corrupt" in report.lines[3]
    assert "meta is not a regular file" in report.lines[3]


@pytest.mark.parametrize("stream", ["split-cifar", "split-mini-imagenet"])
@pytest.mark.parametrize("root", ["nothing", "a\0b"])
def test_nothing_at_all_is_missing(stream: str, root: str, tmp_path: Path) -> None:
    report = check(stream, tmp_path / root)
    assert not report.ok
    assert sum(line.endswith("/train: missing") for line in report.lines) == 1


@pytest.mark.parametrize("below", ["", "mini-imagenet"])
def test_a_small_mini_imagenet_is_well_formed(below: str, jpeg_tree: Path) -> None:
    report = check("split-mini-imagenet", jpeg_tree.parent / below)
    assert report.ok
    assert report.lines[:3] == [
        f"mini-imagenet/train: {UNOFFICIAL}",
        f"mini-imagenet/val: {UNOFFICIAL}",
        "train: 200 images of 100 classes, 2 a class",
    ]
    few = "fewer images than the full set's 500 in 100 classes: n00000000 (2), "
    assert report.lines[3].startswith(f"train: {few}")
    assert report.lines[3].endswith("n00000009 (2) and 90 more")


def test_a_full_mini_imagenet_has_no_class_with_too_few(
    jpeg_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MINI_PER_CLASS", {"train": 2, "test": 1})
    report = check("split-mini-imagenet", jpeg_tree)
    assert report.ok
    assert report.lines[2:] == [
        "train: 200 images of 100 classes, 2 a class",
        "test: 100 images of 100 classes, 1 a class",
    ]


def test_a_class_with_too_few_pictures_is_named(jpegs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MINI_PER_CLASS", {"train": 2, "test": 1})
    (jpegs / "train" / WNIDS[7] / "1.jpg").unlink()
    report = check("split-mini-imagenet", jpegs)
    assert report.ok
    assert "train: 199 images of 100 classes, 1 to 2 a class" in report.lines
    assert f"train: fewer images than the full set's 2 in 1 classes: {WNIDS[7]} (1)" in report.lines


def test_broken_pictures_are_listed_up_to_ten(jpegs: Path) -> None:
    for wnid in WNIDS[:12]:
        path = jpegs / "train" / wnid / "1.jpg"
        path.write_bytes(path.read_bytes()[:-200])
    (jpegs / "val" / WNIDS[50] / "0.jpg").write_bytes(b"")
    report = check("split-mini-imagenet", jpegs)
    assert not report.ok
    assert report.lines[0] == "mini-imagenet/train: corrupt: 12 of 200 pictures"
    for line, wnid in zip(report.lines[1:11], WNIDS, strict=False):
        assert f"train/{wnid}/1.jpg is not a readable JPEG" in line
    assert report.lines[11:13] == ["  and 2 more", "mini-imagenet/val: corrupt: 1 of 100 pictures"]
    assert f"val/{WNIDS[50]}/0.jpg is not a readable JPEG (no JPEG data)" in report.lines[13]


def test_exactly_ten_broken_pictures_have_no_more(jpegs: Path) -> None:
    for wnid in WNIDS[:10]:
        (jpegs / "val" / wnid / "0.jpg").write_bytes(b"x")
    report = check("split-mini-imagenet", jpegs)
    assert sum("is not a readable JPEG" in line for line in report.lines) == 10
    assert not any(line.startswith("  and") for line in report.lines)


def test_classes_in_one_part_only_and_their_number_are_told(jpegs: Path) -> None:
    shutil.rmtree(jpegs / "val" / WNIDS[3])
    for part in ("train", "val"):
        shutil.rmtree(jpegs / part / WNIDS[9])
    report = check("split-mini-imagenet", jpegs)
    assert not report.ok
    assert f"test: missing: no images of {WNIDS[3]}" in report.lines
    assert report.lines[-1].startswith("mini-imagenet: 99 classes, not 100; put")


def test_a_missing_part_does_not_hide_the_other(jpegs: Path) -> None:
    shutil.rmtree(jpegs / "train")
    report = check("split-mini-imagenet", jpegs)
    assert not report.ok
    assert report.lines[:2] == ["mini-imagenet/train: missing", f"mini-imagenet/val: {UNOFFICIAL}"]


def test_pickles_of_mini_imagenet_are_counted_as_they_are_divided(tmp_path: Path) -> None:
    report = check("split-mini-imagenet", write_pickles(tmp_path / "mini-imagenet"))
    assert report.ok
    assert report.lines[:3] == [
        f"mini-imagenet/mini-imagenet-cache-{split}.pkl: {UNOFFICIAL}" for split in ("train", "val", "test")
    ]
    assert "train: 500 images of 100 classes, 5 a class" in report.lines
    assert "test: 100 images of 100 classes, 1 a class" in report.lines


def test_all_problems_of_the_pickles_are_listed(tmp_path: Path) -> None:
    folder = write_pickles(tmp_path / "mini-imagenet")
    (folder / "mini-imagenet-cache-train.pkl").unlink()
    (folder / "mini-imagenet-cache-val.pkl").write_bytes(b"")
    report = check("split-mini-imagenet", tmp_path)
    assert not report.ok
    assert report.lines[0] == "mini-imagenet/mini-imagenet-cache-train.pkl: missing"
    assert "cache-val.pkl: corrupt: " in report.lines[1]
    assert report.lines[2] == f"mini-imagenet/mini-imagenet-cache-test.pkl: {UNOFFICIAL}"
    assert report.lines[-1].startswith("mini-imagenet: 20 classes, not 100")


@pytest.mark.parametrize("build", ["jpegs", "pickles"])
def test_what_the_check_passes_the_reader_reads(build: str, jpeg_tree: Path, tmp_path: Path) -> None:
    folder = jpeg_tree if build == "jpegs" else write_pickles(tmp_path / "mini-imagenet")
    assert check("split-mini-imagenet", folder).ok
    train, test = files.read_mini_imagenet(folder)
    assert train.classes == test.classes == tuple(WNIDS)
