"""Lanes: several seeds or settings in one process, stacked on axis 0.

`losses = vmap(one)(params, buffers, state, fields, batches)`, then autograd outside: the sum over lanes keeps
their gradients apart, and an element-wise optimizer steps them all. Lanes are independent, so one that diverges
leaves the others untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import stack_module_state, vmap

from reprise.engine import Body, Engine, bind, make_optimizer, placed_like, same_input
from reprise.method import Method
from reprise.models.model import Model
from reprise.net import Net
from reprise.tasks import Kind
from reprise.types import Batch, Tree


class Lanes(Engine):
    """Stacked models. `fields` holds the method's float fields, one value per lane."""

    stacked = True

    def __init__(
        self,
        models: Sequence[Model],
        method: Method,
        kinds: Sequence[Kind],
        fields: Mapping[str, Sequence[float]],
        lrs: Sequence[float],
        optimizer: str = "sgd",
        channels_last: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(models[0], method, kinds, **options)
        self.lanes = len(models)
        params, buffers = stack_module_state(list(models))
        if channels_last:
            params = {name: _channels_last(p) if p.dim() == 5 else p for name, p in params.items()}
        self.params = {name: p.detach().requires_grad_() for name, p in params.items()}
        self.buffers = buffers
        like = next(iter(self.params.values()))
        self.fields = {name: like.new_tensor(values) for name, values in fields.items()}
        self.lr = like.new_tensor(lrs)
        # Where rates differ one optimizer steps all lanes at rate 1, and each lane's rate scales its gradient.
        self._rates_differ = len(set(lrs)) > 1
        rate = 1.0 if self._rates_differ else lrs[0]
        self.optimizer = make_optimizer(optimizer, list(self.params.values()), rate)
        self.state = method.start(self)

    def _run(self, body: Body, batches: Sequence[Batch], trees: Sequence[Tree], nudges: Tree) -> Any:
        self._same_input = same_input(batches)

        def one(
            params: Tree,
            buffers: Tree,
            state: Tree,
            fields: Tree,
            tensors: list[Tree],
            trees: Sequence[Tree],
            nudges: Tree,
        ) -> Any:
            net = Net(self.model, self.kinds, state, (params, buffers))
            lane = [batch.with_tensors(tree) for batch, tree in zip(batches, tensors, strict=True)]
            return body(net, lane, trees, nudges, fields)

        tensors = [batch.tensors() for batch in batches]
        return vmap(one)(self.params, self.buffers, self.state, self.fields, tensors, list(trees), nudges)

    def lift(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def with_fields(fields: Tree, *trees: Tree) -> Any:
            return bind(fn, fields)(*trees)

        return lambda *trees: vmap(with_fields)(self.fields, *trees)

    def place(self, tensor: Tensor) -> Tensor:
        own = placed_like(next(iter(self.params.values())), tensor)
        return own.expand(self.lanes, *own.shape).clone()

    def _scaled(self, grads: Tree) -> Tree:
        if not self._rates_differ:
            return grads
        return {n: g * self.lr.view(-1, *[1] * (g.dim() - 1)) for n, g in grads.items()}

    def only(self, lanes: Sequence[int]) -> Engine:
        if list(lanes) == list(range(self.lanes)):
            return self
        view = object.__new__(Lanes)
        view.__dict__.update(self.__dict__)
        index = torch.as_tensor(list(lanes), device=next(iter(self.params.values())).device)
        view.lanes, view.lr = len(lanes), self.lr[index]
        for group in ("params", "buffers", "state", "fields"):
            setattr(view, group, {name: t[index] for name, t in getattr(self, group).items()})
        return view


def _channels_last(filters: Tensor) -> Tensor:
    """Stacked filters [lanes, o, c, h, w], held as the kernels read them."""
    lanes, outputs, inputs, height, width = filters.shape
    held = filters.new_empty(lanes, outputs, height, width, inputs).permute(0, 1, 4, 2, 3)
    return held.copy_(filters)
