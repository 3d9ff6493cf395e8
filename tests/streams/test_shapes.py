"""Procedural pictures: the same bytes every time, and classes that can be told apart."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from reprise.streams import STREAMS
from reprise.streams.files import Images
from reprise.streams.shapes import CLASSES, SIZE, render
from reprise.streams.split import make_pool, split_stream


@pytest.fixture(scope="module")
def small() -> tuple[Images, Images]:
    return render(classes=6, train=30, test=10)


def test_the_bytes_are_those_of_every_other_machine() -> None:
    parts = render(classes=3, train=2, test=1)
    content = b"".join(part.x.tobytes() for part in parts)
    assert hashlib.sha256(content).hexdigest()[:16] == "f2e9f1592b0a0f5a"


def test_rendering_twice_gives_the_same_and_moves_no_generator(small: tuple[Images, Images]) -> None:
    state = torch.random.get_rng_state()
    for once, again in zip(small, render(classes=6, train=30, test=10), strict=True):
        assert np.array_equal(once.x, again.x)
        assert np.array_equal(once.y, again.y)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("part", "each"), [(0, 30), (1, 10)])
def test_shape_dtype_and_labels(small: tuple[Images, Images], part: int, each: int) -> None:
    images = small[part]
    assert images.x.shape == (6 * each, 3, SIZE, SIZE)
    assert images.x.dtype == np.uint8
    assert images.y.tolist() == [label for label in range(6) for _ in range(each)]
    assert images.classes == tuple(f"shape-0{label}" for label in range(6))


def test_no_two_pictures_are_the_same(small: tuple[Images, Images]) -> None:
    pictures = {picture.tobytes() for part in small for picture in part.x}
    assert len(pictures) == 6 * 40


def test_a_class_looks_the_same_however_many_there_are(small: tuple[Images, Images]) -> None:
    for few, many in zip(render(classes=2, train=30, test=10), small, strict=True):
        assert np.array_equal(few.x, many.x[: len(few.x)])


def test_classes_differ_by_their_looks_and_not_by_noise_alone(small: tuple[Images, Images]) -> None:
    train, test = (part.x.reshape(6, -1, 3 * SIZE * SIZE) / 255 for part in small)
    means = train.mean(1)
    distances = np.square(test[:, :, None] - means).sum(-1)  # [class, picture, mean]
    found = distances.argmin(-1) == np.arange(6)[:, None]
    assert found.mean() > 0.4, "the nearest class mean; chance is 1/6"


def test_pictures_use_the_range_of_a_byte_without_wrapping(small: tuple[Images, Images]) -> None:
    x = small[0].x
    assert x.min() == 0
    assert x.max() == 255
    assert 90 < x.mean() < 165
    assert (x == 0).mean() < 0.05
    assert (x == 255).mean() < 0.05


def test_the_classes_make_the_tasks_the_table_promises() -> None:
    train, test = render(CLASSES, train=2, test=1)
    pool = make_pool(train, test, (0.5,) * 3, (0.25,) * 3, "fingerprint")
    assert len(split_stream("split-shapes", pool, seed=0).tasks) == STREAMS["split-shapes"].tasks == 10
