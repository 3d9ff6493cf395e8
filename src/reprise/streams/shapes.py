"""Procedural images for a small Split stream: no download, no licence, the same bytes on every machine.

A class is a silhouette (disc, square, triangle, ring, cross, bar) with its own two colours and stripes; an image
shows it at a random place, size and angle over a noisy, tinted background.
"""

from __future__ import annotations

import numpy as np

from reprise.randomness import rng
from reprise.streams.files import Images

CLASSES = 65
SIZE = 16
TRAIN, TEST = 200, 40
NOISE = 34.0


def render(classes: int = CLASSES, train: int = TRAIN, test: int = TEST) -> tuple[Images, Images]:
    """Train and test images [n, 3, 16, 16] uint8, classes in turn."""
    parts = [_class_images(label, train + test) for label in range(classes)]
    names = tuple(f"shape-{label:02d}" for label in range(classes))
    return (
        Images(np.concatenate([p[:train] for p in parts]), np.repeat(np.arange(classes), train), names),
        Images(np.concatenate([p[train:] for p in parts]), np.repeat(np.arange(classes), test), names),
    )


def _class_images(label: int, n: int) -> np.ndarray:
    look, draw = rng(0, "data:look", label), rng(0, "data:draw", label)
    colours = look.uniform(40, 215, (2, 3))
    period, tilt = look.uniform(2.5, 8.0), look.uniform(0, np.pi)
    silhouette = _SILHOUETTES[int(look.integers(len(_SILHOUETTES)))]

    grid = (np.arange(SIZE) + 0.5) / SIZE * 2 - 1
    y, x = np.meshgrid(grid, grid, indexing="ij")
    centre = draw.uniform(-0.35, 0.35, (n, 2, 1, 1))
    radius = draw.uniform(0.45, 0.8, (n, 1, 1))
    angle = draw.uniform(-0.5, 0.5, (n, 1, 1))
    dx, dy = x - centre[:, 0], y - centre[:, 1]
    u = (np.cos(angle) * dx + np.sin(angle) * dy) / radius
    v = (np.cos(angle) * dy - np.sin(angle) * dx) / radius
    inside = silhouette(u, v)[:, None]
    stripes = np.sin(2 * np.pi * (np.cos(tilt) * u + np.sin(tilt) * v) * 4 / period)[:, None] > 0
    ink = np.where(stripes, colours[0].reshape(1, 3, 1, 1), colours[1].reshape(1, 3, 1, 1))
    ground = draw.uniform(60, 195, (n, 3, 1, 1))
    light = draw.uniform(0.75, 1.25, (n, 1, 1, 1))
    image = np.where(inside, ink, ground) * light + draw.normal(0, NOISE, (n, 3, SIZE, SIZE))
    return image.clip(0, 255).astype(np.uint8)


_SILHOUETTES = (
    lambda u, v: u**2 + v**2 < 1,
    lambda u, v: np.maximum(abs(u), abs(v)) < 0.85,
    lambda u, v: (v > -0.7) & (v < 1.0 - 2 * abs(u)),
    lambda u, v: (u**2 + v**2 < 1) & (u**2 + v**2 > 0.3),
    lambda u, v: (np.minimum(abs(u), abs(v)) < 0.3) & (np.maximum(abs(u), abs(v)) < 1),
    lambda u, v: (abs(u) < 1) & (abs(v) < 0.4),
)
