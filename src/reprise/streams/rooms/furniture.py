"""Furniture: solids in a local frame, and what each piece is called in the labels.

The local frame of a piece: x along the wall, y up from the floor, z out of the wall (the back is at z = 0).
Lengths are metres, colours are sRGB in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

BOX, SPHERE, CYLINDER = 0, 1, 2
PLAIN, CHECKS, STRIPES, WOOD, SPECKLE, DIAL, PANELS = range(7)

Colour = tuple[float, float, float]


class Look(NamedTuple):
    """A surface: two colours are mixed by the texture, whose period is in metres."""

    colour: Colour
    other: Colour = (0.0, 0.0, 0.0)
    texture: int = PLAIN
    period: float = 0.5
    glow: float = 0.0


class Solid(NamedTuple):
    """A box (half sizes), a sphere (radius in `hx`) or an upright cylinder (radius in `hx`, half height `hy`)."""

    shape: int
    x: float
    y: float
    z: float
    hx: float
    hy: float
    hz: float
    look: Look


@dataclass(frozen=True)
class Piece:
    """A piece of furniture."""

    name: str
    solids: tuple[Solid, ...]
    segment: int
    """Its class in `segment_semantic`; 1 (background) for what that list does not know."""
    objects: tuple[int, ...]
    """Its ImageNet classes, the likeliest first."""
    top: float = 0.0
    """Height of a surface that small things can stand on; 0: none."""

    def raised(self, x: float, y: float, z: float) -> Piece:
        """The piece moved within its local frame."""
        solids = tuple(s._replace(x=s.x + x, y=s.y + y, z=s.z + z) for s in self.solids)
        return replace(self, solids=solids)


def box(x: float, y: float, z: float, width: float, height: float, depth: float, look: Look) -> Solid:
    """A box whose middle is at x, whose bottom is at y and whose back is at z."""
    return Solid(BOX, x, y + height / 2, z + depth / 2, width / 2, height / 2, depth / 2, look)


def cylinder(x: float, y: float, z: float, radius: float, height: float, look: Look) -> Solid:
    """An upright cylinder round (x, z) that stands at y."""
    return Solid(CYLINDER, x, y + height / 2, z, radius, height / 2, radius, look)


def ball(x: float, y: float, z: float, radius: float, look: Look) -> Solid:
    """A sphere round (x, y, z)."""
    return Solid(SPHERE, x, y, z, radius, radius, radius, look)


def shade(colour: Colour, factor: float) -> Colour:
    """The colour made darker or, within white, lighter."""
    r, g, b = (min(1.0, c * factor) for c in colour)
    return (r, g, b)


WHITE, STEEL, BLACK = (0.93, 0.93, 0.91), (0.66, 0.68, 0.7), (0.07, 0.07, 0.08)
WOODS: tuple[Colour, ...] = ((0.62, 0.43, 0.26), (0.45, 0.29, 0.18), (0.76, 0.6, 0.41), (0.36, 0.22, 0.15))
FABRICS: tuple[Colour, ...] = (
    *((0.24, 0.36, 0.55), (0.6, 0.22, 0.2), (0.42, 0.46, 0.38), (0.55, 0.5, 0.45)),
    *((0.2, 0.45, 0.45), (0.75, 0.6, 0.3), (0.35, 0.3, 0.42), (0.3, 0.3, 0.32)),
)


class Maker:
    """Builds the pieces of one room from its generator: one wood, one fabric and one accent colour a room."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.draw = draw
        wood = WOODS[int(draw.integers(len(WOODS)))]
        self.wood = Look(wood, shade(wood, 0.72), WOOD, 0.3)
        first, second = draw.choice(len(FABRICS), 2, replace=False)
        self.fabric, self.accent = FABRICS[int(first)], FABRICS[int(second)]

    def near(self, value: float, share: float = 0.1) -> float:
        """A length within a share of the given one."""
        return value * float(self.draw.uniform(1 - share, 1 + share))

    def bed(self) -> Piece:
        w = self.near(1.6)
        cover = Look(
            self.fabric, shade(self.fabric, 1.35), int(self.draw.choice([PLAIN, STRIPES, CHECKS])), 0.5
        )
        white = Look(WHITE)
        solids = (
            box(0, 0, 0, w, 1.05, 0.08, self.wood),
            box(0, 0.08, 0.08, w, 0.25, 2.0, self.wood),
            box(0, 0.33, 0.1, w - 0.06, 0.2, 0.6, white),
            box(0, 0.33, 0.65, w, 0.24, 1.4, cover),
            box(-w / 4, 0.53, 0.14, w * 0.38, 0.13, 0.4, white),
            box(w / 4, 0.53, 0.14, w * 0.38, 0.13, 0.4, white),
        )
        return Piece("bed", solids, 6, (564, 750, 721, 520))

    def couch(self, width: float = 2.0) -> Piece:
        w = self.near(width)
        look, arm = Look(self.fabric, shade(self.fabric, 0.8), SPECKLE, 0.2), Look(shade(self.fabric, 0.85))
        solids = (
            box(0, 0.08, 0, w, 0.34, 0.9, look),
            box(0, 0.3, 0, w, 0.52, 0.24, look),
            box(-w / 2 + 0.1, 0.05, 0, 0.2, 0.56, 0.9, arm),
            box(w / 2 - 0.1, 0.05, 0, 0.2, 0.56, 0.9, arm),
        )
        cushion = box(w * 0.22, 0.42, 0.24, 0.42, 0.36, 0.14, Look(self.accent))
        return Piece("couch", (*solids, cushion), 4, (831, 721, 548))

    def armchair(self) -> Piece:
        whole = self.couch(0.95)
        return Piece("armchair", whole.solids[:4], 3, (765, 831, 857))

    def chair(self) -> Piece:
        w, seat = 0.44, Look(self.accent)
        solids = (
            box(0, 0.42, 0, w, 0.06, 0.45, seat),
            box(0, 0.48, 0, w, 0.48, 0.05, self.wood),
            box(-w / 2 + 0.02, 0, 0.02, 0.04, 0.42, 0.42, self.wood),
            box(w / 2 - 0.02, 0, 0.02, 0.04, 0.42, 0.42, self.wood),
        )
        return Piece("chair", solids, 3, (559, 765, 423)).raised(0, 0, -0.22)

    def office_chair(self) -> Piece:
        look = Look((0.16, 0.17, 0.2) if self.draw.random() < 0.6 else self.accent)
        solids = (
            box(0, 0.45, 0, 0.5, 0.09, 0.48, look),
            box(0, 0.6, 0, 0.46, 0.55, 0.07, look),
            cylinder(0, 0.06, 0.24, 0.04, 0.4, Look(STEEL)),
            cylinder(0, 0.0, 0.24, 0.26, 0.06, Look(BLACK)),
        )
        return Piece("office chair", solids, 3, (423, 559, 526)).raised(0, 0, -0.24)

    def table(self, width: float, depth: float, height: float = 0.74, name: str = "table") -> Piece:
        w, d = self.near(width), self.near(depth)
        legs = [
            box(sx * (w / 2 - 0.06), 0, z, 0.07, height - 0.05, 0.07, self.wood)
            for sx in (-1, 1)
            for z in (0.04, d - 0.11)
        ]
        solids = (box(0, height - 0.05, 0, w, 0.05, d, self.wood), *legs)
        return Piece(name, solids, 7, (532, 526, 868), top=height).raised(0, 0, -d / 2)

    def round_table(self) -> Piece:
        r = self.near(0.45)
        solids = (
            cylinder(0, 0.4, 0, r, 0.05, self.wood),
            cylinder(0, 0.02, 0, 0.06, 0.4, self.wood),
            cylinder(0, 0, 0, 0.25, 0.03, self.wood),
        )
        return Piece("round table", solids, 7, (532, 868), top=0.45)

    def desk(self) -> Piece:
        w = self.near(1.4)
        solids = (
            box(0, 0.7, 0, w, 0.05, 0.7, self.wood),
            box(-w / 2 + 0.03, 0, 0, 0.05, 0.7, 0.66, self.wood),
            box(w / 2 - 0.2, 0, 0, 0.4, 0.7, 0.66, self.wood._replace(texture=PANELS, period=0.24)),
        )
        return Piece("desk", solids, 7, (526, 527, 532), top=0.75)

    def monitor(self) -> Piece:
        solids = (
            box(0, 0, 0.12, 0.26, 0.12, 0.14, Look(BLACK)),
            box(0, 0.1, 0.16, 0.58, 0.36, 0.04, Look(BLACK, (0.25, 0.4, 0.6), PANELS, 0.5)),
        )
        return Piece("monitor", solids, 9, (664, 527, 782))

    def tv(self) -> Piece:
        w = self.near(1.7)
        cabinet = box(0, 0, 0, w, 0.45, 0.42, self.wood._replace(texture=PANELS, period=0.45))
        return Piece("tv stand", (cabinet,), 1, (548, 851), top=0.45)

    def screen(self) -> Piece:
        solids = (
            box(0, 0, 0.12, 0.4, 0.05, 0.2, Look(BLACK)),
            box(0, 0.05, 0.18, 1.15, 0.66, 0.05, Look(BLACK, (0.13, 0.17, 0.24), SPECKLE, 0.6)),
        )
        return Piece("tv", solids, 9, (851, 782, 664))

    def bookcase(self) -> Piece:
        w, rows = self.near(1.0), 5
        frame = box(0, 0, 0, w, 2.0, 0.3, self.wood)
        books = [
            box(
                float(self.draw.uniform(-0.08, 0.08)) * w,
                0.08 + 0.38 * i,
                0.2,
                w * float(self.draw.uniform(0.6, 0.84)),
                float(self.draw.uniform(0.22, 0.3)),
                0.12,
                Look(self._hue(), self._hue(), STRIPES, float(self.draw.uniform(0.09, 0.16))),
            )
            for i in range(rows)
        ]
        return Piece("bookcase", (frame, *books), 15, (453, 454, 548))

    def _hue(self) -> Colour:
        r, g, b = self.draw.uniform(0.15, 0.85, 3)
        return (float(r), float(g), float(b))

    def fridge(self) -> Piece:
        look = Look(STEEL if self.draw.random() < 0.5 else WHITE)
        solids = (
            box(0, 0.03, 0, 0.7, 1.12, 0.68, look),
            box(0, 1.17, 0, 0.7, 0.6, 0.68, look),
            box(0.27, 0.75, 0.68, 0.03, 0.35, 0.03, Look((0.3, 0.3, 0.32))),
            box(0.27, 1.22, 0.68, 0.03, 0.3, 0.03, Look((0.3, 0.3, 0.32))),
        )
        return Piece("refrigerator", solids, 14, (760, 894, 495))

    def oven(self) -> Piece:
        solids = (
            box(0, 0, 0, 0.62, 0.9, 0.62, Look(STEEL)),
            box(0, 0.25, 0.62, 0.48, 0.36, 0.02, Look(BLACK)),
            box(0, 0.68, 0.62, 0.5, 0.03, 0.05, Look(WHITE)),
            box(0, 0.9, 0.02, 0.6, 0.02, 0.56, Look(BLACK, (0.45, 0.12, 0.08), DIAL, 0.28)),
        )
        return Piece("oven", solids, 11, (827, 651, 760))

    def counter(self, width: float) -> Piece:
        front = Look(self.accent if self.draw.random() < 0.5 else WHITE, (0.3, 0.3, 0.3), PANELS, 0.5)
        solids = (
            box(0, 0, 0, width, 0.87, 0.6, front),
            box(0, 0.87, 0, width, 0.04, 0.64, Look((0.4, 0.38, 0.37), (0.5, 0.48, 0.46), SPECKLE, 0.15)),
            box(0, 1.45, 0, width, 0.68, 0.34, front),
        )
        return Piece("counter", solids, 1, (495, 493, 799), top=0.91)

    def sink(self) -> Piece:
        solids = (
            box(0, 0, 0.12, 0.6, 0.05, 0.44, Look(STEEL, (0.35, 0.36, 0.38), DIAL, 0.5)),
            cylinder(0, 0, 0.1, 0.025, 0.32, Look(STEEL)),
        )
        return Piece("sink", solids, 13, (896, 804, 738))

    def microwave(self) -> Piece:
        solids = (
            box(0, 0, 0.06, 0.5, 0.3, 0.38, Look(WHITE if self.draw.random() < 0.5 else STEEL)),
            box(-0.06, 0.04, 0.44, 0.32, 0.22, 0.015, Look(BLACK)),
        )
        return Piece("microwave", solids, 10, (651, 827, 859))

    def toaster(self) -> Piece:
        return Piece("toaster", (box(0, 0, 0.2, 0.3, 0.2, 0.2, Look((0.75, 0.2, 0.15))),), 12, (859, 651))

    def bottle(self) -> Piece:
        glass = Look((0.1, 0.35, 0.18) if self.draw.random() < 0.5 else (0.45, 0.2, 0.08))
        solids = (cylinder(0, 0, 0.25, 0.05, 0.24, glass), cylinder(0, 0.24, 0.25, 0.02, 0.12, glass))
        return Piece("bottle", solids, 2, (907, 898, 440))

    def vase(self) -> Piece:
        look, r = Look(self._hue()), self.near(0.12, 0.2)
        solids = (ball(0, r * 0.9, 0, r, look), cylinder(0, r * 1.6, 0, r * 0.45, r * 1.1, look))
        return Piece("vase", solids, 17, (883, 738))

    def plant(self) -> Piece:
        r, pot = self.near(0.17), self._hue()
        leaf: Colour = (0.16, float(self.draw.uniform(0.36, 0.5)), 0.14)
        leaves = Look(leaf, shade(leaf, 0.45), SPECKLE, 0.12)
        solids = (
            cylinder(0, 0, 0.32, r, 0.34, Look(pot)),
            ball(0, 0.62, 0.32, 0.27, leaves),
            ball(-0.12, 0.9, 0.3, 0.2, leaves),
            ball(0.12, 1.05, 0.36, 0.17, leaves),
        )
        return Piece("potted plant", solids, 5, (738, 883))

    def floor_lamp(self) -> Piece:
        shade_look = Look((0.98, 0.88, 0.66), glow=0.55)
        solids = (
            cylinder(0, 0, 0.28, 0.15, 0.03, Look(BLACK)),
            cylinder(0, 0.03, 0.28, 0.02, 1.35, Look(BLACK)),
            cylinder(0, 1.35, 0.28, 0.22, 0.32, shade_look),
        )
        return Piece("floor lamp", solids, 1, (619, 846))

    def nightstand(self) -> Piece:
        solids = (
            box(0, 0, 0, 0.45, 0.5, 0.42, self.wood._replace(texture=PANELS, period=0.25)),
            cylinder(0, 0.5, 0.2, 0.05, 0.22, Look(self.accent)),
            cylinder(0, 0.68, 0.2, 0.15, 0.2, Look((0.98, 0.9, 0.7), glow=0.5)),
        )
        return Piece("nightstand", solids, 1, (846, 619, 493))

    def wardrobe(self) -> Piece:
        look = self.wood._replace(texture=PANELS, period=0.6)
        return Piece("wardrobe", (box(0, 0, 0, self.near(1.2), 2.0, 0.6, look),), 1, (894, 799, 495))

    def toilet(self) -> Piece:
        look = Look(WHITE)
        solids = (
            box(0, 0.35, 0, 0.42, 0.45, 0.2, look),
            cylinder(0, 0, 0.4, 0.15, 0.36, look),
            cylinder(0, 0.34, 0.42, 0.22, 0.08, look),
        )
        return Piece("toilet", solids, 8, (861, 896))

    def bathtub(self) -> Piece:
        w = self.near(1.65)
        solids = (
            box(0, 0, 0, w, 0.55, 0.78, Look(WHITE)),
            box(0, 0.55, 0.09, w - 0.18, 0.008, 0.6, Look((0.55, 0.78, 0.84))),
            cylinder(w / 2 - 0.12, 0.55, 0.39, 0.03, 0.2, Look(STEEL)),
        )
        return Piece("bathtub", solids, 1, (435, 794, 896))

    def washbasin(self) -> Piece:
        solids = (
            box(0, 0, 0, 0.75, 0.78, 0.5, self.wood._replace(texture=PANELS, period=0.38)),
            box(0, 0.78, 0, 0.8, 0.05, 0.52, Look(WHITE)),
            cylinder(0, 0.83, 0.27, 0.2, 0.1, Look(WHITE, (0.5, 0.52, 0.55), DIAL, 0.36)),
            cylinder(0, 0.83, 0.06, 0.022, 0.25, Look(STEEL)),
        )
        return Piece("washbasin", solids, 13, (896, 804, 435))

    def mirror(self) -> Piece:
        glass = Look((0.7, 0.77, 0.8), (0.82, 0.88, 0.9), STRIPES, 1.3)
        solids = (box(0, 0, 0, 0.74, 0.94, 0.03, self.wood), box(0, 0.05, 0.03, 0.64, 0.84, 0.008, glass))
        return Piece("mirror", solids, 1, (896, 804)).raised(0, 1.1, 0)

    def picture(self) -> Piece:
        w, h = self.near(0.8, 0.3), self.near(0.6, 0.2)
        art = Look(self._hue(), self._hue(), int(self.draw.choice([SPECKLE, DIAL, WOOD])), 0.45)
        solids = (box(0, 0, 0, w, h, 0.03, Look(BLACK)), box(0, 0.05, 0.03, w - 0.1, h - 0.1, 0.006, art))
        return Piece("picture", solids, 1, (904, 905)).raised(0, 1.45, 0)

    def clock(self) -> Piece:
        face = Look((0.12, 0.12, 0.14), WHITE, DIAL, 0.36)
        return Piece("clock", (box(0, 1.75, 0, 0.38, 0.38, 0.04, face),), 16, (892, 409))

    def whiteboard(self) -> Piece:
        solids = (
            box(0, 0, 0, 2.0, 1.1, 0.03, Look(STEEL)),
            box(0, 0.05, 0.03, 1.9, 1.0, 0.008, Look((0.97, 0.97, 0.97), (0.75, 0.8, 0.9), STRIPES, 2.6)),
        )
        return Piece("whiteboard", solids, 1, (782, 664)).raised(0, 0.95, 0)

    def door(self) -> Piece:
        look = self.wood if self.draw.random() < 0.6 else Look(WHITE, (0.7, 0.7, 0.68))
        solids = (
            box(0, 0, 0, 1.02, 2.12, 0.03, Look(WHITE)),
            box(0, 0, 0.03, 0.88, 2.04, 0.025, look._replace(texture=PANELS, period=1.0)),
            ball(0.36, 1.0, 0.09, 0.04, Look((0.75, 0.65, 0.3))),
        )
        return Piece("door", solids, 1, (799, 894))

    def rug(self, width: float, depth: float) -> Piece:
        look = Look(self.accent, shade(self.accent, 1.4), int(self.draw.choice([STRIPES, CHECKS, DIAL])), 0.6)
        solids = (box(0, 0, -depth / 2, width, 0.012, depth, look),)
        return Piece("rug", solids, 1, (539, 868))

    def bench(self) -> Piece:
        solids = (
            box(0, 0.4, 0, 1.3, 0.06, 0.38, self.wood),
            box(-0.55, 0, 0.03, 0.06, 0.4, 0.32, self.wood),
            box(0.55, 0, 0.03, 0.06, 0.4, 0.32, self.wood),
        )
        return Piece("bench", solids, 3, (703, 559))
