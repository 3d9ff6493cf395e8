"""Kinds of tasks: losses and accuracies against numbers worked by hand."""

from __future__ import annotations

from math import log
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reprise.errors import InputError
from reprise.examples import Examples, Source
from reprise.tasks import Classify, Kind, Regress, Segment, Task, Weighted, weighted_sums

Norm = Literal["l1", "l2"]
quick = settings(max_examples=60, deadline=None, database=None)
L3 = log(3)  # logits (log 3, 0) are probabilities (3/4, 1/4)


def mean(weighted: Weighted) -> float:
    total, weight = weighted_sums(*weighted)
    return float(total / weight)


def tensor(*values: object, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


# One label per example

LOGITS = tensor([L3, 0.0], [L3, 0.0], [0.0, 0.0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_classification_with_hard_labels(dtype: torch.dtype) -> None:
    y = tensor(0, 1, 1, dtype=dtype)
    values, weights = Classify(2).loss(LOGITS, y, None)
    assert values.tolist() == pytest.approx([log(4 / 3), log(4), log(2)])
    assert weights is None
    correct, weights = Classify(2).correct(LOGITS[:2], y[:2], None)
    assert correct.tolist() == [1, 0]
    assert weights is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classification_with_soft_labels(dtype: torch.dtype) -> None:
    y = tensor([0.25, 0.75], [1.0, 0.0], [0.5, 0.5], dtype=dtype)
    values, _ = Classify(2).loss(LOGITS, y, None)
    assert values.dtype == LOGITS.dtype
    assert values.tolist() == pytest.approx([0.25 * log(4 / 3) + 0.75 * log(4), log(4 / 3), log(2)])
    # The largest probability is the class meant.
    assert Classify(2).correct(LOGITS[:2], y[:2], None)[0].tolist() == [0, 1]


@quick
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_a_certain_soft_label_is_a_hard_one(labels: list[int]) -> None:
    logits = torch.linspace(-1, 2, 4 * len(labels), dtype=torch.float64).sin().view(-1, 4)
    hard = torch.tensor(labels)
    soft = torch.nn.functional.one_hot(hard, 4).double()
    assert torch.allclose(Classify(4).loss(logits, soft, None)[0], Classify(4).loss(logits, hard, None)[0])
    assert torch.equal(Classify(4).correct(logits, soft, None)[0], Classify(4).correct(logits, hard, None)[0])


def test_a_masked_example_does_not_count() -> None:
    y, mask = tensor(0, 1, 1, dtype=torch.int64), tensor(1, 0, 1, dtype=torch.uint8)
    assert mean(Classify(2).loss(LOGITS, y, mask)) == pytest.approx((log(4 / 3) + log(2)) / 2)
    assert mean(Classify(2).correct(LOGITS[:2], y[:2], mask[:2])) == 1


# One label per pixel

#                      class 0        class 1
PIXELS = tensor([[[L3, 0.0, L3]], [[0.0, 0.0, 0.0]]])  # [1, 2, 1, 3]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_segmentation_counts_pixels(dtype: torch.dtype) -> None:
    y = tensor([[0, 1, 1]], dtype=dtype)
    values, weights = Segment(2).loss(PIXELS, y, None)
    assert values.shape == y.shape == (1, 1, 3)
    assert values.flatten().tolist() == pytest.approx([log(4 / 3), log(2), log(4)])
    assert weights is None
    correct, _ = Segment(2).correct(PIXELS[..., [0, 2]], y[..., [0, 2]], None)
    assert correct.flatten().tolist() == [1, 0]


@pytest.mark.parametrize("whatever", [0, 1])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_ignored_pixels_do_not_count(dtype: torch.dtype, whatever: int) -> None:
    y = tensor([[0, 1, whatever]], dtype=torch.int64)
    mask = tensor([[1, 1, 0]], dtype=dtype)
    assert mean(Segment(2).loss(PIXELS, y, mask)) == pytest.approx((log(4 / 3) + log(2)) / 2)
    assert mean(Segment(2).correct(PIXELS[..., [0, 2]], y[..., [0, 2]], mask[..., [0, 2]])) == 1


def test_a_single_image_without_a_valid_pixel_weighs_nothing() -> None:
    y, mask = torch.zeros(1, 1, 3, dtype=torch.int64), torch.zeros(1, 1, 3)
    total, weight = weighted_sums(*Segment(2).loss(PIXELS, y, mask))
    assert (total.item(), weight.item()) == (0, 0)


# Real values

ANSWER = tensor([[[1.0, 2.0]], [[0.0, -1.0]]])  # [1, 2 channels, 1, 2]
TRUTH = tensor([[[0.0, 4.0]], [[3.0, -1.0]]])  # differences 1, −2 and −3, 0


@pytest.mark.parametrize(("norm", "values"), [("l1", [1, 2, 3, 0]), ("l2", [1, 4, 9, 0])])
def test_regression_by_hand(norm: Norm, values: list[float]) -> None:
    kind = Regress(2, norm)
    found, weights = kind.loss(ANSWER, TRUTH, None)
    assert found.flatten().tolist() == values
    assert weights is None
    assert kind.correct(ANSWER, TRUTH, None) is None, "real values are not right or wrong"


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
@pytest.mark.parametrize(
    ("norm", "mask", "by_hand"),
    [
        ("l1", [[[1, 0]]], (1 + 3) / 2),  # the left pixel, in both channels
        ("l2", [[[1, 0]]], (1 + 9) / 2),
        ("l1", [[[1, 1]], [[0, 1]]], (1 + 2 + 0) / 3),  # a mask of its own for each channel
        ("l2", [[[1, 1]], [[0, 1]]], (1 + 4 + 0) / 3),
    ],
)
def test_masked_regression_by_hand(
    norm: Norm, mask: list[list[list[int]]], by_hand: float, dtype: torch.dtype
) -> None:
    values, weights = Regress(2, norm).loss(ANSWER, TRUTH, tensor(mask, dtype=dtype))
    assert weights is not None
    assert weights.shape == values.shape
    assert mean((values, weights)) == pytest.approx(by_hand)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_what_stands_at_a_masked_place_neither_counts_nor_learns(norm: Norm) -> None:
    mask = tensor([[[1, 0]]])
    losses, gradients = [], []
    for junk in (0.0, 65535.0):
        answer = ANSWER.clone().requires_grad_()
        truth = TRUTH.clone()
        truth[..., 1] = junk
        total, weight = weighted_sums(*Regress(2, norm).loss(answer, truth, mask))
        loss = total / weight
        losses.append(loss.item())
        gradients.append(torch.autograd.grad(loss, answer)[0])
    assert losses[0] == losses[1]
    assert torch.equal(*gradients)
    assert gradients[0][..., 1].count_nonzero() == 0


def test_real_targets_may_be_stored_in_another_dtype() -> None:
    values, _ = Regress(2).loss(ANSWER, TRUTH.to(torch.float16), None)
    assert values.dtype == ANSWER.dtype
    assert values.flatten().tolist() == [1, 4, 9, 0]


# Means


def test_a_mean_in_two_sums() -> None:
    values = tensor(1.0, 2.0, 6.0)
    assert [s.item() for s in weighted_sums(values, None)] == [9, 3]
    assert [s.item() for s in weighted_sums(values, tensor(1, 0, 2, dtype=torch.int64))] == [13, 3]
    assert [s.shape for s in weighted_sums(values.view(3, 1), None)] == [(), ()]


@quick
@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(1, 12),
    st.booleans(),
)
def test_sums_over_chunks_of_any_size_are_the_sums_of_the_whole(
    pairs: list[tuple[int, int]], size: int, weighted: bool
) -> None:
    values = tensor(*(value for value, _ in pairs))
    weights = tensor(*(weight for _, weight in pairs)) if weighted else None
    chunks = [
        weighted_sums(values[i : i + size], None if weights is None else weights[i : i + size])
        for i in range(0, len(pairs), size)
    ]
    whole = weighted_sums(values, weights)
    assert sum(total.item() for total, _ in chunks) == whole[0].item()
    assert sum(weight.item() for _, weight in chunks) == whole[1].item()


# Tasks


@pytest.mark.parametrize(
    ("kind", "outputs", "dense"), [(Classify(5), 5, False), (Segment(17), 17, True), (Regress(3), 3, True)]
)
def test_a_kind_says_what_its_head_gives(kind: Kind, outputs: int, dense: bool) -> None:
    assert (kind.outputs, kind.dense) == (outputs, dense)


def test_a_task_needs_examples_to_train_and_to_test_on() -> None:
    source = Source({"x": torch.zeros(2, 3)})
    some, none = (Examples(source, torch.arange(n), {"y": torch.arange(n)}) for n in (2, 0))
    assert Task("birds", Classify(2), some, some).name == "birds"
    with pytest.raises(InputError, match="task 'birds' has no train examples"):
        Task("birds", Classify(2), none, some)
    with pytest.raises(InputError, match="task 'birds' has no test examples"):
        Task("birds", Classify(2), some, none)
