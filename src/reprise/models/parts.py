"""Parts: where a model's encoder and heads come from. By name for the streams there are, or given by a user."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reprise.errors import InputError
from reprise.models.decoders import SmallDecoder, build_decoder
from reprise.models.encoders import build_encoder
from reprise.models.heads import PooledLinear
from reprise.tasks import Kind

Shape = tuple[int, ...]


class Parts(Protocol):
    """Makes the parts of a model, initialised from the current generator."""

    @property
    def ours(self) -> bool:
        """Whether all of them are modules of this library, whose passes ask nothing of the host."""

    def encoder(self) -> nn.Module: ...

    def taps(self, encoder: nn.Module, input_shape: Shape) -> tuple[str, ...]:
        """The layers whose output a method may look at."""

    def head(self, task: int, kind: Kind, features_shape: Shape, input_shape: Shape) -> nn.Module: ...


@dataclass(frozen=True)
class NamedParts:
    """An encoder of the table, and the head that belongs to it."""

    name: str
    ours: ClassVar[bool] = True

    def encoder(self) -> nn.Module:
        return build_encoder(self.name)

    def taps(self, encoder: nn.Module, input_shape: Shape) -> tuple[str, ...]:
        return _own_taps(encoder)

    def head(self, task: int, kind: Kind, features_shape: Shape, input_shape: Shape) -> nn.Module:
        if kind.dense:
            return build_decoder(self.name, kind, features_shape, input_shape)
        return PooledLinear(features_shape[0], kind.outputs)


@dataclass(frozen=True, eq=False)
class OwnParts:
    """A user's encoder, of which every model gets a copy; heads by task where they are given, else made to fit.

    built    the encoder's name, where it is one of the table's: then it is built anew for each seed
    targets  by task: the resolution [h, w] of its targets, where it is not the input's
    """

    given: nn.Module | None
    built: str | None = None
    heads: Mapping[int, nn.Module] = field(default_factory=dict)
    tapped: tuple[str, ...] | None = None
    targets: Mapping[int, Shape] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return self.built is not None and not self.heads

    def encoder(self) -> nn.Module:
        if self.built is not None:
            return build_encoder(self.built)
        return copy.deepcopy(self.given)  # type: ignore[return-value]

    def taps(self, encoder: nn.Module, input_shape: Shape) -> tuple[str, ...]:
        if self.tapped is not None:
            known = dict(encoder.named_modules())
            for name in self.tapped:
                if name not in known:
                    some = ", ".join(list(known)[1:9])
                    raise InputError(f"taps: the encoder has no layer {name!r}; its layers are {some}, ….")
            return self.tapped
        return _own_taps(encoder) or find_taps(encoder, input_shape)

    def head(self, task: int, kind: Kind, features_shape: Shape, input_shape: Shape) -> nn.Module:
        if task in self.heads:
            return copy.deepcopy(self.heads[task])
        if not kind.dense:
            return PooledLinear(features_shape[0], kind.outputs)
        size = self.targets.get(task, tuple(input_shape[-2:]))
        if len(features_shape) != 3:
            raise InputError(
                "encoder: it answers with vectors, and a task with a target per pixel needs maps [n, c, h, w]; "
                "give an encoder without its last pooling, or a head of your own."
            )
        return FittedDecoder(features_shape[0], kind.outputs, features_shape[1:], size)


class FittedDecoder(nn.Module):
    """Features [n, dims, h, w] -> [n, outputs, *size]: a small decoder, and an interpolation where doublings do not
    lead exactly there."""

    def __init__(self, dims: int, outputs: int, small: Sequence[int], size: Sequence[int]) -> None:
        super().__init__()
        doublings = max(
            1, *(math.ceil(math.log2(wanted / own)) for own, wanted in zip(small, size, strict=True))
        )
        self.decoder = SmallDecoder(dims, outputs, doublings)
        self.size = tuple(size)

    def forward(self, features: Tensor) -> Tensor:
        out = self.decoder(features)
        if tuple(out.shape[-2:]) == self.size:
            return out
        return F.interpolate(out, self.size, mode="bilinear", align_corners=False)


def find_taps(encoder: nn.Module, input_shape: Shape) -> tuple[str, ...]:
    """The last layer at each resolution, found by a dry run: what one would call the stages of an encoder.

    Layers are looked at down to the second level of names (`layer1`, `stages.0`).
    """
    order: list[tuple[str, Shape]] = []

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, out: object) -> None:
            if isinstance(out, Tensor) and out.dim() == 4:
                order.append((name, tuple(out.shape[-2:])))

        return hook

    named = [(name, module) for name, module in encoder.named_modules() if name and name.count(".") <= 1]
    hooks = [module.register_forward_hook(note(name)) for name, module in named]
    modes = [(module, module.training) for module in encoder.modules()]
    parameter = next(encoder.parameters())
    encoder.eval()
    try:
        with torch.no_grad():
            encoder(torch.zeros(1, *input_shape, dtype=parameter.dtype, device=parameter.device))
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    last = {size: name for name, size in order}
    return tuple(last.values())


def _own_taps(encoder: nn.Module) -> tuple[str, ...]:
    return tuple(str(name) for name in getattr(encoder, "taps", ()))
