"""A tiny Taskonomy written by the tests: every domain of a few views, in the official encodings and names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from reprise.streams.taskonomy.domains import DOMAINS

SIZE = 16
VIEWS = ((0, 0), (0, 1), (2, 0), (10, 3))
BUILDINGS = ("adams", "brown")


def write_array(path: Path, array: np.ndarray) -> None:
    """uint8 [h, w(, 3)] or uint16 [h, w] as PNG, anything else as npy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, array)
    else:
        Image.fromarray(array).save(path)


def official(domain: str, rng: np.random.Generator, size: int = SIZE) -> np.ndarray:
    """An array as the official files hold it."""
    if DOMAINS[domain].length is not None:
        probabilities = rng.random(DOMAINS[domain].length).astype(np.float32)
        return probabilities / probabilities.sum()
    if domain == "segment_semantic":
        return rng.integers(1, 18, (size, size), dtype=np.uint8)
    if domain == "depth_zbuffer":
        return rng.integers(200, 4000, (size, size), dtype=np.uint16)
    if DOMAINS[domain].dtype == "uint16":
        return rng.integers(0, 65536, (size, size), dtype=np.uint16)
    pixels = rng.integers(1, 256, (size, size, 3), dtype=np.uint8)
    if domain == "principal_curvature":
        pixels[..., 2] = 0
    return pixels[..., :1].repeat(3, -1) if domain == "reshading" else pixels


def path_of(root: Path, domain: str, building: str = "adams", view: tuple[int, int] = (0, 0)) -> Path:
    middle = root / domain / "taskonomy"
    folder = middle if middle.is_dir() or not (root / domain).is_dir() else root / domain
    return folder / building / DOMAINS[domain].filename(*view)


def write_taskonomy(root: Path, short: bool = False, size: int = SIZE) -> Path:
    rng = np.random.default_rng(0)
    for building in BUILDINGS:
        for view in VIEWS:
            for domain in DOMAINS.values():
                folder = root / domain.name / ("." if short else "taskonomy") / building
                write_array(folder / domain.filename(*view), official(domain.name, rng, size))
    return root
