"""Rays and what they meet first: every ray against every solid that it can meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reprise.streams.rooms.furniture import CYLINDER, SPHERE, Solid
from reprise.streams.rooms.room import FIELD_OF_VIEW, Camera, Placed, Room

SURFACES = 6
"""The rows of the room itself: x=0, x=size, floor, ceiling, z=0, z=size. Solids follow."""

Three = tuple[Tensor, Tensor, Tensor]


def column(values: Sequence[float]) -> Tensor:
    return torch.tensor(np.array(values, np.float64), dtype=torch.float32).reshape(-1, 1, 1)


def axes_of(cameras: Sequence[Camera]) -> tuple[Three, Three, Three]:
    """The cameras' right, down and forward directions in world coordinates."""
    rows = []
    for camera in cameras:
        cy, sy = math.cos(camera.yaw), math.sin(camera.yaw)
        cp, sp = math.cos(camera.pitch), math.sin(camera.pitch)
        rows.append((cy, 0.0, -sy, -sy * sp, -cp, -cy * sp, sy * cp, -sp, cy * cp))
    columns = [column(values) for values in zip(*rows, strict=True)]
    return (
        (columns[0], columns[1], columns[2]),
        (columns[3], columns[4], columns[5]),
        (columns[6], columns[7], columns[8]),
    )


def rays_of(cameras: Sequence[Camera], axes: tuple[Three, Three, Three], size: int) -> Rays:
    """Rays through the pixels' middles. Their forward component is 1, so a ray's parameter is the depth."""
    edge = math.tan(math.radians(FIELD_OF_VIEW) / 2)
    grid = torch.tensor(((np.arange(size) + 0.5) / size * 2 - 1) * edge, dtype=torch.float32)
    x, y = grid.reshape(1, 1, -1), grid.reshape(1, -1, 1)
    right, down, forward = axes
    direction = [off_axis(forward[k] + x * right[k] + y * down[k]) for k in range(3)]
    origin = (
        column([c.x for c in cameras]),
        column([c.y for c in cameras]),
        column([c.z for c in cameras]),
    )
    return Rays(origin, (direction[0], direction[1], direction[2]))


class Part(NamedTuple):
    """A range of views, rows and columns."""

    a: int
    b: int
    top: int
    bottom: int
    left: int
    right: int

    def of(self, x: Tensor) -> Tensor:
        """That part of [..., n, size, size]."""
        return x[..., self.a : self.b, self.top : self.bottom, self.left : self.right]


def boxes(room: Room) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the axis-aligned boxes round the solids: two arrays [solids, 3]."""
    middle = np.array([(p.solid.x, p.solid.y, p.solid.z) for p in room.solids]).reshape(-1, 3)
    half = np.array([(p.solid.hx, p.solid.hy, p.solid.hz) for p in room.solids]).reshape(-1, 3)
    turn = np.array([(abs(p.cos), abs(p.sin)) for p in room.solids]).reshape(-1, 2)
    reach = half.copy()
    reach[:, 0] = turn[:, 0] * half[:, 0] + turn[:, 1] * half[:, 2]
    reach[:, 2] = turn[:, 1] * half[:, 0] + turn[:, 0] * half[:, 2]
    return middle - reach - 0.01, middle + reach + 0.01


def shadow_boxes(room: Room) -> tuple[np.ndarray, np.ndarray]:
    """Boxes that hold all points a solid can keep the lamp's light from."""
    low, high = boxes(room)
    light = np.array(room.light)
    # A shadow ends at the floor: it is at most so many times as far from the lamp as the solid's top.
    times = light[1] / np.maximum(light[1] - high[:, 1:2], 1e-3)
    far_low, far_high = light + times * (low - light), light + times * (high - light)
    return (
        np.maximum(np.minimum(low, far_low), -0.02),
        np.minimum(np.maximum(high, far_high), np.array(room.size) + 0.02),
    )


def parts_of(boxes: tuple[np.ndarray, np.ndarray], cameras: Sequence[Camera], size: int) -> list[Part | None]:
    """For each box a part of the batch outside which no ray meets it; None: no ray does.

    Leaving out what no ray can meet changes no pixel, so the bytes do not depend on how views are grouped.
    """
    low, high = boxes
    upper = np.array([[i & 1, i & 2, i & 4] for i in range(8)], bool)
    corners = np.where(upper, high[:, None], low[:, None])  # [solids, 8, 3]
    edge = math.tan(math.radians(FIELD_OF_VIEW) / 2)
    place = np.array([(camera.x, camera.y, camera.z, camera.yaw, camera.pitch) for camera in cameras])
    x, y, z = np.moveaxis(corners - place[:, None, None, :3], -1, 0)  # [views, solids, 8] each
    cy, sy, cp, sp = (f(place[:, None, None, k]) for k in (3, 4) for f in (np.cos, np.sin))
    level = x * sy + z * cy
    forward, right, down = level * cp - y * sp, x * cy - z * sy, -y * cp - level * sp
    behind = (forward.min(-1) < 0.05)[..., None]
    ahead = np.maximum(forward, 0.05) * edge
    bounds = np.empty((*behind.shape[:2], 4), np.int64)
    for k, side in ((0, down / ahead), (2, right / ahead)):
        bounds[..., k] = ((side.min(-1) + 1) / 2 * size - 1).clip(0, size)
        bounds[..., k + 1] = ((side.max(-1) + 1) / 2 * size + 2).clip(0, size)
    bounds = np.where(behind, (0, size, 0, size), bounds)
    # Beyond the left or right side of the view, which also holds if some corners are behind the camera.
    beside = (np.abs(right) - forward * edge).min(-1) > 0.01
    beside &= (right.min(-1) > 0) | (right.max(-1) < 0)
    bounds[beside | (forward.max(-1) < 0)] = 0
    seen = (bounds[..., 1] > bounds[..., 0]) & (bounds[..., 3] > bounds[..., 2])
    bounds[..., 0::2][~seen] = size
    bounds[..., 1::2][~seen] = 0
    first, last = seen.argmax(0), len(cameras) - seen[::-1].argmax(0)
    least, most = bounds.min(0), bounds.max(0)
    table = np.stack((first, last, least[:, 0], most[:, 1], least[:, 2], most[:, 3]), 1).tolist()
    return [Part(*row) if views else None for row, views in zip(table, seen.sum(0).tolist(), strict=True)]


class Rays:
    """Rays, and the same rays as seen from turned solids; solids of one angle share theirs."""

    def __init__(self, origin: Three, direction: Three) -> None:
        self.origin, self.direction = origin, direction  # [n, 1, 1] or scalars, and [n, size, size] each
        self.stacked = torch.stack(direction)
        self.turned = {(1.0, 0.0): (origin, _inverses(*direction))}

    def facing(self, cos: float, sin: float) -> tuple[Three, Tensor]:
        """Origins and [6, n, size, size] inverse directions in the turned frame."""
        if (cos, sin) not in self.turned:
            (ox, oy, oz), (dx, dy, dz) = self.origin, self.direction
            origin = (cos * ox - sin * oz, oy, sin * ox + cos * oz)
            inverses = _inverses(off_axis(cos * dx - sin * dz), dy, off_axis(sin * dx + cos * dz))
            self.turned[cos, sin] = (origin, inverses)
        return self.turned[cos, sin]


def _inverses(dx: Tensor, dy: Tensor, dz: Tensor) -> Tensor:
    inverse = torch.stack((dx, dy, dz)).reciprocal()
    return torch.cat((inverse, inverse.abs()))


def off_axis(d: Tensor) -> Tensor:
    """A direction that is exactly parallel to a face would divide by 0 there."""
    return torch.where(d.abs() < 1e-6, 1e-6, d)


def first_hit(room: Room, rays: Rays, cameras: Sequence[Camera], size: int) -> tuple[Tensor, Tensor]:
    """Ray parameter and row of the nearest hit."""
    dx, dy, dz = rays.direction
    inverse = rays.facing(1.0, 0.0)[1]
    walls = []
    for o, d, i, length in zip(rays.origin, rays.direction, inverse, room.size, strict=False):
        walls.append(torch.where(d > 0, (length - o) * i, -o * i))
    t = torch.minimum(torch.minimum(walls[0], walls[1]), walls[2])
    # Rows 0/1, 2/3, 4/5 are the lower and upper side of x, y and z.
    row = torch.where(
        t == walls[0], (dx > 0).int(), torch.where(t == walls[1], 2 + (dy > 0).int(), 4 + (dz > 0).int())
    )
    parts = parts_of(boxes(room), cameras, size)
    for number, (placed, part) in enumerate(zip(room.solids, parts, strict=True), start=SURFACES):
        if part is None:
            continue
        entry, hit = meet(placed, rays, part)
        nearest = part.of(t)
        nearer = hit & (entry > 0.02) & (entry < nearest)
        nearest.copy_(torch.where(nearer, entry, nearest))
        part.of(row).masked_fill_(nearer, number)
    return t, row.long()


def meet(placed: Placed, rays: Rays, part: Part) -> tuple[Tensor, Tensor]:
    """Where the rays of a part enter a solid, and whether they do."""
    solid, (c, s) = placed.solid, (placed.cos, placed.sin)
    if solid.shape == SPHERE:
        return _meet_sphere(solid, rays, part)
    if solid.shape == CYLINDER:
        return _meet_cylinder(solid, rays, part)
    if c * s == 0:
        x, z = solid.x, solid.z
        hx, hz = (solid.hz, solid.hx) if c == 0 else (solid.hx, solid.hz)
        c, s = 1.0, 0.0
    else:
        x, z = c * solid.x - s * solid.z, s * solid.x + c * solid.z
        hx, hz = solid.hx, solid.hz
    origin, inverses = rays.facing(c, s)
    ox, oy, oz = _starts(origin, part)
    ix, iy, iz, ax, ay, az = part.of(inverses).unbind()
    # Through the near face and out of the far one: (middle ∓ half - o) / direction, in order.
    at, reach = (x - ox) * ix, ax * hx
    near, far = at - reach, at + reach
    for o, i, a, middle, half in ((oy, iy, ay, solid.y, solid.hy), (oz, iz, az, z, hz)):
        at, reach = (middle - o) * i, a * half
        near = torch.maximum(near, at - reach)
        far = torch.minimum(far, at + reach)
    return near, near < far


def _starts(origin: Three, part: Part) -> Three:
    if origin[0].dim() == 0:
        return origin
    return (origin[0][part.a : part.b], origin[1][part.a : part.b], origin[2][part.a : part.b])


def _meet_sphere(solid: Solid, rays: Rays, part: Part) -> tuple[Tensor, Tensor]:
    ox, oy, oz = _starts(rays.origin, part)
    dx, dy, dz = part.of(rays.stacked).unbind()
    px, py, pz = ox - solid.x, oy - solid.y, oz - solid.z
    a = dx * dx + dy * dy + dz * dz
    b = px * dx + py * dy + pz * dz
    c = px * px + py * py + pz * pz - solid.hx**2
    inside = b * b - a * c
    return (-b - inside.clamp(min=0).sqrt()) / a, inside > 0


def _meet_cylinder(solid: Solid, rays: Rays, part: Part) -> tuple[Tensor, Tensor]:
    """An upright capped cylinder: an infinite round one and a slab."""
    ox, oy, oz = _starts(rays.origin, part)
    dx, _, dz = part.of(rays.stacked).unbind()
    _, inverse, _, _, reach, _ = part.of(rays.facing(1.0, 0.0)[1]).unbind()
    px, pz = ox - solid.x, oz - solid.z
    a = dx * dx + dz * dz
    b = px * dx + pz * dz
    c = px * px + pz * pz - solid.hx**2
    inside = b * b - a * c
    root = inside.clamp(min=0).sqrt()
    middle, half = (solid.y - oy) * inverse, reach * solid.hy
    near = torch.maximum((-b - root) / a, middle - half)
    far = torch.minimum((-b + root) / a, middle + half)
    return near, (inside > 0) & (near < far)
