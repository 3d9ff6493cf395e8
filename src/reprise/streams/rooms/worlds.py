"""Rooms as a pack: worlds rendered once by worker processes, in the form that Taskonomy's own files take.

A world is a building. Those to train on, to choose settings by and to test on are numbered apart, so that asking for
more of one kind changes none of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from reprise.errors import InputError
from reprise.streams.cache import locked
from reprise.streams.rooms import VERSION, point_view, render, write_official
from reprise.streams.taskonomy.domains import DOMAINS
from reprise.streams.taskonomy.packing import agree, has_building, in_order, write_building

FIRST = {"train": 0, "validation": 100_000, "test": 200_000}
"""The number of the first world of each kind."""
SEED = 0
"""Of all worlds: rooms are data, the same for every experiment."""
LEAST_SIZE = 16
MOST_WORLDS = 100_000
"""Of a kind: more would be those of the next kind."""
MOST_PIXELS = 10**11
"""Of all views together: some terabytes of labels."""


@dataclass(frozen=True)
class Worlds:
    """How many worlds of each kind, their views, and the resolution."""

    counts: tuple[int, int, int]
    views: int
    size: int

    @staticmethod
    def parse(counts: str, views: int, size: int) -> Worlds:
        try:
            numbers = tuple(int(part) for part in counts.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) != 3 or min(numbers) < 1:
            raise InputError(
                f"buildings: {counts!a} are not three numbers of worlds (train, validation, test) above 0; "
                "write for example 24,6,6."
            )
        if size < LEAST_SIZE:
            raise InputError(f"size: {size} pixels are too few for a room; give {LEAST_SIZE} or more.")
        if max(numbers) > MOST_WORLDS or sum(numbers) * views * size**2 > MOST_PIXELS:
            raise InputError(
                f"buildings, views, size: {counts} worlds of {views} views at {size} pixels are more than "
                f"{MOST_WORLDS} of a kind or {MOST_PIXELS:.0e} pixels in all; ask for fewer."
            )
        return Worlds((numbers[0], numbers[1], numbers[2]), views, size)

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """By kind: the names of its worlds."""
        kinds = zip(FIRST, self.counts, strict=True)
        return {kind: tuple(f"{kind}-{i:04d}" for i in range(count)) for kind, count in kinds}

    @property
    def key(self) -> str:
        """What a world's bytes depend on; how many there are is no part of it."""
        text = f"{VERSION}/{SEED}/{self.size}/{self.views}"
        return f"rooms-{self.size}-" + hashlib.sha256(text.encode()).hexdigest()[:12]


def number_of(name: str) -> int:
    kind, _, index = name.rpartition("-")
    return FIRST[kind] + int(index)


def pack_worlds(
    worlds: Worlds, out: Path, workers: int, progress: Callable[[int, int], object] | None = None
) -> None:
    """Render into a pack what is not there yet; `progress` is told the worlds done and all of them."""
    names = [name for own in worlds.names.values() for name in own]
    if all(has_building(out, name) for name in names):
        return
    try:
        with locked(out):
            agree(out, worlds.size, tuple(DOMAINS.values()))
            missing = [name for name in names if not has_building(out, name)]
            done = len(names) - len(missing)
            with in_order(min(workers, max(1, len(missing)))) as run:
                for _ in run(partial(render_world, out=out, size=worlds.size, views=worlds.views), missing):
                    done += 1
                    if progress is not None:
                        progress(done, len(names))
    except OSError as error:
        raise InputError(
            f"{out} cannot be written ({error.strerror}); set REPRISE_CACHE to a folder with room."
        ) from error


def write_worlds(
    worlds: Worlds, folder: Path, workers: int, progress: Callable[[int, int], object] | None = None
) -> Path:
    """The worlds as files in the official layout, and the official form of their division; its path."""
    names = [name for own in worlds.names.values() for name in own]
    split = folder / "train_val_test_rooms.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with in_order(min(workers, len(names))) as run:
            one = partial(_write_world, folder=folder, size=worlds.size, views=worlds.views)
            for done, _ in enumerate(run(one, names), 1):
                if progress is not None:
                    progress(done, len(names))
        kinds = {name: kind for kind, own in worlds.names.items() for name in own}
        lines = [f"{name},{','.join(str(int(kinds[name] == kind)) for kind in FIRST)}" for name in names]
        split.write_text("\n".join(["id,train,val,test", *lines, ""]))
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}); name another folder.") from error
    return split


def _write_world(name: str, folder: Path, size: int, views: int) -> None:
    with one_thread():
        arrays = render(number_of(name), views, size, SEED)
    write_official(folder, name, arrays, [point_view(view) for view in range(views)])


@contextmanager
def one_thread() -> Iterator[None]:
    """Worker processes share the cores; small pictures gain nothing from more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def render_world(name: str, out: Path, size: int, views: int) -> None:
    """One world, rendered on one thread and put into the pack under its name once it is complete."""
    with one_thread():
        arrays = packed_form(render(number_of(name), views, size, SEED))
    write_building(out, name, [point_view(view) for view in range(views)], arrays, size)


def packed_form(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rendered arrays [n, h, w(, c)] as packs hold them: channels first, without those that carry nothing."""
    found = {}
    for name, domain in DOMAINS.items():
        array = arrays[name]
        if domain.length is not None:
            found[name] = array.reshape(len(array), domain.length).astype(domain.dtype)
            continue
        array = array[:, None] if array.ndim == 3 else np.moveaxis(array, -1, 1)
        found[name] = np.ascontiguousarray(array[:, : domain.channels]).astype(domain.dtype)
    return found
