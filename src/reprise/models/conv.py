"""Convolution without bias, in the arithmetic that is asked for: torch's own, or the lanes' kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reprise.models.heads import StackedHeads
from reprise.models.norm import Norm, allow_rows


class Conv(nn.Conv2d):
    """`nn.Conv2d` of a square, without bias (a norm follows).

    compute  the dtype of its products and its output; None: that of the weights
    kernels  runs lanes by the kernels of `reprise.kernels`
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, size, stride, padding, bias=False)
        self.compute: torch.dtype | None = None
        self.kernels = False

    def forward(self, x: Tensor) -> Tensor:
        compute = self.compute or self.weight.dtype
        if self.kernels:
            from reprise.kernels import ops

            return ops.conv(x, self.weight, self.stride[0], int(self.padding[0]), compute)
        return self._conv_forward(x.to(compute), self.weight.to(compute), None)


class UpConv(nn.ConvTranspose2d):
    """A transposed 3x3 convolution without bias that doubles the resolution; `compute` as in `Conv`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, 2, padding=1, output_padding=1, bias=False)
        self.compute: torch.dtype | None = None

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        compute = self.compute or self.weight.dtype
        return F.conv_transpose2d(
            x.to(compute), self.weight.to(compute), None, 2, padding=1, output_padding=1
        )


def compute_in(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Let these convolutions multiply in this dtype; norms keep their statistics in that of the weights."""
    for module in model.modules():
        if isinstance(module, (Conv, UpConv)):
            module.compute = dtype


def differentiable_twice(model: nn.Module) -> None:
    """From now on only operators that have a second derivative."""
    allow_rows(model, False)
    use_kernels(model, False)


def use_kernels(model: nn.Module, used: bool) -> None:
    """Run lanes by the kernels of `reprise.kernels`, which have no second derivative, or by torch's operators."""
    for module in model.modules():
        if isinstance(module, (Conv, Norm, StackedHeads)):
            module.kernels = used
