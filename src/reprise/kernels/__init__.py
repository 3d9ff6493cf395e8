"""Faster lanes on a GPU: convolution and BatchNorm of all lanes in one Triton kernel each.

`ops.py` holds what the models call (autograd functions with a batching rule for vmap); `conv.py` and `norm.py` hold
the kernels. Only `ops.py` is imported from outside, and only where `available()` says so: Triton comes with CUDA
builds of torch. The plain path (vmap over torch's own operators) is the reference and computes the same functions.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch


def available(device: torch.device) -> bool:
    """Whether the kernels run on this device (on a CPU only in Triton's interpreter, which tests use)."""
    if find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
