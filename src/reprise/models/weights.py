"""Tensors by name into an encoder, all of them or none."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from reprise.errors import InputError


def copy_weights(encoder: nn.Module, given: Mapping[str, Tensor], owner: str) -> None:
    """Copy every weight and statistic of an encoder; what does not fit is named, and then nothing is copied.

    owner  whose state dict would fit, for the sentence
    """
    own = encoder.state_dict()
    way_out = f"give the state dict of {owner}."
    if missing := [name for name in own if name not in given]:
        raise InputError(
            f"weights: {missing[0]} is missing ({len(missing)} of {len(own)} names are); {way_out}"
        )
    if unexpected := [name for name in given if name not in own]:
        first = ascii(unexpected[0])[1:-1]
        raise InputError(
            f"weights: {first:.60} is not a layer of this encoder ({len(unexpected)} such names); {way_out}"
        )
    for name, tensor in given.items():
        if tensor.shape != own[name].shape:
            raise InputError(
                f"weights: {name} has the shape {tuple(tensor.shape)} instead of {tuple(own[name].shape)}; {way_out}"
            )
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InputError(f"weights: {name} holds {kind} instead of real numbers; {way_out}")
    # What counts is what training begins with: a number may be too large for the encoder's precision.
    fitting = {name: tensor.detach().to(own[name].dtype) for name, tensor in given.items()}
    if wrong := [name for name, tensor in fitting.items() if not tensor.isfinite().all()]:
        raise InputError(f"weights: {wrong[0]} has values that are not finite; {way_out}")
    with torch.no_grad():
        for name, tensor in fitting.items():
            own[name].copy_(tensor)
