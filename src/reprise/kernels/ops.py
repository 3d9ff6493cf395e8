"""What models call: convolution and norm of one lane, which under vmap run as kernels over all lanes.

Each is a pair of autograd functions. The outer one is what a lane's code calls; its batching rule hands the stacked
tensors to the inner one, whose gradient is taken outside vmap. Neither has a second derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from reprise.kernels import conv as conv_kernels
from reprise.kernels import norm as norm_kernels
from reprise.kernels.conv import channels_last

Statistics = tuple[Tensor, Tensor]


def conv(x: Tensor, w: Tensor, stride: int, pad: int, dtype: torch.dtype) -> Tensor:
    """x [n, c, h, w] with filters w [o, c, kh, kw] -> [n, o, h', w'] of this dtype."""
    return _Conv.apply(x, w, stride, pad, dtype)


def norm(
    x: Tensor,
    plus: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    statistics: Statistics | None,
    momentum: float,
    eps: float,
    relu: bool,
) -> Tensor:
    """BatchNorm by the batch's statistics, `plus` added, then maybe ReLU; moves the running statistics if given."""
    mean, var = statistics or (None, None)
    return _Norm.apply(x, plus, weight, bias, mean, var, momentum, eps, relu)


def norm_fixed(
    x: Tensor,
    plus: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    statistics: Statistics,
    eps: float,
    relu: bool,
) -> Tensor:
    """The same by the running statistics. It has no gradient."""
    return _NormFixed.apply(x, plus, weight, bias, *statistics, eps, relu)


def _one_lane(arguments: tuple[Any, ...]) -> list[Any]:
    return [a.unsqueeze(0) if isinstance(a, Tensor) else a for a in arguments]


def _all_lanes(lanes: int, dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> list[Any]:
    """The arguments with the lane axis first; what all lanes share is shown to each."""
    return [
        a if not isinstance(a, Tensor) else a.expand(lanes, *a.shape) if dim is None else a.movedim(dim, 0)
        for a, dim in zip(arguments, dims, strict=True)
    ]


class _StackedConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, stride: int, pad: int, dtype: torch.dtype) -> Tensor:
        # Converted once, not by every program that reads them.
        w = w.to(dtype)
        ctx.save_for_backward(x, w)
        ctx.stride, ctx.pad = stride, pad
        return conv_kernels.forward(x, w, stride, pad, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        g = channels_last(g)
        dx = conv_kernels.backward_input(g, x, w, ctx.stride, ctx.pad) if ctx.needs_input_grad[0] else None
        dw = conv_kernels.backward_filters(g, x, w, ctx.stride, ctx.pad) if ctx.needs_input_grad[1] else None
        return dx, dw, None, None, None


class _StackedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        plus: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        x = channels_last(x)
        plus = None if plus is None else channels_last(plus)
        running = None if mean is None or var is None else (mean, var)
        y, batch_mean, inverse = norm_kernels.normalise(x, plus, weight, bias, running, momentum, eps, relu)
        ctx.save_for_backward(x, y if relu and plus is not None else None, batch_mean, inverse, weight, bias)
        ctx.relu, ctx.plus = relu, plus is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, y, mean, inverse, weight, bias = ctx.saved_tensors
        grads = norm_kernels.gradients(
            channels_last(g), x, y, mean, inverse, weight, bias, ctx.relu, ctx.plus
        )
        return *grads, *[None] * 5


def _stacked_norm_fixed(
    x: Tensor,
    plus: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    relu: bool,
) -> Tensor:
    plus = None if plus is None else channels_last(plus)
    return norm_kernels.normalise_fixed(channels_last(x), plus, weight, bias, (mean, var), eps, relu)


def _of_one_lane(stacked: Callable[..., Tensor]) -> type[torch.autograd.Function]:
    """A function of one lane: under vmap its stacked form over all lanes, else over a stack of one."""

    class OneLane(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Tensor:
            return stacked(*_one_lane(arguments)).squeeze(0)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
            return stacked(*_all_lanes(info.batch_size, dims, arguments)), 0

    return OneLane


_Conv = _of_one_lane(_StackedConv.apply)
_Norm = _of_one_lane(_StackedNorm.apply)
_NormFixed = _of_one_lane(_stacked_norm_fixed)
