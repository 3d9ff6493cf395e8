"""Hindsight anchor learning: the answers on a few learned images (anchors) should survive the step about to be made.

θ̃ = θ − α ∇ℓ(θ; B ∪ B_M), then θ ← θ − α ∇[ ℓ(θ; B ∪ B_M) + λ · mean ‖F_θ(e) − F_θ̃(e)‖² ] over anchors e of old
tasks. When a task ends, each of its classes gets one anchor, found by gradient: it minimises ℓ(θ; e, c) − ℓ(θ_M; e,
c) + γ · mean (φ(e) − φ_c)², θ_M being θ fine-tuned on the memory of earlier tasks: an image that earlier tasks
would make forgotten, near the class's mean embedding φ_c. Tasks without classes in common have one anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.errors import InputError
from reprise.examples import Examples
from reprise.method import Needs, Recall
from reprise.methods.er import ER
from reprise.methods.icarl import members, pooled
from reprise.models.heads import StackedHeads
from reprise.net import Net
from reprise.streams.stream import Stream
from reprise.types import Batch, Output, Tree

IMAGE_DECAY = 0.9
"""Of the running mean image, from which an anchor starts."""


@dataclass(frozen=True)
class HAL(ER):
    """Replay, and look ahead at what a step would do to anchors."""

    lam_anchor: float = 0.1
    """λ, weight of the anchors' term"""
    gamma: float = 0.1
    """γ, weight of staying near the mean embedding while an anchor is learned"""
    beta: float = 0.5
    """β, decay of the running mean embedding"""
    anchors: int = 10
    """anchors drawn in a step"""
    anchor_steps: int = 100
    """Adam steps that learn an anchor"""
    anchor_lr: float = 0.001
    """their rate"""
    finetune_steps: int = 50
    """SGD steps on the memory of earlier tasks, of 10 examples each, before anchors are learned"""
    second_order: bool = False
    """differentiate through the look-ahead"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not min(self.lam_anchor, self.gamma) >= 0:
            raise InputError(
                f"lam_anchor, gamma: {self.lam_anchor}, {self.gamma} are not weights; give 0 or more."
            )
        if not 0 <= self.beta <= 1:
            raise InputError(f"beta: {self.beta} is no decay; give a number from 0 to 1.")
        if min(self.anchors, self.anchor_steps) < 1 or self.finetune_steps < 0 or not self.anchor_lr > 0:
            raise InputError("anchors, anchor_steps, anchor_lr, finetune_steps: one is not positive.")

    def needs(self, stream: Stream) -> Needs:
        return Needs(draws={"anchors": self.anchors}, both=True)

    def start(self, engine: Engine) -> Tree:
        """Anchors of all tasks; the running mean image and embedding of the current task's classes."""
        classes, shape = _anchors_of_a_task(engine), engine.reader.input_shape
        features = engine.layer_shapes["features"][0]
        return {
            "anchors": engine.place(torch.zeros(len(engine.kinds), classes, *shape)),
            "image": engine.place(torch.zeros(classes, *shape)),
            "embedding": engine.place(torch.zeros(classes, features)),
        }

    # ---- a step
    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        drawn = [batch for batch in batches if batch.role == "anchors"]
        seen = [batch for batch in batches if batch.role != "anchors"]
        second = self.second_order and bool(drawn)
        grads, loss = engine.gradient(self.objective, seen, create_graph=second)
        if drawn:
            grads, loss = self._with_hindsight(engine, grads, loss, _as_anchors(engine, drawn[0]))
        with torch.no_grad():
            features = engine.compute(self._features, seen[0], mode="train")
            shown = {"x": seen[0].x, "f": features} | _labels(seen[0], engine)
            engine.update_state(self.follow, engine.whole(shown))
        engine.apply(grads)
        return loss

    def _with_hindsight(
        self, engine: Engine, grads: Tree, loss: Tensor, anchors: Batch
    ) -> tuple[Tree, Tensor]:
        params = {name: engine.params[name] for name in grads}
        ahead = engine.lift(_ahead)(params, grads, {"lr": engine.lr})
        if not self.second_order:
            ahead = {name: value.detach() for name, value in ahead.items()}
        more, _ = engine.gradient(self.hindsight, [anchors], ahead, statistics=False)
        with torch.no_grad():
            total = {n: g.detach() + more[n] if n in more else g.detach() for n, g in grads.items()}
        return total, loss.detach()

    def hindsight(self, net: Net, batch: Batch, out: Output, ahead: Tree) -> Tensor:
        """λ · mean over anchors of ‖F_θ(e) − F_θ̃(e)‖², summed over the outputs."""
        then = net.at(ahead)(batch.x, batch.task).prediction
        apart = torch.where(out.prediction.isfinite(), out.prediction - then, 0.0)
        return self.lam_anchor * net.mean(apart.square().flatten(1).sum(1))

    def _features(self, net: Net, batch: Batch) -> Tensor:
        return pooled(net(batch.x, batch.task).features)

    def follow(self, state: Tree, seen: Tree) -> Tree:
        """The running means of the classes that a batch shows; the others stay."""
        classes = state["image"].shape[0]
        member = torch.ones_like(seen["f"][:, :1])
        if "y" in seen:
            member = members(seen["y"] % classes, classes, seen["f"].dtype)
        count = member.sum(0)
        means = {
            "image": torch.einsum("nc,n...->c...", member, seen["x"]),
            "embedding": torch.einsum("nc,nd->cd", member, seen["f"]),
        }
        found: Tree = {}
        for name, decay in (("image", IMAGE_DECAY), ("embedding", self.beta)):
            wide = count.view(-1, *[1] * (state[name].dim() - 1))
            moved = decay * state[name] + (1 - decay) * means[name] / wide.clamp(min=1.0)
            found[name] = torch.where(wide > 0, moved, state[name])
        return found

    # ---- the end of a task
    def end_task(self, engine: Engine, examples: Examples, task: int, recall: Recall) -> Tree:
        first = _examples_of_classes(engine, examples, task)
        finetuned = self._finetuned(engine, recall)
        learned = first.x if finetuned is None else self._learned(engine, first, finetuned)
        anchors = engine.state["anchors"].clone()
        anchors[(slice(None), task) if engine.stacked else task] = learned
        means = {name: torch.zeros_like(engine.state[name]) for name in ("image", "embedding")}
        return means | {"anchors": anchors}

    def _finetuned(self, engine: Engine, recall: Recall) -> Tree | None:
        """θ_M: the parameters after SGD on earlier tasks' memory; None where there is none. θ itself stays."""
        before, found = engine.snapshot(), None
        for batch in recall(self.finetune_steps, 10):
            grads, _ = engine.gradient(self._plain, [batch], statistics=False)
            with torch.no_grad():
                params = {name: engine.params[name].detach() for name in grads}
                engine.assign(engine.lift(_ahead)(params, grads, {"lr": engine.lr}))
                found = engine.snapshot()
        engine.assign(before)
        return found

    def _learned(self, engine: Engine, first: Batch, finetuned: Tree) -> Tensor:
        """The anchors: from each class's mean image, by Adam, within the range of the data; in evaluation mode."""
        blank = torch.zeros_like(first.x, dtype=torch.uint8)
        least, most = (engine.reader.normalise(blank + value, first.x.dtype) for value in (0, 255))
        image = engine.state["image"].clone()
        # Adam's way does not depend on where it is, and is as long as its rate: walked at rate 1 from anywhere, it
        # serves lanes of different rates.
        way = torch.zeros_like(image, requires_grad=True)
        adam = torch.optim.Adam([way], lr=1.0)
        for _ in range(self.anchor_steps):
            batch = first.with_tensors(first.tensors() | {"x": image})
            grads, _ = engine.gradient(
                self.forgotten, [batch], finetuned, wrt="inputs", mode="eval", statistics=False
            )
            way.grad = grads["current"]
            before = way.detach().clone()
            adam.step()
            moved = engine.lift(self._moved)({"image": image, "by": way.detach() - before})
            image = moved.clamp(least, most)
        return image

    def _moved(self, tree: Tree) -> Tensor:
        return tree["image"] + self.anchor_lr * tree["by"]

    def forgotten(self, net: Net, batch: Batch, out: Output, finetuned: Tree) -> Tensor:
        """Σ over the anchors of ℓ(θ) − ℓ(θ_M) + γ · mean (φ(e) − φ_c)²: one gradient serves them all."""
        there = net.at(finetuned)(batch.x, batch.task)
        gap = net.loss(batch, out) - net.loss(batch, there)
        near = (pooled(out.features) - net.state["embedding"]).square().mean()
        return len(batch.x) * (gap + self.gamma * near)

    def _plain(self, net: Net, batch: Batch, out: Output) -> Tensor:
        return net.loss(batch, out)


def _ahead(params: Tree, grads: Tree, rate: Tree) -> Tree:
    return {name: param - rate["lr"] * grads[name] for name, param in params.items()}


def _anchors_of_a_task(engine: Engine) -> int:
    """One for each class where all tasks have equally many, else one."""
    heads = engine.model.heads
    return heads.weight.shape[1] if isinstance(heads, StackedHeads) else 1


def _labels(batch: Batch, engine: Engine) -> Tree:
    return {"y": batch.y} if engine.reader.shared_head else {}


def _as_anchors(engine: Engine, drawn: Batch) -> Batch:
    """The anchors of the classes that were drawn, in the place of the remembered images."""

    def pick(state: Tree, at: Tree) -> Tensor:
        return state["anchors"][at["task"], at["y"] % state["anchors"].shape[1]]

    if isinstance(drawn.task, Tensor):
        x = engine.lift(pick)(engine.state, {"task": drawn.task, "y": drawn.y})
        return drawn.with_tensors(drawn.tensors() | {"x": x})
    anchors = engine.state["anchors"][(slice(None), drawn.task) if engine.stacked else drawn.task]
    axis = 1 if engine.stacked else 0
    one = {name: t.narrow(axis, 0, 1) for name, t in drawn.tensors().items()}
    return drawn.with_tensors(one | {"x": anchors})


def _examples_of_classes(engine: Engine, examples: Examples, task: int) -> Batch:
    """The last example of each class, as a batch: an anchor's label, and itself the anchor of the first task."""
    labels = examples.labels
    n = len(examples)
    if labels is None or not engine.reader.shared_head:
        index = torch.full((1,), n - 1)
    else:
        of_lane = torch.as_tensor(labels if labels.ndim == 2 else labels[None])
        classes = _anchors_of_a_task(engine)
        last = [[int(torch.nonzero(own % classes == c).max()) for c in range(classes)] for own in of_lane]
        index = torch.tensor(last if labels.ndim == 2 else last[0])
    index = index.to(examples.rows.device)
    if engine.stacked and index.dim() == 1:
        index = index.expand(engine.lanes, -1)
    batch = engine.reader.batch(examples.take(index), task)
    return replace(batch, role="current")
