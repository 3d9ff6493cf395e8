"""What this process may use of the machine, and how its devices compute."""

from __future__ import annotations

import os

import torch

from reprise.errors import InputError


def cores() -> int:
    """`taskset` and containers leave fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def named_device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise InputError(f"device: {name!r} is not known; choose cpu or cuda.")
    return torch.device(name)


def pick_device(name: str) -> torch.device:
    """A device that this machine has."""
    device = named_device(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device: cuda was asked for, but this machine shows no GPU; use --device cpu.")
    return device


def set_arithmetic(precision: str, deterministic: bool = True) -> None:
    """How the device multiplies, and whether in a fixed order."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    # Without this the gradients of convolutions are summed in no fixed order, and a training this short and noisy
    # turns the last bit into percents: the same command would not give the same record.
    torch.backends.cudnn.deterministic = deterministic
