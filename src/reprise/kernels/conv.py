"""Convolution of stacked lanes as an implicit matrix product, one program per lane and tile.

cuDNN runs lanes as a grouped convolution, which for 20 channels a group leaves a GPU's matrix units mostly idle. Here
a lane's convolution is the product of its input patches [pixels, kh * kw * channels] with its filters; patches are
read from the input as they are needed and never stored. Images lie channels-last, so that the pixels and channels of
a patch's row are consecutive numbers in memory: a filter row of 3 x 20 channels is one run of 60 numbers, and padding
it to the matrix units' sizes wastes little.

A lane's result depends on the lane's numbers only, never on how many lanes there are: sums have one fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from reprise.kernels.tiles import Tiles, fitting, tiles_for

# In kernels, constants are upper case, as Triton's own documents have it; their arguments have no types.
# mypy: disallow-untyped-defs=False


@triton.jit
def _product(
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
def _spread(
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
def _filters(
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
def _lines(
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
def _line_filters(
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


@dataclass(frozen=True)
class Shape:
    """What a convolution looks like, from its tensors: x [lanes, n, c, h, w], w [lanes, o, c, kh, kw]."""

    lanes: int
    images: int
    inputs: int
    height: int
    width: int
    outputs: int
    rows: int
    columns: int
    stride: int
    pad: int

    @staticmethod
    def of(x: Tensor, w: Tensor, stride: int, pad: int) -> Shape:
        lanes, images, inputs, height, width = x.shape
        outputs, (rows, columns) = w.shape[1], w.shape[3:]
        return Shape(lanes, images, inputs, height, width, outputs, rows, columns, stride, pad)

    @property
    def out_height(self) -> int:
        return (self.height + 2 * self.pad - self.rows) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * self.pad - self.columns) // self.stride + 1

    @property
    def pixels(self) -> int:
        return self.images * self.out_height * self.out_width

    @property
    def walks(self) -> bool:
        """Whether the kernels that walk down the lines serve it: 3 x 3, stride 1, few channels and wide images."""
        plain = (self.rows, self.columns, self.stride, self.pad) == (3, 3, 1, 1)
        return plain and self.columns * self.inputs <= 128 and self.width >= 16

    def line_constants(self) -> dict[str, int]:
        return {"HEIGHT": self.height, "WIDTH": self.width, "INPUTS": self.inputs, "OUTPUTS": self.outputs}

    def constants(self) -> dict[str, int]:
        return {
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "INPUTS": self.inputs,
            "OUT_HEIGHT": self.out_height,
            "OUT_WIDTH": self.out_width,
            "OUTPUTS": self.outputs,
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "STRIDE": self.stride,
            "PAD_Y": self.pad,
            "PAD_X": self.pad,
        }


def product_tiles(s: Shape, dtype: torch.dtype, device: torch.device, back: bool = False) -> Tiles:
    """For the convolution itself, and for the gradient at the input of one without stride (`back`)."""
    wide = s.columns * s.inputs
    rule = Tiles(64, min(64, fitting(s.outputs)), min(32, fitting(wide)), 4, 2)
    if s.walks and wide <= 64:
        rule = Tiles(64, min(32, fitting(s.outputs)), fitting(wide), 4, 2, s.height)
    kind, layer = ("input", (s.outputs, s.inputs)) if back else ("forward", (s.inputs, s.outputs))
    return tiles_for(kind, (*layer, s.rows, s.stride), rule, dtype, device)


def spread_tiles(s: Shape, dtype: torch.dtype, device: torch.device) -> Tiles:
    """For the gradient at the input of a strided convolution."""
    rule = Tiles(64, min(64, fitting(s.inputs)), min(32, fitting(s.outputs)), 4, 2)
    return tiles_for("input", (s.inputs, s.outputs, s.rows, s.stride), rule, dtype, device)


def filter_tiles(s: Shape, dtype: torch.dtype, device: torch.device) -> Tiles:
    """For the gradient at the filters."""
    wide = s.columns * s.inputs
    rule = Tiles(32, min(64, fitting(s.outputs)), min(64, fitting(wide)), 4, 2)
    if s.walks and wide <= 64:
        rule = Tiles(64, min(32, fitting(s.outputs)), fitting(wide), 4, 2, s.height)
    return tiles_for("filters", (s.inputs, s.outputs, s.rows, s.stride), rule, dtype, device)


ENOUGH_PROGRAMS = 256
"""Two for each multiprocessor of a large GPU."""

FILTER_PIXELS = 2048
"""Pixels a program sums over for the filters' gradient, where it does not walk."""


def forward(x: Tensor, w: Tensor, stride: int, pad: int, dtype: torch.dtype) -> Tensor:
    """The convolution of each lane: [lanes, n, o, h', w'] of this dtype, channels-last."""
    return _multiply(x, w, Shape.of(x, w, stride, pad), dtype, w.stride(), 0)


def backward_input(g: Tensor, x: Tensor, w: Tensor, stride: int, pad: int) -> Tensor:
    """The gradient at the input, given the gradient g at the output (channels-last)."""
    s = Shape.of(x, w, stride, pad)
    if stride == 1:
        # A convolution of the gradient with the filters turned by half a circle, inputs and outputs exchanged.
        lane, out, into, row, column = w.stride()
        turned_shape = replace(
            s,
            inputs=s.outputs,
            outputs=s.inputs,
            height=s.out_height,
            width=s.out_width,
            pad=s.rows - 1 - pad,
        )
        turned = (s.rows - 1) * row + (s.columns - 1) * column
        return _multiply(g, w, turned_shape, x.dtype, (lane, into, out, -row, -column), turned, back=True)
    dx, view = _images(s.lanes, s.images, s.inputs, s.height, s.width, x.device, x.dtype)
    t = spread_tiles(s, g.dtype, g.device)
    lines, spots = -(-s.height // stride), -(-s.width // stride)
    grid = (
        triton.cdiv(s.images * lines * spots, t.pixels) * triton.cdiv(s.inputs, t.channels),
        s.lanes,
        stride * stride,
    )
    _spread[grid](g, w, dx, s.images, *w.stride(), **s.constants(), **_blocks(t, "I"), **_arithmetic(g.dtype))
    return view


def backward_filters(g: Tensor, x: Tensor, w: Tensor, stride: int, pad: int) -> Tensor:
    """The gradient at the filters in float32 (float64), laid out like them when those are channels-last."""
    s = Shape.of(x, w, stride, pad)
    t = filter_tiles(s, g.dtype, g.device)
    dtype = torch.float64 if g.dtype == torch.float64 else torch.float32
    tiles = triton.cdiv(s.outputs, t.channels)
    source = (*_strides(x),)
    if t.span:
        spots = s.images * s.width
        groups, spans = triton.cdiv(spots, t.pixels), triton.cdiv(s.height, t.span)
        parts = groups * spans
    else:
        parts = max(1, s.pixels // FILTER_PIXELS)
        chunk = triton.cdiv(triton.cdiv(s.pixels, parts), t.pixels) * t.pixels
        parts = triton.cdiv(s.pixels, chunk)
    dw = torch.empty(parts, s.lanes, s.outputs, s.rows, s.columns, s.inputs, device=w.device, dtype=dtype)
    if t.span:
        _line_filters[(groups * tiles, s.lanes, spans)](
            x, g, dw, spots, t.span, *source, **s.line_constants(), RUN=_is_run(x), **_blocks(t),
            **_arithmetic(g.dtype),
        )  # fmt: skip
    else:
        _filters[(triton.cdiv(s.columns * s.inputs, t.depth) * tiles * s.rows, s.lanes, parts)](
            x, g, dw, s.pixels, chunk, *source, **s.constants(), RUN=_is_run(x), **_blocks(t),
            **_arithmetic(g.dtype),
        )  # fmt: skip
    return (dw[0] if parts == 1 else dw.sum(0)).permute(0, 1, 4, 2, 3)


def _multiply(
    x: Tensor,
    w: Tensor,
    s: Shape,
    dtype: torch.dtype,
    w_strides: tuple[int, ...],
    w_offset: int,
    back: bool = False,
) -> Tensor:
    y, view = _images(s.lanes, s.images, s.outputs, s.out_height, s.out_width, x.device, dtype)
    t = product_tiles(s, dtype, x.device, back)
    tiles = triton.cdiv(s.outputs, t.channels)
    start = w.detach().as_strided((1,), (1,), w.storage_offset() + w_offset)
    if t.span:
        spots = s.images * s.width
        groups = triton.cdiv(spots, t.pixels) * tiles
        # Few lanes: shorter walks make more programs. The sums of a line stay what they are.
        span = t.span
        while span > 8 and groups * s.lanes * triton.cdiv(s.height, span) < ENOUGH_PROGRAMS:
            span //= 2
        _lines[(groups, s.lanes, triton.cdiv(s.height, span))](
            x, start, y, spots, span, *_strides(x), *w_strides, **s.line_constants(), RUN=_is_run(x), **_blocks(t),
            **_arithmetic(dtype),
        )  # fmt: skip
    else:
        _product[(triton.cdiv(s.pixels, t.pixels) * tiles, s.lanes)](
            x, start, y, s.pixels, *_strides(x), *w_strides, **s.constants(), RUN=_is_run(x), **_blocks(t),
            **_arithmetic(dtype),
        )  # fmt: skip
    return view


def _blocks(t: Tiles, channels: str = "O") -> dict[str, int]:
    return {
        "BLOCK_P": t.pixels,
        f"BLOCK_{channels}": t.channels,
        "BLOCK_K": t.depth,
        "num_warps": t.warps,
        "num_stages": t.stages,
    }


def channels_last(x: Tensor) -> Tensor:
    """[lanes, n, c, h, w] with the channels of a pixel beside each other in memory."""
    return x if _is_dense_run(x) else x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _images(
    lanes: int, n: int, c: int, h: int, w: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """New channels-last images, as they lie in memory and as torch sees them."""
    memory = torch.empty(lanes, n, h, w, c, device=device, dtype=dtype)
    return memory, memory.permute(0, 1, 4, 2, 3)


def _strides(x: Tensor) -> tuple[int, int, int, int, int]:
    """Of lane, image, row, column, channel."""
    lane, image, channel, row, column = x.stride()
    return lane, image, row, column, channel


def _is_run(x: Tensor) -> bool:
    return x.stride(2) == 1 and x.stride(4) == x.shape[2]


def _is_dense_run(x: Tensor) -> bool:
    return x.permute(0, 1, 3, 4, 2).is_contiguous()


_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64, torch.bfloat16: tl.bfloat16}


def _arithmetic(dtype: torch.dtype) -> dict[str, object]:
    """What is multiplied, in what it is added up, and how exactly (torch's own switch for TF32 counts)."""
    tf32 = dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return {
        "OPERANDS": _TYPES[dtype],
        "SUMS": tl.float64 if dtype == torch.float64 else tl.float32,
        "PRECISION": "tf32" if tf32 else "ieee",
    }
