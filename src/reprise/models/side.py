"""Side networks: five small convolutions beside the encoder, one network per task, and how much of it is blended in.

Each convolution is followed by GroupNorm (2 groups) and ReLU; there are no running statistics to keep apart. On the
ResNet-50's 2048 x 8 x 8 features it is the paper's network: 64, 256, 256, 512, 2048 channels, 11,372,672 parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reprise.models.conv import Conv

LAYERS = 5
GROUPS = 2


@dataclass(frozen=True)
class Layer:
    inputs: int
    outputs: int
    size: int
    stride: int
    padding: int


def side_layers(features_shape: tuple[int, ...], input_shape: tuple[int, ...]) -> list[Layer]:
    """Convolutions whose output has the encoder's resolution and channels; vectors are averaged at the end."""
    channels = features_shape[0]
    if len(features_shape) == 3:
        halvings = round(math.log2(input_shape[-1] / features_shape[-1]))
    else:
        halvings = min(3, int(math.log2(input_shape[-1])))
    divisors = (32, 8, 8, 4, 1) if channels >= 1024 else (8, 4, 4, 2, 1)
    widths = [max(GROUPS, channels // d) for d in divisors]
    layers, inputs = [], input_shape[0]
    for index, outputs in enumerate(widths):
        # Five halvings in four layers: the first one is a wide kernel that takes two at once.
        double = index == 0 and halvings >= LAYERS
        stride = 4 if double else 2 if halvings > index + (1 if halvings >= LAYERS else 0) else 1
        size, padding = (8, 2) if double else (3, 1)
        layers.append(Layer(inputs, outputs, size, stride, padding))
        inputs = outputs
    return layers


class SideNetwork(nn.Module):
    """x [n, 3, h, w] -> [n, c, h', w'], or [n, c] for encoders that answer with vectors."""

    def __init__(self, features_shape: tuple[int, ...], input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = side_layers(features_shape, input_shape)
        self.vector = len(features_shape) == 1
        self.convs = nn.ModuleList(
            Conv(s.inputs, s.outputs, s.size, s.stride, s.padding) for s in self.layers
        )
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, s.outputs) for s in self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(conv(x).to(norm.weight.dtype)))
        return x.mean((2, 3)) if self.vector else x


class SideNetworks(nn.Module):
    """A side network and a blend for each task but the first; a batch has one task."""

    def __init__(self) -> None:
        super().__init__()
        self.networks = nn.ModuleList()
        self.blends = nn.ParameterList()

    def add(self, features_shape: tuple[int, ...], input_shape: tuple[int, ...], task: int) -> None:
        if task > 0:
            self.networks.append(SideNetwork(features_shape, input_shape))
            self.blends.append(nn.Parameter(torch.zeros(())))

    def forward(self, x: Tensor, task: int) -> tuple[Tensor | None, Tensor | None]:
        """How much of the base to take, and the side network's answer; nothing for the first task."""
        if task == 0:
            return None, None
        return torch.sigmoid(self.blends[task - 1]), self.networks[task - 1](x)


class StackedSideNetworks(nn.Module):
    """The same with one tensor for all tasks, [tasks - 1, ...], picked by the batch's task on the device."""

    blends: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[Layer] = []
        self.vector = False
        self.register_parameter("blends", None)

    def add(self, features_shape: tuple[int, ...], input_shape: tuple[int, ...], task: int) -> None:
        if task == 0:
            return
        new = SideNetwork(features_shape, input_shape)
        self.layers, self.vector = new.layers, new.vector
        rows = {"blends": torch.zeros(())}
        for index in range(LAYERS):
            rows[f"filters{index}"] = new.get_parameter(f"convs.{index}.weight")
            rows[f"gain{index}"] = new.get_parameter(f"norms.{index}.weight")
            rows[f"shift{index}"] = new.get_parameter(f"norms.{index}.bias")
        for name, row in rows.items():
            before = getattr(self, name, None)
            own = row.detach().unsqueeze(0)
            self.register_parameter(
                name, nn.Parameter(own if before is None else torch.cat([before.detach(), own]))
            )

    def forward(self, x: Tensor, task: Tensor | int) -> tuple[Tensor | None, Tensor | None]:
        if isinstance(task, int) or self.blends is None:
            return None, None
        own = task[:1]
        index = (own - 1).clamp(min=0)
        for i, layer in enumerate(self.layers):
            filters, gain, shift = (
                getattr(self, f"{name}{i}").index_select(0, index).squeeze(0)
                for name in ("filters", "gain", "shift")
            )
            x = F.conv2d(x, filters, None, layer.stride, layer.padding)
            x = torch.relu(F.group_norm(x, GROUPS, gain, shift))
        # The first task has no side network: all of the base, and nothing of what was computed here.
        blend = torch.where(own == 0, 1.0, torch.sigmoid(self.blends.index_select(0, index))).squeeze(0)
        return blend, x.mean((2, 3)) if self.vector else x
