"""BatchNorm of stacked lanes in training mode, with the sum and the ReLU that may follow.

Three kernels each way: partial sums over chunks of pixels, their merge, then the result. Images lie channels-last; a
program reads runs of several pixels, so that few channels still fill its vectors, and sums each column of a run by
itself: the merge sees them as more chunks. Statistics are float32 whatever the images are, taken around a nearby
number and merged by Chan's formula, so that nothing cancels. All sums have one fixed order that does not depend on
the number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from reprise.kernels import norm_triton

CHUNKS = 32
"""The most programs that share the pixels of a lane in the first pass."""
TILE = 4096
"""Numbers a program holds at a time."""


@dataclass(frozen=True)
class Cut:
    """How the numbers of a norm are cut into runs, chunks and tiles."""

    lanes: int
    channels: int
    pixels: int

    @staticmethod
    def of(x: Tensor) -> Cut:
        lanes, n, channels, h, w = x.shape
        return Cut(lanes, channels, n * h * w)

    @property
    def run(self) -> int:
        """Pixels of a run: as many as fill a power of two best."""
        return max((1, 2, 3, 4), key=lambda r: (self._filled(r), -r))

    def _filled(self, run: int) -> float:
        wide = run * self.channels
        return wide / (triton.cdiv(wide, _columns(wide)) * _columns(wide))

    @property
    def columns(self) -> int:
        return _columns(self.run * self.channels)

    @property
    def rows(self) -> int:
        return TILE // self.columns

    @property
    def runs(self) -> int:
        return triton.cdiv(self.pixels, self.run)

    @property
    def chunk(self) -> int:
        """Runs that a program of the first pass sums up."""
        return triton.cdiv(triton.cdiv(self.runs, CHUNKS), self.rows) * self.rows

    @property
    def chunks(self) -> int:
        return triton.cdiv(self.runs, self.chunk)

    @property
    def tiles(self) -> int:
        return triton.cdiv(self.run * self.channels, self.columns)

    @property
    def first_pass(self) -> tuple[int, int, int]:
        return self.chunks, self.lanes, self.tiles

    @property
    def second_pass(self) -> tuple[int, int, int]:
        return triton.cdiv(self.runs, self.rows), self.lanes, self.tiles

    @property
    def merge(self) -> tuple[int, int]:
        return self.lanes, triton.cdiv(self.channels, MERGED)

    def parts(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Room for two partial sums of everything."""
        return like.new_empty(2, self.lanes, self.chunks, self.run, self.channels, dtype=dtype)


MERGED = 32
"""Channels that a program merges."""


def _columns(wide: int) -> int:
    """Columns of a tile: the run's, or 128 of them."""
    return min(128, max(16, triton.next_power_of_2(wide)))


def normalise(
    x: Tensor,
    plus: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    statistics: tuple[Tensor, Tensor] | None,
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and each lane's mean and inverse deviation [lanes, c]. Images are channels-last [lanes, n, c, h, w].

    statistics  running mean and variance [lanes, c] to move; None moves none
    """
    cut, sums = Cut.of(x), _sums(x)
    means, squares = cut.parts(x, sums)
    mean, inverse = x.new_empty(2, cut.lanes, cut.channels, dtype=sums)
    every = cut.chunks * cut.run
    norm_triton.partial_moments[cut.first_pass](
        x, means, squares, cut.pixels, cut.chunk, cut.channels, cut.run, cut.chunks, cut.rows, cut.columns,
        _TYPES[sums],
    )  # fmt: skip
    norm_triton.merge_moments[cut.merge](
        means, squares, mean, inverse, *(statistics or (mean, mean)), cut.pixels, cut.chunk, momentum, eps,
        cut.channels, cut.run, cut.chunks, triton.next_power_of_2(every), statistics is not None, MERGED,
        _TYPES[sums],
    )  # fmt: skip
    return _result(cut, x, plus, weight, bias, mean, inverse, eps, relu, False), mean, inverse


def normalise_fixed(
    x: Tensor, plus: Tensor | None, weight: Tensor, bias: Tensor, statistics: tuple[Tensor, Tensor], eps: float,
    relu: bool,
) -> Tensor:  # fmt: skip
    """The same in evaluation: by the running mean and variance."""
    return _result(Cut.of(x), x, plus, weight, bias, *statistics, eps, relu, True)


def _result(
    cut: Cut, x: Tensor, plus: Tensor | None, weight: Tensor, bias: Tensor, mean: Tensor, spread: Tensor, eps: float,
    relu: bool, fixed: bool,
) -> Tensor:  # fmt: skip
    y = torch.empty_like(x)
    norm_triton.normalise[cut.second_pass](
        x, x if plus is None else plus, y, mean, spread, weight, bias, cut.pixels, eps, cut.channels, cut.run,
        plus is not None, relu, fixed, cut.rows, cut.columns, _TYPES[_sums(x)],
    )  # fmt: skip
    return y


def gradients(
    g: Tensor,
    x: Tensor,
    y: Tensor | None,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor,
    bias: Tensor,
    relu: bool,
    plus: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients at x, plus, weight and bias; the output y is read where something was added before a ReLU."""
    cut, sums = Cut.of(x), mean.dtype
    g_sums, gx_sums = cut.parts(x, sums)
    d_weight, d_bias = x.new_empty(2, cut.lanes, cut.channels, dtype=sums)
    # What the ReLU lets through is the gradient at `plus`; without a ReLU that is g itself.
    passed = torch.empty_like(g) if plus and relu else g
    norm_triton.partial_gradients[cut.first_pass](
        g, x, x if y is None else y, passed, mean, inverse, weight, bias, g_sums, gx_sums, cut.pixels, cut.chunk,
        cut.channels, cut.run, cut.chunks, plus, relu, cut.rows, cut.columns, _TYPES[sums],
    )  # fmt: skip
    every = cut.chunks * cut.run
    norm_triton.merge_gradients[cut.merge](
        g_sums, gx_sums, d_bias, d_weight, cut.channels, every, triton.next_power_of_2(every), MERGED
    )
    dx = torch.empty_like(x)
    norm_triton.gradient[cut.second_pass](
        passed, x, dx, mean, inverse, weight, bias, d_weight, d_bias, cut.pixels, cut.channels, cut.run,
        relu and not plus, cut.rows, cut.columns, _TYPES[sums],
    )  # fmt: skip
    return dx, passed if plus else None, d_weight, d_bias


_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def _sums(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
