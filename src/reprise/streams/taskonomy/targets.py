"""From official arrays to training targets: pure functions over a batch of views.

Packs hold resized official arrays in official dtypes (a third to a quarter of the bytes of float targets, and the
choice of range or mask stays open); these functions run on a batch after it is read.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from reprise.streams.taskonomy.domains import MISSING_DEPTH, SCENE_CLASSES, TASKS

# Ranges of v / 65535 that are mapped to [-1, 1]: Zamir et al.'s. The raw values fill a hundredth of 16 bits.
CLIPPED = {"edge_texture": 0.08, "keypoints2d": 0.005}
UNCLIPPED = {"edge_occlusion": 0.00625, "keypoints3d": 1.0}
PROBABILITY_TOLERANCE = 1e-3
REFERENCE_SIZE = 256  # the resolution that the widths below are given for
BLUR_SIGMA = 4.0
DILATION_RADIUS = 2  # 5 x 5

Target = tuple[np.ndarray, np.ndarray | None]
"""y and its mask, True where the loss counts; None where it counts everywhere."""


def target(task: str, raw: np.ndarray, valid: np.ndarray | None = None) -> Target:
    """The targets of n views.

    raw    [n, channels, h, w], or [n, length] for the two classifications, in the official dtype
    valid  [n, 1, h, w] bool from `depth_mask`, or None to count every pixel
    y      float32 [n, channels, h, w] in [-1, 1]; class indices uint8 [n, h, w] for segmentation; class
           probabilities float32 [n, classes] for the classifications
    mask   bool [n, 1, h, w] for masked tasks, [n, h, w] for segmentation
    """
    if task == "segment_semantic":
        ids = raw[:, 0]
        return np.where(ids > 0, ids - 1, 0).astype(np.uint8), ids > 0
    if task == "class_object":
        return probabilities(raw), None
    if task == "class_scene":
        kept = probabilities(raw)[:, list(SCENE_CLASSES)]
        return kept / kept.sum(1, keepdims=True), None
    if task == "depth":
        y = (np.log1p(raw.astype(np.float32)) / np.float32(math.log(65536)) * 2 - 1).astype(np.float32)
    elif task in CLIPPED:
        y = _ranged(raw, CLIPPED[task]).clip(-1, 1)
    elif task in UNCLIPPED:
        # Blurred before it is mapped, which is the same: the blur's weights sum to 1.
        y = _ranged(blur(raw.astype(np.float32)) if task == "edge_occlusion" else raw, UNCLIPPED[task])
    else:
        y = raw.astype(np.float32) / np.float32(127.5) - 1
    return y, valid if TASKS[task].masked else None


def _ranged(raw: np.ndarray, top: float) -> np.ndarray:
    """v / 65535 in [0, top] to [-1, 1]."""
    return raw.astype(np.float32) * np.float32(2 / 65535 / top) - 1


def probabilities(raw: np.ndarray) -> np.ndarray:
    """[n, k] as class probabilities: what is non-negative and sums to 1 ± 1e-3 stays; the rest is logits."""
    raw = raw.astype(np.float64)
    already = (raw >= 0).all(1) & (np.abs(raw.sum(1) - 1) <= PROBABILITY_TOLERANCE)
    powers = np.exp(raw - raw.max(1, keepdims=True))
    return np.where(already[:, None], raw, powers / powers.sum(1, keepdims=True)).astype(np.float32)


def depth_mask(depth: np.ndarray) -> np.ndarray:
    """Where uint16 depth [n, 1, h, w] is known, 5 x 5 (at 256 pixels) around each missing pixel left out."""
    valid = depth < MISSING_DEPTH
    # Half a pixel rounds up: rather a pixel too few than one whose label is half missing.
    reach = math.floor(DILATION_RADIUS * depth.shape[-1] / REFERENCE_SIZE + 0.5)
    columns = valid.copy()  # a square window is a row window after a column window
    for shift in range(1, min(reach, depth.shape[-2] - 1) + 1):
        columns[..., shift:, :] &= valid[..., :-shift, :]
        columns[..., :-shift, :] &= valid[..., shift:, :]
    result = columns.copy()
    for shift in range(1, min(reach, depth.shape[-1] - 1) + 1):
        result[..., shift:] &= columns[..., :-shift]
        result[..., :-shift] &= columns[..., shift:]
    return result


def blur(y: np.ndarray) -> np.ndarray:
    """Gaussian blur of [..., h, w], σ = 4 pixels at 256: cut at 4σ and mirrored at the border, as SciPy's."""
    rows, columns = (_blur_matrix(length) for length in y.shape[-2:])
    return rows @ y @ columns.T


@lru_cache(maxsize=8)
def _blur_matrix(length: int) -> np.ndarray:
    sigma = BLUR_SIGMA * length / REFERENCE_SIZE
    reach = int(4 * sigma + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    source = np.pad(np.arange(length), reach, mode="symmetric")
    matrix = np.zeros((length, length))
    for row in range(length):
        np.add.at(matrix[row], source[row : row + len(kernel)], kernel / kernel.sum())
    return matrix.astype(np.float32)


def flip(
    x: np.ndarray, y: np.ndarray, mask: np.ndarray | None, task: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Image, target and mask mirrored left to right; a mirrored normal points the other way along x."""
    x = np.ascontiguousarray(x[..., ::-1])
    if not TASKS[task].kind.dense:
        return x, y, mask
    y = np.ascontiguousarray(y[..., ::-1])
    if task == "normal":
        y[:, 0] *= -1
    return x, y, None if mask is None else np.ascontiguousarray(mask[..., ::-1])
