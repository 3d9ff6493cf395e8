"""BatchNorm that is fast for few channels on a CPU.

Channels-last images of 20 channels leave a CPU's vector units mostly idle in torch's BatchNorm: it works along the
channels. Reading a row of pixels as one long vector (w * c numbers, statistics merged afterwards) is the same
function and keeps them busy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from reprise.ranks import Ranks

FEW_CHANNELS = 32
MANY_PIXELS = 256


class Norm(nn.BatchNorm2d):
    """`nn.BatchNorm2d` without its counter, with the sum and the ReLU that may follow.

    by_rows   allows the form that is fast on a CPU
    mixed     reads inputs of less precision as they are (cuDNN does, with statistics in full precision)
    kernels   runs lanes by the kernels of `reprise.kernels`
    ranks     those that share the batch whose statistics are meant; None: this process has all of it
    """

    def __init__(self, channels: int, relu: bool = False) -> None:
        super().__init__(channels)
        self.relu = relu
        # The running average uses a fixed momentum, so the counter is never read; without it a step is 20 kernels
        # shorter.
        self.num_batches_tracked = None
        self.by_rows = False
        self.mixed = False
        self.kernels = False
        self.ranks: Ranks | None = None

    def _load_from_state_dict(self, *arguments: Any) -> None:
        # BatchNorm's own asks for the counter.
        nn.Module._load_from_state_dict(self, *arguments)

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """relu(norm(x) + plus); x and plus [n, c, h, w] may be of less precision than the statistics."""
        if self.kernels:
            by_kernels = self.training or not torch.is_grad_enabled()
            return self._by_kernels(x, plus) if by_kernels else self._by_fixed_line(x, plus)
        if self.ranks is not None and self.training:
            return self._by_all_ranks(self.ranks, x, plus)
        pays = x.shape[1] < FEW_CHANNELS and x.shape[2] * x.shape[3] >= MANY_PIXELS
        if (
            self.by_rows
            and pays
            and self.training
            and self.track_running_stats
            and x.dtype == self.weight.dtype
            and x.is_contiguous(memory_format=torch.channels_last)
        ):
            statistics = self.running_mean, self.running_var, self.momentum, self.eps
            if plus is None:
                return _ByRows.apply(x, self.weight, self.bias, *statistics, self.relu)
            out = _ByRows.apply(x, self.weight, self.bias, *statistics, False).add_(plus)
        else:
            out = super().forward(x if self.mixed else x.to(self.weight.dtype))
            out = out if plus is None else out.add_(plus)
        return (F.relu(out, inplace=True) if self.relu else out).to(x.dtype)

    def _by_all_ranks(self, ranks: Ranks, x: Tensor, plus: Tensor | None) -> Tensor:
        """By the statistics of the whole batch, of which a rank may have nothing (`nn.SyncBatchNorm` needs a GPU)."""
        wide = x.to(self.weight.dtype)
        count = ranks.total(wide.new_full((), wide.numel() // wide.shape[1]))
        mean = ranks.summed(wide.sum((0, 2, 3))) / count
        centred = wide - mean[:, None, None]
        var = ranks.summed(centred.square().sum((0, 2, 3))) / count
        if self.track_running_stats:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.momentum is not None
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(var * (count / (count - 1)), self.momentum)
        slope = self.weight * (var + self.eps).rsqrt()
        out = torch.addcmul(self.bias[:, None, None], centred, slope[:, None, None])
        out = out if plus is None else out + plus
        return (F.relu(out) if self.relu else out).to(x.dtype)

    def _by_kernels(self, x: Tensor, plus: Tensor | None) -> Tensor:
        from reprise.kernels import ops

        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        statistics = self.running_mean, self.running_var
        if not self.training:
            return ops.norm_fixed(x, plus, self.weight, self.bias, statistics, self.eps, self.relu)
        moved = statistics if self.track_running_stats else None
        return ops.norm(x, plus, self.weight, self.bias, moved, self.momentum, self.eps, self.relu)

    def _by_fixed_line(self, x: Tensor, plus: Tensor | None) -> Tensor:
        """By the running statistics, with a gradient: torch's own has no batching rule for channels-last images on a
        GPU."""
        assert self.running_mean is not None
        assert self.running_var is not None
        slope = self.weight * (self.running_var + self.eps).rsqrt()
        level = self.bias - self.running_mean * slope
        out = torch.addcmul(level[:, None, None], x.to(slope.dtype), slope[:, None, None])
        out = out if plus is None else out + plus
        return (F.relu(out) if self.relu else out).to(x.dtype)


def allow_rows(model: nn.Module, allowed: bool) -> None:
    """Let the norms of a model use the fast form. It has no second derivative and no batching rule."""
    for module in model.modules():
        if isinstance(module, Norm):
            module.by_rows = allowed


def allow_mixed(model: nn.Module, allowed: bool) -> None:
    """Let the norms of a model read less precise inputs without a copy."""
    for module in model.modules():
        if isinstance(module, Norm):
            module.mixed = allowed


class _ByRows(torch.autograd.Function):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over [n * h] rows of [w * c] numbers; then maybe ReLU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> Tensor:
        n, c, h, w = x.shape
        rows = _rows(x)
        row_mean, row_var = torch.batch_norm_update_stats(rows, None, None, 0.0)
        # The variance of all pixels is the mean variance within columns plus the variance between their means.
        between, mean = torch.var_mean(row_mean.view(w, c), 0, correction=0)
        var = row_var.view(w, c).mean(0) + between
        inverse = (var + eps).rsqrt()
        count = n * h * w
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * (count / (count - 1)), momentum)
        scale = weight * inverse
        shift = bias - mean * scale
        y = torch.empty_like(x, memory_format=torch.channels_last)
        out = torch.addcmul(_tiled(shift, w), rows, _tiled(scale, w), out=_rows(y))
        if relu:
            out.clamp_min_(0)
        ctx.save_for_backward(x, scale, mean, inverse, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, mean, inverse, y = ctx.saved_tensors
        n, c, h, w = x.shape
        grad = grad.contiguous(memory_format=torch.channels_last)
        if y is not None:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        rows, grads = _rows(x), _rows(grad)
        product = grads * rows
        grad_bias = grads.sum(0).view(w, c).sum(0)
        grad_weight = (product.sum(0).view(w, c).sum(0) - mean * grad_bias) * inverse
        # dx = scale * (g - mean(g) - x_hat * mean(g * x_hat)), written as a + b * x + scale * g.
        per_pixel = -scale / (n * h * w)
        slope = per_pixel * inverse * grad_weight
        level = per_pixel * grad_bias - slope * mean
        dx = torch.addcmul(_tiled(level, w), rows, _tiled(slope, w), out=product)
        dx.addcmul_(grads, _tiled(scale, w))
        return dx.view(n, h, w, c).permute(0, 3, 1, 2), grad_weight, grad_bias, *[None] * 5


def _rows(x: Tensor) -> Tensor:
    """Channels-last [n, c, h, w] as its memory lies: [n * h, w * c]."""
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).reshape(n * h, w * c)


def _tiled(per_channel: Tensor, width: int) -> Tensor:
    return per_channel.repeat(width)
