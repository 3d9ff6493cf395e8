"""CAR for Avalanche users: a plugin beside a strategy's own loss (the extra `avalanche`).

    strategy = Naive(model, optimizer, criterion, plugins=[CARPlugin(m_per_task=50, features="features")])

L = L_task + λ · L_replay + λ_fm · ℓ_fm(c(g(x_r)), z_r): what the strategy minimises, and what CAR adds to it. Their
loop, optimizer and evaluation stay as they are; the compressions, distances and named draws are Reprise's.
"""

from __future__ import annotations

from typing import Any

import torch
from avalanche.models.utils import avalanche_forward
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn

from reprise.compress import COMPRESSIONS, POINTWISE, resolve_compression
from reprise.errors import InputError
from reprise.randomness import rng
from reprise.types import Output, Tree


class CARPlugin(SupervisedPlugin):
    """Replays inputs, targets and compressed activations of earlier experiences.

    m_per_task  examples of an experience that are remembered, drawn uniformly when it ends
    features    name of the model's layer whose output is the features
    replay      remembered examples in a step, from the union of the earlier experiences
    """

    def __init__(
        self,
        m_per_task: int,
        features: str,
        lam: float = 1.0,
        lam_fm: float = 5.0,
        replay: int = 10,
        compress: str = "auto",
        distance: str = "l2",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if distance not in ("l1", "l2", "l1_l2"):
            raise InputError(f"distance: {distance!r} is not for the plugin; choose l1, l2 or l1_l2.")
        if compress not in ("auto", *COMPRESSIONS) or compress == "intermediate":
            raise InputError(
                f"compress: {compress!r} is not for the plugin; choose another compression, or auto."
            )
        self.m_per_task, self.features = m_per_task, features
        self.lam, self.lam_fm, self.replay = lam, lam_fm, replay
        self.compress, self.distance, self.seed = compress, distance, seed
        self.memory: Tree = {}
        """Columns [rows, ...]: x, y, task, activation."""
        self._steps = 0

    # ---- what Avalanche calls
    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        self._steps = 0
        known = dict(strategy.model.named_modules())
        if self.features not in known:
            some = ", ".join(list(known)[1:9])
            raise InputError(f"features: the model has no layer {self.features!r}; its layers are {some}, ….")

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        if not self.memory:
            return
        generator = rng(self.seed, f"replay:avalanche:{self._steps}", int(strategy.clock.train_exp_counter))
        self._steps += 1
        held = len(self.memory["y"])
        rows = torch.as_tensor(generator.choice(held, min(self.replay, held), replace=False))
        batch = {name: column[rows].to(strategy.device) for name, column in self.memory.items()}
        out = self._answer(strategy.model, batch)
        loss = strategy._criterion(out.prediction, batch["y"])
        now = COMPRESSIONS[self.compress](out)
        far = POINTWISE[self.distance](now, batch["activation"], None, "mean").mean()
        strategy.loss = strategy.loss + self.lam * loss + self.lam_fm * far

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        data, task = strategy.experience.dataset, int(strategy.clock.train_exp_counter)
        count = min(self.m_per_task, len(data))
        rows = rng(self.seed, "select", task).choice(len(data), count, replace=False)
        items = [data[int(row)] for row in rows]
        own = {
            "x": torch.stack([torch.as_tensor(item[0]) for item in items]),
            "y": torch.tensor([int(item[1]) for item in items]),
            "task": torch.tensor([int(item[-1]) for item in items]),
        }
        with torch.no_grad():
            out = self._stored(strategy.model, {n: column.to(strategy.device) for n, column in own.items()})
        self.compress = resolve_compression(self.compress, tuple(out.features.shape[1:]))
        own["activation"] = COMPRESSIONS[self.compress](out).cpu()
        self.memory = {n: torch.cat([self.memory[n], c]) if self.memory else c for n, c in own.items()}

    # ---- the model
    def _answer(self, model: nn.Module, batch: Tree) -> Output:
        """Prediction and features of one pass."""
        seen: list[Tensor] = []
        hook = model.get_submodule(self.features).register_forward_hook(lambda m, i, out: seen.append(out))
        try:
            prediction = avalanche_forward(model, batch["x"], batch["task"])
        finally:
            hook.remove()
        return Output(seen[-1], prediction)

    def _stored(self, model: nn.Module, batch: Tree) -> Output:
        """The same in training mode, as CAR stores activations; the running statistics do not move."""
        before, training = {n: b.clone() for n, b in model.named_buffers()}, model.training
        model.train()
        try:
            return self._answer(model, batch)
        finally:
            model.train(training)
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
