"""Targets of packed labels on the device: what a training step makes of a batch in the files' formats.

The same functions as `targets.target` and `targets.flip`, which are the reference, in torch; axes may lead (lanes).
16-bit values come as int16 of the same bits, since torch computes little with uint16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from reprise.streams.taskonomy.domains import TASKS
from reprise.streams.taskonomy.targets import CLIPPED, UNCLIPPED, _blur_matrix

Labelled = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class TaskLabels:
    """How one task's stored column becomes a target."""

    task: str

    def target(self, raw: Tensor, mask: Tensor | None) -> Labelled:
        """raw [..., c, h, w] as packed (class probabilities [..., k] stay as they are) -> y and mask."""
        if self.task == "segment_semantic":
            ids = raw[..., 0, :, :]
            return (ids.long() - 1).clamp(min=0), ids > 0
        if not TASKS[self.task].kind.dense:
            return raw, mask
        values = _numbers(raw)
        if self.task == "depth":
            y = torch.log1p(values) / math.log(65536) * 2 - 1
        elif self.task in CLIPPED:
            y = _ranged(values, CLIPPED[self.task]).clamp(-1, 1)
        elif self.task in UNCLIPPED:
            values = _blurred(values) if self.task == "edge_occlusion" else values
            y = _ranged(values, UNCLIPPED[self.task])
        else:
            y = values / 127.5 - 1
        return y, mask

    def mirror(self, y: Tensor, mask: Tensor | None, flipped: Tensor) -> Labelled:
        """Targets [..., n, ...] of the images that `flipped` [..., n] mirrors left to right."""
        if not TASKS[self.task].kind.dense:
            return y, mask
        turned = y.flip(-1)
        if self.task == "normal":  # a mirrored normal points the other way along x
            turned[..., 0, :, :].neg_()  # in place: a constant from the host would make a GPU wait for it
        return where(flipped, turned, y), None if mask is None else where(flipped, mask.flip(-1), mask)


def where(flipped: Tensor, turned: Tensor, plain: Tensor) -> Tensor:
    return torch.where(flipped.view(*flipped.shape, *[1] * (plain.dim() - flipped.dim())), turned, plain)


def _numbers(raw: Tensor) -> Tensor:
    """uint8, or the bits of uint16, as float32."""
    return ((raw.int() & 0xFFFF) if raw.dtype == torch.int16 else raw).float()


def _ranged(values: Tensor, top: float) -> Tensor:
    """v / 65535 in [0, top] to [-1, 1]."""
    return values * (2 / 65535 / top) - 1


def _blurred(values: Tensor) -> Tensor:
    rows, columns = (_matrix(length, values.device) for length in values.shape[-2:])
    return rows @ values @ columns.T


@lru_cache(maxsize=8)
def _matrix(length: int, device: torch.device) -> Tensor:
    return torch.from_numpy(_blur_matrix(length)).to(device)
