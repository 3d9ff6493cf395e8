"""iCaRL with a head per task: herded examples, distilled logits, the nearest mean as the answer.

L = L_task + reg · Σ_{k < i} mean KL(softmax(stored logits of task k) ‖ softmax(logits now)), on one remembered
example of every old class; no cross-entropy on the memory. When a task ends, each of its classes keeps the examples
whose mean approaches the class mean best (herding), old classes give up their last ones so that m holds, and the
stored logits and embeddings of all are computed anew. An image belongs to the class whose remembered examples' mean
is nearest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reprise.engine import Engine
from reprise.errors import InputError
from reprise.examples import Examples
from reprise.method import Method, Needs
from reprise.net import Net
from reprise.streams.stream import Stream
from reprise.types import Batch, Output, Tree


@dataclass(frozen=True)
class ICaRL(Method):
    """Herding, distillation, nearest mean of exemplars."""

    replays: ClassVar[bool] = True
    refresh: ClassVar[tuple[str, ...]] = ("logits", "embedding")

    reg: float = 1.0
    """weight of the distillation"""
    feature: Literal["auto", "logits", "embedding"] = "auto"
    """what means are taken of: the own task's logits or the encoder's features; auto: logits where the task is
    known"""

    def __post_init__(self) -> None:
        if not self.reg >= 0:
            raise InputError(f"reg: {self.reg} is not a weight; give 0 or more.")

    def needs(self, stream: Stream) -> Needs:
        if stream.classes_per_task is None:
            raise InputError(
                "method: icarl compares means of classes, which needs tasks of equally many classes; "
                "use er, car or derpp on this stream."
            )
        return Needs(replay=1, scope="each_class", fill="uniform_class", share="seen", both=True)

    def resolve(self, stream: Stream, features_shape: tuple[int, ...]) -> ICaRL:
        if self.feature == "logits" and stream.scenario == "class":
            raise InputError("feature: logits of different tasks have no common scale; use embedding.")
        if self.feature != "auto":
            return self
        chosen = "embedding" if stream.scenario == "class" else "logits"
        return replace(self, feature=cast("Literal['logits']", chosen))

    # ---- training
    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        if not batch.replayed:
            return net.loss(batch, out)
        then, now = batch.kept["logits"], own_logits(net, out.features, batch.task)
        kl = (F.softmax(then, 1) * (F.log_softmax(then, 1) - F.log_softmax(now, 1))).sum(1)
        # Old tasks are summed up, the examples of one task averaged: there is one of each of its classes.
        return self.reg * kl.sum() / then.shape[1]

    # ---- what is remembered
    def keep(self, engine: Engine, batch: Batch) -> Tree:
        return engine.compute(self._kept, batch)

    def _kept(self, net: Net, batch: Batch) -> Tree:
        features = net(batch.x, batch.task).features
        logits = {"logits": own_logits(net, features, batch.task)}
        return logits | {"embedding": pooled(features)} if self.feature == "embedding" else logits

    def select(self, engine: Engine, examples: Examples, counts: Sequence[int]) -> list[np.ndarray]:
        """Herding, class by class; the best of every class first, so that any prefix is fair to all of them."""
        parts = [engine.compute(self._kept, batch)[self.feature] for batch in engine.batches(examples, 0)]
        found = torch.cat(parts, 1 if engine.stacked else 0).double().cpu().numpy()
        labels = examples.labels
        assert labels is not None
        lanes = found if engine.stacked else found[None]
        of_lane = labels if labels.ndim == 2 else np.broadcast_to(labels, (len(lanes), len(labels)))
        chosen = []
        for features, own, count in zip(lanes, of_lane, counts, strict=True):
            classes = np.unique(own)
            each = count // len(classes)
            rows = [np.flatnonzero(own == c) for c in classes]
            herded = [members[herd(features[members], each)] for members in rows]
            chosen.append(np.stack(herded, 1).reshape(-1))
        return chosen

    # ---- the answer
    def predict(self, net: Net, x: Tensor, task: Tensor | int, memory: Tree) -> Tensor:
        """Minus the squared distance to each class's mean; the head's own answer for tasks that hold nothing yet."""
        out = net(x, task)
        assert isinstance(task, Tensor)
        tasks, classes = len(net.kinds), memory["logits"].shape[1]
        means, there = self._means(memory, tasks, classes)
        if self.feature == "logits":
            own = members(task, tasks, x.dtype)
            means, there = torch.einsum("nt,tcd->ncd", own, means), (own @ there.to(x.dtype)) > 0.5
            far = (own_logits(net, out.features, task).unsqueeze(1) - means).square().sum(-1)
            return torch.where(there, -far, out.prediction)
        far = (pooled(out.features).unsqueeze(1) - means.flatten(0, 1)).square().sum(-1)
        known = there.flatten()
        if out.prediction.shape[1] == tasks * classes:
            # A class that holds nothing is judged by its head only where no class holds anything.
            return torch.where(known.any(), torch.where(known, -far, -torch.inf), out.prediction)
        own = members(task, tasks, x.dtype)
        near = torch.einsum("nt,ntc->nc", own, torch.where(known, -far, 0.0).view(-1, tasks, classes))
        return torch.where((own @ there.to(x.dtype)) > 0.5, near, out.prediction)

    def _means(self, memory: Tree, tasks: int, classes: int) -> tuple[Tensor, Tensor]:
        """[tasks, classes, d] means of what is remembered, and [tasks, classes] where anything is."""
        features = memory[self.feature]
        place = memory["task"].long() * classes + memory["y"].long() % classes
        member = members(place, tasks * classes, features.dtype) * memory["held"].unsqueeze(1)
        count = member.sum(0)
        means = (member.T @ features) / count.clamp(min=1.0).unsqueeze(1)
        return means.view(tasks, classes, -1), (count > 0).view(tasks, classes)


def own_logits(net: Net, features: Tensor, task: Tensor | int) -> Tensor:
    """The logits of each example's own task [n, classes], whatever scenario the heads answer in."""
    assert isinstance(task, Tensor)
    logits = net.predict(features, None)
    own = members(task, logits.shape[1], logits.dtype)
    return torch.einsum("nt,ntc->nc", own, logits)


def members(index: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """[n, groups]: 1 where an example belongs. (`F.one_hot` checks its input on the host.)"""
    return (index.unsqueeze(1) == torch.arange(groups, device=index.device)).to(dtype)


def pooled(features: Tensor) -> Tensor:
    return features if features.dim() == 2 else features.flatten(2).mean(-1)


def herd(features: np.ndarray, count: int) -> np.ndarray:
    """Positions in the order they are picked: each time the one that brings the mean of all picked nearest to the
    mean.

    features [n, d]; argmin_x ‖μ − (φ(x) + Σ picked) / (k + 1)‖, without repeats.
    """
    mean, total = features.mean(0), np.zeros(features.shape[1])
    picked: list[int] = []
    for k in range(min(count, len(features))):
        far = np.linalg.norm(mean - (features + total) / (k + 1), axis=1)
        far[picked] = np.inf
        picked.append(int(far.argmin()))
        total += features[picked[-1]]
    return np.array(picked, dtype=np.int64)
