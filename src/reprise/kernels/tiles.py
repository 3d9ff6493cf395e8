"""How the convolutions' kernels cut their work, by layer.

For the layers of the reduced ResNet-18 the tiles were measured on an H200 by `benchmarks/tune_tiles.py` (60 lanes, 15
images); they ask for its shared memory. Any other layer, and any other GPU, gets tiles by rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Tiles:
    """Pixels and channels of a program's result, the length of its partial products; warps, stages.

    span  lines of an image that a program walks down; 0 where it does not walk
    """

    pixels: int
    channels: int
    depth: int
    warps: int = 4
    stages: int = 3
    span: int = 0


# (input channels, output channels, size, stride) of a layer: (kernel, precision): tiles
TUNED: dict[tuple[int, int, int, int], dict[tuple[str, str], tuple[int, ...]]] = {
    (3, 20, 3, 1): {  # stem
        ("forward", "tf32"): (128, 32, 16, 4, 1),
        ("forward", "bf16"): (64, 32, 16, 4, 3, 32),
        ("filters", "tf32"): (128, 32, 16, 4, 2, 32),
        ("filters", "bf16"): (64, 32, 16, 4, 1, 32),
    },
    (20, 20, 3, 1): {  # stage0
        ("forward", "tf32"): (64, 32, 64, 4, 3, 32),
        ("forward", "bf16"): (64, 32, 64, 8, 2, 32),
        ("input", "tf32"): (64, 32, 64, 4, 3, 32),
        ("input", "bf16"): (64, 32, 64, 8, 2, 32),
        ("filters", "tf32"): (64, 32, 64, 4, 2, 32),
        ("filters", "bf16"): (64, 32, 64, 8, 2, 32),
    },
    (20, 40, 3, 2): {  # down1
        ("forward", "tf32"): (128, 64, 64, 4, 1),
        ("forward", "bf16"): (128, 64, 64, 8, 3),
        ("input", "tf32"): (64, 32, 64, 4, 1),
        ("input", "bf16"): (128, 32, 64, 4, 1),
        ("filters", "tf32"): (32, 64, 64, 4, 3),
        ("filters", "bf16"): (64, 64, 32, 4, 3),
    },
    (40, 40, 3, 1): {  # stage1
        ("forward", "tf32"): (128, 64, 64, 4, 1),
        ("forward", "bf16"): (64, 64, 128, 4, 3, 16),
        ("input", "tf32"): (64, 64, 128, 8, 2, 16),
        ("input", "bf16"): (64, 64, 128, 4, 1, 16),
        ("filters", "tf32"): (64, 64, 128, 8, 2, 16),
        ("filters", "bf16"): (64, 64, 128, 8, 2, 16),
    },
    (20, 40, 1, 2): {  # short1
        ("forward", "tf32"): (128, 64, 32, 8, 3),
        ("forward", "bf16"): (128, 64, 32, 4, 1),
        ("input", "tf32"): (128, 32, 64, 4, 1),
        ("input", "bf16"): (128, 32, 64, 4, 1),
        ("filters", "tf32"): (64, 16, 32, 4, 3),
        ("filters", "bf16"): (64, 64, 32, 8, 3),
    },
    (40, 80, 3, 2): {  # down2
        ("forward", "tf32"): (64, 64, 64, 4, 1),
        ("forward", "bf16"): (64, 128, 32, 8, 3),
        ("input", "tf32"): (128, 64, 32, 4, 1),
        ("input", "bf16"): (128, 64, 32, 4, 1),
        ("filters", "tf32"): (32, 64, 128, 4, 3),
        ("filters", "bf16"): (64, 64, 64, 4, 3),
    },
    (80, 80, 3, 1): {  # stage2
        ("forward", "tf32"): (128, 128, 32, 4, 3),
        ("forward", "bf16"): (128, 128, 32, 4, 3),
        ("input", "tf32"): (32, 128, 32, 4, 3),
        ("input", "bf16"): (128, 128, 32, 4, 3),
        ("filters", "tf32"): (32, 16, 128, 4, 3),
        ("filters", "bf16"): (64, 128, 128, 4, 3),
    },
    (40, 80, 1, 2): {  # short2
        ("forward", "tf32"): (64, 128, 64, 4, 3),
        ("forward", "bf16"): (64, 128, 64, 4, 1),
        ("input", "tf32"): (128, 64, 32, 8, 3),
        ("input", "bf16"): (128, 64, 32, 4, 1),
        ("filters", "tf32"): (64, 16, 64, 4, 1),
        ("filters", "bf16"): (64, 128, 32, 8, 3),
    },
    (80, 160, 3, 2): {  # down3
        ("forward", "tf32"): (128, 128, 32, 4, 3),
        ("forward", "bf16"): (128, 128, 32, 4, 3),
        ("input", "tf32"): (32, 128, 32, 4, 3),
        ("input", "bf16"): (128, 128, 32, 4, 3),
        ("filters", "tf32"): (32, 32, 64, 4, 1),
        ("filters", "bf16"): (64, 64, 64, 4, 1),
    },
    (160, 160, 3, 1): {  # stage3
        ("forward", "tf32"): (128, 128, 32, 4, 3),
        ("forward", "bf16"): (128, 64, 32, 4, 3),
        ("input", "tf32"): (32, 64, 32, 4, 3),
        ("input", "bf16"): (128, 128, 32, 4, 3),
        ("filters", "tf32"): (32, 32, 128, 4, 1),
        ("filters", "bf16"): (64, 64, 64, 4, 1),
    },
    (80, 160, 1, 2): {  # short3
        ("forward", "tf32"): (128, 64, 32, 4, 3),
        ("forward", "bf16"): (128, 64, 32, 4, 3),
        ("input", "tf32"): (64, 128, 32, 4, 1),
        ("input", "bf16"): (128, 64, 32, 4, 3),
        ("filters", "tf32"): (64, 32, 32, 4, 1),
        ("filters", "bf16"): (32, 128, 32, 4, 3),
    },
}

NAMES = {torch.float32: "tf32", torch.bfloat16: "bf16"}
LARGE_SHARED_MEMORY = 227 * 1024
"""Bytes a program may have on the GPU the tiles were measured on."""


def tiles_for(
    kind: str, layer: tuple[int, int, int, int], rule: Tiles, dtype: torch.dtype, device: torch.device
) -> Tiles:
    """The measured tiles of a layer's kernel (`forward`, `input`, `filters`) where there are any, else the rule's."""
    measured = TUNED.get(layer, {}).get((kind, NAMES.get(dtype, "")))
    if measured is None or not _large(device):
        return rule
    return Tiles(*measured)


@lru_cache
def _large(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 0) >= LARGE_SHARED_MEMORY


def fitting(size: int) -> int:
    """The power of two that holds `size`, at least the 16 a matrix unit takes."""
    return max(16, 1 << (size - 1).bit_length())
