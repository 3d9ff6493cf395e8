"""ResNet-50 as maps: torchvision's layers under torchvision's names, without its pooling and classifier.

The stride of a block is in its 3x3 convolution ("v1.5"), as in torchvision, whose weights therefore fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from reprise.models.conv import Conv
from reprise.models.norm import Norm
from reprise.models.weights import copy_weights

EXPANSION = 4
"""A block's output has this many times the channels of its 3x3 convolution."""


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; the 3x3 one may halve the resolution."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = Conv(inputs, width, 1)
        self.bn1 = Norm(width, relu=True)
        self.conv2 = Conv(width, width, 3, stride, padding=1)
        self.bn2 = Norm(width, relu=True)
        self.conv3 = Conv(width, outputs, 1)
        self.bn3 = Norm(outputs, relu=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(Conv(inputs, outputs, 1, stride), Norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.bn1(self.conv1(x))))
        return self.bn3(self.conv3(out), plus=self.downsample(x))


class ResNet50(nn.Module):
    """x [n, 3, h, w] -> features [n, 32 * width, h / 32, w / 32], never negative.

    With the usual width of 64: 2048 x 8 x 8 features of 256 x 256 images and 23,508,032 parameters.
    """

    taps = ("layer1", "layer2", "layer3", "layer4")

    def __init__(self, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.conv1 = Conv(3, width, 7, 2, padding=3)
        self.bn1 = Norm(width, relu=True)
        inputs = width
        for index, (name, count) in enumerate(zip(self.taps, blocks, strict=True)):
            own = width * 2**index
            first = Bottleneck(inputs, own, 1 if index == 0 else 2)
            inputs = EXPANSION * own
            rest = [Bottleneck(inputs, own, 1) for _ in range(count - 1)]
            self.add_module(name, nn.Sequential(first, *rest))
        for module in self.modules():
            if isinstance(module, Conv):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out = F.max_pool2d(self.bn1(self.conv1(x)), 3, 2, 1)
        for name in self.taps:
            out = self.get_submodule(name)(out)
        return out.to(self.conv1.weight.dtype)


def load_torchvision(encoder: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Copy the weights and statistics of a torchvision `resnet50` into the encoder; its classifier and the norms'
    counters have no place here and are left out."""
    given = {
        name: tensor
        for name, tensor in state_dict.items()
        if not name.startswith("fc.") and not name.endswith(".num_batches_tracked")
    }
    copy_weights(encoder, given, "torchvision's resnet50")
