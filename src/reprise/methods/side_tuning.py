"""Side-Tuning: the encoder of the first task stays as it is, and each later task gets a small network beside it.

f = α g(x) + (1 − α) side_j(x), α = sigmoid(a_j) learned with the side network of task j; the first task has g alone.
Nothing an old task depends on ever moves, so nothing is forgotten; the model grows with every task instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from reprise.method import Method
from reprise.models.heads import StackedHeads
from reprise.models.model import Model
from reprise.models.side import SideNetworks, StackedSideNetworks


class SidedModel(Model):
    """A model whose features depend on the task: the base encoder's, blended with the task's own side network's."""

    def __init__(self, model: Model, sides: nn.Module) -> None:
        super().__init__(model.encoder, model.heads)
        self.sides = sides
        self.input_shape = model.input_shape
        self.base_shape = model.layer_shapes(model.input_shape)["features"]

    def features(self, x: Tensor, task: Tensor | int) -> Tensor:
        base = self.encoder(x)
        blend, side = self.sides(x, task)
        return base if side is None else blend * base + (1 - blend) * side


@dataclass(frozen=True)
class SideTuning(Method):
    """Freeze the first task's encoder; blend in a side network per task."""

    def wrap(self, model: Model) -> Model:
        stacked = isinstance(model.heads, StackedHeads)
        return SidedModel(model, StackedSideNetworks() if stacked else SideNetworks())

    def grow(self, model: Model, task: int) -> None:
        assert isinstance(model, SidedModel)
        assert isinstance(model.sides, SideNetworks | StackedSideNetworks)
        model.sides.add(model.base_shape, model.input_shape, task)

    def trains(self, name: str, task: int) -> bool:
        if task == 0:
            return not name.startswith("sides.")
        return not name.startswith("encoder.")
