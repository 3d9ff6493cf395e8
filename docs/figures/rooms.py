"""Draw a contact sheet of the rooms: a row a view, a column a domain.

python docs/figures/rooms.py docs/figures/rooms.png [tile] [building ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from reprise.streams.rooms import DOMAINS, render
from reprise.streams.rooms.kinds import KINDS

OBJECTS = {
    **{
        564: "four-poster",
        831: "studio couch",
        532: "dining table",
        559: "folding chair",
        765: "rocking chair",
    },
    **{
        423: "barber chair",
        526: "desk",
        664: "monitor",
        851: "television",
        453: "bookcase",
        760: "refrigerator",
    },
    **{
        827: "stove",
        495: "china cabinet",
        896: "washbasin",
        651: "microwave",
        859: "toaster",
        907: "wine bottle",
    },
    **{883: "vase", 738: "pot", 619: "lampshade", 846: "table lamp", 894: "wardrobe", 861: "toilet seat"},
    **{
        435: "bathtub",
        904: "window screen",
        892: "wall clock",
        782: "screen",
        799: "sliding door",
        703: "bench",
    },
    **{548: "entertainm. c.", 905: "window shade", 539: "doormat"},
}
SCENE_NAMES = {kind.scene: name.replace("_", " ") for name, kind in KINDS.items()}
COLOURS = np.random.default_rng(4).integers(40, 230, (18, 3)).astype(np.uint8)
COLOURS[0], COLOURS[1] = 0, 200
RANGES = {"edge_occlusion": 410, "edge_texture": 5243, "keypoints2d": 328, "keypoints3d": 30000}


def ramp(x: np.ndarray) -> np.ndarray:
    """[h, w] in [0, 1] as colours from dark blue over red to yellow."""
    stops = np.array([[13, 8, 60], [120, 20, 110], [220, 70, 60], [250, 170, 40], [252, 250, 190]], float)
    place = np.clip(x, 0, 1) * (len(stops) - 1)
    low = np.minimum(place.astype(int), len(stops) - 2)
    share = (place - low)[..., None]
    return (stops[low] * (1 - share) + stops[low + 1] * share).astype(np.uint8)


def words(lines: list[str], tile: int) -> np.ndarray:
    picture = Image.new("RGB", (tile, tile), (246, 246, 246))
    ImageDraw.Draw(picture).multiline_text(
        (4, 4), "\n".join(lines), fill=(20, 20, 20), font_size=max(9, tile // 10)
    )
    return np.asarray(picture)


def tile_of(domain: str, array: np.ndarray, tile: int) -> np.ndarray:
    """One label as a picture."""
    if domain in ("class_object", "class_scene"):
        names = OBJECTS if domain == "class_object" else SCENE_NAMES
        return words([f"{array[i]:.2f} {names.get(i, i)}" for i in np.argsort(-array)[:4]], tile)
    if domain == "depth_zbuffer":
        colours = ramp(1 - array / 512 / 6)
        colours[array == 65535] = 255
        return colours
    if domain == "segment_semantic":
        return COLOURS[array]
    return ramp(array / RANGES[domain]) if domain in RANGES else array


def main(path: Path, tile: int, buildings: list[int]) -> None:
    rows = []
    for building in buildings:
        for room in range(2 if len(buildings) == 3 else 4):
            arrays = render(building, [4 * room + building % 4], tile)
            rows.append(np.concatenate([tile_of(name, arrays[name][0], tile) for name in DOMAINS], 1))
    header = Image.new("RGB", (tile * len(DOMAINS), 14), (255, 255, 255))
    for column, name in enumerate(DOMAINS):
        ImageDraw.Draw(header).text((column * tile + 2, 1), name, fill=(0, 0, 0), font_size=10)
    picture = Image.fromarray(np.concatenate([np.asarray(header), *rows]))
    picture.save(path, optimize=True)


if __name__ == "__main__":
    numbers = [int(a) for a in sys.argv[2:]]
    main(Path(sys.argv[1]), numbers[0] if numbers else 96, numbers[1:] or [0, 1, 2])
