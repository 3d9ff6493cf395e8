"""The kinds of rooms: sizes, surfaces, and what furniture stands where."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from reprise.streams.rooms.furniture import CHECKS, SPECKLE, WOOD, Colour, Look, Maker, Piece, shade
from reprise.streams.rooms.room import Room, against_wall, freely, put


class Kind(NamedTuple):
    """A kind of room: its Places365 class and likely confusions, its size and its surfaces."""

    scene: int
    alike: tuple[int, ...]
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    walls: tuple[Colour, ...]
    floor: tuple[Look, ...]
    furnish: Callable[[Room, Maker], None]


def _middle(room: Room, maker: Maker) -> tuple[float, float]:
    return room.size[0] * float(maker.draw.uniform(0.42, 0.58)), room.size[2] * float(
        maker.draw.uniform(0.42, 0.58)
    )


def _table_set(room: Room, maker: Maker, table: Piece, chair: Callable[[], Piece], *on_top: Piece) -> None:
    """A table in the middle with chairs round it."""
    x, z = _middle(room, maker)
    yaw = math.pi / 2 * int(maker.draw.integers(2)) + float(maker.draw.choice([0.0, 0.0, 0.25]))
    x0, x1, z0, z1, _ = put(table, 0, 0, 0)
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
