"""Arrays as small PNG pictures inside the page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from PIL import Image

CLASS_COLOURS = 20
"""Of matplotlib's map `tab20`, which takes a whole number for the place of a colour."""


@dataclass(frozen=True)
class Picture:
    """A picture as a data address, the same as an array [h, w, 3] uint8, and what it shows in words."""

    uri: str
    pixels: np.ndarray
    about: str


def picture(pixels: np.ndarray, about: str) -> Picture:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return Picture("data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode(), pixels, about)


def show_input(x: np.ndarray, about: str) -> Picture:
    """An image [c, h, w]; real values are stretched to their own range."""
    if x.dtype != np.uint8:
        x = _stretch(x, float(x.min()), float(x.max()))
    return picture(np.ascontiguousarray(_three(x).transpose(1, 2, 0)), about)


def show_target(y: np.ndarray, truth: np.ndarray, mask: np.ndarray | None, about: str) -> Picture:
    """A dense target or prediction. Classes [h, w] get colours of their own, one channel [1, h, w] a colour map, two
    or three channels are red, green, blue; values are stretched to the truth's range, so that errors can be seen."""
    if y.ndim == 2:
        pixels = (colormaps["tab20"](y.astype(np.int64) % CLASS_COLOURS)[..., :3] * 255).astype(np.uint8)
    else:
        y, truth = y.astype(np.float64), truth.astype(np.float64)
        low, high = float(np.nanmin(truth)), float(np.nanmax(truth))
        if len(y) == 1:
            level = np.clip((y[0] - low) / max(high - low, 1e-9), 0, 1)
            pixels = (colormaps["viridis"](level)[..., :3] * 255).astype(np.uint8)
        else:
            pixels = _three(_stretch(y, low, high)).transpose(1, 2, 0)
    if mask is not None:
        valid = mask.reshape(-1, *mask.shape[-2:])[0] > 0
        pixels = np.where(valid[..., None], pixels, 128).astype(np.uint8)
    return picture(np.ascontiguousarray(pixels), about)


def _stretch(values: np.ndarray, low: float, high: float) -> np.ndarray:
    scaled = (values.astype(np.float64) - low) / max(high - low, 1e-9)
    return (np.clip(scaled, 0, 1) * 255).astype(np.uint8)


def _three(x: np.ndarray) -> np.ndarray:
    """[3, h, w] from one, two or more channels."""
    if len(x) == 1:
        return np.repeat(x, 3, 0)
    if len(x) == 2:
        return np.concatenate([x, np.full_like(x[:1], 128)])
    return x[:3]
