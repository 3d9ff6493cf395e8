"""Rooms: the same bytes alone and in company, exact geometry, and files that read back as they were."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reprise.streams.rooms import DOMAINS, point_view, render, write_official
from reprise.streams.rooms.furniture import Look, Piece, Solid, ball, box, cylinder
from reprise.streams.rooms.kinds import KINDS
from reprise.streams.rooms.labels import domains
from reprise.streams.rooms.render import cast
from reprise.streams.rooms.room import Camera, Placed, Room, Window
from reprise.streams.rooms.scene import make_room
from reprise.streams.taskonomy.domains import SCENE_CLASSES

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def some() -> Arrays:
    return render(building=2, views=24, size=32)


def bare(*solids: Solid, window: Window | None = None) -> Room:
    """A white room of 6 m x 3 m x 6 m."""
    room = Room(
        "living_room", (6.0, 3.0, 6.0), (Look((0.9, 0.9, 0.9)),) * 6, window=window, light=(3.0, 2.9, 3.0)
    )
    room.pieces.append(Piece("thing", tuple(solids), 17, (883,)))
    room.solids += [Placed(solid, 1.0, 0.0, 0, True) for solid in solids]
    return room


def look(room: Room, size: int = 65, pitch: float = 0.0) -> Arrays:
    """One view from the middle of the back wall, 1 m in, straight ahead."""
    return {k: v[0] for k, v in domains(room, cast(room, [Camera(3.0, 1.5, 1.0, 0.0, pitch)], size)).items()}


def test_a_view_does_not_depend_on_what_is_rendered_with_it(some: Arrays) -> None:
    again = render(2, [23, 5, 0], 32)
    alone = render(2, [5], 32)
    for name in DOMAINS:
        assert again[name].tobytes() == some[name][[23, 5, 0]].tobytes(), name
        assert alone[name].tobytes() == some[name][5:6].tobytes(), name


def test_seeds_buildings_and_views_differ(some: Arrays) -> None:
    assert not np.array_equal(render(2, [0], 32, seed=1)["rgb"], some["rgb"][:1])
    assert not np.array_equal(render(3, [0], 32)["rgb"], some["rgb"][:1])
    assert len({image.tobytes() for image in some["rgb"]}) == 24


def test_the_official_formats(some: Arrays) -> None:
    assert tuple(some) == tuple(DOMAINS)
    for name in ("rgb", "normal", "principal_curvature", "reshading"):
        assert (some[name].dtype, some[name].shape) == (np.uint8, (24, 32, 32, 3)), name
    for name in ("depth_zbuffer", "edge_occlusion", "edge_texture", "keypoints2d", "keypoints3d"):
        assert (some[name].dtype, some[name].shape) == (np.uint16, (24, 32, 32)), name
    assert (some["segment_semantic"].dtype, some["segment_semantic"].max() <= 17) == (np.uint8, True)
    assert (some["class_object"].shape, some["class_scene"].shape) == ((24, 1000), (24, 365))
    assert not some["principal_curvature"][..., 2].any()
    assert (some["reshading"].min(-1) == some["reshading"].max(-1)).all()
    seen = some["depth_zbuffer"] != 65535
    assert some["depth_zbuffer"][seen].min() > 100
    assert some["depth_zbuffer"][seen].max() < 512 * 15
    length = np.linalg.norm(some["normal"][seen] / 127.5 - 1, axis=-1)
    assert np.abs(length - 1).max() < 0.01
    for name, low, high in (
        ("edge_texture", 100, 1500),
        ("edge_occlusion", 5, 100),
        ("keypoints2d", 5, 150),
        ("keypoints3d", 300, 9000),
    ):
        assert low < some[name].mean() < high, name


def test_missing_pixels_are_the_same_in_all_domains_that_have_a_code_for_them() -> None:
    arrays = {name: [] for name in DOMAINS}
    for building in range(4):
        for name, array in render(building, 16, 32).items():
            arrays[name].append(array)
    all_ = {name: np.concatenate(parts) for name, parts in arrays.items()}
    missing = all_["depth_zbuffer"] == 65535
    assert 0.002 < missing.mean() < 0.15
    np.testing.assert_array_equal((all_["normal"] == 128).all(-1), missing)
    np.testing.assert_array_equal((all_["principal_curvature"] == 0).all(-1), missing)
    assert (all_["reshading"][missing] == 13).all()


def test_probabilities(some: Arrays) -> None:
    for name in ("class_object", "class_scene"):
        assert some[name].dtype == np.float32
        assert (some[name] >= 0).all()
        np.testing.assert_allclose(some[name].sum(1), 1, atol=1e-5)
    others = np.setdiff1d(np.arange(365), SCENE_CLASSES)
    assert not some["class_scene"][:, others].any()
    expected = [KINDS[make_room(2, view // 4 % 4, 0).kind].scene for view in range(24)]
    np.testing.assert_array_equal(some["class_scene"].argmax(1), expected)


def test_a_sphere_straight_ahead() -> None:
    seen = look(bare(ball(3.0, 1.5, 4.0, 0.25, Look((1.0, 0.2, 0.2)))))
    assert seen["depth_zbuffer"][32, 32] == 512 * 3 - 128
    # 127.5 (1 + 0) is a tie between 127 and 128.
    assert np.abs(seen["normal"][32, 32] - np.array([127.5, 127.5, 0])).max() <= 0.5
    assert seen["principal_curvature"][32, 32].tolist() == [round(127 + 12.7 * 4), round(127 + 12.7 * 4), 0]
    assert seen["segment_semantic"][32, 32] == 17
    assert seen["reshading"][32, 32].tolist() == [242] * 3
    assert seen["class_object"].argmax() == 883


def test_a_cylinder_bends_one_way_and_a_plane_no_way() -> None:
    room = bare(cylinder(3.0, 0.0, 4.0, 0.5, 3.0, Look((0.2, 0.2, 1.0))))
    seen = look(room)
    assert seen["principal_curvature"][32, 32].tolist() == [round(127 + 12.7 * 2), 127, 0]
    assert seen["depth_zbuffer"][32, 32] == round(512 * 2.5)
    assert seen["principal_curvature"][32, 0].tolist() == [127, 127, 0]


def test_a_box_and_the_room_round_it() -> None:
    seen = look(bare(box(3.0, 1.0, 3.0, 1.0, 1.0, 1.0, Look((0.2, 0.9, 0.2)))))
    assert seen["depth_zbuffer"][32, 32] == 512 * 2
    assert seen["normal"][32, 32].tolist() == [128, 128, 0]
    # R is right, G down, B forward; normals point to the camera: the floor's up, the left wall's to the right.
    assert seen["normal"][64, 32].tolist() == [128, 0, 128]
    assert seen["normal"][0, 32].tolist() == [128, 255, 128]
    assert seen["normal"][32, 0].tolist() == [255, 128, 128]
    assert seen["normal"][32, 64].tolist() == [0, 128, 128]
    # The floor is 1.5 m below: the lowest row's middle looks 64/65 of half the field of view down.
    down = 64 / 65 * math.tan(math.radians(37.5))
    assert seen["depth_zbuffer"][64, 32] == round(512 * 1.5 / down)


def test_a_pitched_camera_tilts_the_floors_normal() -> None:
    seen = look(bare(), pitch=0.5)
    expected = np.round(127.5 * (1 + np.array([0, -math.cos(0.5), -math.sin(0.5)])))
    np.testing.assert_array_equal(seen["normal"][64, 32], expected)


def test_a_window_is_missing() -> None:
    seen = look(bare(window=Window(3, 2.0, 2.9, 1.0, 2.0)))
    missing = seen["depth_zbuffer"] == 65535
    assert 0 < missing.mean() < 0.1
    assert not missing[:, 33:].any()
    assert seen["edge_occlusion"][:, :33].max() > 100


@pytest.mark.parametrize("size", [8, 33, 96])
def test_any_resolution(size: int) -> None:
    arrays = render(0, [7], size)
    assert arrays["rgb"].shape == (1, size, size, 3)
    assert 60 < arrays["rgb"].mean() < 220


def test_filters_keep_their_scale_over_resolutions() -> None:
    small, large = render(1, 16, 64), render(1, 16, 128)
    for name in ("edge_texture", "edge_occlusion", "keypoints2d", "keypoints3d"):
        assert 0.6 < large[name].mean() / small[name].mean() < 1.7, name


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="at least 8 pixels"):
        render(0, 1, 4)
    with pytest.raises(ValueError, match="counted from 0"):
        render(0, [-1], 32)
    with pytest.raises(ValueError, match="at least one view"):
        render(0, [], 32)


@pytest.mark.parametrize("long_layout", [True, False])
def test_written_files_read_back_as_they_were(some: Arrays, tmp_path: Path, long_layout: bool) -> None:
    views = [3, 4, 22]
    arrays = {name: array[views] for name, array in some.items()}
    write_official(tmp_path, "hut", arrays, [point_view(view) for view in views], long_layout)
    middle = "taskonomy/hut" if long_layout else "hut"
    names = {"segment_semantic": "segmentsemantic", "class_scene": "class_places"}
    for domain, ending in DOMAINS.items():
        for one, (point, view) in zip(arrays[domain], [(0, 3), (1, 0), (5, 2)], strict=True):
            name = f"point_{point}_view_{view}_domain_{names.get(domain, domain)}.{ending}"
            path = tmp_path / domain / middle / name
            back = np.load(path) if ending == "npy" else np.asarray(Image.open(path))
            assert (back.dtype, back.shape) == (one.dtype, one.shape), domain
            np.testing.assert_array_equal(back, one)


def test_writing_needs_a_name_for_every_view(some: Arrays, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="24 views of rgb but 1 pairs"):
        write_official(tmp_path, "hut", some, [(0, 0)])
