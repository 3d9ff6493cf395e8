"""Rooms: indoor scenes rendered on the spot, with exact labels for the 11 Taskonomy tasks.

`render(building, views, size, seed)` gives arrays in the official formats (`labels.py`); `write_official` writes them
in the official layout. Nothing is downloaded, and a view's bytes depend on (seed, building, view, size) alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from reprise.streams.rooms.labels import domains
from reprise.streams.rooms.render import cast
from reprise.streams.rooms.scene import ROOMS, VIEWS_PER_POINT, camera, make_room

VERSION = 1
"""Raised when a view of the same name looks different: rendered worlds are kept by it."""
DOMAINS = {
    **{
        "rgb": "png",
        "depth_zbuffer": "png",
        "normal": "png",
        "principal_curvature": "png",
        "reshading": "png",
    },
    **{"edge_occlusion": "png", "edge_texture": "png", "keypoints2d": "png", "keypoints3d": "png"},
    **{"segment_semantic": "png", "class_object": "npy", "class_scene": "npy"},
}
"""The domains and their files' endings."""
FILE_NAMES = {"segment_semantic": "segmentsemantic", "class_scene": "class_places"}
"""Names in the files of domains whose folder is called differently."""
PIXELS_AT_ONCE = 32 * 64 * 64
"""Pixels rendered together: enough for two threads to share an operation, few enough for the processor's cache."""


def render(building: int, views: Sequence[int] | int, size: int, seed: int = 0) -> dict[str, np.ndarray]:
    """The views (a number: the first so many) of a building as {domain: array}, the views leading."""
    chosen = range(views) if isinstance(views, int) else views
    if size < 8:
        raise ValueError(f"a rendered view must have at least 8 pixels a side, not {size}")
    if building < 0 or any(view < 0 for view in chosen):
        raise ValueError("buildings and views are counted from 0")
    if not len(chosen):
        raise ValueError("rendering needs at least one view")
    by_room: dict[int, list[int]] = {}
    for position, view in enumerate(chosen):
        by_room.setdefault(view // VIEWS_PER_POINT % ROOMS, []).append(position)
    at_once = max(1, PIXELS_AT_ONCE // size**2)
    out: dict[str, np.ndarray] = {}
    for number, positions in by_room.items():
        room = make_room(building, number, seed)
        for start in range(0, len(positions), at_once):
            part = positions[start : start + at_once]
            cameras = [camera(room, building, chosen[i], seed) for i in part]
            for name, array in domains(room, cast(room, cameras, size)).items():
                if name not in out:
                    out[name] = np.empty((len(chosen), *array.shape[1:]), array.dtype)
                out[name][part] = array
    return out


def point_view(view: int) -> tuple[int, int]:
    """The official numbers of a view: the point looked at, and which view of it this is."""
    return view // VIEWS_PER_POINT, view % VIEWS_PER_POINT


def write_official(
    folder: Path,
    building_name: str,
    arrays: dict[str, np.ndarray],
    points_views: Sequence[tuple[int, int]],
    long_layout: bool = True,
) -> None:
    """Write views as `<domain>/taskonomy/<building>/point_P_view_V_domain_<name>.<ext>`.

    `long_layout=False` leaves the `taskonomy` level out.
    """
    for domain, array in arrays.items():
        if len(array) != len(points_views):
            raise ValueError(
                f"{len(array)} views of {domain} but {len(points_views)} pairs of point and view"
            )
        place = Path(folder) / domain / ("taskonomy" if long_layout else "") / building_name
        place.mkdir(parents=True, exist_ok=True)
        for (point, view), one in zip(points_views, array, strict=True):
            name = f"point_{point}_view_{view}_domain_{FILE_NAMES.get(domain, domain)}.{DOMAINS[domain]}"
            if DOMAINS[domain] == "npy":
                np.save(place / name, one)
            else:
                # Pillow takes 8-bit grey, 8-bit RGB and 16-bit grey (I;16) from the array's type.
                Image.fromarray(one).save(place / name)
