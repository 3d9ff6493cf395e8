"""Decoders: features to a prediction per pixel, by doubling the resolution; and which one an encoder gets."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reprise.errors import InputError
from reprise.models.conv import Conv, UpConv
from reprise.models.norm import Norm
from reprise.tasks import Kind, Regress

LEAK = 0.2
LAYERS = (
    *(("conv", 64), ("conv", 64), ("up", 32)),
    *(("conv", 16), ("conv", 16), ("conv", 8), ("up", 4)),
    *(("conv", 4), ("up", 2)),
    *(("conv", 2), ("up", 1)),
    *(("conv", 2), ("up", 1)),
    ("conv", 1),
)
"""The first 14 of the 15 layers, and their channels in units of the width."""


class Decoder15(nn.Module):
    """The paper's "15-layer ConvNet with upsampling blocks": features [n, dims, h, w] -> [n, outputs, 32 h, 32 w].

    Every layer is 3x3, with BatchNorm and LeakyReLU but for the last one, which has a bias and, for real values
    (`bounded`), a tanh. With the published width of 16 and 2048 channels of features: 35,255,840 + 145 * outputs
    parameters. Its hidden layers multiply in the dtype that `compute_in` sets, the last in that of the weights.
    """

    def __init__(self, dims: int, outputs: int, bounded: bool, width: int = 16) -> None:
        super().__init__()
        layers, inputs = [], dims
        for kind, units in LAYERS:
            channels = units * width
            conv = UpConv(inputs, channels) if kind == "up" else Conv(inputs, channels, 3, padding=1)
            layers.append(nn.Sequential(conv, Norm(channels)))
            inputs = channels
        self.layers = nn.ModuleList(layers)
        self.out = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.bounded = bounded

    def forward(self, features: Tensor) -> Tensor:
        hidden = features
        for layer in self.layers:
            hidden = F.leaky_relu(layer(hidden), LEAK, inplace=True)
        out = self.out(hidden.to(self.out.weight.dtype))
        return torch.tanh(out) if self.bounded else out


class SmallDecoder(nn.Module):
    """Features [n, dims, h, w] -> [n, outputs, h * 2^d, w * 2^d]: one hidden layer, then d doublings."""

    def __init__(self, dims: int, outputs: int, doublings: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dims, 16, 3, padding=1)
        self.ups = [f"up{i}" for i in range(1, doublings + 1)]
        for name in self.ups:
            last = name == self.ups[-1]
            up = nn.ConvTranspose2d(16, outputs if last else 16, 3, 2, padding=1, output_padding=1)
            self.add_module(name, up)

    def forward(self, features: Tensor) -> Tensor:
        out = self.conv(features)
        for name in self.ups:
            out = self.get_submodule(name)(torch.relu(out))
        return out


DECODERS: dict[str, Callable[[int, int, bool], nn.Module]] = {"resnet50": Decoder15}
"""By the encoder's name; all others get the small one."""


def build_decoder(
    encoder_name: str, kind: Kind, features_shape: tuple[int, ...], input_shape: tuple[int, ...]
) -> nn.Module:
    """The decoder of one task, from the features' [c, h, w] to the input's resolution."""
    if len(features_shape) != 3:
        raise InputError(
            f"encoder: {encoder_name} answers with vectors, and a task with a target per pixel needs maps; "
            "choose one such as convnet-small."
        )
    dims, *small = features_shape
    large = list(input_shape[-2:])
    doublings = max(1, round(math.log2(large[0] / small[0])))
    if encoder_name in DECODERS:
        doublings = sum(layer == "up" for layer, _ in LAYERS)
    if [side * 2**doublings for side in small] != large:
        raise InputError(
            f"encoder: {encoder_name} makes {small[0]} x {small[1]} features of {large[0]} x {large[1]} images, and "
            f"{doublings} doublings do not lead back; use images whose sides are multiples of {2**doublings}."
        )
    if encoder_name in DECODERS:
        return DECODERS[encoder_name](dims, kind.outputs, isinstance(kind, Regress))
    return SmallDecoder(dims, kind.outputs, doublings)
