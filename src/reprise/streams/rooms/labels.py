"""The official formats of the 12 domains, from what the rays met.

Depth, normals, curvatures, reshading and segmentation are exact up to the format's own rounding. Edges and keypoints
are filters on the clean render; their widths are shares of the image's size, and their scales were chosen so that
means and maxima are of the order of the official files' (Taskonomy's `cauthron`).

- `edge_texture`: length of the gradient of the grey image, smoothed first by a Gaussian of size / `SHARP`.
- `edge_occlusion`: second differences of the inverse depth, which vanish on planes, relative to the inverse depth;
  smoothed by a Gaussian of size / 128.
- `keypoints2d`: structure tensor of the grey image, smoothed the same, over a Gaussian of size / 80; the root of its
  determinant over its trace (Harris, in Noble's form).
- `keypoints3d`: the same for the normals and the inverse depth together, over a Gaussian of size / 40.

Curvature codes are 127 + 12.7 k for a curvature k in 1/m, clipped at ±10/m; the larger one is in R.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from reprise.streams.rooms.furniture import Piece
from reprise.streams.rooms.kinds import KINDS
from reprise.streams.rooms.rays import SURFACES
from reprise.streams.rooms.render import Hits
from reprise.streams.rooms.room import Room
from reprise.streams.taskonomy.domains import SCENE_CLASSES

DEPTH_UNITS = 512
MISSING_DEPTH = 65535
MISSING_SHADE = 13
CURVATURE_CODES = 12.7
"""Codes per 1/m."""
SHARP = 128
"""Filters start from images smoothed by a Gaussian of 1/128 of the size: half a pixel at 64, two at 256."""

STRUCTURE_OBJECTS = (799, 904, 905)
"""ImageNet's sliding door, window screen and window shade: what is left when no furniture is in sight."""


def domains(room: Room, hits: Hits) -> dict[str, np.ndarray]:
    """All 12 domains of the views, in the official formats with the views leading."""
    grey = 0.299 * hits.rgb[0] + 0.587 * hits.rgb[1] + 0.114 * hits.rgb[2]
    shares = _shares(room, hits)
    return {
        "rgb": _bytes(torch.stack(hits.rgb, -1) * 255),
        "depth_zbuffer": _words(
            torch.where(hits.missing, MISSING_DEPTH, (hits.depth * DEPTH_UNITS).clamp(1, 60000))
        ),
        "normal": _bytes(_masked(hits, torch.stack(hits.normal, -1) * 127.5 + 127.5, 128)),
        "principal_curvature": _curvature(hits),
        "reshading": _reshading(hits),
        "edge_occlusion": _occlusion(hits),
        "edge_texture": _texture(grey),
        "keypoints2d": _words((_corners([grey], 80) * 2600).clamp(max=65535)),
        "keypoints3d": _keypoints3d(hits),
        "segment_semantic": _segments(room, hits),
        "class_object": _objects(room, shares),
        "class_scene": _scene(room, shares),
    }


def _bytes(x: Tensor) -> np.ndarray:
    return x.round().clamp(0, 255).to(torch.uint8).numpy()


def _words(x: Tensor) -> np.ndarray:
    return x.round().to(torch.int32).numpy().astype(np.uint16)


def _masked(hits: Hits, x: Tensor, code: int) -> Tensor:
    return torch.where(hits.missing[..., None], code, x)


def _curvature(hits: Hits) -> np.ndarray:
    codes = [(127 + CURVATURE_CODES * k).clamp(1, 254) for k in hits.curvature]
    return _bytes(_masked(hits, torch.stack((*codes, torch.zeros_like(codes[0])), -1), 0))


def _reshading(hits: Hits) -> np.ndarray:
    """The bare geometry lit by a lamp at the camera: the cosine between normal and ray."""
    value = MISSING_SHADE + (242 - MISSING_SHADE) * hits.facing.clamp(0, 1)
    value = torch.where(hits.missing, MISSING_SHADE, value)
    return np.repeat(_bytes(value)[..., None], 3, -1)


def _shift(x: Tensor, rows: int, columns: int) -> Tensor:
    """The image moved; what is beyond the border repeats it. [n, h, w]"""
    for axis, by in ((1, rows), (2, columns)):
        size = x.shape[axis]
        if by > 0:
            x = torch.cat((x.narrow(axis, by, size - by), *[x.narrow(axis, size - 1, 1)] * by), axis)
        elif by < 0:
            x = torch.cat((*[x.narrow(axis, 0, 1)] * -by, x.narrow(axis, 0, size + by)), axis)
    return x


def _blur(x: Tensor, sigma: float) -> Tensor:
    """A separable Gaussian, summed tap by tap in a fixed order."""
    reach = max(1, math.ceil(2.5 * sigma))
    weights = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(reach + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    for axis in (1, 2):
        size = x.shape[axis]
        # Two slices of one padded copy are cheaper than two shifted copies.
        first, last = x.narrow(axis, 0, 1), x.narrow(axis, size - 1, 1)
        padded = torch.cat((*[first] * reach, x, *[last] * reach), axis)
        out = x * (weights[0] / total)
        for i in range(1, reach + 1):
            pair = padded.narrow(axis, reach - i, size) + padded.narrow(axis, reach + i, size)
            out = out + pair * (weights[i] / total)
        x = out
    return x


def _gradient(x: Tensor) -> tuple[Tensor, Tensor]:
    """Central differences per 1/64 of the image, along rows and along columns."""
    scale = x.shape[1] / 64 / 2
    return (_shift(x, 0, 1) - _shift(x, 0, -1)) * scale, (_shift(x, 1, 0) - _shift(x, -1, 0)) * scale


def _texture(grey: Tensor) -> np.ndarray:
    gx, gy = _gradient(_blur(grey, grey.shape[1] / SHARP))
    return _words(((gx * gx + gy * gy).sqrt() * 14000).clamp(max=65535))


def _inverse_depth(hits: Hits) -> Tensor:
    return torch.where(hits.missing, 0.02, 1 / hits.depth)


def _occlusion(hits: Hits) -> np.ndarray:
    q = _inverse_depth(hits)
    size = q.shape[1]
    across = (_shift(q, 0, 1) + _shift(q, 0, -1) - 2 * q).abs()
    along = (_shift(q, 1, 0) + _shift(q, -1, 0) - 2 * q).abs()
    jump = ((across + along) / q - 0.01).clamp(0, 1)
    return _words((_blur(jump, size / 128) * (600 * size / 64)).clamp(max=65535))


def _corners(images: list[Tensor], width: float) -> Tensor:
    """Root of the structure tensor's determinant over its trace: strong where the image changes both ways."""
    size = images[0].shape[1]
    xx = xy = yy = torch.zeros_like(images[0])
    for image in images:
        gx, gy = _gradient(_blur(image, size / SHARP))
        xx, xy, yy = xx + gx * gx, xy + gx * gy, yy + gy * gy
    xx, xy, yy = (_blur(t, size / width) for t in (xx, xy, yy))
    return ((xx * yy - xy * xy).clamp(min=0) / (xx + yy + 1e-4)).sqrt()


def _keypoints3d(hits: Hits) -> np.ndarray:
    q = _inverse_depth(hits)
    normals = [torch.where(hits.missing, 0.0, n) for n in hits.normal]
    response = _corners([*normals, 2 * q], 40)
    return _words(((response - 0.05).clamp(min=0) * 60000).clamp(max=65535))


def _segments(room: Room, hits: Hits) -> np.ndarray:
    """Class indices; a thin line along every boundary is 0, uncertain."""
    table = torch.tensor(
        [1] * SURFACES + [room.pieces[p.piece].segment for p in room.solids], dtype=torch.uint8
    )
    label = torch.where(
        hits.missing, 1, table.index_select(0, hits.row.reshape(-1)).reshape(hits.row.shape)
    ).to(torch.uint8)
    width = max(1, round(label.shape[1] / 128))
    edge = torch.zeros_like(label, dtype=torch.bool)
    for step in range(1, width + 1):
        edge |= (_shift(label, 0, step) != label) | (_shift(label, step, 0) != label)
    return torch.where(edge, 0, label).to(torch.uint8).numpy()


def _shares(room: Room, hits: Hits) -> np.ndarray:
    """[n, pieces + 1] share of the image, the middle counting more, that each piece and the bare room cover."""
    n, size = hits.row.shape[:2]
    pieces = len(room.pieces)
    owner = torch.tensor([pieces] * SURFACES + [p.piece for p in room.solids])
    ramp = 1 + torch.minimum(torch.arange(size), torch.arange(size).flip(0))
    weight = (ramp.reshape(1, -1, 1) * ramp.reshape(1, 1, -1)).expand(n, -1, -1)
    cell = owner.index_select(0, hits.row.reshape(-1)).reshape(hits.row.shape) + (pieces + 1) * torch.arange(
        n
    ).reshape(-1, 1, 1)
    # Integers, so that the sums do not depend on their order.
    counts = torch.bincount(cell.flatten(), weight.flatten().double(), minlength=n * (pieces + 1))
    return counts.reshape(n, -1).numpy() / float(ramp.sum().item()) ** 2


def _objects(room: Room, shares: np.ndarray) -> np.ndarray:
    """[n, 1000] probabilities: what covers more of the middle is likelier; a piece's classes share 6 : 3 : 1."""
    out = np.full((len(shares), 1000), 0.05 / 1000)
    score = shares[:, :-1] ** 1.5
    structure = 0.002 + 0.01 * shares[:, -1] ** 1.5
    total = score.sum(1) + structure
    for k, piece in enumerate(room.pieces):
        _spread(out, piece, score[:, k] / total)
    for index in STRUCTURE_OBJECTS:
        out[:, index] += 0.95 * structure / total / len(STRUCTURE_OBJECTS)
    return (out / out.sum(1, keepdims=True)).astype(np.float32)


def _spread(out: np.ndarray, piece: Piece, share: np.ndarray) -> None:
    parts = (6.0, 3.0, 1.0, 1.0)[: len(piece.objects)]
    for index, part in zip(piece.objects, parts, strict=True):
        out[:, index] += 0.95 * share * part / sum(parts)


def _scene(room: Room, shares: np.ndarray) -> np.ndarray:
    """[n, 365] probabilities: the room's kind, the surer the more furniture is in sight, and kinds like it."""
    kind = KINDS[room.kind]
    sure = 0.55 + 0.37 * np.minimum(1, (1 - shares[:, -1]) / 0.3)
    out = np.zeros((len(shares), 365))
    out[:, SCENE_CLASSES] = 0.03 / len(SCENE_CLASSES)
    out[:, kind.scene] += sure
    for index in kind.alike:
        out[:, index] += (0.97 - sure) / len(kind.alike)
    return (out / out.sum(1, keepdims=True)).astype(np.float32)
