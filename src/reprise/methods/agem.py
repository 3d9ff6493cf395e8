"""A-GEM: a step may not raise the loss on a batch from the memory.

g is the gradient of the current batch, r that of the reference batch. Where g · r < 0, g ← g − (g·r / r·r) r.
The reference gradient is a pass of its own whatever `bn` says, and moves the running statistics, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.errors import InputError
from reprise.method import Method, Needs
from reprise.streams.stream import Stream
from reprise.types import Batch, Tree

SPLIT_REFERENCE = 256


@dataclass(frozen=True)
class AGEM(Method):
    """Project the gradient so that replayed examples do not get worse."""

    replays: ClassVar[bool] = True

    reference: int | None = None
    """examples of the reference batch (default: 256 on Split, or all there are; as many as `replay` elsewhere)"""
    projected: Literal["auto", "all", "encoder"] = "auto"
    """what is projected: the flat vector of all parameters or the encoder's; auto: all on Split, else the encoder"""

    def __post_init__(self) -> None:
        if self.reference is not None and self.reference < 1:
            raise InputError(f"reference: {self.reference} is no batch; give 1 or more, or leave it out.")

    def needs(self, stream: Stream) -> Needs:
        return Needs(replay=self.reference or (SPLIT_REFERENCE if stream.shared_head else None), both=True)

    def resolve(self, stream: Stream, features_shape: tuple[int, ...]) -> AGEM:
        if self.projected != "auto":
            return self
        return replace(self, projected=cast("Literal['all']", "all" if stream.shared_head else "encoder"))

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, loss = engine.gradient(self.objective, [b for b in batches if not b.replayed])
        old = [b for b in batches if b.replayed]
        if old:
            reference, _ = engine.gradient(self.objective, old)
            with torch.no_grad():
                grads = engine.lift(self.project)(grads, reference)
        engine.apply(grads)
        return loss

    def project(self, grads: Tree, reference: Tree) -> Tree:
        """The nearest gradient to g that does not point against r. What only one of them has counts as 0 in the
        other."""
        names = [n for n in grads | reference if self.projected != "encoder" or n.startswith("encoder.")]
        both = [n for n in names if n in grads and n in reference]
        against = torch.stack([(grads[n] * reference[n]).sum() for n in both]).sum()
        size = torch.stack([reference[n].square().sum() for n in names if n in reference]).sum()
        factor = torch.where(size > 1e-12, against / size.clamp(min=1e-12), 0.0).clamp(max=0.0)
        moved = {n: -factor * reference[n] for n in names if n in reference}
        return grads | {n: grads[n] + m if n in grads else m for n, m in moved.items()}
