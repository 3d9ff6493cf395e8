"""Packs: what is read back, the same bytes whatever the workers, resuming, damage, and a real building."""

from __future__ import annotations

import json
import os
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest
from taskonomy_files import BUILDINGS, SIZE, VIEWS, official, path_of, write_array, write_taskonomy

from reprise.errors import InputError
from reprise.streams.taskonomy import TASKS, check_taskonomy, load_pack, pack
from reprise.streams.taskonomy.domains import DOMAINS
from reprise.streams.taskonomy.layout import read_view, scan
from reprise.streams.taskonomy.targets import depth_mask, flip, target


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_taskonomy(tmp_path / "taskonomy")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def stop_at(number: int):
    def progress(done: int, total: int) -> None:
        if done >= number:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("size", [SIZE, 8, 7])
def test_round_trip(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("reprise.streams.taskonomy.packing.CHUNK", 3)  # several jobs a building
    summary = pack(root, tmp_path / "out", size)
    assert (summary.packed, summary.already, summary.views, summary.warnings) == (BUILDINGS, (), 8, ())
    packed = load_pack(tmp_path / "out")
    assert (len(packed), packed.size) == (8, size)
    assert packed.views.tolist() == [[k, *view] for k in range(2) for view in VIEWS]
    for row, (owner, *view) in enumerate(packed.views.tolist()):
        building = scan(root, BUILDINGS[owner], DOMAINS.values())
        arrays, _, _ = read_view(building, tuple(view), DOMAINS.values(), size)
        for name in DOMAINS:
            assert (packed.take(name, np.array([row]))[0] == arrays[name]).all()
    assert packed.verify() == []
    assert packed.bytes == summary.bytes
    assert packed.channel_mean() == pytest.approx(packed.take("rgb", np.arange(8)).mean((0, 2, 3)) / 255)
    assert len(packed.channel_mean(["brown"])) == 3


def test_batches(root: Path, tmp_path: Path) -> None:
    depth = official("depth_zbuffer", np.random.default_rng(3))
    depth[4, 4] = 65535
    write_array(path_of(root, "depth_zbuffer", "brown", (2, 0)), depth)
    pack(root, tmp_path / "out", SIZE)
    packed = load_pack(tmp_path / "out")
    rows = np.array([6, 1, 6])
    for name, task in TASKS.items():
        x, y, mask = packed.batch(name, rows)
        valid = depth_mask(packed.take("depth_zbuffer", rows))
        expected, expected_mask = target(name, packed.take(task.domain, rows), valid)
        assert (x == packed.take("rgb", rows)).all()
        assert (y == expected).all()
        assert (mask is None) == (expected_mask is None)
        if task.masked:
            assert mask is not None
            assert (~mask).sum((1, 2, 3)).tolist() == [1, 0, 1]
            assert packed.batch(name, rows, masks=False)[2] is None
        mirrored = packed.batch(name, rows, np.array([True, True, False]))
        whole = flip(x, y, mask, name)
        for got, flipped, plain in zip(mirrored, whole, (x, y, mask), strict=True):
            if plain is not None:
                assert got is not None
                assert flipped is not None
                assert (got[:2] == flipped[:2]).all()
                assert (got[2] == plain[2]).all()


def test_workers_do_not_change_the_bytes_and_resume(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reprise.streams.taskonomy.packing.CHUNK", 3)
    seen: list[tuple[int, int]] = []
    pack(root, tmp_path / "one", 8, progress=lambda *numbers: seen.append(numbers))
    assert seen == [(3, 8), (4, 8), (7, 8), (8, 8)]
    with pytest.raises(KeyboardInterrupt):
        pack(root, tmp_path / "two", 8, workers=2, progress=stop_at(5))
    assert (tmp_path / "two" / ".brown.part").is_dir()
    summary = pack(root, tmp_path / "two", 8, workers=2)
    assert (summary.packed, summary.already) == (("brown",), ("adams",))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    first, second = load_pack(tmp_path / "one"), load_pack(tmp_path / "two")
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("moment", [1, 4, 5, 8])
def test_resume_after_an_interruption(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    monkeypatch.setattr("reprise.streams.taskonomy.packing.CHUNK", 1)
    pack(root, tmp_path / "straight", 8)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        pack(root, out, 8, progress=stop_at(moment))
    complete = ["adams"] if moment > 4 else []
    assert sorted(name for name in os.listdir(out) if not name.startswith(".")) == [*complete, "pack.json"]
    before = {name: os.stat(out / name / "index.json").st_mtime_ns for name in complete}
    summary = pack(root, out, 8)
    assert list(summary.already) == complete
    assert contents(out) == contents(tmp_path / "straight")
    assert before == {name: os.stat(out / name / "index.json").st_mtime_ns for name in complete}
    assert pack(root, out, 8).packed == ()


def test_the_place_of_the_files_does_not_matter(root: Path, tmp_path: Path) -> None:
    path_of(root, "normal").write_bytes(b"")
    path_of(root, "depth_zbuffer", view=(0, 1)).unlink()
    pack(root, tmp_path / "one", 8)
    os.rename(root, tmp_path / "moved")
    pack(tmp_path / "moved", tmp_path / "two", 8)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_broken_labels_are_counted_and_left_out(root: Path, tmp_path: Path) -> None:
    content = path_of(root, "normal").read_bytes()
    path_of(root, "normal").write_bytes(content[:-20])
    path_of(root, "class_object", "brown", (2, 0)).unlink()
    path_of(root, "rgb", "brown", (10, 3)).write_bytes(b"")
    write_array(path_of(root, "depth_zbuffer", view=(0, 1)), np.full((SIZE, SIZE), 65535, np.uint16))
    summary = pack(root, tmp_path / "out", 8)
    packed = load_pack(tmp_path / "out")
    assert packed.rows("normal").tolist() == [2, 3, 4, 5, 6]
    assert packed.rows("normal", masks=False).tolist() == [1, 2, 3, 4, 5, 6]
    assert packed.rows("normal", ["brown"]).tolist() == [4, 5, 6]
    assert packed.rows("class_object").tolist() == [0, 1, 2, 3, 4, 5]
    assert packed.rows("edge_texture").tolist() == [0, 1, 2, 3, 4, 5, 6]
    left_out = "(1 depth_zbuffer empty, 1 normal unreadable, 1 rgb unreadable)"
    assert f"normal: 3 of 8 views left out {left_out}" in summary.warnings
    assert "edge_texture: 1 of 8 views left out (1 rgb unreadable)" in summary.warnings
    assert len(summary.warnings) == 11
    assert packed.left_out("depth") == (
        "depth: 2 of 8 views left out (1 depth_zbuffer empty, 1 rgb unreadable)"
    )
    assert packed.channel_mean() == pytest.approx(packed.take("rgb", np.arange(7)).mean((0, 2, 3)) / 255)
    for name in TASKS:
        x, y, _ = packed.batch(name, packed.rows(name))
        assert len(x) == len(y) == len(packed.rows(name))
        assert np.isfinite(y).all()


def test_absent_domains_and_views_without_image(root: Path, tmp_path: Path) -> None:
    os.rename(root / "reshading" / "taskonomy" / "adams", tmp_path / "elsewhere")
    path_of(root, "rgb", "brown", (0, 0)).unlink()
    summary = pack(root, tmp_path / "out", 8)
    packed = load_pack(tmp_path / "out")
    assert packed.rows("reshading").tolist() == [4, 5, 6]
    assert not (tmp_path / "out" / "adams" / "reshading.npy").exists()
    assert summary.warnings == (
        "reshading: 4 of 7 views left out (4 reshading missing)",
        "rgb: 1 views have labels but no image",
    )


def test_some_tasks_and_buildings(root: Path, tmp_path: Path) -> None:
    summary = pack(root, tmp_path / "out", 8, buildings=["brown"], tasks=["edge_texture", "normal"])
    assert summary.packed == ("brown",)
    assert sorted(os.listdir(tmp_path / "out" / "brown")) == [
        *("depth_zbuffer.npy", "edge_texture.npy", "index.json", "normal.npy", "rgb.npy")
    ]
    packed = load_pack(tmp_path / "out")
    assert len(packed.rows("normal")) == 4
    assert packed.rows("depth").tolist() == [0, 1, 2, 3]  # normal needs it for its mask
    with pytest.raises(InputError, match="tasks: keypoints2d needs keypoints2d, not in this pack"):
        packed.batch("keypoints2d", np.arange(4))
    with pytest.raises(InputError, match="adams not in this pack"):
        packed.rows("normal", ["adams"])


def test_a_later_download_is_packed_anew(root: Path, tmp_path: Path) -> None:
    late = path_of(root, "normal").read_bytes()
    path_of(root, "normal").unlink()
    assert pack(root, tmp_path / "out", 8).warnings
    path_of(root, "normal").write_bytes(late)
    summary = pack(root, tmp_path / "out", 8)
    assert (summary.packed, summary.already, summary.warnings) == (("adams",), ("brown",), ())


def test_wrong_input(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match="size: 32 is more than the 16 pixels of adams; give at most 16"):
        pack(root, out, 32)
    with pytest.raises(InputError, match="buildings: clark not found in .*; it holds adams, brown"):
        pack(root, out, 8, buildings=["adams", "clark"])
    with pytest.raises(InputError, match="'dpeth' is no Taskonomy task"):
        pack(root, out, 8, tasks=["dpeth"])
    with pytest.raises(InputError, match="size 0 and workers 1 must be positive"):
        pack(root, out, 0)
    with pytest.raises(InputError, match="nowhere does not exist; put <domain>/taskonomy/<building>"):
        pack(tmp_path / "nowhere", out, 8)
    assert not out.exists()
    with pytest.raises(InputError, match="rgb is no pack and holds taskonomy; choose an empty folder"):
        pack(root, root / "rgb", 8)  # whose buildings it must not replace
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be written"):
        pack(root, tmp_path / "file" / "out", 8)
    with pytest.raises(InputError, match="holds no pack.json"):
        load_pack(out)
    pack(root, out, 8)
    with pytest.raises(InputError, match="is a pack with size 8; choose another folder"):
        pack(root, out, 4)
    with pytest.raises(InputError, match="is a pack with domains"):
        pack(root, out, 8, tasks=["depth"])
    with pytest.raises(InputError, match="holds no clark"):
        load_pack(out, ["clark"])
    with pytest.raises(InputError, match="'dpeth' is no Taskonomy task"):
        load_pack(out).rows("dpeth")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device"), "out cannot be written .No space left on device."),
        (BrokenProcessPool(), "workers: one was killed, perhaps for memory; run this again with fewer"),
    ],
)
def test_trouble_while_packing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    def fail(job: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("reprise.streams.taskonomy.packing._pack_views", fail)
        with pytest.raises(InputError, match=sentence):
            pack(root, tmp_path / "out", 8)
    with pytest.raises(InputError, match="holds no complete building"):
        load_pack(tmp_path / "out")
    assert pack(root, tmp_path / "out", 8).packed == BUILDINGS


def test_a_building_without_images(root: Path, tmp_path: Path) -> None:
    (root / "rgb" / "taskonomy" / "clark").mkdir()
    with pytest.raises(InputError, match="clark holds no image"):
        pack(root, tmp_path / "out", 8)
    assert not check_taskonomy(root).ok


def test_damage_is_found_on_demand(root: Path, tmp_path: Path) -> None:
    pack(root, tmp_path / "out", 8)
    path = tmp_path / "out" / "brown" / "normal.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    (sentence,) = load_pack(tmp_path / "out").verify()
    assert "brown/normal.npy is damaged (its checksum differs); delete brown and pack again" in sentence


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pack.json", b"{"),
        ("pack.json", b'{"format": 1}'),
        ("pack.json", b'{"format": 2, "size": 8}'),
        ("adams/index.json", b"[]"),
        ("adams/index.json", b'{"format": 1}'),
        ("adams/index.json", b"\xff"),
        ("adams/rgb.npy", b""),
        ("adams/rgb.npy", b"\x93NUMPY\x01\x00"),
        ("adams/rgb.npy", None),
    ],
)
def test_a_damaged_pack_is_refused_in_a_sentence(
    root: Path, tmp_path: Path, name: str, content: bytes | None
) -> None:
    out = tmp_path / "out"
    pack(root, out, 8)
    (out / name).unlink() if content is None else (out / name).write_bytes(content)
    with pytest.raises(InputError):
        load_pack(out)


def test_an_index_that_does_not_fit(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(root, out, 8)
    path = out / "adams" / "index.json"
    index = json.loads(path.read_text())
    index["views"].pop()
    path.write_text(json.dumps(index))
    with pytest.raises(
        InputError, match="adams is not a sound part of this pack .*; delete it and pack again"
    ):
        load_pack(out)
    pack(root, out, 8)  # the index is not what the files would give: the building is done anew
    assert len(load_pack(out)) == 8


# A real building, where there is one: REPRISE_DATA is the folder that holds `rgb`, or `taskonomy`.

DATA = os.environ.get("REPRISE_DATA")


@pytest.mark.skipif(not DATA, reason="REPRISE_DATA names no folder with a building of Taskonomy")
def test_a_real_building(tmp_path: Path) -> None:
    assert DATA
    report = check_taskonomy(DATA)
    assert report.ok, report.lines
    pack(DATA, tmp_path / "out", 128)
    packed = load_pack(tmp_path / "out")
    for name, task in TASKS.items():
        rows = packed.rows(name)
        assert len(rows) > 0.9 * len(packed)
        _, y, mask = packed.batch(name, rows)
        assert np.isfinite(y).all()
        if not task.kind.dense:
            np.testing.assert_allclose(y.sum(1), 1, rtol=1e-4)
        elif name != "edge_occlusion" and y.dtype == np.float32:
            assert -1 <= y.min() <= y.max() <= 1
        if mask is not None:
            assert mask.mean() > 0.8
