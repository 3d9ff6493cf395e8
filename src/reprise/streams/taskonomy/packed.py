"""A pack as it is read: arrays on disk that are mapped into memory, one row a view (packing.py writes them)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reprise.errors import InputError
from reprise.streams.fetch import PathLike, listing, open_file, shown, some
from reprise.streams.pickles import DAMAGE
from reprise.streams.taskonomy.domains import DEPTH, DOMAINS, Domain, TaskonomyTask, find_tasks
from reprise.streams.taskonomy.layout import left_out, obstacle
from reprise.streams.taskonomy.targets import depth_mask, flip, target

FORMAT = 1
ABOUT, INDEX = "pack.json", "index.json"


@dataclass(frozen=True, eq=False)
class PackedBuilding:
    """One building of a pack: arrays[domain] is [views, ...], mapped, in the official dtype."""

    name: str
    folder: Path
    views: np.ndarray
    """int64 [n, 2]: point, view."""
    problems: Mapping[int, Mapping[str, str]]
    absent: Mapping[str, str]
    arrays: Mapping[str, np.ndarray]
    channel_sums: tuple[int, ...]
    sha256: Mapping[str, str]

    def obstacles(self, task: TaskonomyTask, masks: bool) -> list[str | None]:
        """For each view, why it cannot be used for the task."""
        common = obstacle(task, {}, self.absent, masks)  # most views have no problem of their own
        found = [common] * len(self.views)
        for row, own in self.problems.items():
            found[row] = obstacle(task, own, self.absent, masks)
        return found


class Packed:
    """The buildings of a pack as one table; a row is a view."""

    def __init__(self, size: int, domains: Sequence[str], buildings: Sequence[PackedBuilding]) -> None:
        self.size, self.domains, self.buildings = size, tuple(domains), tuple(buildings)
        self._starts = np.cumsum([0, *(len(building.views) for building in self.buildings)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def views(self) -> np.ndarray:
        """int64 [N, 3]: building, point, view. Views of one point show one place: split by point."""
        parts = [np.insert(building.views, 0, k, axis=1) for k, building in enumerate(self.buildings)]
        return np.concatenate(parts)

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for building in self.buildings for array in building.arrays.values())

    @property
    def fingerprint(self) -> str:
        """16 hex digits that tell this data from any other: part of an experiment's hash."""
        parts = [
            (b.name, sorted(b.sha256.items()), sorted((k, sorted(v.items())) for k, v in b.problems.items()))
            for b in self.buildings
        ]
        return hashlib.sha256(ascii((FORMAT, self.size, parts)).encode()).hexdigest()[:16]

    def rows(self, task: str, buildings: Iterable[str] | None = None, masks: bool = True) -> np.ndarray:
        """int64 [n]: the views usable for the task, of some buildings or of all."""
        spec = self._task(task, masks)
        wanted = {building.name for building in self.buildings} if buildings is None else set(buildings)
        if lacking := sorted(wanted - {building.name for building in self.buildings}):
            raise InputError(f"buildings: {some(lacking)} not in this pack; pack them first.")
        parts = [
            start + np.flatnonzero([found is None for found in building.obstacles(spec, masks)])
            for start, building in zip(self._starts, self.buildings, strict=False)
            if building.name in wanted
        ]
        return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)

    def _task(self, name: str, masks: bool) -> TaskonomyTask:
        (task,) = find_tasks([name])
        if lacking := [domain for domain in task.needs(masks) if domain not in self.domains]:
            raise InputError(
                f"tasks: {name} needs {some(lacking)}, not in this pack; pack for this task too."
            )
        return task

    def left_out(self, task: str, masks: bool = True) -> str | None:
        """The counted warning about views the task goes without; None when it has all."""
        spec = self._task(task, masks)
        return left_out(spec, [found for b in self.buildings for found in b.obstacles(spec, masks)])

    def take(self, domain: str, rows: np.ndarray) -> np.ndarray:
        """The official arrays of some rows, [n, ...], resized."""
        rows = np.asarray(rows)
        result = np.empty((len(rows), *DOMAINS[domain].shape(self.size)), DOMAINS[domain].dtype)
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        for owner in np.unique(owners):
            mine = owners == owner
            result[mine] = self.buildings[owner].arrays[domain][rows[mine] - self._starts[owner]]
        return result

    def batch(
        self, task: str, rows: np.ndarray, flipped: np.ndarray | None = None, masks: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """x uint8 [n, 3, size, size], and y and mask as `target` makes them; `flipped` [n] says which mirrored."""
        spec = self._task(task, masks)
        valid = depth_mask(self.take(DEPTH, rows)) if spec.masked and masks else None
        x, (y, mask) = self.take("rgb", rows), target(task, self.take(spec.domain, rows), valid)
        if flipped is not None and len(which := np.flatnonzero(flipped)):
            part = flip(x[which], y[which], None if mask is None else mask[which], task)
            x[which], y[which] = part[0], part[1]
            if mask is not None:
                mask[which] = part[2]
        return x, y, mask

    def channel_mean(self, buildings: Iterable[str] | None = None) -> tuple[float, ...]:
        """The mean of each colour over all images, 0..1."""
        chosen = [b for b in self.buildings if buildings is None or b.name in set(buildings)]
        images = sum(sum("rgb" not in b.problems.get(k, {}) for k in range(len(b.views))) for b in chosen)
        sums = np.array([b.channel_sums for b in chosen], np.float64).sum(0)
        return tuple(float(total) / max(images, 1) / self.size**2 / 255 for total in sums)

    def verify(self) -> list[str]:
        """Reads everything and returns a sentence for each array whose checksum is not the recorded one."""
        return [
            f"{shown(building.folder / f'{name}.npy')} is damaged (its checksum differs); "
            f"delete {building.name} and pack again."
            for building in self.buildings
            for name, recorded in building.sha256.items()
            if checksum(building.folder / f"{name}.npy") != recorded
        ]


def load_pack(out: PathLike, buildings: Iterable[str] | None = None) -> Packed:
    """Opens a pack without reading its arrays; `Packed.verify` compares them with their checksums."""
    folder = Path(out)
    if not os.path.lexists(folder / ABOUT):
        raise InputError(f"{shown(out)} holds no {ABOUT}; make a pack with `reprise data pack taskonomy`.")
    about = read_json(folder / ABOUT)
    if type(about.get("size")) is not int or not isinstance(about.get("domains"), list):
        raise InputError(f"{shown(folder / ABOUT)} lacks `size` or `domains`; delete it and pack again.")
    there = [name for name in listing(folder) if os.path.lexists(folder / name / INDEX)]
    names = there if buildings is None else sorted(set(buildings))
    if lacking := [name for name in names if name not in there]:
        raise InputError(f"{shown(out)} holds no {some(lacking)}; run `reprise data pack taskonomy` again.")
    if not names:
        raise InputError(f"{shown(out)} holds no complete building; run `reprise data pack taskonomy` again.")
    return Packed(about["size"], about["domains"], [_load_building(folder / name, about) for name in names])


def _load_building(folder: Path, about: Mapping[str, Any]) -> PackedBuilding:
    index = read_json(folder / INDEX)
    try:
        views = np.array(index["views"], np.int64).reshape(-1, 2)
        problems = {int(row): dict(found) for row, found in index["problems"].items()}
        absent, sums = dict(index["absent"]), dict(index["sha256"])
        arrays = {
            name: _map(folder / f"{name}.npy", DOMAINS[name], about["size"], len(views)) for name in sums
        }
        if index["size"] != about["size"] or {*sums, *absent} != set(about["domains"]):
            raise ValueError("another size or other domains than the pack's")
        if not all(0 <= row < len(views) for row in problems):
            raise ValueError("problems of views that it does not have")
        channels = tuple(int(value) for value in index["channel_sums"])
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(
            f"{shown(folder)} is not a sound part of this pack ({error!s:.120}); delete it and pack again."
        ) from error
    return PackedBuilding(folder.name, folder, views, problems, absent, arrays, channels, sums)


def _map(path: Path, domain: Domain, size: int, views: int) -> np.ndarray:
    with open_file(path):
        pass  # a regular file that is there: the sentence about another is better than numpy's
    array = np.lib.format.open_memmap(path, mode="r")
    if array.shape != (views, *domain.shape(size)) or array.dtype != np.dtype(domain.dtype):
        raise ValueError(f"{path.name} holds {array.dtype} {array.shape}")
    return array


def read_json(path: Path) -> dict[str, Any]:
    with open_file(path) as file:
        try:
            content = json.load(file)
        except (ValueError, OSError, RecursionError) as error:
            raise InputError(
                f"{shown(path)} is damaged ({error!s:.80}); delete it and pack again."
            ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{shown(path)} is not of format {FORMAT}; pack again into an empty folder.")
    return content


def checksum(path: Path) -> str:
    with open_file(path) as file:
        os.fsync(file.fileno())  # the content must reach the disk before the building's name does
        return hashlib.file_digest(file, "sha256").hexdigest()
