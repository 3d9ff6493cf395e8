"""Resizing of official arrays, in their own dtype: area means for real values, nearest for codes and depth."""

from __future__ import annotations

import numpy as np

from reprise.streams.taskonomy.domains import Domain


def resize(array: np.ndarray, domain: Domain, size: int) -> np.ndarray:
    """[channels, h, w] to [channels, size, size], never larger than it was."""
    if array.shape[1:] == (size, size):
        return array
    if domain.resize == "nearest":
        rows, columns = (((np.arange(size) + 0.5) * old / size).astype(int) for old in array.shape[1:])
        return array[:, rows[:, None], columns]
    if domain.missing is None:
        return np.rint(_sums(array, size) / (array.shape[1] * array.shape[2])).astype(array.dtype)
    # The mean over the pixels that have a label; where none has, the code that says so.
    code = np.array(domain.missing, array.dtype)[:, None, None]
    known = (array != code).any(0)
    weight = _sums(known[None], size)
    mean = np.rint(_sums(array * known, size) / np.maximum(weight, 1))
    return np.where(weight > 0, mean, code).astype(array.dtype)


def _sums(array: np.ndarray, size: int) -> np.ndarray:
    """Each new pixel's sum over the old ones, weighted by the shared area, a full pixel's weights being h w.

    In whole numbers below 2^53, so that every machine rounds the mean alike.
    """
    _, height, width = array.shape
    if height == width and height % size == 0:
        step = height // size
        corners = [array[:, i::step, j::step].astype(np.float64) for i in range(step) for j in range(step)]
        return sum(corners[1:], corners[0]) * size**2
    rows, columns = _overlaps(height, size), _overlaps(width, size)
    return rows @ array.astype(np.float64) @ columns.T


def _overlaps(old: int, new: int) -> np.ndarray:
    """[new, old]: how much of each old pixel lies in each new one, in units of 1 / new of an old pixel."""
    starts, ends = np.arange(new)[:, None] * old, np.arange(1, new + 1)[:, None] * old
    low, high = np.arange(old) * new, np.arange(1, old + 1) * new
    return np.maximum(np.minimum(ends, high) - np.maximum(starts, low), 0).astype(np.float64)
