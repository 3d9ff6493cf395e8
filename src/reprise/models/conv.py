"""Convolution without bias, in the arithmetic of the encoder: torch's own, or the lanes' kernel."""

from __future__ import annotations

import torch
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


def compute_in(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Let the encoder's convolutions multiply in this dtype; norms keep their statistics in that of the weights."""
    for module in model.modules():
        if isinstance(module, Conv):
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
