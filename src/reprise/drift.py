"""How far features have moved: pure functions of the same n examples' features then and now, [n, d] each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float64]


def relative_drift(then: Features, now: Features) -> float:
    """√(Σ_i ‖now_i − then_i‖² / Σ_i ‖then_i − mean(then)‖²): the way each example went, in units of their spread.

    0: nothing moved; 1: examples moved as far as they lay from their centre.
    """
    then, now = _pair(then, now)
    spread = np.square(then - then.mean(0)).sum()
    return float(np.sqrt(np.square(now - then).sum() / spread)) if spread > 0 else float("nan")


def linear_cka(then: Features, now: Features) -> float:
    """‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖) of centred features (Kornblith et al. 2019): 1 where only rotated, shifted or scaled."""
    then, now = _pair(then, now)
    x, y = then - then.mean(0), now - now.mean(0)
    norms = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.square(np.linalg.norm(x.T @ y)) / norms) if norms > 0 else float("nan")


def mmd(then: Features, now: Features) -> float:
    """The maximum mean discrepancy √(mean k(x,x') + mean k(y,y') − 2 mean k(x,y)), biased, between the two clouds.

    k(a, b) = exp(−‖a − b‖² / s), with s the median squared distance between different points of both clouds. 0 where
    the clouds cover each other, whichever example went where.
    """
    then, now = _pair(then, now)
    both = np.concatenate([then, now])
    squares = np.square(both).sum(1)
    distances = np.maximum(squares[:, None] + squares[None] - 2 * both @ both.T, 0)
    scale = float(np.median(distances[np.triu_indices_from(distances, 1)]))
    kernel = np.exp(-distances / scale) if scale > 0 else np.ones_like(distances)
    n = len(then)
    square = kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
    return float(np.sqrt(max(square, 0.0)))


def _pair(then: Features, now: Features) -> tuple[Features, Features]:
    then, now = np.asarray(then, dtype=np.float64), np.asarray(now, dtype=np.float64)
    if then.shape != now.shape or then.ndim != 2 or len(then) < 2:
        raise ValueError(
            f"features of the same 2 or more examples are needed, not {then.shape} and {now.shape}"
        )
    return then, now
