"""Heads: features to predictions, one head per task.

`held` asks for a prediction whose gradient goes into the features only; a norm's running statistics move
as ever.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call


class StackedHeads(nn.Module):
    """One tensor for the linear heads of all tasks, so that a batch may mix tasks.

    features [n, d], task [n] -> [n, classes]: the logits of each example's own task. With `whole`, one head over
    all classes seen so far (class-incremental): [n, tasks * classes], minus infinity for tasks not yet begun.
    Task None asks for the logits of all tasks: [n, tasks, classes].

    All logits are computed and the own slice picked by a product with a 0/1 mask: gathering rows of the weight
    would use atomics in its backward pass, which are not deterministic on CUDA.
    """

    seen: Tensor

    def __init__(self, tasks: int, classes: int, dims: int, whole: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(tasks, classes, dims))
        self.bias = nn.Parameter(torch.zeros(tasks, classes))
        self.whole = whole
        self.kernels = False
        # The latest task begun, as a tensor: a captured step reads it without the host.
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def reset(self, task: int) -> None:
        """Initialise one task's head like `nn.Linear`, from the current generator."""
        bound = 1 / math.sqrt(self.weight.shape[-1])
        with torch.no_grad():
            self.weight[task].uniform_(-bound, bound)
            self.bias[task].uniform_(-bound, bound)

    def forward(self, features: Tensor, task: Tensor | None, held: bool = False) -> Tensor:
        tasks, classes, dims = self.weight.shape
        weight, bias = (self.weight.detach(), self.bias.detach()) if held else (self.weight, self.bias)
        pooled = features if features.dim() == 2 else features.flatten(2).mean(-1)
        flat = self._products(pooled, weight.view(tasks * classes, dims))
        logits = (flat + bias.view(-1)).view(-1, tasks, classes)
        if task is None:
            return logits
        index = torch.arange(tasks, device=features.device)
        if self.whole:
            unseen = (index > self.seen).view(1, tasks, 1)
            return logits.masked_fill(unseen, -torch.inf).flatten(1)
        own = (task.unsqueeze(-1) == index).unsqueeze(-1)
        return torch.where(own, logits, 0.0).sum(1)

    def _products(self, x: Tensor, w: Tensor) -> Tensor:
        """x [n, d] with w [o, d] -> [n, o]."""
        if not self.kernels:
            return x @ w.T
        from reprise.kernels import ops

        # A linear layer is a convolution of single pixels. (A batched product of torch may sum in another order when
        # there are more lanes.)
        return ops.conv(x[:, :, None, None], w[:, :, None, None], 1, 0, x.dtype).flatten(1)


class PooledLinear(nn.Module):
    """Global average pool and one linear layer: features [n, c, h, w] or [n, d] -> [n, outputs]."""

    def __init__(self, dims: int, outputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(dims, outputs)

    def forward(self, features: Tensor) -> Tensor:
        return self.fc(features if features.dim() == 2 else features.flatten(2).mean(-1))


class SeparateHeads(nn.Module):
    """A module per task, for heads of different shapes; a batch has one task."""

    def __init__(self) -> None:
        super().__init__()
        self.of_task = nn.ModuleList()
        self.asked: set[int] = set()
        """Tasks whose heads have answered since someone emptied this: no other head can have a gradient."""

    def forward(self, features: Tensor, task: int, held: bool = False) -> Tensor:
        head = self.of_task[task]
        if held:
            still = {name: parameter.detach() for name, parameter in head.named_parameters()}
            return functional_call(head, still, (features,))
        self.asked.add(task)
        return head(features)
