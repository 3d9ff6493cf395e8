"""Learning without forgetting: on the current images, old heads should answer as before the task began.

L = L_task + λ Σ_{j < i} KD(h^j of the copy, h^j now): temperature-2 cross-entropy of distributions for classes,
squared error for real values. No memory; the copy's parameters are all that is kept. The copy normalises by the
batch's own statistics, as the network in training does: when a task begins the two agree exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from reprise.engine import Engine
from reprise.errors import InputError
from reprise.examples import Examples
from reprise.method import Method, Recall
from reprise.models.heads import StackedHeads
from reprise.net import Net
from reprise.tasks import Kind, Regress
from reprise.types import Batch, Output, Tree

COPY = "copy."


@dataclass(frozen=True)
class LwF(Method):
    """Distil the network as it was before the task."""

    lam: float = 1.0
    """λ, weight of the distillation"""
    temperature: float = 2.0
    """temperature of the distilled distributions"""

    def __post_init__(self) -> None:
        if not (self.lam >= 0 and self.temperature > 0):
            raise InputError(
                f"lam, temperature: {self.lam}, {self.temperature} do not fit; give 0 or more, and a number above 0."
            )

    def start(self, engine: Engine) -> Tree:
        copied = {COPY + name: p.detach().clone() for name, p in engine.params.items()}
        return copied | {"done": engine.place(torch.zeros(()))}

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        copied = {n.removeprefix(COPY): t for n, t in engine.state.items() if n.startswith(COPY)}
        told = engine.compute(self._old_answers, batches[0], copied, mode="train")
        grads, loss = engine.gradient(self.distilled, batches, told)
        engine.apply(grads)
        return loss

    def distilled(self, net: Net, batch: Batch, out: Output, told: Tree) -> Tensor:
        """The task's loss and λ times how far the old heads' answers have moved."""
        total = net.loss(batch, out)
        for j, (name, now) in enumerate(_answers(net, out.features).items()):
            old = (j < net.state["done"]).to(total.dtype)
            total = total + self.lam * old * net.mean(self.moved(net.kind(j), now, told[name]))
        return total

    def moved(self, kind: Kind, now: Tensor, then: Tensor) -> Tensor:
        """T² KL(then ‖ now) at temperature T of each example (and pixel); a squared error for real values."""
        if isinstance(kind, Regress):
            return (now - then).square()
        t = self.temperature
        log_now, then = F.log_softmax(now / t, 1), F.softmax(then / t, 1)
        kl = (then * (then.clamp(min=1e-30).log() - log_now)).sum(1)
        return t * t * kl

    def _old_answers(self, net: Net, batch: Batch, copied: Tree) -> Tree:
        there = net.at(copied)
        return _answers(there, there(batch.x, batch.task).features)

    def end_task(self, engine: Engine, examples: Examples, task: int, recall: Recall) -> Tree:
        copied = {COPY + name: p.detach() for name, p in engine.params.items()}
        return copied | {"done": engine.place(torch.tensor(float(task + 1)))}


def _answers(net: Net, features: Tensor) -> Tree:
    """Every task's head on the same features. Of one head over all classes, each task's own part."""
    if isinstance(net.model.heads, StackedHeads):
        return {str(j): logits for j, logits in enumerate(net.predict(features, None).unbind(1))}
    return {str(j): net.predict(features, j) for j in range(len(net.kinds))}
