"""Encoders: images to features. Each names the layers that may be tapped and builds from plain torch parts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from reprise.errors import InputError
from reprise.models.conv import Conv
from reprise.models.norm import Norm
from reprise.models.resnet50 import ResNet50


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut; the first may halve the resolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv(inputs, outputs, 3, stride, padding=1)
        self.bn1 = Norm(outputs, relu=True)
        self.conv2 = Conv(outputs, outputs, 3, padding=1)
        self.bn2 = Norm(outputs, relu=True)
        self.shortcut = nn.Sequential()
        # oneDNN (as in torch 2.13) overruns memory in the backward pass of a strided 1x1 convolution of fewer than
        # 16 channels, channels-last and threaded. Leaving out pixels first is the same function.
        self.skip = stride if inputs < 16 else 1
        if stride != 1 or inputs != outputs:
            own = Conv(inputs, outputs, 1, stride // self.skip)
            self.shortcut = nn.Sequential(own, Norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        passed = x if self.skip == 1 else x[:, :, :: self.skip, :: self.skip]
        return self.bn2(self.conv2(self.bn1(self.conv1(x))), plus=self.shortcut(passed))


class ReducedResNet18(nn.Module):
    """The encoder of the Split streams: ResNet-18 of a third of the width, 3x3 stem, no max-pool.

    x [n, 3, h, w] -> features [n, 8 * width], the global average of the last stage (so never negative).
    With the published width of 20: 160 features and 1,093,140 parameters.
    """

    taps = ("stages.0", "stages.1", "stages.2", "stages.3")

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.conv1 = Conv(3, width, 3, padding=1)
        self.bn1 = Norm(width, relu=True)
        stages, inputs = [], width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            stages.append(nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)))
            inputs = outputs
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x))
        for stage in self.stages:
            out = stage(out)
        return out.mean((2, 3), dtype=self.conv1.weight.dtype)


class SmallConvNet(nn.Module):
    """Two strided convolutions: x [n, 3, h, w] -> features [n, 2 * width, h / 4, w / 4]. For CPUs and tests."""

    taps = ("bn1", "bn2")

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = Conv(3, width, 3, 2, padding=1)
        self.bn1 = Norm(width, relu=True)
        self.conv2 = Conv(width, 2 * width, 3, 2, padding=1)
        self.bn2 = Norm(2 * width, relu=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(self.bn1(self.conv1(x)))).to(self.conv1.weight.dtype)


class RoomsResNet(nn.Module):
    """A ResNet for maps at 64 x 64: x [n, 3, h, w] -> features [n, 64, h / 8, w / 8], with 100,624 parameters."""

    taps = ("stages.0", "stages.1", "stages.2")

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = Conv(3, 16, 3, 2, padding=1)
        self.bn1 = Norm(16, relu=True)
        self.stages = nn.Sequential(
            nn.Sequential(BasicBlock(16, 16, 1), BasicBlock(16, 16, 1)),
            nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32, 1)),
            nn.Sequential(BasicBlock(32, 64, 2)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.stages(self.bn1(self.conv1(x))).to(self.conv1.weight.dtype)


ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "resnet18-reduced": lambda: ReducedResNet18(20),
    "resnet18-tiny": lambda: ReducedResNet18(8),
    "convnet-small": lambda: SmallConvNet(8),
    "resnet-rooms": RoomsResNet,
    "resnet50": ResNet50,
}


def build_encoder(name: str) -> nn.Module:
    if name not in ENCODERS:
        raise InputError(f"encoder: {name!r} is not known; choose one of {', '.join(ENCODERS)}.")
    return ENCODERS[name]()
