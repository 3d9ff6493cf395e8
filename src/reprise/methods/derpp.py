"""DER++: old logits held in place, old labels replayed.

L = L_task + α · mean (h(x) − z)² + β · L(x', y') with two independent draws from the memory; z = h(x) as stored at
the end of the task x belongs to. Dense tasks match the whole prediction map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.errors import InputError
from reprise.method import Method, Needs
from reprise.net import Net
from reprise.streams.stream import Stream
from reprise.types import Batch, Output, Tree


@dataclass(frozen=True)
class DERpp(Method):
    """Replay logits and, by a second draw, labels."""

    replays: ClassVar[bool] = True

    alpha: float = 0.5
    """α, weight of matching the stored logits"""
    beta: float = 0.5
    """β, weight of the second draw's loss"""

    def __post_init__(self) -> None:
        if not min(self.alpha, self.beta) >= 0:
            raise InputError(f"alpha, beta: {self.alpha}, {self.beta} are not weights; give 0 or more.")

    def needs(self, stream: Stream) -> Needs:
        return Needs(draws={"labels": 0})

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        if batch.role == "replay":
            return self.alpha * net.mean(*self.mismatch(out.prediction, batch.kept["logits"]))
        loss = net.loss(batch, out)
        return self.beta * loss if batch.role == "labels" else loss

    @staticmethod
    def mismatch(now: Tensor, then: Tensor) -> tuple[Tensor, Tensor]:
        """Squared differences, and which count: the classes there were (one head over all classes grows)."""
        known = then.isfinite()
        difference = torch.where(known, now, 0.0) - torch.where(known, then, 0.0)
        return difference.square(), known

    def keep(self, engine: Engine, batch: Batch) -> Tree:
        return {"logits": engine.compute(self._logits, batch)}

    def _logits(self, net: Net, batch: Batch) -> Tensor:
        return net(batch.x, batch.task).prediction
