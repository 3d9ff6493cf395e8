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

# In kernels, constants are upper case, as Triton's own documents have it; their arguments have no types.
# mypy: disallow-untyped-defs=False

CHUNKS = 32
"""The most programs that share the pixels of a lane in the first pass."""
TILE = 4096
"""Numbers a program holds at a time."""


@triton.jit
def _tile(pixels, CHANNELS: tl.constexpr, RUN: tl.constexpr, BLOCK_C: tl.constexpr):
    """This program's lane, its columns of a run, their channels, which of them exist, and the size of a lane."""
    lane = tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    return lane, column, column % CHANNELS, column < RUN * CHANNELS, pixels * CHANNELS


@triton.jit
def _partial_moments(
    x, means, squares, pixels, chunk, CHANNELS: tl.constexpr, RUN: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Mean, and sum of squared distances from it, of each column over a chunk: [lanes, CHUNKS, RUN, CHANNELS]."""
    lane, column, c, known, size = _tile(pixels, CHANNELS, RUN, BLOCK_C)
    WIDE: tl.constexpr = RUN * CHANNELS
    begin = tl.program_id(0) * chunk
    # Distances from the channel's first pixel: near enough to the mean that squares do not cancel.
    origin = tl.load(x + lane * size + c, mask=known, other=0.0).to(SUMS)
    sums = tl.zeros((BLOCK_R, BLOCK_C), dtype=SUMS)
    squared = tl.zeros((BLOCK_R, BLOCK_C), dtype=SUMS)
    for first in range(0, chunk, BLOCK_R):
        at = (begin + first + tl.arange(0, BLOCK_R))[:, None] * WIDE + column[None, :]
        there = (at < size) & known[None, :]
        v = tl.load(x + lane * size + at, mask=there, other=0.0).to(SUMS)
        away = tl.where(there, v - origin[None, :], 0.0)
        sums += away
        squared += away * away
    rows = tl.maximum(tl.minimum((size - column + WIDE - 1) // WIDE - begin, chunk), 1)
    count = rows.to(SUMS)
    apart = tl.sum(sums, 0) / count
    mean = origin + apart
    square = tl.maximum(tl.sum(squared, 0) - count * apart * apart, 0.0)
    at = (lane * CHUNKS + tl.program_id(0)) * WIDE + column
    tl.store(means + at, mean, mask=known)
    tl.store(squares + at, square, mask=known)


@triton.jit
def _merge_moments(
    means, squares, mean_out, inverse_out, running_mean, running_var, pixels, chunk,
    MOMENTUM: tl.constexpr, EPS: tl.constexpr, CHANNELS: tl.constexpr, RUN: tl.constexpr, CHUNKS: tl.constexpr,
    PARTS: tl.constexpr, TRACK: tl.constexpr, BLOCK_C: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Each channel's mean and 1 / sqrt(variance + eps) from its parts; the running statistics move towards them."""
    lane = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    part = tl.arange(0, PARTS)
    known = (part < CHUNKS * RUN)[:, None] & (c < CHANNELS)[None, :]
    at = (lane * CHUNKS * RUN + part[:, None]) * CHANNELS + c[None, :]
    # A part is column `part % RUN` of a chunk's runs: the pixels begin * RUN + column, and every RUN-th after it.
    first = part // RUN * chunk * RUN + part % RUN
    count = tl.minimum(tl.maximum((pixels - first + RUN - 1) // RUN, 0), chunk).to(SUMS)[:, None]
    own = tl.load(means + at, mask=known, other=0.0)
    total = tl.cast(pixels, SUMS)
    mean = tl.sum(own * count, 0) / total
    apart = own - mean[None, :]
    within = tl.load(squares + at, mask=known, other=0.0)
    var = tl.sum(tl.where(known, within + apart * apart * count, 0.0), 0) / total
    at = lane * CHANNELS + c
    tl.store(mean_out + at, mean, mask=c < CHANNELS)
    tl.store(inverse_out + at, 1.0 / tl.sqrt(var + EPS), mask=c < CHANNELS)
    if TRACK:
        before = tl.load(running_mean + at, mask=c < CHANNELS, other=0.0)
        tl.store(running_mean + at, before + MOMENTUM * (mean - before), mask=c < CHANNELS)
        before = tl.load(running_var + at, mask=c < CHANNELS, other=0.0)
        unbiased = var * (total / (total - 1.0))
        tl.store(running_var + at, before + MOMENTUM * (unbiased - before), mask=c < CHANNELS)


@triton.jit
def _normalise(
    x, plus, y, mean, spread, weight, bias, pixels, EPS: tl.constexpr, CHANNELS: tl.constexpr, RUN: tl.constexpr,
    PLUS: tl.constexpr, RELU: tl.constexpr, FIXED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    """y = (x - mean) * inverse * weight + bias (+ plus) (ReLU).

    `spread` holds the inverse deviation of the batch, or, FIXED, the running variance.
    """
    lane, column, c, known, size = _tile(pixels, CHANNELS, RUN, BLOCK_C)
    own = lane * CHANNELS + c
    middle = tl.load(mean + own, mask=known, other=0.0)
    factor = tl.load(spread + own, mask=known, other=1.0)
    if FIXED:
        factor = 1.0 / tl.sqrt(factor + EPS)
    scale = tl.load(weight + own, mask=known, other=0.0) * factor
    shift = tl.load(bias + own, mask=known, other=0.0)
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    at = row[:, None] * (RUN * CHANNELS) + column[None, :]
    there = (at < size) & known[None, :]
    v = tl.load(x + lane * size + at, mask=there, other=0.0).to(SUMS)
    v = (v - middle[None, :]) * scale[None, :] + shift[None, :]
    if PLUS:
        v += tl.load(plus + lane * size + at, mask=there, other=0.0).to(SUMS)
    if RELU:
        v = tl.maximum(v, 0.0)
    tl.store(y + lane * size + at, v.to(y.dtype.element_ty), mask=there)


@triton.jit
def _partial_gradients(
    g, x, y, passed, mean, inverse, weight, bias, g_sums, gx_sums, pixels, chunk, CHANNELS: tl.constexpr,
    RUN: tl.constexpr, CHUNKS: tl.constexpr, PLUS: tl.constexpr, RELU: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Sums of g and g * x_hat of each column over a chunk of runs, g being what the ReLU lets through.

    Where something was added before the ReLU, what passes it is written down: it is the gradient there.
    """
    lane, column, c, known, size = _tile(pixels, CHANNELS, RUN, BLOCK_C)
    WIDE: tl.constexpr = RUN * CHANNELS
    own = lane * CHANNELS + c
    middle = tl.load(mean + own, mask=known, other=0.0)
    factor = tl.load(inverse + own, mask=known, other=0.0)
    scale = tl.load(weight + own, mask=known, other=0.0) * factor
    shift = tl.load(bias + own, mask=known, other=0.0)
    begin = tl.program_id(0) * chunk
    g_sums_here = tl.zeros((BLOCK_R, BLOCK_C), dtype=SUMS)
    gx_sums_here = tl.zeros((BLOCK_R, BLOCK_C), dtype=SUMS)
    for first in range(0, chunk, BLOCK_R):
        at = (begin + first + tl.arange(0, BLOCK_R))[:, None] * WIDE + column[None, :]
        there = (at < size) & known[None, :]
        at = lane * size + at
        dy = tl.load(g + at, mask=there, other=0.0).to(SUMS)
        away = tl.load(x + at, mask=there, other=0.0).to(SUMS) - middle[None, :]
        if RELU and PLUS:
            dy = tl.where(tl.load(y + at, mask=there, other=0.0) > 0, dy, 0.0)
            tl.store(passed + at, dy.to(passed.dtype.element_ty), mask=there)
        elif RELU:
            # The sign of the output, from the very numbers it was made of: cheaper than reading it.
            dy = tl.where((away * scale[None, :] + shift[None, :]).to(y.dtype.element_ty) > 0, dy, 0.0)
        # Beyond the end dy is 0, and away finite: nothing is added.
        g_sums_here += dy
        gx_sums_here += dy * away
    at = (lane * CHUNKS + tl.program_id(0)) * WIDE + column
    tl.store(g_sums + at, tl.sum(g_sums_here, 0), mask=known)
    tl.store(gx_sums + at, tl.sum(gx_sums_here, 0) * factor, mask=known)


@triton.jit
def _merge_gradients(
    g_sums, gx_sums, d_bias, d_weight, CHANNELS: tl.constexpr, PARTS: tl.constexpr, ALL: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradients at bias and weight: each channel's sums of its PARTS parts (ALL: the power of two above)."""
    lane = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    part = tl.arange(0, ALL)
    known = (part < PARTS)[:, None] & (c < CHANNELS)[None, :]
    at = (lane * PARTS + part[:, None]) * CHANNELS + c[None, :]
    tl.store(
        d_bias + lane * CHANNELS + c,
        tl.sum(tl.load(g_sums + at, mask=known, other=0.0), 0),
        mask=c < CHANNELS,
    )
    tl.store(
        d_weight + lane * CHANNELS + c,
        tl.sum(tl.load(gx_sums + at, mask=known, other=0.0), 0),
        mask=c < CHANNELS,
    )


@triton.jit
def _gradient(
    g, x, dx, mean, inverse, weight, bias, d_weight, d_bias, pixels, CHANNELS: tl.constexpr, RUN: tl.constexpr,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """dx = weight * inverse * (g - mean(g) - x_hat * mean(g * x_hat)), with the sums of g and g * x_hat given."""
    lane, column, c, known, size = _tile(pixels, CHANNELS, RUN, BLOCK_C)
    own = lane * CHANNELS + c
    middle = tl.load(mean + own, mask=known, other=0.0)
    factor = tl.load(inverse + own, mask=known, other=0.0)
    scale = tl.load(weight + own, mask=known, other=0.0) * factor
    shift = tl.load(bias + own, mask=known, other=0.0)
    total = tl.cast(pixels, SUMS)
    level = tl.load(d_bias + own, mask=known, other=0.0) / total
    slope = tl.load(d_weight + own, mask=known, other=0.0) / total * factor
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    at = row[:, None] * (RUN * CHANNELS) + column[None, :]
    there = (at < size) & known[None, :]
    at = lane * size + at
    dy = tl.load(g + at, mask=there, other=0.0).to(SUMS)
    away = tl.load(x + at, mask=there, other=0.0).to(SUMS) - middle[None, :]
    if RELU:
        dy = tl.where((away * scale[None, :] + shift[None, :]).to(dx.dtype.element_ty) > 0, dy, 0.0)
    d = scale[None, :] * (dy - level[None, :] - away * slope[None, :])
    tl.store(dx + at, d.to(dx.dtype.element_ty), mask=there)


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
    _partial_moments[cut.first_pass](
        x, means, squares, cut.pixels, cut.chunk, cut.channels, cut.run, cut.chunks, cut.rows, cut.columns,
        _TYPES[sums],
    )  # fmt: skip
    _merge_moments[cut.merge](
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
    _normalise[cut.second_pass](
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
    _partial_gradients[cut.first_pass](
        g, x, x if y is None else y, passed, mean, inverse, weight, bias, g_sums, gx_sums, cut.pixels, cut.chunk,
        cut.channels, cut.run, cut.chunks, plus, relu, cut.rows, cut.columns, _TYPES[sums],
    )  # fmt: skip
    every = cut.chunks * cut.run
    _merge_gradients[cut.merge](
        g_sums, gx_sums, d_bias, d_weight, cut.channels, every, triton.next_power_of_2(every), MERGED
    )
    dx = torch.empty_like(x)
    _gradient[cut.second_pass](
        passed, x, dx, mean, inverse, weight, bias, d_weight, d_bias, cut.pixels, cut.channels, cut.run,
        relu and not plus, cut.rows, cut.columns, _TYPES[sums],
    )  # fmt: skip
    return dx, passed if plus else None, d_weight, d_bias


_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def _sums(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
