"""Ranks: processes that train one run together. Each holds the whole model and sees its share of every batch.

Losses are sums over a rank's share divided by the whole batch's denominator (`Net.mean`), BatchNorm uses the whole
batch's statistics, and gradients are summed: N ranks take the same steps as one. What happens between tasks (choosing
what is remembered, a method's `end_task`) every rank does by itself and alike; evaluation is divided by chunks. Only
rank 0 writes.

Started by `torchrun`, which tells each process its place; gloo on CPUs, NCCL on GPUs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from reprise.types import Tree

BUCKET_BYTES = 25_000_000
"""Gradients that are sent together: enough for the network to be busy, few enough to go before the pass is over."""

PATIENCE = timedelta(seconds=60)
"""A rank that does not answer within a step for so long is dead."""


class Ranks:
    """This process's place among those that train together, and what they tell each other."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Orders and wishes travel apart from gradients, on the host. Between orders a rank may wait for hours.
        self._orders = dist.new_group(backend="gloo", timeout=timedelta(days=7))
        self._wishes = dist.new_group(backend="gloo", timeout=PATIENCE)

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    # ---- shares
    def share(self, count: int) -> slice:
        """This rank's part of so many rows: consecutive ones, as equal as can be, maybe none."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    # ---- sums
    def total(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, without a gradient."""
        tensor = tensor.detach().clone()
        dist.all_reduce(tensor)
        return tensor

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over ranks; every rank's own part gets the gradient of all that is made of the sum."""
        return _Summed.apply(tensor)

    def rows(self, tensor: Tensor) -> Tensor:
        """All ranks' rows in their order, with a gradient into this rank's own."""
        counts = torch.zeros(self.size, dtype=torch.long, device=tensor.device)
        counts[self.rank] = len(tensor)
        dist.all_reduce(counts)
        sizes = counts.tolist()
        before = sum(sizes[: self.rank])
        # Padded with zeros to all rows, the parts only need to be added.
        missing = sum(sizes) - before - len(tensor)
        padded = torch.cat(
            [
                tensor.new_zeros(before, *tensor.shape[1:]),
                tensor,
                tensor.new_zeros(missing, *tensor.shape[1:]),
            ]
        )
        return self.summed(padded)

    # ---- agreement
    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Everyone takes over the first rank's numbers."""
        for tensor in tensors:
            whole = tensor.contiguous()
            dist.broadcast(_bytes_of(whole), 0)
            if whole is not tensor:
                tensor.copy_(whole)

    def greatest(self, number: int) -> int:
        """The greatest of what the ranks say."""
        said = torch.tensor(number)
        dist.all_reduce(said, dist.ReduceOp.MAX, self._wishes)
        return int(said)

    def tell(self, message: Any) -> None:
        """The first rank tells the others something that JSON can express; they `hear` it."""
        content = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        dist.broadcast(torch.tensor(len(content)), 0, self._orders)
        dist.broadcast(content, 0, self._orders)

    def hear(self) -> Any:
        size = torch.tensor(0)
        dist.broadcast(size, 0, self._orders)
        content = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(content, 0, self._orders)
        return json.loads(content.numpy().tobytes())

    def send(self, tensors: Tree) -> None:
        """The first rank's tensors, from the host; the others `receive` them."""
        self.tell({n: [list(t.shape), str(t.dtype).removeprefix("torch.")] for n, t in tensors.items()})
        for tensor in tensors.values():
            if tensor.numel():
                dist.broadcast(_bytes_of(tensor.contiguous()), 0, self._orders)

    def receive(self) -> Tree:
        found: Tree = {}
        for name, (shape, dtype) in self.hear().items():
            found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            if found[name].numel():
                dist.broadcast(_bytes_of(found[name]), 0, self._orders)
        return found


def _bytes_of(tensor: Tensor) -> Tensor:
    """A contiguous tensor as its bytes, in place: gloo knows no 16-bit integers, and depth is remembered in those."""
    return tensor.view(-1).view(torch.uint8)


class _Summed(torch.autograd.Function):
    """An all-reduce whose gradient is one: the sum enters every rank's result."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous().clone()
        dist.all_reduce(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Summed.apply(grad)


class Reduction:
    """Sums gradients over ranks while the backward pass goes on.

    A hook on each leaf puts its gradient into a bucket as soon as it is known; a full bucket is sent at once and
    waited for at the end. Every rank walks the same graph in the same order, so buckets hold the same leaves.
    """

    def __init__(self, leaves: Tree) -> None:
        self._ready: Tree = {}
        self._bytes = 0
        self._sent: list[tuple[dist.Work, Tensor, Tree]] = []
        self._hooks = [leaf.register_hook(self._hook(name)) for name, leaf in leaves.items()]

    def _hook(self, name: str) -> Any:
        def take(grad: Tensor) -> None:
            self._ready[name] = grad
            self._bytes += grad.numel() * grad.element_size()
            if self._bytes >= BUCKET_BYTES:
                self._send()

        return take

    def _send(self) -> None:
        if not self._ready:
            return
        flat = torch.cat([grad.reshape(-1) for grad in self._ready.values()])
        work = dist.all_reduce(flat, async_op=True)
        assert work is not None
        self._sent.append((work, flat, self._ready))
        self._ready, self._bytes = {}, 0

    def finish(self, loss: Tensor) -> tuple[Tree, Tensor]:
        """The summed gradients and the summed loss."""
        for hook in self._hooks:
            hook.remove()
        self._ready["loss"] = loss.detach().reshape(1)
        self._send()
        summed: Tree = {}
        for work, flat, parts in self._sent:
            work.wait()
            pieces = flat.split([part.numel() for part in parts.values()])
            summed |= {
                name: piece.view(part.shape)
                for (name, part), piece in zip(parts.items(), pieces, strict=True)
            }
        return summed, summed.pop("loss").reshape(())


def launched() -> bool:
    """Whether `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def follows() -> bool:
    """Whether this process is not the one that writes and shows."""
    return launched() and own_rank() > 0


def own_rank() -> int:
    return int(os.environ["RANK"])


def join(device: torch.device) -> Ranks:
    """Meet the other ranks."""
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    return Ranks()


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def whole_rows(ranks: Ranks | None, tree: Tree, names: Sequence[str] | None = None) -> Tree:
    """Columns of a rank's share as those of the whole batch."""
    if ranks is None:
        return tree
    return {name: ranks.rows(t) if names is None or name in names else t for name, t in tree.items()}
