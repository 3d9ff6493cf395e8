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

from reprise.kernels import conv_triton
from reprise.kernels.tiles import Tiles, fitting, tiles_for


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
    conv_triton.spread[grid](
        g, w, dx, s.images, *w.stride(), **s.constants(), **_blocks(t, "I"), **_arithmetic(g.dtype)
    )
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
        conv_triton.line_filters[(groups * tiles, s.lanes, spans)](
            x, g, dw, spots, t.span, *source, **s.line_constants(), RUN=_is_run(x), **_blocks(t),
            **_arithmetic(g.dtype),
        )  # fmt: skip
    else:
        conv_triton.filters[(triton.cdiv(s.columns * s.inputs, t.depth) * tiles * s.rows, s.lanes, parts)](
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
        conv_triton.lines[(groups, s.lanes, triton.cdiv(s.height, span))](
            x, start, y, spots, span, *_strides(x), *w_strides, **s.line_constants(), RUN=_is_run(x), **_blocks(t),
            **_arithmetic(dtype),
        )  # fmt: skip
    else:
        conv_triton.product[(triton.cdiv(s.pixels, t.pixels) * tiles, s.lanes)](
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
