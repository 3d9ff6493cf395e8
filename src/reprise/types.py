"""The words everything speaks: a tree of tensors, a batch, and what a model answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

Tree = dict[str, Tensor]
"""Named tensors: parameters, buffers, gradients, a method's state."""


@dataclass(frozen=True)
class Batch:
    """What flows through a step. With lanes, every tensor has one more leading axis.

    x     [n, ...]  inputs, normalised, in the engine's dtype
    y     [n, ...]  targets: class indices, class probabilities or maps
    task  [n] one index per example where heads share a shape, or one int for the whole batch
    mask  [n, ...]  1 where a dense target is valid, None where every target is
    kept  columns the memory holds beside each example (`activation`, `logits`, ...)
    """

    x: Tensor
    y: Tensor
    task: Tensor | int
    mask: Tensor | None = None
    role: str = "current"
    """`current`, `replay`, or the name of one of the method's own draws."""
    kept: Tree = field(default_factory=dict)

    @property
    def replayed(self) -> bool:
        return self.role != "current"

    def tensors(self) -> Tree:
        """The tensors alone, for functions that map over them."""
        tree = {"x": self.x, "y": self.y}
        if isinstance(self.task, Tensor):
            tree["task"] = self.task
        if self.mask is not None:
            tree["mask"] = self.mask
        return tree | {f"kept.{name}": column for name, column in self.kept.items()}

    def with_tensors(self, tree: Tree) -> Batch:
        """The same batch around other tensors: the inverse of `tensors`."""
        kept = {name: tree[f"kept.{name}"] for name in self.kept}
        return replace(
            self, x=tree["x"], y=tree["y"], task=tree.get("task", self.task), mask=tree.get("mask"), kept=kept
        )


@dataclass(frozen=True)
class Output:
    """What a model answers: features [n, d] or [n, c, h, w], the own head's prediction, and tapped layers."""

    features: Tensor
    prediction: Tensor
    taps: Tree = field(default_factory=dict)
