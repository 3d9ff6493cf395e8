"""What a task is: its head's shape, loss, metric, masks, and its examples.

A loss is given as values and weights, never as a finished mean: the reduction is `Net.mean`, whose denominator
is global over ranks, and evaluation sums values and weights over chunks of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from reprise.errors import InputError
from reprise.examples import Examples

Weighted = tuple[Tensor, Tensor | None]
"""Values and their weights, of one shape; no weights means 1 everywhere."""

# Of a kind: `dense` says that there is a target per pixel, `judged` that an answer is right or wrong.


@dataclass(frozen=True)
class Classify:
    """One label per example: class indices [n], or class probabilities [n, classes] as soft targets."""

    classes: int
    dense = False
    judged = True

    @property
    def outputs(self) -> int:
        return self.classes

    def loss(self, prediction: Tensor, y: Tensor, mask: Tensor | None) -> Weighted:
        target = y.to(prediction.dtype) if y.is_floating_point() else y.long()
        return F.cross_entropy(prediction, target, reduction="none"), mask

    def correct(self, prediction: Tensor, y: Tensor, mask: Tensor | None) -> Weighted:
        label = y.argmax(-1) if y.is_floating_point() else y.long()
        return (prediction.argmax(-1) == label).to(prediction.dtype), mask


@dataclass(frozen=True)
class Segment:
    """One label per pixel: y [n, h, w] class indices, prediction [n, classes, h, w]; mask 0 is left out."""

    classes: int
    dense = True
    judged = True

    @property
    def outputs(self) -> int:
        return self.classes

    def loss(self, prediction: Tensor, y: Tensor, mask: Tensor | None) -> Weighted:
        return F.cross_entropy(prediction, y.long(), reduction="none"), mask

    def correct(self, prediction: Tensor, y: Tensor, mask: Tensor | None) -> Weighted:
        return (prediction.argmax(-3) == y.long()).to(prediction.dtype), mask


@dataclass(frozen=True)
class Regress:
    """Real values: y and prediction [n, channels, ...]; mask [n, 1 or channels, ...], 0 is left out."""

    channels: int
    norm: Literal["l1", "l2"] = "l2"
    pooled: bool = False
    """One vector per example instead of a map."""
    judged = False

    @property
    def dense(self) -> bool:
        return not self.pooled

    @property
    def outputs(self) -> int:
        return self.channels

    def loss(self, prediction: Tensor, y: Tensor, mask: Tensor | None) -> Weighted:
        difference = prediction - y.to(prediction.dtype)
        values = difference.abs() if self.norm == "l1" else difference.square()
        return values, None if mask is None else mask.to(values.dtype).expand_as(values)

    def correct(self, prediction: Tensor, y: Tensor, mask: Tensor | None) -> Weighted | None:
        return None


Kind = Classify | Segment | Regress


@dataclass(frozen=True)
class Task:
    """A name, a kind (head shape, loss, metric) and the examples to train and test on."""

    name: str
    kind: Kind
    train: Examples
    test: Examples

    def __post_init__(self) -> None:
        for part, examples in (("train", self.train), ("test", self.test)):
            if len(examples) == 0:
                raise InputError(f"task {self.name!r} has no {part} examples; give it at least one.")


def weighted_sums(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of a weighted mean, as two scalars."""
    if weights is None:
        return values.sum(), torch.full((), values.numel(), dtype=values.dtype, device=values.device)
    weights = weights.to(values.dtype)
    return (values * weights).sum(), weights.sum()
