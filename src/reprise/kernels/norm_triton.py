"""The norm's kernels; norm.py says what they are for and launches them.

A program sees one lane and a tile of runs: RUN pixels of CHANNELS numbers each, one after another in memory.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(pixels, CHANNELS: tl.constexpr, RUN: tl.constexpr, BLOCK_C: tl.constexpr):
    """This program's lane, its columns of a run, their channels, which of them exist, and the size of a lane."""
    lane = tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    return lane, column, column % CHANNELS, column < RUN * CHANNELS, pixels * CHANNELS


@triton.jit
def partial_moments(
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
def merge_moments(
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
def normalise(
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
def partial_gradients(
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
def merge_gradients(
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
def gradient(
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
