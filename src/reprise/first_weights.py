"""First weights: a file that an encoder begins with in place of random numbers.

What the file holds decides results, where it lies does not: an experiment knows it by its digest, and the place
travels beside it to whoever makes the models.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from reprise.errors import InputError
from reprise.models.encoders import build_encoder
from reprise.models.resnet50 import ResNet50, load_torchvision
from reprise.models.weights import copy_weights
from reprise.streams.fetch import open_file, shown
from reprise.streams.pickles import DAMAGE

SAFE = ".safetensors"
SUFFIXES = (SAFE, ".pt", ".pth")
UNREADABLE = (safetensors.SafetensorError, AssertionError, struct.error, *DAMAGE)
"""What files that are damaged, or something else, make their readers raise."""


@dataclass(frozen=True)
class FirstWeights:
    """A file of weights, the same one wherever it lies."""

    digest: str
    """What `sha256sum` says of it, the first 16 hex digits."""
    path: Path | None = field(default=None, compare=False, repr=False)
    """None where only a record tells of it."""

    def load(self, encoder: nn.Module, name: str) -> None:
        """Put them into an encoder of that name, if the file is still the one that was asked for."""
        if self.path is None:
            raise InputError(f"weights: the file {self.digest} is not at hand; name it with --weights FILE.")
        content = _content(self.path)
        if (found := _digest(content)) != self.digest:
            raise InputError(
                f"weights: {shown(self.path)} has changed since it was checked ({self.digest} then, {found} now); "
                "put it back, or run the command again."
            )
        _copy(encoder, _tensors(self.path, content), name)


def read_weights(path: Path, encoder: str) -> FirstWeights:
    """A file as it is now, if an encoder of the table can begin with it."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"weights: {shown(path)} is none of {', '.join(SUFFIXES)}; save a state dict as one."
        )
    content = _content(path)
    with torch.device("meta"):  # names and shapes are all that is compared
        bare = build_encoder(encoder)
    _copy(bare, _tensors(path, content), encoder)
    return FirstWeights(_digest(content), path.absolute())


def _copy(encoder: nn.Module, tensors: dict[str, Tensor], name: str) -> None:
    if isinstance(encoder, ResNet50):
        load_torchvision(encoder, tensors)
    else:
        copy_weights(encoder, tensors, f"the encoder {name}")


def _content(path: Path) -> bytes:
    """The whole file at once: what is looked at is what the digest is of."""
    try:
        with open_file(path) as file:
            return file.read()
    except InputError as error:
        raise InputError(f"weights: {error}") from None
    except (OSError, MemoryError) as error:
        why = getattr(error, "strerror", None) or "it is too large"
        raise InputError(f"weights: {shown(path)} cannot be read ({why}); name another file.") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    """The tensors by name; nothing in the file is run."""
    try:
        found = _decoded(content, path.suffix.lower() == SAFE)
    except UNREADABLE as error:
        if wanted := re.search(r"GLOBAL (\S+)", str(error)):
            raise InputError(
                f"weights: {shown(path)} asks for {wanted[1]!a:.60}, which no state dict needs; save the state dict "
                "alone."
            ) from None
        raise InputError(
            f"weights: {shown(path)} is damaged, or no {path.suffix} file; get another copy."
        ) from None
    if not isinstance(found, dict):
        raise InputError(
            f"weights: {shown(path)} holds no dict of tensors but {type(found).__name__!r}; save a state dict."
        )
    for name, value in found.items():
        plain = isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"
        if not (plain and isinstance(name, str)):
            raise InputError(
                f"weights: {shown(path)} holds {name!a:.60}, which is no named tensor; save the state dict alone."
            )
    return found


def _decoded(content: bytes, safe: bool) -> Any:
    if safe:
        return safetensors.torch.load(content)
    with warnings.catch_warnings():  # torch's remarks on old formats: what they lead to is said in a sentence
        warnings.simplefilter("ignore")
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
