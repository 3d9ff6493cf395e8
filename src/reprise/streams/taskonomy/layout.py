"""The official folders, read strictly: which views a building has, one view decoded, which tasks it serves.

A view of a domain is there (an array) or has a problem, a sentence that begins with its kind: `missing`,
`unreadable` (a damaged file), `mismatching` (a sound file that is not what the domain holds) or `empty` (a label
nothing of which can enter a loss). A problem with a label costs the tasks that need it this view, nothing more.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from reprise.errors import InputError
from reprise.streams.fetch import PathLike, listing, locate, open_file, shown, some
from reprise.streams.files import MAX_PIXELS
from reprise.streams.pickles import DAMAGE
from reprise.streams.taskonomy.domains import DEPTH, LARGEST_SEGMENT, SCENE_CLASSES, Domain, TaskonomyTask
from reprise.streams.taskonomy.resize import resize
from reprise.streams.taskonomy.targets import depth_mask, probabilities

MIDDLE = "taskonomy"  # the level between domain and building that the official download tool makes
GET_TASKONOMY = "put <domain>/taskonomy/<building>/point_*_view_*_domain_*.png of the official download there"
MISSING = "missing"
DEFECTS = ("unreadable", "mismatching")  # kinds of problems that a sound copy does not have
MAX_BYTES = 1 << 28
PNG = b"\x89PNG\r\n\x1a\n"
MODES = {
    "RGB": ("RGB",),
    "I;16": ("I;16", "I"),
    "L": ("L",),
}  # before version 11, Pillow opened 16 bits as "I"
LEAST_SCENE_MASS = 1e-6  # below it, what remains of 365 probabilities after keeping 63 is rounding

View = tuple[int, int]
"""A point and the number of a view of it."""


@dataclass(frozen=True)
class Building:
    """What is there of a building: the views that have an image, and where each domain's files are."""

    name: str
    views: tuple[View, ...]
    """In the order of points and views."""
    folders: Mapping[str, Path]
    files: Mapping[str, frozenset[View]]
    absent: Mapping[str, str]
    """Domains of which there is no file at all, and why."""
    without_image: int
    """Views that have labels but no image."""


def find_root(folder: PathLike) -> Path:
    """The folder that holds the domains' folders: `folder` itself or `taskonomy` in it."""
    return locate(folder, MIDDLE, ("rgb",), GET_TASKONOMY)


def building_names(root: Path) -> list[str]:
    """Every building with a folder of images, in either layout."""
    found: set[str] = set()
    for parent in (root / "rgb", root / "rgb" / MIDDLE):
        if parent.name != MIDDLE or os.path.isdir(parent):
            found |= {name for name in listing(parent) if os.path.isdir(parent / name)}
    if not (names := sorted(found - {MIDDLE})):
        raise InputError(f"{shown(root / 'rgb')} holds no buildings; {GET_TASKONOMY}.")
    return names


def choose_buildings(root: Path, wanted: Iterable[str] | None) -> list[str]:
    """The wanted buildings, sorted, all of which must be there; every one that is there when none is named."""
    known = building_names(root)
    names = known if wanted is None else sorted(set(wanted))
    if lacking := [name for name in names if name not in known]:
        raise InputError(f"buildings: {some(lacking)} not found in {shown(root)}; it holds {some(known)}.")
    return names


def scan(root: Path, name: str, domains: Iterable[Domain]) -> Building:
    """Lists a building's files, `<domain>/taskonomy/<building>/` before `<domain>/<building>/`; opens none."""
    folders: dict[str, Path] = {}
    files: dict[str, frozenset[View]] = {}
    absent: dict[str, str] = {}
    for domain in domains:
        official = root / domain.name / MIDDLE / name
        folder = official if os.path.lexists(official) else root / domain.name / name
        found: frozenset[View] = frozenset()
        try:
            found = _views(domain, listing(folder))
            absent |= {} if found else {domain.name: MISSING}
        except InputError as error:
            if domain.name == "rgb":
                raise
            absent[domain.name] = f"unreadable: {_why(error)}" if os.path.lexists(folder) else MISSING
        if found:
            folders[domain.name], files[domain.name] = folder, found
    images = files.get("rgb", frozenset())
    labelled = frozenset().union(*files.values()) if files else images
    return Building(name, tuple(sorted(images)), folders, files, absent, len(labelled - images))


def _views(domain: Domain, names: Iterable[str]) -> frozenset[View]:
    # No leading zeros: two names of one view would be two truths about it.
    number = r"(0|[1-9]\d{0,8})"
    form = re.compile(rf"point_{number}_view_{number}_domain_{domain.suffix}\.{domain.extension}")
    matches = (form.fullmatch(name) for name in names)
    return frozenset((int(found[1]), int(found[2])) for found in matches if found)


def decode(path: PathLike, domain: Domain) -> np.ndarray | str:
    """One file in its own resolution, [channels, h, w] or [length], or the sentence that says what is wrong."""
    if not os.path.lexists(path):
        return MISSING
    try:
        with open_file(path) as file:
            content = file.read(MAX_BYTES)
        if not content:
            return "unreadable: it holds no bytes"
        return _vector(content, domain) if domain.mode == "npy" else _picture(content, domain)
    except struct.error:
        return "unreadable: it ends too early"
    except (*DAMAGE, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return f"unreadable: {_why(error)}"


def _why(error: BaseException) -> str:
    """The reason without the path: a pack of the same files must not depend on where they were."""
    cause = error.__cause__ or error
    return ascii(getattr(cause, "strerror", None) or str(cause) or type(cause).__name__)[1:-1][:120]


def _require_chunks(content: bytes) -> None:
    """Compares every chunk of a PNG with its checksum up to the last one, which Pillow does not."""
    if not content.startswith(PNG):
        raise ValueError("it is no PNG")
    position, kind = len(PNG), b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", content, position)
        (recorded,) = struct.unpack_from(">I", content, position + 8 + length)
        if zlib.crc32(content[position + 4 : position + 8 + length]) != recorded:
            raise ValueError(f"the checksum at byte {position} differs")
        position += 12 + length


def _picture(content: bytes, domain: Domain) -> np.ndarray | str:
    _require_chunks(content)
    # Only PNG: some of Pillow's other decoders start programs.
    picture = Image.open(io.BytesIO(content), formats=("PNG",))
    width, height = picture.size
    if width != height or not 0 < width * height <= MAX_PIXELS:
        return f"mismatching: {width} x {height} pixels is not a square picture"
    if picture.mode not in MODES[domain.mode]:
        return f"mismatching: a picture of mode {picture.mode}, not {domain.mode}"
    pixels = np.asarray(picture).astype(domain.dtype)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if domain.name == "segment_semantic" and pixels.max() > LARGEST_SEGMENT:
        return f"mismatching: it holds class {pixels.max()}, the largest is {LARGEST_SEGMENT}"
    return np.ascontiguousarray(pixels[: domain.channels])


def _vector(content: bytes, domain: Domain) -> np.ndarray | str:
    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if array.shape not in ((domain.length,), (1, domain.length)) or array.dtype.kind != "f":
        return f"mismatching: it holds {array.dtype} {array.shape}, not float ({domain.length},)"
    with np.errstate(over="ignore"):
        values = array.reshape(-1).astype(np.float32)
    if not np.isfinite(values).all():
        return f"mismatching: {(~np.isfinite(values)).sum()} of {values.size} values are not finite"
    return values


def read_view(
    building: Building, view: View, domains: Iterable[Domain], size: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str], int | None]:
    """A view's arrays by domain, the problems of the others, and its image's size in the files.

    Arrays are resized to `size`, or kept as they are. Domains absent from the whole building are in neither.
    """
    arrays: dict[str, np.ndarray] = {}
    problems: dict[str, str] = {}
    pixels: int | None = None
    for domain in sorted(
        domains, key=lambda domain: domain.name != "rgb"
    ):  # the image first: it sets the size
        if domain.name in building.absent:
            continue
        found = decode(building.folders[domain.name] / domain.filename(*view), domain)
        if not isinstance(found, str) and found.ndim == 3:
            pixels = found.shape[-1] if domain.name == "rgb" else pixels
            found = _sized(found, domain, pixels, size)
        if not isinstance(found, str) and (why := nothing(found, domain)):
            found = why
        if isinstance(found, str):
            problems[domain.name] = found
        else:
            arrays[domain.name] = found
    return arrays, problems, pixels


def _sized(array: np.ndarray, domain: Domain, pixels: int | None, size: int | None) -> np.ndarray | str:
    own = array.shape[-1]
    if pixels is not None and own != pixels:
        return f"mismatching: {own} x {own} pixels, but its image has {pixels} x {pixels}"
    if size is not None and own < size:
        return f"mismatching: {own} x {own} pixels cannot be enlarged to {size} x {size}"
    return array if size is None else resize(array, domain, size)


def nothing(array: np.ndarray, domain: Domain) -> str | None:
    """Why no part of this label could enter a loss."""
    if domain.name == DEPTH and not depth_mask(array[None]).any():
        return "empty: no pixel has a depth"
    if domain.name == "segment_semantic" and not array.any():
        return "empty: every pixel is uncertain"
    if domain.mode == "npy" and array.min() == array.max():
        return "empty: all classes have the same value"
    if domain.name == "class_scene":
        mass = probabilities(array[None])[:, list(SCENE_CLASSES)].sum()
        if mass < LEAST_SCENE_MASS:
            return f"empty: no probability on the {len(SCENE_CLASSES)} scene classes"
    return None


def obstacle(
    task: TaskonomyTask, problems: Mapping[str, str], absent: Mapping[str, str], masks: bool = True
) -> str | None:
    """Why a view cannot be used for the task: the first domain it needs and lacks."""
    for name in task.needs(masks):
        if state := absent.get(name) or problems.get(name):
            return f"{name} {state}"
    return None


def left_out(task: TaskonomyTask, obstacles: Sequence[str | None]) -> str | None:
    """The counted warning about a task's views, given each view's obstacle; None when all can be used."""
    counts = Counter(found.split(":")[0] for found in obstacles if found)
    if not counts:
        return None
    why = some(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{task.name}: {sum(counts.values())} of {len(obstacles)} views left out ({why})"
