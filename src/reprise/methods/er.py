"""Experience replay: L = L_task + λ · L_replay (the paper's equation 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from reprise.errors import InputError
from reprise.method import Method
from reprise.net import Net
from reprise.types import Batch, Output


@dataclass(frozen=True)
class ER(Method):
    """Replay stored inputs and targets beside the current batch."""

    replays: ClassVar[bool] = True

    lam: float = 1.0
    """λ, weight of the replay loss"""

    old_heads: Literal["train", "hold"] = "train"
    """whether replay trains the old tasks' heads, or only the encoder (the paper's min over g and h^i)"""

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise InputError(f"lam: {self.lam} is not a weight; give 0 or more.")

    def holds_heads(self, batch: Batch) -> bool:
        return self.old_heads == "hold" and batch.role == "replay"

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        loss = net.loss(batch, out)
        return self.lam * loss if batch.replayed else loss
