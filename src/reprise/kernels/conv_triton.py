"""The convolutions' kernels; conv.py says what they are for and launches them.

Every kernel has a program for each lane and tile of its result. Constants are upper case, as Triton's own documents
have it: HEIGHT, WIDTH, INPUTS of the images; OUT_HEIGHT, OUT_WIDTH, OUTPUTS of the result; ROWS, COLUMNS of a filter.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    x,
    w,
    y,
    pixels,
    x_lane,
    x_image,
    x_row,
    x_column,
    x_channel,
    w_lane,
    w_out,
    w_in,
    w_row,
    w_column,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD_Y: tl.constexpr,
    PAD_X: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERANDS: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """y[p, o] = sum over (row, column, channel) of x[p's patch] * w[o]. Output [lanes, pixels, OUTPUTS].

    RUN: the channels and columns of a row are consecutive in x, so that a patch's row is one run of numbers.
    """
    lane = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(OUTPUTS, BLOCK_O)
    p = (tl.program_id(0) // tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
    o = (tl.program_id(0) % tiles) * BLOCK_O + tl.arange(0, BLOCK_O)
    image = p // (OUT_HEIGHT * OUT_WIDTH)
    top = (p // OUT_WIDTH) % OUT_HEIGHT * STRIDE - PAD_Y
    left = p % OUT_WIDTH * STRIDE - PAD_X
    patch = x + lane * x_lane + image * x_image + left * x_column
    filters = w + lane * w_lane + o * w_out
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_P, BLOCK_O), dtype=SUMS)
    for row in range(ROWS):
        line = top + row
        inside = (p < pixels) & (line >= 0) & (line < HEIGHT)
        start = patch + line * x_row
        for first in range(0, COLUMNS * INPUTS, BLOCK_K):
            at = first + k
            column = at // INPUTS
            channel = at % INPUTS
            offset = at if RUN else column * x_column + channel * x_channel
            here = left[:, None] + column[None, :]
            seen = inside[:, None] & (here >= 0) & (here < WIDTH) & (at < COLUMNS * INPUTS)[None, :]
            a = tl.load(start[:, None] + offset[None, :], mask=seen, other=0.0)
            b = tl.load(
                filters[None, :] + (row * w_row + column * w_column + channel * w_in)[:, None],
                mask=(at < COLUMNS * INPUTS)[:, None] & (o < OUTPUTS)[None, :],
                other=0.0,
            )
            total = tl.dot(a.to(OPERANDS), b.to(OPERANDS), total, input_precision=PRECISION, out_dtype=SUMS)
    target = y + lane * pixels * OUTPUTS + p[:, None] * OUTPUTS + o[None, :]
    tl.store(target, total.to(y.dtype.element_ty), mask=(p < pixels)[:, None] & (o < OUTPUTS)[None, :])


@triton.jit
def spread(
    g,
    w,
    dx,
    images,
    w_lane,
    w_out,
    w_in,
    w_row,
    w_column,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD_Y: tl.constexpr,
    PAD_X: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERANDS: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of a strided convolution at its input, [lanes, images, HEIGHT, WIDTH, INPUTS].

    Input pixels of one remainder (y mod STRIDE, x mod STRIDE) meet the same taps: a program serves one remainder.
    """
    lane = tl.program_id(1).to(tl.int64)
    rest_y = tl.program_id(2) // STRIDE
    rest_x = tl.program_id(2) % STRIDE
    LINES: tl.constexpr = (HEIGHT + STRIDE - 1) // STRIDE
    SPOTS: tl.constexpr = (WIDTH + STRIDE - 1) // STRIDE
    tiles = tl.cdiv(INPUTS, BLOCK_I)
    p = (tl.program_id(0) // tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
    c = (tl.program_id(0) % tiles) * BLOCK_I + tl.arange(0, BLOCK_I)
    image = p // (LINES * SPOTS)
    y = (p // SPOTS) % LINES * STRIDE + rest_y
    x = p % SPOTS * STRIDE + rest_x
    there = (image < images) & (y < HEIGHT) & (x < WIDTH)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_P, BLOCK_I), dtype=SUMS)
    for row in range((rest_y + PAD_Y) % STRIDE, ROWS, STRIDE):
        line = (y + PAD_Y - row) // STRIDE
        for column in range((rest_x + PAD_X) % STRIDE, COLUMNS, STRIDE):
            spot = (x + PAD_X - column) // STRIDE
            # Before the first line y + PAD - row is negative; a division that rounds to zero would call it line 0.
            seen = (
                there & (y + PAD_Y >= row) & (line < OUT_HEIGHT) & (x + PAD_X >= column) & (spot < OUT_WIDTH)
            )
            start = g + (((lane * images + image) * OUT_HEIGHT + line) * OUT_WIDTH + spot) * OUTPUTS
            for first in range(0, OUTPUTS, BLOCK_K):
                o = first + k
                a = tl.load(
                    start[:, None] + o[None, :], mask=seen[:, None] & (o < OUTPUTS)[None, :], other=0.0
                )
                b = tl.load(
                    w
                    + lane * w_lane
                    + row * w_row
                    + column * w_column
                    + o[:, None] * w_out
                    + c[None, :] * w_in,
                    mask=(o < OUTPUTS)[:, None] & (c < INPUTS)[None, :],
                    other=0.0,
                )
                total = tl.dot(
                    a.to(OPERANDS), b.to(OPERANDS), total, input_precision=PRECISION, out_dtype=SUMS
                )
    target = dx + (((lane * images + image) * HEIGHT + y) * WIDTH + x) * INPUTS
    tl.store(
        target[:, None] + c[None, :],
        total.to(dx.dtype.element_ty),
        mask=there[:, None] & (c < INPUTS)[None, :],
    )


@triton.jit
def filters(
    x,
    g,
    dw,
    pixels,
    chunk,
    x_lane,
    x_image,
    x_row,
    x_column,
    x_channel,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD_Y: tl.constexpr,
    PAD_X: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERANDS: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient at the filters over one chunk of pixels: dw [chunks, lanes, OUTPUTS, ROWS, COLUMNS * INPUTS].

    Chunks make more programs where lanes are few; they are added afterwards in a fixed order.
    """
    WIDE: tl.constexpr = COLUMNS * INPUTS
    lane = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2).to(tl.int64)
    spans = tl.cdiv(WIDE, BLOCK_K)
    tiles = tl.cdiv(OUTPUTS, BLOCK_O)
    at = tl.program_id(0) % spans * BLOCK_K + tl.arange(0, BLOCK_K)
    o = tl.program_id(0) // spans % tiles * BLOCK_O + tl.arange(0, BLOCK_O)
    row = tl.program_id(0) // (spans * tiles)
    column = at // INPUTS
    channel = at % INPUTS
    offset = at if RUN else column * x_column + channel * x_channel
    end = tl.minimum(pixels, (part + 1) * chunk)
    total = tl.zeros((BLOCK_O, BLOCK_K), dtype=SUMS)
    for first in range(part * chunk, end, BLOCK_P):
        p = first + tl.arange(0, BLOCK_P)
        image = p // (OUT_HEIGHT * OUT_WIDTH)
        line = (p // OUT_WIDTH) % OUT_HEIGHT * STRIDE - PAD_Y + row
        left = p % OUT_WIDTH * STRIDE - PAD_X
        inside = (p < end) & (line >= 0) & (line < HEIGHT)
        start = x + lane * x_lane + image * x_image + line * x_row + left * x_column
        here = left[:, None] + column[None, :]
        seen = inside[:, None] & (here >= 0) & (here < WIDTH) & (at < WIDE)[None, :]
        b = tl.load(start[:, None] + offset[None, :], mask=seen, other=0.0)
        a = tl.load(
            g + (lane * pixels + p[None, :]) * OUTPUTS + o[:, None],
            mask=(o < OUTPUTS)[:, None] & (p < end)[None, :],
            other=0.0,
        )
        total = tl.dot(a.to(OPERANDS), b.to(OPERANDS), total, input_precision=PRECISION, out_dtype=SUMS)
    lanes = tl.num_programs(1)
    target = dw + (((part * lanes + lane) * OUTPUTS + o[:, None]) * ROWS + row) * WIDE + at[None, :]
    tl.store(target, total, mask=(o < OUTPUTS)[:, None] & (at < WIDE)[None, :])


@triton.jit
def lines(
    x,
    w,
    y,
    spots,
    span,
    x_lane,
    x_image,
    x_row,
    x_column,
    x_channel,
    w_lane,
    w_out,
    w_in,
    w_row,
    w_column,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERANDS: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The same for 3 x 3 filters of few channels, stride 1, padding 1: line after line from the top.

    An input line is read once and serves three output lines (below, at and above it), whose sums are under way at the
    same time; the filters stay where they are. A program has the spots (image, column) of one tile and `span` lines.
    """
    WIDE: tl.constexpr = 3 * INPUTS
    lane = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(OUTPUTS, BLOCK_O)
    p = (tl.program_id(0) // tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
    o = (tl.program_id(0) % tiles) * BLOCK_O + tl.arange(0, BLOCK_O)
    first = tl.program_id(2) * span
    last = tl.minimum(first + span, HEIGHT)
    image = p // WIDTH
    left = p % WIDTH - 1
    at = tl.arange(0, BLOCK_K)
    column = at // INPUTS
    channel = at % INPUTS
    offset = at if RUN else column * x_column + channel * x_channel
    here = left[:, None] + column[None, :]
    seen = (p < spots)[:, None] & (here >= 0) & (here < WIDTH) & (at < WIDE)[None, :]
    patch = (x + lane * x_lane + image * x_image + left * x_column)[:, None] + offset[None, :]
    filters = w + lane * w_lane + o[None, :] * w_out + (column * w_column + channel * w_in)[:, None]
    known = (at < WIDE)[:, None] & (o < OUTPUTS)[None, :]
    top = tl.load(filters, mask=known, other=0.0).to(OPERANDS)
    middle = tl.load(filters + w_row, mask=known, other=0.0).to(OPERANDS)
    bottom = tl.load(filters + 2 * w_row, mask=known, other=0.0).to(OPERANDS)
    target = (
        y + ((lane * (spots // WIDTH) + image) * HEIGHT * WIDTH + left + 1)[:, None] * OUTPUTS + o[None, :]
    )
    written = (p < spots)[:, None] & (o < OUTPUTS)[None, :]
    above = tl.zeros((BLOCK_P, BLOCK_O), dtype=SUMS)
    level = tl.zeros((BLOCK_P, BLOCK_O), dtype=SUMS)
    for step in range(-1, span + 1):
        line = first + step
        spread = line + 0 * p  # one number a spot: the interpreter spoils a mask that is a single truth
        inside = (spread >= 0) & (spread < HEIGHT)
        a = tl.load(patch + line * x_row, mask=seen & inside[:, None], other=0.0).to(OPERANDS)
        done = tl.dot(a, bottom, above, input_precision=PRECISION, out_dtype=SUMS)
        above = tl.dot(a, middle, level, input_precision=PRECISION, out_dtype=SUMS)
        level = tl.dot(a, top, input_precision=PRECISION, out_dtype=SUMS)
        tl.store(
            target + (line - 1) * WIDTH * OUTPUTS,
            done.to(y.dtype.element_ty),
            mask=written & ((spread > first) & (spread <= last))[:, None],
        )


@triton.jit
def line_filters(
    x,
    g,
    dw,
    spots,
    span,
    x_lane,
    x_image,
    x_row,
    x_column,
    x_channel,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERANDS: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient at such filters, line after line: an input line meets the gradients of three output lines.

    dw [parts, lanes, OUTPUTS, 3, 3 * INPUTS]; a part is a tile of spots over `span` lines.
    """
    WIDE: tl.constexpr = 3 * INPUTS
    lane = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(OUTPUTS, BLOCK_O)
    groups = tl.num_programs(0) // tiles
    group = tl.program_id(0) // tiles
    p = group * BLOCK_P + tl.arange(0, BLOCK_P)
    o = (tl.program_id(0) % tiles) * BLOCK_O + tl.arange(0, BLOCK_O)
    first = tl.program_id(2) * span
    last = tl.minimum(first + span, HEIGHT)
    image = p // WIDTH
    left = p % WIDTH - 1
    at = tl.arange(0, BLOCK_K)
    column = at // INPUTS
    channel = at % INPUTS
    offset = at if RUN else column * x_column + channel * x_channel
    here = left[:, None] + column[None, :]
    seen = (p < spots)[:, None] & (here >= 0) & (here < WIDTH) & (at < WIDE)[None, :]
    patch = (x + lane * x_lane + image * x_image + left * x_column)[:, None] + offset[None, :]
    source = (
        g + ((lane * (spots // WIDTH) + image) * HEIGHT * WIDTH + left + 1)[:, None] * OUTPUTS + o[None, :]
    )
    known = (p < spots)[:, None] & (o < OUTPUTS)[None, :]
    above = tl.load(
        source + (first - 1) * WIDTH * OUTPUTS, mask=known & (first + 0 * p > 0)[:, None], other=0.0
    ).to(OPERANDS)
    level = tl.load(source + first * WIDTH * OUTPUTS, mask=known, other=0.0).to(OPERANDS)
    top = tl.zeros((BLOCK_K, BLOCK_O), dtype=SUMS)
    middle = tl.zeros((BLOCK_K, BLOCK_O), dtype=SUMS)
    bottom = tl.zeros((BLOCK_K, BLOCK_O), dtype=SUMS)
    for step in range(0, span):
        line = first + step
        spread = line + 0 * p
        below = tl.load(
            source + (line + 1) * WIDTH * OUTPUTS, mask=known & (spread + 1 < HEIGHT)[:, None], other=0.0
        ).to(OPERANDS)
        a = tl.load(patch + line * x_row, mask=seen & (spread < last)[:, None], other=0.0).to(OPERANDS)
        a = tl.trans(a)
        top = tl.dot(a, below, top, input_precision=PRECISION, out_dtype=SUMS)
        middle = tl.dot(a, level, middle, input_precision=PRECISION, out_dtype=SUMS)
        bottom = tl.dot(a, above, bottom, input_precision=PRECISION, out_dtype=SUMS)
        above = level
        level = below
    part = (tl.program_id(2) * groups + group).to(tl.int64)
    target = dw + ((part * tl.num_programs(1) + lane) * OUTPUTS + o)[None, :] * 3 * WIDE + at[:, None]
    wanted = (at < WIDE)[:, None] & (o < OUTPUTS)[None, :]
    tl.store(target, top, mask=wanted)
    tl.store(target + WIDE, middle, mask=wanted)
    tl.store(target + 2 * WIDE, bottom, mask=wanted)
