"""A room as it is seen, exact and batched: rays are cast (rays.py), then one shading pass goes over the hits.

Only additions, products, quotients, roots, comparisons and gathers touch the pixels. All of these are rounded the
same way wherever a pixel stands in the batch (sines, exponentials and convolutions are not), so a view has the same
bytes whatever is rendered with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reprise.streams.rooms.furniture import (
    BOX,
    CHECKS,
    CYLINDER,
    DIAL,
    PANELS,
    SPECKLE,
    SPHERE,
    STRIPES,
    WOOD,
    Look,
    Solid,
)
from reprise.streams.rooms.rays import (
    Rays,
    Three,
    axes_of,
    column,
    first_hit,
    meet,
    off_axis,
    parts_of,
    rays_of,
    shadow_boxes,
)
from reprise.streams.rooms.room import FIELD_OF_VIEW, Camera, Room

WALL_ROWS = (0, 1, 4, 5)
"""The surface of each wall of `room.WALLS`."""


class Hits(NamedTuple):
    """What the rays of some views meet; every tensor is [n, size, size]."""

    depth: Tensor
    """Along the optical axis, in metres."""
    missing: Tensor
    """The ray left through the window."""
    row: Tensor
    """Which surface (below `SURFACES`) or, after these, which of the room's solids."""
    normal: Three
    """Unit, in camera coordinates (right, down, forward), towards the camera."""
    curvature: tuple[Tensor, Tensor]
    """The larger and the smaller principal curvature in 1/m, positive where the surface bulges to the outside."""
    facing: Tensor
    """Cosine between the normal and the direction to the camera."""
    rgb: Three
    """In [0, 1], as displayed."""


def cast(room: Room, cameras: Sequence[Camera], size: int) -> Hits:
    """Render the views of the given cameras."""
    axes = axes_of(cameras)
    rays = rays_of(cameras, axes, size)
    t, row = first_hit(room, rays, cameras, size)
    ox, oy, oz = rays.origin
    dx, dy, dz = rays.direction
    point = (ox + t * dx, oy + t * dy, oz + t * dz)
    of = _table(room).index_select(1, row.reshape(-1)).reshape(-1, *row.shape)  # [numbers, n, size, size]
    local, normal, curvature = _geometry(of, point)
    length = (dx * dx + dy * dy + dz * dz).sqrt()
    facing = -(normal[0] * dx + normal[1] * dy + normal[2] * dz) / length
    missing, frame = _window(room, row, point)

    footprint = t * length * (2 * math.tan(math.radians(FIELD_OF_VIEW) / 2) / size) / facing.clamp(min=0.15)
    albedo = _albedo(of, local, normal, footprint)
    albedo = tuple(torch.where(frame, 0.85, channel) for channel in albedo)
    light = _light(room, point, normal, _shadow(room, point, cameras, size))
    glow = of[_GLOW]
    exposure = column([camera.exposure for camera in cameras])
    sky = _outside(dy / length)
    rgb = []
    for channel in range(3):
        value = albedo[channel] * (light[channel] + glow)
        value = torch.where(missing, sky[channel], value * exposure)
        # A soft shoulder instead of hard clipping, then display gamma (2, whose inverse is an exact root).
        rgb.append((value * (1.0 + value * 0.25) / (1.0 + value)).clamp(0, 0.64).sqrt() * 1.25)
    right, down, forward = axes
    seen = [sum(normal[k] * axis[k] for k in range(3)) for axis in (right, down, forward)]
    return Hits(t, missing, row, (seen[0], seen[1], seen[2]), curvature, facing, (rgb[0], rgb[1], rgb[2]))  # type: ignore[arg-type]


def _outside(up: Tensor) -> Three:
    """What is seen through the window: a pale sky that deepens upwards, and green below the horizon."""
    height = up.clamp(min=0)
    land = up < -0.02
    r, g, b = 0.85 - 0.9 * height, 0.95 - 0.5 * height, 1.05 + 0.0 * height
    return torch.where(land, 0.16, r), torch.where(land, 0.28, g), torch.where(land, 0.12, b)


_SHAPE, _X, _Y, _Z, _HX, _HY, _HZ, _COS, _SIN, _SIGN, _R, _R2, _TEXTURE, _PERIOD, _GLOW, _CURVE = (
    *(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 17, 18, 19),
)


def _table(room: Room) -> Tensor:
    """A column of numbers for every surface and solid, gathered by the pixels that see it."""
    w, h, d = room.size
    rows = []
    for look in room.surfaces:
        inside = Solid(BOX, w / 2, h / 2, d / 2, w / 2, h / 2, d / 2, look)
        rows.append(_table_row(inside, look, 1.0, 0.0, -1.0))
    rows += [_table_row(p.solid, p.solid.look, p.cos, p.sin, 1.0) for p in room.solids]
    return torch.tensor(np.array(rows).T.copy(), dtype=torch.float32)


def _table_row(solid: Solid, look: Look, cos: float, sin: float, sign: float) -> list[float]:
    bend = 0.0 if solid.shape == BOX else 1 / solid.hx
    # Albedo is linear: the square of the displayed colour, as the display's gamma is 2.
    colours = [c * c for c in (*look.colour, *look.other)]
    shape = [float(solid.shape), solid.x, solid.y, solid.z, solid.hx, solid.hy, solid.hz, cos, sin, sign]
    return [*shape, *colours, float(look.texture), look.period, look.glow, bend]


def _geometry(of: Tensor, point: Three) -> tuple[Three, Three, tuple[Tensor, Tensor]]:
    """Hit points in the solids' own frames, normals in world coordinates, and principal curvatures."""
    shape, cos, sin, sign = (of[k] for k in (_SHAPE, _COS, _SIN, _SIGN))
    qx, py, qz = (p - of[k] for p, k in zip(point, (_X, _Y, _Z), strict=True))
    px, pz = cos * qx - sin * qz, sin * qx + cos * qz
    hx, hy, hz = (of[k] for k in (_HX, _HY, _HZ))
    sphere, cylinder = shape == SPHERE, shape == CYLINDER
    ax, ay, az = px.abs() - hx, py.abs() - hy, pz.abs() - hz
    radial = (px * px + pz * pz).sqrt()
    cap = ay > radial - hx
    on_x, on_y = (ax >= ay) & (ax >= az), ay >= az
    zero = torch.zeros_like(px)
    nx = torch.where(on_x, sign * px.sign(), zero)
    ny = torch.where(~on_x & on_y, sign * py.sign(), zero)
    nz = torch.where(on_x | on_y, zero, sign * pz.sign())
    side = cylinder & ~cap
    scale = 1 / torch.where(sphere, hx, radial.clamp(min=1e-6))
    round_ = sphere | side
    nx = torch.where(round_, px * scale, torch.where(cylinder, zero, nx))
    ny = torch.where(sphere, py * scale, torch.where(side, zero, torch.where(cylinder, py.sign(), ny)))
    nz = torch.where(round_, pz * scale, torch.where(cylinder, zero, nz))
    normal = (cos * nx + sin * nz, ny, cos * nz - sin * nx)
    bend = of[_CURVE]
    curvature = (torch.where(round_, bend, zero), torch.where(sphere, bend, zero))
    return (px, py, pz), normal, curvature


def _window(room: Room, row: Tensor, point: Three) -> tuple[Tensor, Tensor]:
    """Pixels that look out of the window, and those on its frame."""
    if room.window is None:
        nothing = torch.zeros_like(row, dtype=torch.bool)
        return nothing, nothing
    wall, u0, u1, v0, v1 = room.window
    u, v = point[2 if wall < 2 else 0], point[1]
    on_wall = row == WALL_ROWS[wall]
    across = (u - (u0 + u1) / 2).abs()
    outer = on_wall & (across < (u1 - u0) / 2 + 0.07) & (v > v0 - 0.07) & (v < v1 + 0.07)
    inner = outer & (across < (u1 - u0) / 2) & (across > 0.03) & (v > v0) & (v < v1)
    return inner, outer & ~inner


def _wave(x: Tensor) -> Tensor:
    """A wave between 0 and 1 of period 1, a smoothed triangle."""
    x = x - x.floor()
    return _smooth((2 * x - 1).abs())


def _smooth(x: Tensor) -> Tensor:
    return x * x * (3 - 2 * x)


def _albedo(of: Tensor, local: Three, normal: Three, footprint: Tensor) -> tuple[Tensor, ...]:
    """Linear colours: two colours mixed by a texture that fades where a pixel covers more than its period."""
    (px, py, pz), texture = local, of[_TEXTURE]
    period = of[_PERIOD]
    level = normal[1].abs() > 0.7
    # u runs along the face, v up it (or, on level faces, along z).
    sideways = normal[0].abs() > normal[2].abs()
    cos = of[_COS]
    sideways = torch.where(cos.abs() > 0.5, sideways, ~sideways)
    u = torch.where(level | ~sideways, px, pz) / period
    v = torch.where(level, pz, py) / period
    mix = torch.zeros_like(px)
    fu, fv = u - u.floor(), v - v.floor()
    half_u, half_v = fu < 0.5, fv < 0.5
    mix = torch.where(texture == CHECKS, (half_u ^ half_v).float(), mix)
    mix = torch.where(texture == STRIPES, half_u.float(), mix)
    grain = _wave(4 * u) * 0.35 + _wave(11 * u + 0.9 * _wave(0.7 * v + u)) * 0.35
    board = (u * 2.5 - (u * 2.5).floor() < 0.06).float() * 0.5
    mix = torch.where(texture == WOOD, grain + board, mix)
    specks = _wave(u * 1.7 + 0.6 * v) * _wave(v * 2.3 - 0.4 * u) * 0.6 + _wave(5.1 * u + 3.3 * v) * 0.4
    mix = torch.where(texture == SPECKLE, specks, mix)
    ring = (u * u + v * v) * 4
    mix = torch.where(
        texture == DIAL, (ring < 1).float() * 0.9 + ((ring > 1.3) & (ring < 1.7)).float() * 0.6, mix
    )
    line = torch.minimum(fu, fv)
    mix = torch.where(texture == PANELS, (line * period < 0.03).float() * 0.7, mix)
    ratio = footprint / period
    mix = mix / (1 + 1.5 * ratio * ratio)
    return tuple(_mixed(of[_R + k], of[_R2 + k], mix) for k in range(3))


def _mixed(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    return a + (b - a) * share


def _light(room: Room, point: Three, normal: Three, dark: Tensor) -> tuple[Tensor, ...]:
    """Irradiance per channel: the lamp with shadows, the window without, and an ambient term dimmed in corners."""
    (x, y, z), (nx, ny, nz) = point, normal
    w, h, d = room.size
    corner = torch.ones_like(x)
    for p, length, n in ((x, w, nx), (y, h, ny), (z, d, nz)):
        near = torch.minimum(p, length - p).clamp(min=0)
        # A surface does not dim itself: only what is near another surface loses light.
        near = near + n.abs() * 2
        corner = corner * (1 - 0.3 / (1 + 12 * near * near))
    ambient = (0.27 + 0.06 * ny) * corner

    lx, ly, lz = (light - p for light, p in zip(room.light, point, strict=True))
    square = lx * lx + ly * ly + lz * lz
    lamp = (nx * lx + ny * ly + nz * lz).clamp(min=0) / square.sqrt()
    lamp = lamp * (1.35 * room.power / (1 + 0.16 * square))
    lamp = torch.where(dark, lamp * 0.12, lamp)

    day = torch.zeros_like(x)
    if room.window is not None:
        wall, u0, u1, v0, v1 = room.window
        middle = [(u0 + u1) / 2, (v0 + v1) / 2, (u0 + u1) / 2]
        axis, inward = (
            (0, 1.0) if wall == 0 else (0, -1.0) if wall == 1 else (2, 1.0) if wall == 2 else (2, -1.0)
        )
        middle[axis] = 0.0 if inward > 0 else room.size[axis]
        ex, ey, ez = (m - p for m, p in zip(middle, point, strict=True))
        square = ex * ex + ey * ey + ez * ez + 0.05
        cosine = (nx * ex + ny * ey + nz * ez).clamp(min=0)
        spread = ((ex, ey, ez)[axis] * -inward).clamp(min=0)
        day = (u1 - u0) * (v1 - v0) * cosine * spread / square / (0.4 + square) * 2.2
    tints = zip(room.tint, (0.85, 0.95, 1.1), strict=True)
    return tuple(ambient + lamp * warm + day * cool for warm, cool in tints)


def _shadow(room: Room, point: Three, cameras: Sequence[Camera], size: int) -> Tensor:
    """Whether something stands between the lamp and the point."""
    x, y, z = (torch.tensor(v, dtype=torch.float32) for v in room.light)
    rays = Rays((x, y, z), (off_axis(point[0] - x), off_axis(point[1] - y), off_axis(point[2] - z)))
    dark = torch.zeros_like(point[0], dtype=torch.bool)
    parts = parts_of(shadow_boxes(room), cameras, size)
    for placed, part in zip(room.solids, parts, strict=True):
        if placed.casts and part is not None:
            entry, hit = meet(placed, rays, part)
            part.of(dark).logical_or_(hit & (entry > 0) & (entry < 0.985))
    return dark
