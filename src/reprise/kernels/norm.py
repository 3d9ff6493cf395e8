"""BatchNorm of stacked lanes in training mode, with the sum and the ReLU that may follow.

Two passes each way: partial sums over chunks of pixels, then the result, whose programs first merge the partial sums
of their lane (there are few). Statistics are float32 whatever the images are, merged as in Chan's formula, which does
not cancel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# ruff: noqa: N803, N806 (constants of a kernel are upper case, as Triton's own documents have it)

CHUNKS = 16
"""Partial sums of a lane and channel: the merge reads them all."""


@triton.jit
def _partial_moments(
    x, means, squares, pixels, chunk, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Mean, and sum of squared distances from it, of each channel over a chunk of pixels."""
    part = tl.program_id(0)
    lane = tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < CHANNELS
    begin = part * chunk
    end = tl.minimum(pixels, begin + chunk)
    source = x + lane * pixels * CHANNELS
    mean = tl.zeros((BLOCK_C,), dtype=SUMS)
    square = tl.zeros((BLOCK_C,), dtype=SUMS)
    count = tl.full((), 0.0, SUMS)
    for first in range(begin, end, BLOCK_P):
        p = first + tl.arange(0, BLOCK_P)
        there = (p < end)[:, None] & known[None, :]
        v = tl.load(source + p[:, None] * CHANNELS + c[None, :], mask=there, other=0.0).to(SUMS)
        here = tl.cast(tl.minimum(end - first, BLOCK_P), SUMS)
        own = tl.sum(v, 0) / here
        away = tl.where(there, v - own[None, :], 0.0)
        # Chan's formula: two sets of numbers become one.
        both = count + here
        apart = own - mean
        square += tl.sum(away * away, 0) + apart * apart * (count * here / both)
        mean += apart * (here / both)
        count = both
    at = (lane * CHUNKS + part) * CHANNELS + c
    tl.store(means + at, mean, mask=known)
    tl.store(squares + at, square, mask=known)


@triton.jit
def _normalise(
    x, plus, y, means, squares, weight, bias, running_mean, running_var, mean_out, inverse_out, pixels, chunk,
    momentum, eps, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr, PLUS: tl.constexpr, RELU: tl.constexpr,
    TRACK: tl.constexpr, FIXED: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """y = (x - mean) / sqrt(var + eps) * weight + bias (+ plus) (ReLU), and the running statistics moved.

    FIXED: the running statistics are the mean and variance (evaluation).
    """
    lane = tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < CHANNELS
    own = lane * CHANNELS + c
    if FIXED:
        mean = tl.load(running_mean + own, mask=known, other=0.0)
        var = tl.load(running_var + own, mask=known, other=0.0)
        inverse = 1.0 / tl.sqrt(var + eps)
    else:
        part = tl.arange(0, CHUNKS)
        at = (lane * CHUNKS + part[:, None]) * CHANNELS + c[None, :]
        count = tl.maximum(tl.minimum(pixels - part * chunk, chunk), 0).to(SUMS)[:, None]
        own_means = tl.load(means + at, mask=known[None, :] & (count > 0), other=0.0)
        total = tl.cast(pixels, SUMS)
        mean = tl.sum(own_means * count, 0) / total
        apart = own_means - mean[None, :]
        within = tl.load(squares + at, mask=known[None, :] & (count > 0), other=0.0)
        var = tl.sum(within + apart * apart * count, 0) / total
        inverse = 1.0 / tl.sqrt(var + eps)
        if tl.program_id(0) == 0:
            tl.store(mean_out + own, mean, mask=known)
            tl.store(inverse_out + own, inverse, mask=known)
            if TRACK:
                before = tl.load(running_mean + own, mask=known, other=0.0)
                tl.store(running_mean + own, before + momentum * (mean - before), mask=known)
                before = tl.load(running_var + own, mask=known, other=0.0)
                unbiased = var * (total / (total - 1.0))
                tl.store(running_var + own, before + momentum * (unbiased - before), mask=known)
    scale = tl.load(weight + own, mask=known, other=0.0) * inverse
    shift = tl.load(bias + own, mask=known, other=0.0)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    there = (p < pixels)[:, None] & known[None, :]
    at = lane * pixels * CHANNELS + p[:, None] * CHANNELS + c[None, :]
    away = tl.load(x + at, mask=there, other=0.0).to(SUMS) - mean[None, :]
    v = away * scale[None, :] + shift[None, :]
    if PLUS:
        v += tl.load(plus + at, mask=there, other=0.0).to(SUMS)
    if RELU:
        v = tl.maximum(v, 0.0)
    tl.store(y + at, v.to(y.dtype.element_ty), mask=there)


@triton.jit
def _partial_gradients(
    g, x, y, passed, mean, inverse, g_sums, gx_sums, pixels, chunk, CHANNELS: tl.constexpr, CHUNKS: tl.constexpr,
    PLUS: tl.constexpr, RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Sums of g and g * x_hat over a chunk of pixels, g being what the ReLU lets through (kept where `plus` needs it)."""
    part = tl.program_id(0)
    lane = tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < CHANNELS
    middle = tl.load(mean + lane * CHANNELS + c, mask=known, other=0.0)
    factor = tl.load(inverse + lane * CHANNELS + c, mask=known, other=0.0)
    begin = part * chunk
    end = tl.minimum(pixels, begin + chunk)
    g_sum = tl.zeros((BLOCK_C,), dtype=SUMS)
    gx_sum = tl.zeros((BLOCK_C,), dtype=SUMS)
    for first in range(begin, end, BLOCK_P):
        p = first + tl.arange(0, BLOCK_P)
        there = (p < end)[:, None] & known[None, :]
        at = lane * pixels * CHANNELS + p[:, None] * CHANNELS + c[None, :]
        dy = tl.load(g + at, mask=there, other=0.0).to(SUMS)
        if RELU:
            dy = tl.where(tl.load(y + at, mask=there, other=0.0).to(SUMS) > 0, dy, 0.0)
            if PLUS:
                tl.store(passed + at, dy.to(passed.dtype.element_ty), mask=there)
        hat = (tl.load(x + at, mask=there, other=0.0).to(SUMS) - middle[None, :]) * factor[None, :]
        g_sum += tl.sum(dy, 0)
        gx_sum += tl.sum(dy * hat, 0)
    at = (lane * CHUNKS + part) * CHANNELS + c
    tl.store(g_sums + at, g_sum, mask=known)
    tl.store(gx_sums + at, gx_sum, mask=known)


@triton.jit
def _gradient(
    g, x, y, dx, g_sums, gx_sums, mean, inverse, weight, d_weight, d_bias, pixels, CHANNELS: tl.constexpr,
    CHUNKS: tl.constexpr, RELU: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """dx = weight * inverse * (g - mean(g) - x_hat * mean(g * x_hat)); the sums are the gradients of bias and weight."""
    lane = tl.program_id(1).to(tl.int64)
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < CHANNELS
    own = lane * CHANNELS + c
    part = tl.arange(0, CHUNKS)
    at = (lane * CHUNKS + part[:, None]) * CHANNELS + c[None, :]
    g_sum = tl.sum(tl.load(g_sums + at, mask=known[None, :], other=0.0), 0)
    gx_sum = tl.sum(tl.load(gx_sums + at, mask=known[None, :], other=0.0), 0)
    if tl.program_id(0) == 0:
        tl.store(d_bias + own, g_sum, mask=known)
        tl.store(d_weight + own, gx_sum, mask=known)
    middle = tl.load(mean + own, mask=known, other=0.0)
    factor = tl.load(inverse + own, mask=known, other=0.0)
    scale = tl.load(weight + own, mask=known, other=0.0) * factor
    total = tl.cast(pixels, SUMS)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    there = (p < pixels)[:, None] & known[None, :]
    at = lane * pixels * CHANNELS + p[:, None] * CHANNELS + c[None, :]
    dy = tl.load(g + at, mask=there, other=0.0).to(SUMS)
    if RELU:
        dy = tl.where(tl.load(y + at, mask=there, other=0.0).to(SUMS) > 0, dy, 0.0)
    hat = (tl.load(x + at, mask=there, other=0.0).to(SUMS) - middle[None, :]) * factor[None, :]
    d = scale[None, :] * (dy - (g_sum / total)[None, :] - hat * (gx_sum / total)[None, :])
    tl.store(dx + at, d.to(dx.dtype.element_ty), mask=there)


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
    lanes, channels, pixels, chunk, grid, blocks = _cut(x)
    sums = _sums_dtype(x)
    means, squares = x.new_empty(2, lanes, CHUNKS, channels, dtype=sums)
    mean, inverse = x.new_empty(2, lanes, channels, dtype=sums)
    _partial_moments[(CHUNKS, *grid[1:])](
        x, means, squares, pixels, chunk, channels, CHUNKS, *blocks, _SUMS[sums]
    )
    y = torch.empty_like(x)
    running = statistics or (mean, mean)
    _normalise[grid](
        x, x if plus is None else plus, y, means, squares, weight, bias, *running, mean, inverse, pixels, chunk,
        momentum, eps, channels, CHUNKS, plus is not None, relu, statistics is not None, False, *blocks, _SUMS[sums],
    )  # fmt: skip
    return y, mean, inverse


def normalise_fixed(
    x: Tensor, plus: Tensor | None, weight: Tensor, bias: Tensor, statistics: tuple[Tensor, Tensor], eps: float,
    relu: bool,
) -> Tensor:  # fmt: skip
    """The same in evaluation: by the running mean and variance."""
    _, channels, pixels, chunk, grid, blocks = _cut(x)
    y = torch.empty_like(x)
    unused = statistics[0]
    _normalise[grid](
        x, x if plus is None else plus, y, unused, unused, weight, bias, *statistics, unused, unused, pixels, chunk,
        0.0, eps, channels, CHUNKS, plus is not None, relu, False, True, *blocks, _SUMS[_sums_dtype(x)],
    )  # fmt: skip
    return y


def gradients(
    g: Tensor, x: Tensor, y: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, relu: bool, plus: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients at x, plus, weight and bias."""
    lanes, channels, pixels, chunk, grid, blocks = _cut(x)
    sums = mean.dtype
    g_sums, gx_sums = x.new_empty(2, lanes, CHUNKS, channels, dtype=sums)
    d_weight, d_bias = x.new_empty(2, lanes, channels, dtype=sums)
    # What the ReLU lets through is the gradient at `plus`; without a ReLU that is g itself.
    passed = torch.empty_like(g) if plus and relu else g
    _partial_gradients[(CHUNKS, *grid[1:])](
        g, x, y, passed, mean, inverse, g_sums, gx_sums, pixels, chunk, channels, CHUNKS, plus, relu, *blocks,
        _SUMS[sums],
    )  # fmt: skip
    dx = torch.empty_like(x)
    masked = relu and not plus
    _gradient[grid](
        passed, x, y, dx, g_sums, gx_sums, mean, inverse, weight, d_weight, d_bias, pixels, channels, CHUNKS, masked,
        *blocks, _SUMS[sums],
    )  # fmt: skip
    return dx, passed if plus else None, d_weight, d_bias


_SUMS = {torch.float32: tl.float32, torch.float64: tl.float64}


def _sums_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _cut(x: Tensor) -> tuple[int, int, int, int, tuple[int, int, int], tuple[int, int]]:
    """Lanes, channels, pixels, pixels of a chunk, the grid of programs, and the tile of one."""
    lanes, n, channels, h, w = x.shape
    pixels = n * h * w
    block_c = 32 if channels % 32 in (0, *range(17, 32)) else 16
    block_p = 4096 // block_c
    chunk = triton.cdiv(triton.cdiv(pixels, CHUNKS), block_p) * block_p
    grid = (triton.cdiv(pixels, block_p), lanes, triton.cdiv(channels, block_c))
    return lanes, channels, pixels, chunk, grid, (block_p, block_c)
