"""Random rooms and cameras: what stands where, drawn from named generators.

A building has `ROOMS` rooms of different kinds, each a world of its own. A view belongs to a point (`view //
VIEWS_PER_POINT`), the point to a room (`point % ROOMS`); all views of a point look at the same place.
World axes: x and z along the floor, y up; the room is the box from (0, 0, 0) to `size`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from reprise.randomness import rng
from reprise.streams.rooms.furniture import (
    CHECKS,
    PLAIN,
    SPECKLE,
    STRIPES,
    WOOD,
    Colour,
    Look,
    Maker,
    Piece,
    Solid,
    cylinder,
    shade,
)

ROOMS = 4
"""Rooms in a building."""
VIEWS_PER_POINT = 4
"""Views that look at one point."""
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


class Kind(NamedTuple):
    """A kind of room: its Places365 class and likely confusions, its size and its surfaces."""

    scene: int
    alike: tuple[int, ...]
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    walls: tuple[Colour, ...]
    floor: tuple[Look, ...]
    furnish: Callable[[Room, Maker], None]


def _clash(room: Room, a: tuple[float, float, float, float], margin: float, beside: int = -1) -> bool:
    return any(
        a[0] < b[1] + margin and b[0] < a[1] + margin and a[2] < b[3] + margin and b[2] < a[3] + margin
        for i, b in enumerate(room.footprints)
        if i != beside
    )


def _put(piece: Piece, x: float, z: float, yaw: float) -> tuple[float, float, float, float, float]:
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


def _add(room: Room, piece: Piece, x: float, z: float, yaw: float, casts: bool = True) -> None:
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
        x0, x1, *_ = _put(piece, 0, 0, 0)
        half = max(-x0, x1) + 0.03
        span = width if wall in (2, 3) else depth
        if span < 2 * half + 0.1:
            continue
        u = half + along * (span - 2 * half)
        x, z, yaw = ((0, u, 0.5), (width, u, 1.5), (u, 0, 0), (u, depth, 1))[wall]
        place = _put(piece, x, z, yaw * math.pi)
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
        _add(room, piece, x, z, yaw * math.pi, casts=not flat)
        for other in on_top:
            _add(room, other, x, z, yaw * math.pi)
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
    place = _put(piece, x, z, yaw)
    inside = place[0] > 0.05 and place[1] < room.size[0] - 0.05
    inside = inside and place[2] > 0.05 and place[3] < room.size[2] - 0.05
    if not inside or (solid and _clash(room, place[:4], -0.12, beside)):
        return False
    _add(room, piece, x, z, yaw)
    for other in on_top:
        _add(room, other, x, z, yaw)
    if solid:
        room.footprints.append(place)
    return True


def _middle(room: Room, maker: Maker) -> tuple[float, float]:
    return room.size[0] * float(maker.draw.uniform(0.42, 0.58)), room.size[2] * float(
        maker.draw.uniform(0.42, 0.58)
    )


def _table_set(room: Room, maker: Maker, table: Piece, chair: Callable[[], Piece], *on_top: Piece) -> None:
    """A table in the middle with chairs round it."""
    x, z = _middle(room, maker)
    yaw = math.pi / 2 * int(maker.draw.integers(2)) + float(maker.draw.choice([0.0, 0.0, 0.25]))
    x0, x1, z0, z1, _ = _put(table, 0, 0, 0)
    if not freely(room, table, x, z, yaw, *on_top):
        yaw += math.pi / 2
        if not freely(room, table, x, z, yaw, *on_top):
            return
    c, s = math.cos(yaw), math.sin(yaw)
    seats, table_at = 2 if x1 - x0 > 1.3 else 1, len(room.footprints) - 1
    places = [((i - (seats - 1) / 2) * 0.75, side) for i in range(seats) for side in (-1, 1)]
    for lx, side in places:
        if maker.draw.random() < 0.15:
            continue
        lz = side * ((z1 - z0) / 2 + 0.12 + float(maker.draw.uniform(0, 0.15)))
        wx, wz = x + c * lx + s * lz, z - s * lx + c * lz
        turn = yaw + (math.pi if side > 0 else 0.0)
        freely(room, chair(), wx, wz, turn + float(maker.draw.choice([0.0, 0.0, 0.3, -0.3])), beside=table_at)


def _kitchen(room: Room, m: Maker) -> None:
    w = m.near(2.2, 0.15)
    small = [m.microwave().raised(-w / 2 + 0.35, 0.91, 0), m.bottle().raised(w / 2 - 0.2, 0.91, 0)]
    small.append(m.toaster().raised(w / 2 - 0.5, 0.91, 0))
    kept = [small[i] for i in sorted(m.draw.choice(3, 2, replace=False))]
    against_wall(room, m, m.counter(w), m.sink().raised(0.15, 0.91, 0), *kept)
    against_wall(room, m, m.oven())
    against_wall(room, m, m.fridge())
    _table_set(room, m, m.table(1.0, 0.8), m.chair, m.bottle().raised(0.1, 0.74, -0.25))
    against_wall(room, m, m.clock(), flat=True)


def _bathroom(room: Room, m: Maker) -> None:
    against_wall(room, m, m.bathtub())
    against_wall(room, m, m.washbasin(), m.mirror())
    against_wall(room, m, m.toilet())
    against_wall(room, m, m.plant() if m.draw.random() < 0.4 else m.nightstand())
    x, z = _middle(room, m)
    freely(room, m.rug(0.9, 0.6), x, z, float(m.draw.uniform(0, 1.5)), solid=False)


def _bedroom(room: Room, m: Maker) -> None:
    against_wall(room, m, m.bed())
    against_wall(room, m, m.wardrobe())
    against_wall(room, m, m.nightstand())
    if m.draw.random() < 0.6:
        against_wall(room, m, m.nightstand())
    against_wall(room, m, m.plant() if m.draw.random() < 0.5 else m.chair().raised(0, 0, 0.25))
    against_wall(room, m, m.picture(), flat=True)
    x, z = _middle(room, m)
    freely(room, m.rug(1.8, 1.2), x, z, 0.0, solid=False)


def _living(room: Room, m: Maker) -> None:
    against_wall(room, m, m.couch())
    against_wall(room, m, m.tv(), m.screen().raised(0, 0.45, 0))
    if m.draw.random() < 0.6:
        against_wall(room, m, m.bookcase())
    against_wall(room, m, m.floor_lamp())
    against_wall(room, m, m.plant())
    x, z = _middle(room, m)
    freely(room, m.rug(2.2, 1.6), x, z, 0.0, solid=False)
    table = m.round_table() if m.draw.random() < 0.5 else m.table(0.9, 0.55, 0.4, "coffee table")
    freely(room, table, x, z, float(m.draw.uniform(0, 1.5)), m.vase().raised(0.08, table.top, 0))
    angle = float(m.draw.uniform(0, 2 * math.pi))
    freely(room, m.armchair(), x + 1.2 * math.sin(angle), z + 1.2 * math.cos(angle), angle + math.pi)
    against_wall(room, m, m.picture(), flat=True)


def _dining(room: Room, m: Maker) -> None:
    x, z = _middle(room, m)
    freely(room, m.rug(2.6, 2.0), x, z, 0.0, solid=False)
    top = (m.vase().raised(0.1, 0.74, 0), m.bottle().raised(-0.35, 0.74, -0.2))
    _table_set(room, m, m.table(1.7, 0.9), m.chair, *top)
    chest = m.tv()
    against_wall(room, m, chest, m.vase().raised(0.4, 0.45, 0.2))
    against_wall(room, m, m.plant())
    against_wall(room, m, m.picture(), flat=True)
    against_wall(room, m, m.clock() if m.draw.random() < 0.6 else m.picture(), flat=True)


def _office(room: Room, m: Maker) -> None:
    yaw_desk = m.desk()
    against_wall(room, m, yaw_desk, m.monitor().raised(0.0, 0.75, 0))
    at = room.footprints[-1]
    x, z = (at[0] + at[1]) / 2, (at[2] + at[3]) / 2
    toward = math.atan2(room.size[0] / 2 - x, room.size[2] / 2 - z)
    turn = toward + math.pi + float(m.draw.uniform(-0.5, 0.5))
    freely(room, m.office_chair(), x + 0.75 * math.sin(toward), z + 0.75 * math.cos(toward), turn)
    against_wall(room, m, m.bookcase())
    against_wall(room, m, m.bookcase())
    against_wall(room, m, m.plant() if m.draw.random() < 0.6 else m.floor_lamp())
    against_wall(room, m, m.clock() if m.draw.random() < 0.5 else m.picture(), flat=True)


def _conference(room: Room, m: Maker) -> None:
    _table_set(room, m, m.table(2.4, 1.1), m.office_chair, m.bottle().raised(0.2, 0.74, -0.25))
    against_wall(room, m, m.whiteboard(), flat=True)
    against_wall(room, m, m.plant())
    against_wall(room, m, m.tv(), m.screen().raised(0, 0.45, 0))
    against_wall(room, m, m.clock(), flat=True)


def _corridor(room: Room, m: Maker) -> None:
    for _ in range(3):
        against_wall(room, m, m.door(), flat=True)
    against_wall(room, m, m.bench())
    against_wall(room, m, m.plant())
    for _ in range(2):
        against_wall(room, m, m.picture(), flat=True)


def _tiles(colour: Colour, other: Colour, period: float) -> Look:
    return Look(colour, other, CHECKS, period)


def _planks(colour: Colour) -> Look:
    return Look(colour, shade(colour, 0.7), WOOD, 0.5)


def _carpet(colour: Colour) -> Look:
    return Look(colour, shade(colour, 0.8), SPECKLE, 0.3)


KINDS: dict[str, Kind] = {
    "bathroom": Kind(
        *(45, (303, 343), (2.4, 2.3, 2.4), (3.4, 2.6, 3.4)),
        ((0.78, 0.88, 0.9), (0.88, 0.92, 0.9), (0.7, 0.84, 0.86)),
        (_tiles((0.86, 0.9, 0.92), (0.4, 0.5, 0.56), 0.6), _tiles((0.8, 0.8, 0.78), (0.6, 0.65, 0.68), 0.8)),
        _bathroom,
    ),
    "bedroom": Kind(
        *(52, (51, 182, 124), (3.2, 2.4, 3.4), (4.6, 2.8, 4.8)),
        ((0.72, 0.76, 0.86), (0.86, 0.78, 0.8), (0.8, 0.84, 0.74)),
        (_carpet((0.66, 0.6, 0.54)), _planks((0.66, 0.48, 0.3)), _carpet((0.5, 0.52, 0.6))),
        _bedroom,
    ),
    "conference_room": Kind(
        *(102, (244, 352), (4.6, 2.7, 4.6), (7.0, 3.2, 6.0)),
        ((0.8, 0.81, 0.82), (0.7, 0.74, 0.78)),
        (_carpet((0.38, 0.4, 0.46)), _carpet((0.3, 0.36, 0.34))),
        _conference,
    ),
    "corridor": Kind(
        *(106, (217, 129), (1.9, 2.5, 6.0), (2.5, 2.9, 10.0)),
        ((0.86, 0.82, 0.7), (0.82, 0.8, 0.76)),
        (_tiles((0.7, 0.66, 0.6), (0.5, 0.46, 0.42), 1.2), _planks((0.55, 0.4, 0.26))),
        _corridor,
    ),
    "dining_room": Kind(
        *(121, (215, 203), (3.8, 2.5, 3.8), (5.2, 2.9, 5.2)),
        ((0.72, 0.42, 0.34), (0.84, 0.66, 0.46), (0.5, 0.58, 0.46)),
        (_planks((0.55, 0.36, 0.22)), _planks((0.7, 0.52, 0.34))),
        _dining,
    ),
    "home_office": Kind(
        *(176, (244, 100, 246), (2.8, 2.4, 3.0), (4.2, 2.7, 4.2)),
        ((0.6, 0.7, 0.74), (0.78, 0.8, 0.78), (0.5, 0.6, 0.58)),
        (_carpet((0.42, 0.42, 0.44)), _planks((0.6, 0.44, 0.28))),
        _office,
    ),
    "kitchen": Kind(
        *(203, (285, 253, 121), (3.2, 2.4, 3.2), (4.6, 2.7, 4.8)),
        ((0.92, 0.88, 0.66), (0.93, 0.92, 0.86), (0.78, 0.88, 0.74)),
        (
            _tiles((0.88, 0.86, 0.82), (0.3, 0.3, 0.32), 0.9),
            _tiles((0.75, 0.55, 0.42), (0.62, 0.42, 0.32), 0.8),
        ),
        _kitchen,
    ),
    "living_room": Kind(
        *(215, (328, 177, 281), (4.2, 2.5, 4.2), (6.2, 3.0, 6.0)),
        ((0.9, 0.86, 0.78), (0.82, 0.78, 0.7), (0.86, 0.86, 0.84)),
        (_planks((0.64, 0.45, 0.28)), _planks((0.46, 0.3, 0.2)), _carpet((0.72, 0.68, 0.6))),
        _living,
    ),
}


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
    _add(room, Piece("lamp", (lamp,), 1, (619, 846)), x, z, 0.0, casts=False)
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
