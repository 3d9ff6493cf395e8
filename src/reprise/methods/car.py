"""Compressed activation replay: ER, and old features held in place where the memory remembers them.

L = L_task + λ · L_replay + λ_fm · ℓ_fm(c(g(x_r)), z_r), where z_r = c(g(x_r)) was stored at the end of the task
that x_r belongs to (the paper's equations 4 and 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from reprise.compress import (
    COMPRESSIONS,
    DISTANCES,
    NEEDS_WEIGHT,
    POINTWISE,
    compressed_size,
    importance_weights,
    mmd,
    resolve_compression,
)
from reprise.engine import Engine
from reprise.errors import InputError
from reprise.examples import Examples
from reprise.method import Recall
from reprise.methods.er import ER
from reprise.net import Net
from reprise.streams.stream import Stream
from reprise.types import Batch, Output, Tree

Compression = Literal["auto", "none", "spatial", "channel", "spatial_channel", "intermediate"]
Distance = Literal["l1", "l2", "l1_l2", "weighted_l1", "weighted_l2", "mmd"]


@dataclass(frozen=True)
class CAR(ER):
    """Replay inputs, targets and compressed activations."""

    neutral: ClassVar[Mapping[str, float]] = {"lam_fm": 0.0}

    lam_fm: float = 5.0
    """λ_fm, weight of the feature matching loss"""
    compress: Compression = "auto"
    """what of the activation is stored; auto: none for vectors, spatial_channel for maps"""
    distance: Distance = "l2"
    """ℓ_fm, the distance between activation now and then"""
    store: Literal["train", "eval"] = "train"
    """BatchNorm mode in which activations are stored (train: a task's stored examples form one batch)"""
    reduction: Literal["mean", "sum"] = "mean"
    """mean or sum over the activation's dimensions in ℓ_fm"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lam_fm >= 0:
            raise InputError(f"lam_fm: {self.lam_fm} is not a weight; give 0 or more.")
        for field, value, known in (
            ("compress", self.compress, ("auto", *COMPRESSIONS)),
            ("distance", self.distance, tuple(DISTANCES)),
        ):
            if value not in known:
                raise InputError(f"{field}: {value!r} is not known; choose one of {', '.join(known)}.")

    def taps(self) -> bool:
        return self.compress == "intermediate"

    def resolve(self, stream: Stream, features_shape: tuple[int, ...]) -> CAR:
        return replace(self, compress=cast("Compression", resolve_compression(self.compress, features_shape)))

    def start(self, engine: Engine) -> Tree:
        """Weighted distances carry one weight per task and dimension."""
        if self.distance not in NEEDS_WEIGHT:
            return {}
        taps = {name: shape for name, shape in engine.layer_shapes.items() if name != "features"}
        size = compressed_size(self.compress, engine.layer_shapes["features"], taps)
        return {"importance": engine.place(torch.ones(len(engine.kinds), size))}

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        loss = super().objective(net, batch, out)
        if not batch.replayed:
            return loss
        weight = net.state["importance"][batch.task] if "importance" in net.state else None
        now, then = COMPRESSIONS[self.compress](out), batch.kept["activation"]
        if weight is not None:
            weight = weight.expand_as(now)
        if self.distance == "mmd":
            return loss + self.lam_fm * net.of_all(mmd, now, then)
        return loss + self.lam_fm * net.mean(POINTWISE[self.distance](now, then, weight, self.reduction))

    def keep(self, engine: Engine, batch: Batch) -> Tree:
        return {"activation": engine.compute(self._activation, batch, mode=self.store)}

    def _activation(self, net: Net, batch: Batch) -> Tensor:
        return COMPRESSIONS[self.compress](net(batch.x, batch.task))

    def end_task(self, engine: Engine, examples: Examples, task: int, recall: Recall) -> Tree:
        """Importance of each dimension: mean |∂ℓ/∂f| over the task's examples, scaled to a mean of 1."""
        if "importance" not in engine.state:
            return {}
        gradients = []
        for batch in engine.batches(examples, task):
            grads, _ = engine.gradient(
                self._summed_loss, [batch], wrt="features", mode="eval", statistics=False
            )
            gradients.append(engine.lift(self._compressed_magnitude)(grads))
        joined = torch.cat(gradients, dim=1 if engine.stacked else 0)
        weights = engine.lift(importance_weights)(joined)
        importance = engine.state["importance"].clone()
        importance[..., task, :] = weights
        return {"importance": importance}

    def _summed_loss(self, net: Net, batch: Batch, out: Output) -> Tensor:
        """Σ of the examples' losses: in evaluation mode the gradient at f_n is that of example n alone."""
        return net.loss(batch, out) * len(batch.x)

    def _compressed_magnitude(self, grads: Tree) -> Tensor:
        magnitudes = {name: grad.abs() for name, grad in grads.items()}
        features = magnitudes.pop("features")
        return COMPRESSIONS[self.compress](Output(features, features, magnitudes))
