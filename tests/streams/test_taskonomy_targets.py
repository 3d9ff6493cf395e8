"""Tables, target transforms by hand-computed numbers, masks, flips and resizing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from reprise.errors import InputError
from reprise.streams.taskonomy.domains import (
    DOMAINS,
    SCENE_CLASSES,
    SEQUENCES,
    TASKS,
    domains_of,
    find_tasks,
)
from reprise.streams.taskonomy.resize import resize
from reprise.streams.taskonomy.targets import blur, depth_mask, flip, probabilities, target
from reprise.tasks import Classify, Regress, Segment


def grey(*values: int) -> np.ndarray:
    """One view of one row, [1, 1, 1, n]."""
    return np.array(values, np.uint16).reshape(1, 1, 1, -1)


# Tables


def test_eleven_tasks_with_the_papers_heads_and_losses() -> None:
    assert len(TASKS) == 11
    assert TASKS["curvature"].kind == Regress(2, "l1")
    assert TASKS["normal"].kind == Regress(3, "l2")
    assert TASKS["segment_semantic"].kind == Segment(17)
    assert TASKS["class_object"].kind == Classify(1000)
    assert TASKS["class_scene"].kind == Classify(63)
    one_channel = {name for name, task in TASKS.items() if task.kind == Regress(1, "l2")}
    assert one_channel == {
        *("depth", "reshading", "edge_texture", "edge_occlusion", "keypoints2d", "keypoints3d"),
    }
    masked = {name for name, task in TASKS.items() if task.masked}
    assert masked == {"curvature", "normal", "depth", "reshading", "edge_occlusion", "keypoints3d"}


def test_sequences_are_orders_of_all_tasks() -> None:
    assert SEQUENCES["1"][:3] == ("curvature", "class_object", "normal")
    assert SEQUENCES["1"][-1] == "keypoints3d"
    assert SEQUENCES["2"][:3] == ("depth", "keypoints2d", "segment_semantic")
    assert SEQUENCES["2"][-1] == "edge_texture"
    assert all(set(order) == set(TASKS) and len(order) == 11 for order in SEQUENCES.values())


def test_scene_classes() -> None:
    assert len(set(SCENE_CLASSES)) == 63
    assert sorted(SCENE_CLASSES) == list(SCENE_CLASSES)
    assert (SCENE_CLASSES[0], SCENE_CLASSES[-1]) == (3, 363)


def test_any_subset_in_any_order() -> None:
    assert [task.name for task in find_tasks(["depth", "curvature"])] == ["depth", "curvature"]
    assert [task.name for task in find_tasks()] == list(SEQUENCES["1"])
    names = [domain.name for domain in domains_of(find_tasks(["edge_texture", "normal"]))]
    assert names == ["rgb", "normal", "depth_zbuffer", "edge_texture"]
    assert [domain.name for domain in domains_of(find_tasks(["normal"]), masks=False)] == ["rgb", "normal"]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["depth", "dpeth"], "'dpeth' is no Taskonomy task; choose from curvature, class_object,"),
        (["depth_zbuffer"], "'depth_zbuffer' is no Taskonomy task"),
        (["depth", "depth"], "'depth' is named twice"),
        ([], "none is named"),
    ],
)
def test_wrong_task_names(names: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        find_tasks(names)


def test_official_names() -> None:
    assert DOMAINS["segment_semantic"].filename(3, 1) == "point_3_view_1_domain_segmentsemantic.png"
    assert DOMAINS["class_scene"].filename(3, 1) == "point_3_view_1_domain_class_places.npy"
    assert DOMAINS["depth_zbuffer"].filename(0, 12) == "point_0_view_12_domain_depth_zbuffer.png"


# Transforms


def test_eight_bit_targets() -> None:
    raw = np.array([0, 51, 255], np.uint8).reshape(1, 1, 1, 3)
    for task in ("curvature", "normal", "reshading"):
        y, mask = target(task, raw)
        assert y.dtype == np.float32
        assert mask is None
        np.testing.assert_allclose(y.ravel(), [-1, -0.6, 1], atol=1e-6)


def test_depth_is_logarithmic() -> None:
    y, _ = target("depth", grey(0, 255, 65535))
    np.testing.assert_allclose(y.ravel(), [-1, 0, 1], atol=1e-6)  # log 256 is half of log 65536
    y, _ = target("depth", grey(512))  # one metre
    assert y.item() == pytest.approx(2 * math.log(513) / math.log(65536) - 1, abs=1e-6)


def test_ranges_and_clipping() -> None:
    # 0.08, 0.005 and 1 of 65535 are 5242.8, 327.675 and 65535.
    y, mask = target("edge_texture", grey(0, 2621, 5243, 65535))
    np.testing.assert_allclose(y.ravel(), [-1, 2 * 2621 / 5242.8 - 1, 1, 1], atol=1e-6)
    assert mask is None
    y, _ = target("keypoints2d", grey(0, 100, 400))
    np.testing.assert_allclose(y.ravel(), [-1, 200 / 327.675 - 1, 1], atol=1e-6)
    y, _ = target("keypoints3d", grey(0, 13107, 65535))
    np.testing.assert_allclose(y.ravel(), [-1, -0.6, 1], atol=1e-6)


def test_occlusion_edges_are_blurred_not_clipped() -> None:
    flat = np.full((1, 1, 256, 256), 6554, np.uint16)  # 16 times the top of the range, 409.59375
    y, _ = target("edge_occlusion", flat)
    np.testing.assert_allclose(y, 2 * 6554 / 409.59375 - 1, rtol=1e-5)
    dot = np.zeros((2, 1, 256, 256), np.uint16)
    dot[1, 0, 100, 120] = 40960
    y, _ = target("edge_occlusion", dot)
    assert (y[0] == -1).all()
    peak = 2 * 40960 / 409.59375 / (2 * math.pi * 16)  # of a Gaussian with σ = 4
    assert y[1, 0, 100, 120] + 1 == pytest.approx(peak, rel=1e-3)
    assert y[1, 0, 100, 124] + 1 == pytest.approx(peak * math.exp(-0.5), rel=1e-3)
    assert y[1, 0, 104, 124] + 1 == pytest.approx(peak * math.exp(-1), rel=1e-3)
    assert y[1, 0, 100, 137] == -1  # cut at 4σ


def test_blur_scales_with_resolution_and_keeps_sums_at_the_border() -> None:
    image = np.zeros((1, 1, 64, 64), np.float32)
    image[..., 32, 32] = 1
    blurred = blur(image)[0, 0]
    assert blurred[32, 33] / blurred[32, 32] == pytest.approx(math.exp(-0.5), rel=1e-5)  # σ = 1 at 64
    corner = np.zeros((64, 64), np.float32)
    corner[0, 0] = 1
    assert blur(corner).sum() == pytest.approx(1, rel=1e-5)
    # Mirrored, edge pixel included: the row's kernel at 0 is w0 + w1.
    weights = np.exp(-0.5 * np.arange(-4, 5) ** 2)
    weights /= weights.sum()
    assert blur(corner)[0, 0] == pytest.approx((weights[4] + weights[5]) ** 2, rel=1e-5)


def test_segmentation_ignores_the_uncertain() -> None:
    raw = np.array([0, 1, 2, 17], np.uint8).reshape(1, 1, 2, 2)
    y, mask = target("segment_semantic", raw)
    assert y.tolist() == [[[0, 0], [1, 16]]]
    assert mask is not None
    assert mask.tolist() == [[[False, True], [True, True]]]


def test_logits_where_probabilities_are_expected() -> None:
    logits = np.zeros((4, 1000), np.float32)
    logits[0, 7] = math.log(999)  # softmax: 1/2 there, 1/1998 elsewhere
    logits[1, 3] = 1  # already probabilities
    logits[2, :2] = 0.6, 0.402  # they sum to 1.002
    logits[3, :2] = -0.5, 1.5  # they sum to 1, but one is negative
    y, mask = target("class_object", logits)
    assert mask is None
    assert y[0, 7] == pytest.approx(0.5, rel=1e-5)
    assert y[0, 8] == pytest.approx(1 / 1998, rel=1e-5)
    assert y[1].tolist() == logits[1].tolist()
    assert y[2, 0] == pytest.approx(math.exp(0.6) / (math.exp(0.6) + math.exp(0.402) + 998), rel=1e-5)
    assert 0 < y[3, 0] < y[3, 2] < y[3, 1] < 1
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)
    huge = probabilities(np.array([[1e4, 0.0]]))
    assert huge.tolist() == [[1, 0]]


def test_scenes_are_renormalised_to_63() -> None:
    raw = np.zeros((2, 365), np.float32)
    raw[0, [3, 363, 0]] = 0.1, 0.3, 0.6  # 0 is not among the 63
    raw[1, 0] = 50  # logits: a softmax first
    raw[1, 3] = 1
    y, _ = target("class_scene", raw)
    assert y.shape == (2, 63)
    np.testing.assert_allclose(y[0, [0, 62]], [0.25, 0.75], rtol=1e-5)
    assert y[1, 0] / y[1, 1] == pytest.approx(math.e, rel=1e-4)
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)


# Masks


def test_depth_mask_takes_five_by_five_at_256() -> None:
    depth = np.full((2, 1, 256, 256), 1000, np.uint16)
    depth[0, 0, 100, 50], depth[0, 0, 0, 0], depth[0, 0, 200, 200] = 65535, 64500, 64499
    mask = depth_mask(depth)
    assert mask.shape == depth.shape
    assert mask[1].all()
    assert (~mask[0]).sum() == 25 + 9  # the corner keeps a quarter of its window, and 64499 is a depth
    assert not mask[0, 0, 98:103, 48:53].any()
    assert not mask[0, 0, :3, :3].any()
    assert mask[0, 0, 97, 50]


@pytest.mark.parametrize(("size", "window"), [(512, 81), (128, 9), (64, 9), (32, 1), (8, 1)])
def test_depth_mask_scales_with_resolution(size: int, window: int) -> None:
    depth = np.zeros((1, 1, size, size), np.uint16)
    depth[0, 0, size // 2, size // 2] = 65535
    assert (~depth_mask(depth)).sum() == window


def test_all_missing_depth_leaves_nothing() -> None:
    assert not depth_mask(np.full((1, 1, 8, 8), 65535, np.uint16)).any()


def test_masks_go_to_the_masked_tasks_only() -> None:
    raw, valid = np.zeros((1, 1, 4, 4), np.uint16), np.zeros((1, 1, 4, 4), bool)
    for name, task in TASKS.items():
        if isinstance(task.kind, Regress):
            assert (target(name, raw, valid)[1] is valid) == task.masked


def test_targets_fit_the_losses() -> None:
    rng = np.random.default_rng(0)
    valid = rng.random((2, 1, 8, 8)) < 0.5
    for name, task in TASKS.items():
        domain = DOMAINS[task.domain]
        raw = rng.integers(1, 18, (2, *domain.shape(8))).astype(domain.dtype)
        y, mask = target(name, raw, valid)
        shape = (2, task.kind.outputs, 8, 8) if task.kind.dense else (2, task.kind.outputs)
        values, weights = task.kind.loss(
            torch.zeros(shape), torch.from_numpy(y), None if mask is None else torch.from_numpy(mask)
        )
        assert torch.isfinite(values).all()
        assert weights is None or weights.shape == values.shape


# Flips


def test_flip_twice_is_identity_and_normals_turn() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 3, 8, 8), dtype=np.uint8)
    valid = rng.random((2, 1, 8, 8)) < 0.5
    for name, task in TASKS.items():
        domain = DOMAINS[task.domain]
        y, mask = target(name, rng.integers(0, 18, (2, *domain.shape(8))).astype(domain.dtype), valid)
        once = flip(x, y, mask, name)
        assert (once[0] == x[..., ::-1]).all()
        if task.kind.dense:
            mirrored = y[..., ::-1].copy()
            if name == "normal":
                mirrored[:, 0] = -mirrored[:, 0]
            assert (once[1] == mirrored).all()
        else:
            assert (once[1] == y).all()
        assert (once[2] is None) == (mask is None)
        if mask is not None:
            assert (once[2] == mask[..., ::-1]).all()
        again = flip(*once, name)
        assert (again[0] == x).all()
        assert (again[1] == y).all()
        assert mask is None or (again[2] == mask).all()


# Resizing


def test_area_mean_and_nearest() -> None:
    four = np.array([[[10, 20], [30, 40]]], np.uint16)
    assert resize(four, DOMAINS["keypoints2d"], 1).tolist() == [[[25]]]
    assert resize(four, DOMAINS["depth_zbuffer"], 1).tolist() == [[[40]]]
    assert resize(four, DOMAINS["edge_texture"], 2) is four
    steps = np.arange(36, dtype=np.uint16).reshape(1, 6, 6)
    assert resize(steps, DOMAINS["depth_zbuffer"], 3).tolist() == [[[7, 9, 11], [19, 21, 23], [31, 33, 35]]]
    third = np.array([[[0, 30, 60]] * 3], np.uint16)  # new pixels cover one and a half old ones
    assert resize(third, DOMAINS["keypoints3d"], 2).tolist() == [[[10, 50], [10, 50]]]


def test_missing_labels_do_not_enter_the_mean() -> None:
    normal = np.full((3, 4, 4), 128, np.uint8)
    normal[:, 0, 0], normal[:, 0, 1] = (10, 20, 30), (20, 40, 61)
    small = resize(normal, DOMAINS["normal"], 2)
    assert small[:, 0, 0].tolist() == [15, 30, 46]  # 45.5 to the even neighbour
    assert (small.reshape(3, -1)[:, 1:] == 128).all()
    curvature = np.zeros((2, 2, 2), np.uint8)
    curvature[:, 1, 1] = 127, 90
    assert resize(curvature, DOMAINS["principal_curvature"], 1).ravel().tolist() == [127, 90]
