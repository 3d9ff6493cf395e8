"""Random rooms and cameras, drawn from named generators.

A building has `ROOMS` rooms of different kinds, each a world of its own. A view belongs to a point (`view //
VIEWS_PER_POINT`), the point to a room (`point % ROOMS`); all views of a point look at the same place.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from reprise.randomness import rng
from reprise.streams.rooms.furniture import (
    CHECKS,
    PLAIN,
    STRIPES,
    Colour,
    Look,
    Maker,
    Piece,
    cylinder,
    shade,
)
from reprise.streams.rooms.kinds import KINDS
from reprise.streams.rooms.room import Camera, Room, Window, add, against_wall

ROOMS = 4
"""Rooms in a building."""
VIEWS_PER_POINT = 4
"""Views that look at one point."""


@lru_cache(maxsize=256)
def make_room(building: int, number: int, seed: int) -> Room:
    """Room `number` of a building; its kinds are drawn without repetition."""
    kinds = rng(seed, f"rooms:{building}:kinds").permutation(len(KINDS))
    name = list(KINDS)[int(kinds[number])]
    kind = KINDS[name]
    draw = rng(seed, f"rooms:{building}:room", number)
    width, height, depth = (float(draw.uniform(a, b)) for a, b in zip(kind.low, kind.high, strict=True))
    if draw.random() < 0.5:
        width, depth = depth, width
    colour = kind.walls[int(draw.integers(len(kind.walls)))]
    jitter = draw.uniform(0.94, 1.06, 3)
    wall: Colour = tuple(float(min(0.97, c * j)) for c, j in zip(colour, jitter, strict=True))  # type: ignore[assignment]
    paper = int(draw.choice([PLAIN, PLAIN, STRIPES]))
    if name == "bathroom":
        paper = int(draw.choice([PLAIN, CHECKS]))
    plain = Look(wall, shade(wall, 0.9), paper, 0.5)
    feature = Look(shade(wall, 0.8), shade(wall, 0.72), paper, 0.5) if draw.random() < 0.4 else plain
    floor = kind.floor[int(draw.integers(len(kind.floor)))]
    ceiling = Look((0.94, 0.94, 0.92))
    room = Room(name, (width, height, depth), (feature, plain, floor, ceiling, plain, plain))
    maker = Maker(draw)

    if draw.random() < 0.75:
        side = int(draw.integers(4))
        span = width if side >= 2 else depth
        half = min(span * 0.3, float(draw.uniform(0.45, 0.8)))
        u = float(draw.uniform(half + 0.2, span - half - 0.2))
        room.window = Window(side, u - half, u + half, 0.95, height - float(draw.uniform(0.3, 0.5)))
    against_wall(room, maker, maker.door(), flat=True)
    kind.furnish(room, maker)

    x, z = width * float(draw.uniform(0.4, 0.6)), depth * float(draw.uniform(0.4, 0.6))
    room.light = (x, height - 0.35, z)
    warm = float(draw.uniform(0, 1))
    room.tint = (1.0, 0.98 - 0.08 * warm, 0.95 - 0.22 * warm)
    room.power = float(draw.uniform(0.85, 1.15))
    lamp = cylinder(0, height - 0.13, 0, 0.2, 0.12, Look((1.0, 0.97, 0.88), glow=1.0))
    add(room, Piece("lamp", (lamp,), 1, (619, 846)), x, z, 0.0, casts=False)
    return room


def camera(room: Room, building: int, view: int, seed: int) -> Camera:
    """The camera of a view: a free place from which the point is seen, at eye height, without roll."""
    width, height, depth = room.size
    point = rng(seed, f"rooms:{building}:point", view // VIEWS_PER_POINT)
    standing = [f for f in room.footprints if f[4] > 0.3]
    if standing and point.random() < 0.75:
        x0, x1, z0, z1, top = standing[int(point.integers(len(standing)))]
        target = ((x0 + x1) / 2, min(top, 1.6) * 0.6, (z0 + z1) / 2)
    else:
        target = (
            width * float(point.random()),
            height * float(point.uniform(0.2, 0.6)),
            depth * float(point.random()),
        )

    draw = rng(seed, f"rooms:{building}:view", view)
    many = draw.random((64, 2)) * (width - 0.5, depth - 0.5) + 0.25
    far = np.sqrt((many[:, 0] - target[0]) ** 2 + (many[:, 1] - target[2]) ** 2)
    score = np.minimum(far, 0.75 * math.sqrt(width * width + depth * depth))
    for x0, x1, z0, z1, top in room.footprints:
        gap = np.maximum(
            np.maximum(x0 - many[:, 0], many[:, 0] - x1), np.maximum(z0 - many[:, 1], many[:, 1] - z1)
        )
        score -= 10.0 * (gap < (0.4 if top > 0.9 else 0.1))
    free = np.flatnonzero(score > min(1.3, float(score.max()) - 1e-9))
    # The first free candidates are a random choice; the best of four sees more of the room.
    best = free[:4][np.argmax(score[free[:4]])]
    x, z = float(many[best, 0]), float(many[best, 1])
    y = float(draw.uniform(1.25, min(1.75, height - 0.6)))
    away = max(0.3, math.hypot(target[0] - x, target[2] - z))
    yaw = math.atan2(target[0] - x, target[2] - z) + float(draw.uniform(-0.2, 0.2))
    pitch = math.atan2(y - target[1], away) * 0.7 + float(draw.uniform(-0.08, 0.08))
    return Camera(x, y, z, yaw, min(0.6, max(-0.25, pitch)), float(draw.uniform(0.85, 1.15)))
