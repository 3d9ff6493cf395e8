"""Resizing of official arrays, in their own dtype: area means for real values, nearest for codes and depth."""

from __future__ import annotations

import numpy as np
from PIL import Image

from reprise.streams.taskonomy.domains import Domain


def resize(array: np.ndarray, domain: Domain, size: int) -> np.ndarray:
    """[channels, h, w] to [channels, size, size], never larger than it was."""
    if array.shape[1:] == (size, size):
        return array
    if domain.resize == "nearest":
        rows, columns = (((np.arange(size) + 0.5) * old / size).astype(int) for old in array.shape[1:])
        return array[:, rows[:, None], columns]
    if domain.missing is None:
        return np.rint(_area(array, size)).astype(array.dtype)
    # The mean over the pixels that have a label; where none has, the code that says so.
    code = np.array(domain.missing, array.dtype)[:, None, None]
    known = (array != code).any(0)
    share = _area(known[None], size)
    mean = np.rint(_area(array * known, size) / np.where(share > 0, share, 1))
    return np.where(share > 0, mean, code).astype(array.dtype)


def _area(array: np.ndarray, size: int) -> np.ndarray:
    """Mean over the area of each new pixel, float32."""
    planes = (Image.fromarray(plane.astype(np.float32)) for plane in array)
    return np.stack([np.asarray(p.resize((size, size), Image.Resampling.BOX)) for p in planes])
