"""Encoders of other people: by name, `timm:NAME` and `torchvision:NAME` (`:pretrained` if wanted), or given."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
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
    except (RuntimeError, OSError) as error:  # torchvision's way to say that it was built for another torch
        raise InputError(
            f"encoder: {library} cannot be imported ({str(error).splitlines()[0]}); torch and torchvision must be of "
            "one release and from one place."
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


# ---- a user's encoder, kept


def take_encoder(encoder: nn.Module | str, seed: int) -> nn.Module | None:
    """A copy of a user's encoder, or one built by another library; None for ours, which are built for each seed."""
    if isinstance(encoder, nn.Module):
        return copy.deepcopy(encoder).cpu()
    return None if encoder in ENCODERS else build_outside(encoder, seed)


def weights_of(module: nn.Module) -> bytes:
    """Parameters and statistics as the content of a safetensors file."""
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in module.state_dict().items()}
    return safetensors.torch.save(tensors)


def load_weights(module: nn.Module, path: Path) -> None:
    """The weights an encoder had when the learner was made: a learner does not depend on those it is given later."""
    try:
        stored = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"out: {path} cannot be read ({error}); name another folder.") from None
    own = module.state_dict()
    names = own.keys() | stored.keys()
    differing = [n for n in names if n not in own or n not in stored or own[n].shape != stored[n].shape]
    if differing:
        raise InputError(
            f"encoder: {sorted(differing)[0]} is not as in {path}; give the encoder the learner was made with."
        )
    module.load_state_dict(stored)
