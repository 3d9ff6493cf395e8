"""A room, and how things are put into it.

World axes: x and z along the floor, y up; the room is the box from (0, 0, 0) to `size`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from reprise.streams.rooms.furniture import Colour, Look, Maker, Piece, Solid

FIELD_OF_VIEW = 75.0
"""Degrees, in both directions."""


class Placed(NamedTuple):
    """A solid in the world: its centre, turned by an angle about the vertical axis; `piece` indexes the room's."""

    solid: Solid
    cos: float
    sin: float
    piece: int
    casts: bool


class Window(NamedTuple):
    """An open window in a wall: `wall` as in `WALLS`, `along` the wall and above the floor from (u0, v0)
    to (u1, v1)."""

    wall: int
    u0: float
    u1: float
    v0: float
    v1: float


WALLS = ("x=0", "x=size", "z=0", "z=size")


@dataclass
class Room:
    """A world: a box with surfaces, furniture, a window and a lamp."""

    kind: str
    size: tuple[float, float, float]
    surfaces: tuple[Look, ...]
    """Looks of x=0, x=size, floor, ceiling, z=0, z=size."""
    pieces: list[Piece] = field(default_factory=list)
    solids: list[Placed] = field(default_factory=list)
    footprints: list[tuple[float, float, float, float, float]] = field(default_factory=list)
    """x0, x1, z0, z1 and height of what stands on the floor."""
    window: Window | None = None
    light: tuple[float, float, float] = (0.0, 0.0, 0.0)
    power: float = 1.0
    tint: Colour = (1.0, 1.0, 1.0)


class Camera(NamedTuple):
    """A place, a heading (0 looks along +z, towards +x is positive), a pitch (positive looks down), exposure."""

    x: float
    y: float
    z: float
    yaw: float
    pitch: float
    exposure: float = 1.0


def _clash(room: Room, a: tuple[float, float, float, float], margin: float, beside: int = -1) -> bool:
    return any(
        a[0] < b[1] + margin and b[0] < a[1] + margin and a[2] < b[3] + margin and b[2] < a[3] + margin
        for i, b in enumerate(room.footprints)
        if i != beside
    )


def put(piece: Piece, x: float, z: float, yaw: float) -> tuple[float, float, float, float, float]:
    """Where the piece would stand: x0, x1, z0, z1, height."""
    c, s = math.cos(yaw), math.sin(yaw)
    xs, zs, top = [], [], 0.0
    for solid in piece.solids:
        rx = abs(c) * solid.hx + abs(s) * solid.hz
        rz = abs(s) * solid.hx + abs(c) * solid.hz
        cx, cz = x + c * solid.x + s * solid.z, z - s * solid.x + c * solid.z
        xs += [cx - rx, cx + rx]
        zs += [cz - rz, cz + rz]
        top = max(top, solid.y + solid.hy)
    return min(xs), max(xs), min(zs), max(zs), top


def add(room: Room, piece: Piece, x: float, z: float, yaw: float, casts: bool = True) -> None:
    quarter = round(yaw / (math.pi / 2))
    straight = abs(yaw - quarter * math.pi / 2) < 1e-6
    # Exact zeros and ones: what stands along a wall is cast as an axis-aligned box.
    c, s = ((1, 0), (0, 1), (-1, 0), (0, -1))[quarter % 4] if straight else (math.cos(yaw), math.sin(yaw))
    room.pieces.append(piece)
    for solid in piece.solids:
        moved = solid._replace(x=x + c * solid.x + s * solid.z, z=z - s * solid.x + c * solid.z)
        room.solids.append(Placed(moved, float(c), float(s), len(room.pieces) - 1, casts))


def against_wall(room: Room, maker: Maker, piece: Piece, *on_top: Piece, flat: bool = False) -> bool:
    """Stand a piece (and what is on it) at a free place along a wall; `flat` things hang on the wall."""
    width, _, depth = room.size
    for _ in range(24):
        wall = int(maker.draw.integers(4))
        along = float(maker.draw.uniform(0.0, 1.0))
        x0, x1, *_ = put(piece, 0, 0, 0)
        half = max(-x0, x1) + 0.03
        span = width if wall in (2, 3) else depth
        if span < 2 * half + 0.1:
            continue
        u = half + along * (span - 2 * half)
        x, z, yaw = ((0, u, 0.5), (width, u, 1.5), (u, 0, 0), (u, depth, 1))[wall]
        place = put(piece, x, z, yaw * math.pi)
        window = room.window
        if (
            window is not None
            and window.wall == wall
            and place[4] > window.v0
            and u - half < window.u1
            and u + half > window.u0
        ):
            continue
        if _clash(room, place[:4], 0.03):
            continue
        add(room, piece, x, z, yaw * math.pi, casts=not flat)
        for other in on_top:
            add(room, other, x, z, yaw * math.pi)
        room.footprints.append((*place[:4], 0.1 if flat else place[4]))
        return True
    return False


def freely(
    room: Room,
    piece: Piece,
    x: float,
    z: float,
    yaw: float,
    *on_top: Piece,
    solid: bool = True,
    beside: int = -1,
) -> bool:
    """Stand a piece in the room if it is inside and, unless it is a rug, touches nothing.

    `beside` is the footprint of a table that a chair may reach under.
    """
    place = put(piece, x, z, yaw)
    inside = place[0] > 0.05 and place[1] < room.size[0] - 0.05
    inside = inside and place[2] > 0.05 and place[3] < room.size[2] - 0.05
    if not inside or (solid and _clash(room, place[:4], -0.12, beside)):
        return False
    add(room, piece, x, z, yaw)
    for other in on_top:
        add(room, other, x, z, yaw)
    if solid:
        room.footprints.append(place)
    return True
