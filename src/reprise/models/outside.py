"""Encoders of other libraries by name: `timm:NAME` and `torchvision:NAME`, pre-trained with `:pretrained`."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from reprise.errors import InputError
from reprise.models.encoders import ENCODERS
from reprise.randomness import torch_seeded

EXTRAS = ("timm", "torchvision")


def build_outside(name: str, seed: int) -> nn.Module:
    """An encoder that answers with maps [n, c, h, w] where it has any, initialised from `rng(seed, "init", 0)`."""
    library, _, rest = name.partition(":")
    if library not in EXTRAS or not rest:
        raise InputError(
            f"encoder: {name!r} is not known; give a module, one of {', '.join(ENCODERS)}, timm:NAME or "
            "torchvision:NAME."
        )
    wanted, _, how = rest.partition(":")
    if how not in ("", "pretrained"):
        raise InputError(
            f"encoder: {how!r} in {name!r} is not known; write {library}:{wanted}:pretrained or leave it out."
        )
    try:
        module = importlib.import_module(library)
    except ImportError:
        raise InputError(
            f"encoder: {name} needs {library}, which is not installed; pip install 'reprise-cl[{library}]'."
        ) from None
    with torch_seeded(seed, "init", 0):
        make = _from_timm if library == "timm" else _from_torchvision
        try:
            return make(module, wanted, how == "pretrained")
        except (ValueError, RuntimeError, KeyError) as error:
            raise InputError(
                f"encoder: {library} has no {wanted!r} ({str(error).splitlines()[0]})."
            ) from None


def _from_timm(timm: Any, name: str, pretrained: bool) -> nn.Module:
    return timm.create_model(name, pretrained=pretrained, num_classes=0, global_pool="")


def _from_torchvision(torchvision: Any, name: str, pretrained: bool) -> nn.Module:
    model = torchvision.models.get_model(name, weights="DEFAULT" if pretrained else None)
    if hasattr(model, "features"):
        return model.features
    parts = [(key, child) for key, child in model.named_children() if key not in ("avgpool", "fc", "heads")]
    if not hasattr(model, "layer4"):
        raise ValueError("it has neither `features` nor the stages of a ResNet")
    encoder = nn.Sequential()
    for key, child in parts:
        encoder.add_module(key, child)
    return encoder
