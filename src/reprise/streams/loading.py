"""How scene streams get their pack: rendered, packed from official folders, or simply opened."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reprise.errors import InputError
from reprise.machine import cores
from reprise.streams.cache import cache_folder, locked
from reprise.streams.fetch import shown
from reprise.streams.rooms.worlds import Worlds, pack_worlds
from reprise.streams.scenes import Scenes, divide_buildings
from reprise.streams.taskonomy.layout import building_names, find_root
from reprise.streams.taskonomy.packed import ABOUT, Packed, load_pack
from reprise.streams.taskonomy.packing import pack

READERS = 4
"""Threads that read ahead of a GPU, unless the user says otherwise."""

Tell = Callable[[str, int, int], object]
"""Called with what is being prepared, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Wanted:
    """What an experiment asks of its data; `workers` and `tell` change nothing of it."""

    size: int | None = None
    buildings: str | None = None
    views: int | None = None
    workers: int | None = None
    tell: Tell | None = field(default=None, compare=False)

    @property
    def processes(self) -> int:
        return self.workers or cores()

    @property
    def readers(self) -> int:
        return READERS if self.workers is None else self.workers

    def progress(self, what: str) -> Callable[[int, int], object]:
        return lambda done, total: self.tell(what, done, total) if self.tell else None


def load_rooms(wanted: Wanted) -> Scenes:
    """Render what the cache does not hold yet, and open it."""
    worlds = Worlds.parse(wanted.buildings or "48,8,8", wanted.views or 32, wanted.size or 64)
    out = cache_folder() / worlds.key
    pack_worlds(worlds, out, wanted.processes, wanted.progress("rendering rooms"))
    names = worlds.names
    return Scenes(
        load_pack(out, [name for own in names.values() for name in own]), "worlds", names, wanted.readers
    )


def load_taskonomy(data: Path, wanted: Wanted) -> Scenes:
    """Open a pack, or make one of the official folders first, in the cache."""
    size, how = wanted.size or 256, wanted.buildings or "auto"
    if wanted.views is not None:
        raise InputError("views: taskonomy has the views that are there; leave it out.")
    if os.path.lexists(data / ABOUT):
        packed = _open_pack(data, size)
        divided, parts = divide_buildings(how, (building.name for building in packed.buildings))
    else:
        root = find_root(data)
        divided, parts = divide_buildings(how, building_names(root))
        chosen = sorted({name for names in parts.values() for name in names}) or None
        out = cache_folder() / _pack_name(root, size)
        with locked(out):
            pack(root, out, size, chosen, workers=wanted.processes, progress=wanted.progress("packing"))
        packed = load_pack(out, chosen)
    if parts:
        packed = _only(packed, parts)
    return Scenes(packed, divided, parts, wanted.readers)


def _open_pack(folder: Path, size: int) -> Packed:
    packed = load_pack(folder)
    if packed.size != size:
        raise InputError(
            f"size: {size} was asked for, but {shown(folder)} is a pack of {packed.size} pixels; "
            f"give --size {packed.size}, or pack again."
        )
    return packed


def _only(packed: Packed, parts: dict[str, tuple[str, ...]]) -> Packed:
    """The buildings of a division and no others: the fingerprint is theirs."""
    wanted = {name for names in parts.values() for name in names}
    return Packed(packed.size, packed.domains, [b for b in packed.buildings if b.name in wanted])


def _pack_name(root: Path, size: int) -> str:
    """One pack for each folder and resolution."""
    return f"taskonomy-{size}-" + hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
