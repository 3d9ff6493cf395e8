"""Ray casting of a room, exact and batched: every ray against every solid, then one shading pass over the hits.

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
from reprise.streams.rooms.scene import FIELD_OF_VIEW, Camera, Placed, Room

SURFACES = 6
"""The rows of the room itself: x=0, x=size, floor, ceiling, z=0, z=size. Solids follow."""
WALL_ROWS = (0, 1, 4, 5)
"""The surface of each wall of `scene.WALLS`."""
FAR = 1e9

Three = tuple[Tensor, Tensor, Tensor]


class Hits(NamedTuple):
    """What the rays of some views meet; every tensor is [n, size, size]."""

    depth: Tensor
    """Along the optical axis, in metres."""
    missing: Tensor
    """The ray left through the window."""
    row: Tensor
    """Which surface or solid: an index into `Solids`' rows."""
    normal: Three
    """Unit, in camera coordinates (right, down, forward), towards the camera."""
    curvature: tuple[Tensor, Tensor]
    """The larger and the smaller principal curvature in 1/m, positive where the surface bulges to the outside."""
    facing: Tensor
    """Cosine between the normal and the direction to the camera."""
    rgb: Three
    """In [0, 1], as displayed."""


class _Rays(NamedTuple):
    origin: Three  # [n, 1, 1] each
    direction: Three  # [n, size, size] each


def cast(room: Room, cameras: Sequence[Camera], size: int) -> Hits:
    """Render the views of the given cameras."""
    axes = _axes(cameras)
    rays = _rays(cameras, axes, size)
    t, row = _first_hit(room, rays, _in_sight(room, cameras))
    ox, oy, oz = rays.origin
    dx, dy, dz = rays.direction
    point = (ox + t * dx, oy + t * dy, oz + t * dz)
    table = _table(room)
    local, normal, curvature = _geometry(table, row, point)
    length = (dx * dx + dy * dy + dz * dz).sqrt()
    facing = -(normal[0] * dx + normal[1] * dy + normal[2] * dz) / length
    missing, frame = _window(room, row, point)

    footprint = t * length * (2 * math.tan(math.radians(FIELD_OF_VIEW) / 2) / size) / facing.clamp(min=0.15)
    albedo = _albedo(table, row, local, normal, footprint)
    albedo = tuple(torch.where(frame, 0.85, channel) for channel in albedo)
    light = _light(room, point, normal, row)
    glow = table[row, _GLOW]
    exposure = _column([camera.exposure for camera in cameras])
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


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(np.array(values, np.float64), dtype=torch.float32).reshape(-1, 1, 1)


def _axes(cameras: Sequence[Camera]) -> tuple[Three, Three, Three]:
    """The cameras' right, down and forward directions in world coordinates."""
    rows = []
    for camera in cameras:
        cy, sy = math.cos(camera.yaw), math.sin(camera.yaw)
        cp, sp = math.cos(camera.pitch), math.sin(camera.pitch)
        rows.append((cy, 0.0, -sy, -sy * sp, -cp, -cy * sp, sy * cp, -sp, cy * cp))
    columns = [_column(values) for values in zip(*rows, strict=True)]
    return (
        (columns[0], columns[1], columns[2]),
        (columns[3], columns[4], columns[5]),
        (columns[6], columns[7], columns[8]),
    )


def _rays(cameras: Sequence[Camera], axes: tuple[Three, Three, Three], size: int) -> _Rays:
    """Rays through the pixels' middles. Their forward component is 1, so a ray's parameter is the depth."""
    edge = math.tan(math.radians(FIELD_OF_VIEW) / 2)
    grid = torch.tensor(((np.arange(size) + 0.5) / size * 2 - 1) * edge, dtype=torch.float32)
    x, y = grid.reshape(1, 1, -1), grid.reshape(1, -1, 1)
    right, down, forward = axes
    direction = [_off_axis(forward[k] + x * right[k] + y * down[k]) for k in range(3)]
    origin = (
        _column([c.x for c in cameras]),
        _column([c.y for c in cameras]),
        _column([c.z for c in cameras]),
    )
    return _Rays(origin, (direction[0], direction[1], direction[2]))


def _in_sight(room: Room, cameras: Sequence[Camera]) -> list[tuple[int, int]]:
    """For each solid the range of views outside which its bounding sphere is certainly not in the picture."""
    # Leaving out what no ray can meet changes no pixel.
    solids = np.array([(p.solid.x, p.solid.y, p.solid.z) for p in room.solids])
    reach = np.array([math.hypot(p.solid.hx, p.solid.hy, p.solid.hz) + 0.01 for p in room.solids])
    half = math.radians(FIELD_OF_VIEW) / 2
    cos, sin = math.cos(half), math.sin(half)
    seen = np.empty((len(solids), len(cameras)), bool)
    for number, camera in enumerate(cameras):
        q = solids - (camera.x, camera.y, camera.z)
        cy, sy, cp, sp = (f(a) for a in (camera.yaw, camera.pitch) for f in (math.cos, math.sin))
        right = q[:, 0] * cy - q[:, 2] * sy
        level = q[:, 0] * sy + q[:, 2] * cy
        down, forward = -q[:, 1] * cp - level * sp, level * cp - q[:, 1] * sp
        outside = np.maximum(np.abs(right), np.abs(down)) * cos - forward * sin
        seen[:, number] = (outside < reach) & (forward > -reach)
    first, last = seen.argmax(1), len(cameras) - seen[:, ::-1].argmax(1)
    return [(int(a), int(b)) if s else (0, 0) for a, b, s in zip(first, last, seen.any(1), strict=True)]


def _cut(three: Three, a: int, b: int) -> Three:
    return (three[0][a:b], three[1][a:b], three[2][a:b])


def _first_hit(room: Room, rays: _Rays, in_sight: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Ray parameter and row of the nearest hit."""
    dx, dy, dz = rays.direction
    inverse = (dx.reciprocal(), dy.reciprocal(), dz.reciprocal())
    walls = []
    for o, d, i, length in zip(rays.origin, rays.direction, inverse, room.size, strict=True):
        walls.append(torch.where(d > 0, (length - o) * i, -o * i))
    t = torch.minimum(torch.minimum(walls[0], walls[1]), walls[2])
    # Rows 0/1, 2/3, 4/5 are the lower and upper side of x, y and z.
    row = torch.where(
        t == walls[0], (dx > 0).int(), torch.where(t == walls[1], 2 + (dy > 0).int(), 4 + (dz > 0).int())
    )
    frames = _Frames(rays.origin, rays.direction, inverse)
    for number, (placed, (a, b)) in enumerate(zip(room.solids, in_sight, strict=True), start=SURFACES):
        if a == b:
            continue
        entry, hit = _meet(placed, *(_cut(three, a, b) for three in frames.of(placed)))
        nearest = t[a:b]
        nearer = hit & (entry > 0.02) & (entry < nearest)
        nearest.copy_(torch.where(nearer, entry, nearest))
        row[a:b].masked_fill_(nearer, number)
    return t, row.long()


class _Frames:
    """Rays as seen from turned solids; those of one angle share theirs."""

    def __init__(self, origin: Three, direction: Three, inverse: Three) -> None:
        self.straight = (origin, direction, inverse)
        self.turned: dict[tuple[float, float], tuple[Three, Three, Three]] = {}

    def of(self, placed: Placed) -> tuple[Three, Three, Three]:
        """Origin, direction and inverse direction in the frame in which the solid is aligned with the axes."""
        c, s = key = (placed.cos, placed.sin)
        if c * s == 0 or placed.solid.shape != BOX:
            return self.straight
        if key not in self.turned:
            (ox, oy, oz), (dx, dy, dz), (_, iy, _) = self.straight
            d0, d2 = _off_axis(c * dx - s * dz), _off_axis(s * dx + c * dz)
            o = (c * ox - s * oz, oy, s * ox + c * oz)
            self.turned[key] = (o, (d0, dy, d2), (d0.reciprocal(), iy, d2.reciprocal()))
        return self.turned[key]


def _off_axis(d: Tensor) -> Tensor:
    """A direction that is exactly parallel to a face would divide by 0 there."""
    return torch.where(d.abs() < 1e-6, 1e-6, d)


def _meet(placed: Placed, origin: Three, direction: Three, inverse: Three) -> tuple[Tensor, Tensor]:
    """Where the rays (in the frame of `_Frames.of`) enter a solid, and whether they do."""
    solid, (c, s) = placed.solid, (placed.cos, placed.sin)
    if solid.shape == SPHERE:
        return _meet_sphere(solid, origin, direction)
    if solid.shape == CYLINDER:
        return _meet_cylinder(solid, origin, direction, inverse)
    if c * s == 0:
        x, z = solid.x, solid.z
        hx, hz = (solid.hz, solid.hx) if c == 0 else (solid.hx, solid.hz)
    else:
        x, z = c * solid.x - s * solid.z, s * solid.x + c * solid.z
        hx, hz = solid.hx, solid.hz
    slabs = []
    for o, i, middle, half in zip(origin, inverse, (x, solid.y, z), (hx, solid.hy, hz), strict=True):
        # Through the near face and out of the far one: (middle ∓ half - o) / direction, in order.
        at, reach = (middle - o) * i, half * i.abs()
        slabs.append((at - reach, at + reach))
    near = torch.maximum(torch.maximum(slabs[0][0], slabs[1][0]), slabs[2][0])
    far = torch.minimum(torch.minimum(slabs[0][1], slabs[1][1]), slabs[2][1])
    return near, near < far


def _meet_sphere(solid: Solid, origin: Three, direction: Three) -> tuple[Tensor, Tensor]:
    (ox, oy, oz), (dx, dy, dz) = origin, direction
    px, py, pz = ox - solid.x, oy - solid.y, oz - solid.z
    a = dx * dx + dy * dy + dz * dz
    b = px * dx + py * dy + pz * dz
    c = px * px + py * py + pz * pz - solid.hx**2
    inside = b * b - a * c
    return (-b - inside.clamp(min=0).sqrt()) / a, inside > 0


def _meet_cylinder(solid: Solid, origin: Three, direction: Three, inverse: Three) -> tuple[Tensor, Tensor]:
    """An upright capped cylinder: an infinite round one and a slab."""
    (ox, oy, oz), (dx, _, dz) = origin, direction
    px, pz = ox - solid.x, oz - solid.z
    a = dx * dx + dz * dz
    b = px * dx + pz * dz
    c = px * px + pz * pz - solid.hx**2
    inside = b * b - a * c
    root = inside.clamp(min=0).sqrt()
    middle, half = (solid.y - oy) * inverse[1], solid.hy * inverse[1].abs()
    near = torch.maximum((-b - root) / a, middle - half)
    far = torch.minimum((-b + root) / a, middle + half)
    return near, (inside > 0) & (near < far)


_COLUMNS = 22
_SHAPE, _X, _Y, _Z, _HX, _HY, _HZ, _COS, _SIN, _SIGN, _R, _R2, _TEXTURE, _PERIOD, _GLOW, _CURVE = (
    *(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 17, 18, 19),
)


def _table(room: Room) -> Tensor:
    """A row of numbers for every surface and solid, gathered by the pixels that see it."""
    w, h, d = room.size
    rows = []
    for look in room.surfaces:
        inside = Solid(BOX, w / 2, h / 2, d / 2, w / 2, h / 2, d / 2, look)
        rows.append(_table_row(inside, look, 1.0, 0.0, -1.0))
    rows += [_table_row(p.solid, p.solid.look, p.cos, p.sin, 1.0) for p in room.solids]
    return torch.tensor(np.array(rows), dtype=torch.float32)


def _table_row(solid: Solid, look: Look, cos: float, sin: float, sign: float) -> list[float]:
    bend = 0.0 if solid.shape == BOX else 1 / solid.hx
    # Albedo is linear: the square of the displayed colour, as the display's gamma is 2.
    colours = [c * c for c in (*look.colour, *look.other)]
    shape = [float(solid.shape), solid.x, solid.y, solid.z, solid.hx, solid.hy, solid.hz, cos, sin, sign]
    return [*shape, *colours, float(look.texture), look.period, look.glow, bend]


def _geometry(table: Tensor, row: Tensor, point: Three) -> tuple[Three, Three, tuple[Tensor, Tensor]]:
    """Hit points in the solids' own frames, normals in world coordinates, and principal curvatures."""
    shape, cos, sin, sign = (table[:, k][row] for k in (_SHAPE, _COS, _SIN, _SIGN))
    qx, py, qz = (p - table[:, k][row] for p, k in zip(point, (_X, _Y, _Z), strict=True))
    px, pz = cos * qx - sin * qz, sin * qx + cos * qz
    hx, hy, hz = (table[:, k][row] for k in (_HX, _HY, _HZ))
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
    bend = table[:, _CURVE][row]
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


def _albedo(table: Tensor, row: Tensor, local: Three, normal: Three, footprint: Tensor) -> tuple[Tensor, ...]:
    """Linear colours: two colours mixed by a texture that fades where a pixel covers more than its period."""
    (px, py, pz), texture = local, table[:, _TEXTURE][row]
    period = table[:, _PERIOD][row]
    level = normal[1].abs() > 0.7
    # u runs along the face, v up it (or, on level faces, along z).
    sideways = normal[0].abs() > normal[2].abs()
    cos = table[:, _COS][row]
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
    return tuple(_mixed(table[:, _R + k][row], table[:, _R2 + k][row], mix) for k in range(3))


def _mixed(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    return a + (b - a) * share


def _light(room: Room, point: Three, normal: Three, row: Tensor) -> tuple[Tensor, ...]:
    """Irradiance per channel: the lamp with shadows, the window without, and an ambient term dimmed in corners."""
    (x, y, z), (nx, ny, nz) = point, normal
    w, h, d = room.size
    corner = torch.ones_like(x)
    for p, length, n in ((x, w, nx), (y, h, ny), (z, d, nz)):
        near = torch.minimum(p, length - p).clamp(min=0)
        # A surface does not dim itself: only what is near another surface loses light.
        near = near + n.abs() * 2
        corner = corner * (1 - 0.3 / (1 + 12 * near * near))
    ambient = (0.42 + 0.1 * ny) * corner

    lx, ly, lz = (light - p for light, p in zip(room.light, point, strict=True))
    square = lx * lx + ly * ly + lz * lz
    lamp = (nx * lx + ny * ly + nz * lz).clamp(min=0) / square.sqrt()
    lamp = lamp * (1.9 * room.power / (1 + 0.16 * square))
    lamp = torch.where(_shadow(room, point), lamp * 0.12, lamp)

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


def _shadow(room: Room, point: Three) -> Tensor:
    """Whether something stands between the lamp and the point."""
    lx, ly, lz = room.light
    origin = tuple(torch.tensor(v, dtype=torch.float32) for v in (lx, ly, lz))
    direction = tuple(_off_axis(p - v) for p, v in zip(point, room.light, strict=True))
    inverse = tuple(v.reciprocal() for v in direction)
    dark = torch.zeros_like(point[0], dtype=torch.bool)
    frames = _Frames(origin, direction, inverse)  # type: ignore[arg-type]
    for placed in room.solids:
        if placed.casts:
            entry, hit = _meet(placed, *frames.of(placed))
            dark |= hit & (entry > 0) & (entry < 0.985)
    return dark
