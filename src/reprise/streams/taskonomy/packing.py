"""A folder of Taskonomy, decoded and resized once: arrays on disk that are mapped into memory.

    OUT/pack.json               resolution and domains, the same for all buildings
    OUT/<building>/index.json   views, problems, sizes in the files, the checksum of every array
    OUT/<building>/<domain>.npy one row a view, resized, in the official dtype

A building appears under its name when it is complete. What an interrupted run leaves of one is called
`.<building>.part` and is done anew; complete buildings are not touched. The bytes depend on the files alone, not
on the number of workers. Two runs must not write into one folder at the same time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any

import numpy as np

from reprise.errors import InputError
from reprise.streams.fetch import PathLike, listing, shown, some
from reprise.streams.taskonomy.domains import (
    DOMAINS,
    Domain,
    domains_of,
    find_tasks,
)
from reprise.streams.taskonomy.layout import (
    Building,
    View,
    choose_buildings,
    decode,
    find_root,
    nothing,
    read_view,
    scan,
)
from reprise.streams.taskonomy.packed import ABOUT, FORMAT, INDEX, checksum, load_pack, read_json

CHUNK = 16  # views decoded by one job of a worker

Progress = Callable[[int, int], object]
"""Called with the views done so far and all of them."""


@dataclass(frozen=True)
class Summary:
    """What a call of `pack` did."""

    packed: tuple[str, ...]
    already: tuple[str, ...]
    """Buildings that were complete before."""
    views: int
    bytes: int
    warnings: tuple[str, ...]
    """How many views each task goes without, and why; one sentence each."""


def pack(
    folder: PathLike,
    out: PathLike,
    size: int = 256,
    buildings: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Summary:
    """Packs the buildings for the tasks (all of either by default); call it again to go on where it stopped."""
    if size < 1 or workers < 1:
        raise InputError(f"size {size} and workers {workers} must be positive numbers.")
    wanted = find_tasks(tasks)
    domains, target_folder = domains_of(wanted), Path(out)
    root = find_root(folder)
    found = [scan(root, name, domains) for name in choose_buildings(root, buildings)]
    if barren := [building.name for building in found if not building.views]:
        raise InputError(f"{some(barren)} holds no image in {shown(root)}; leave it out with `buildings`.")
    for building in found:
        _require_size(building, size)
    done, total = 0, sum(len(building.views) for building in found)
    packed, already = [], []
    try:
        agree(target_folder, size, domains)
        with in_order(workers) as run:
            for building in found:
                if _complete(target_folder / building.name, building):
                    already.append(building.name)
                    done += len(building.views)
                    continue
                for count in _pack_building(building, target_folder, size, domains, run):
                    done += count
                    if progress:
                        progress(done, total)
                packed.append(building.name)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputError(f"{shown(out)} cannot be written ({why}); free or choose another folder.") from error
    except BrokenProcessPool as error:
        raise InputError("workers: one was killed, perhaps for memory; run this again with fewer.") from error
    result = load_pack(out, [building.name for building in found])
    lines = [line for task in wanted if (line := result.left_out(task.name))]
    if unlabelled := sum(building.without_image for building in found):
        lines.append(f"rgb: {unlabelled} views have labels but no image")
    return Summary(tuple(packed), tuple(already), total, result.bytes, tuple(lines))


def _require_size(building: Building, size: int) -> None:
    """Pictures are never enlarged; the first tells before hours of work that all would be left out."""
    first = decode(building.folders["rgb"] / DOMAINS["rgb"].filename(*building.views[0]), DOMAINS["rgb"])
    if not isinstance(first, str) and (own := first.shape[-1]) < size:
        raise InputError(
            f"size: {size} is more than the {own} pixels of {building.name}; give at most {own}."
        )


def agree(out: Path, size: int, domains: Sequence[Domain]) -> None:
    """All buildings of a pack have one resolution and the same domains."""
    out.mkdir(parents=True, exist_ok=True)
    about = {"format": FORMAT, "size": size, "domains": [domain.name for domain in domains]}
    if not os.path.lexists(out / ABOUT):
        if inside := listing(out):
            raise InputError(f"{shown(out)} is no pack and holds {some(inside, 3)}; choose an empty folder.")
        _write(out / ABOUT, about)
    elif (there := read_json(out / ABOUT)) != about:
        kept = ", ".join(f"{key} {there.get(key)}" for key in about if there.get(key) != about[key])
        raise InputError(f"{shown(out)} is a pack with {kept}; choose another folder for this one.")


def _complete(folder: Path, building: Building) -> bool:
    """Whether the building was packed from as many files; a later download makes it anew."""
    try:
        index = read_json(folder / INDEX)
    except InputError:  # none there, or a damaged one
        return False
    views = [list(view) for view in building.views]
    return bool(index.get("views") == views and index.get("files") == _file_counts(building))


def _file_counts(building: Building) -> dict[str, int]:
    return {name: len(files) for name, files in sorted(building.files.items())}


@dataclass(frozen=True)
class _Job:
    """Some views of a building: `views` are the rows from `start` of the arrays in `folder`."""

    building: Building
    folder: Path
    size: int
    domains: tuple[Domain, ...]
    start: int
    views: tuple[View, ...]


_Done = list[tuple[dict[str, str], int | None, list[int]]]
"""For each view: its problems, its size in the files, the sum of each channel of its resized image."""


def _pack_building(
    building: Building, out: Path, size: int, domains: tuple[Domain, ...], run: Callable[..., Iterator[Any]]
) -> Iterator[int]:
    part = out / f".{building.name}.part"
    _remove(part)
    part.mkdir()
    there = tuple(domain for domain in domains if domain.name not in building.absent)
    shapes = {domain.name: (len(building.views), *domain.shape(size)) for domain in there}
    for domain in there:
        _allocate(part / f"{domain.name}.npy", domain, shapes[domain.name])
    light = Building(building.name, (), building.folders, {}, building.absent, 0)  # what a worker must know
    jobs = [
        _Job(light, part, size, there, start, building.views[start : start + CHUNK])
        for start in range(0, len(building.views), CHUNK)
    ]
    states: _Done = []
    for done in run(_pack_views, jobs):
        states += done
        yield len(done)
    paths = [part / f"{domain.name}.npy" for domain in there]
    sums = dict(zip(shapes, run(checksum, paths), strict=True))
    _write(part / INDEX, _index(building, size, states, sums))
    _remove(out / building.name)
    os.replace(part, out / building.name)


def _index(building: Building, size: int, states: _Done, sums: Mapping[str, str]) -> dict[str, Any]:
    images = [channels for problems, _, channels in states if "rgb" not in problems]
    return {
        "format": FORMAT,
        "size": size,
        "views": building.views,
        "problems": {str(row): problems for row, (problems, _, _) in enumerate(states) if problems},
        "absent": dict(building.absent),
        "without_image": building.without_image,
        "pixels": sorted({pixels for _, pixels, _ in states if pixels}),
        "files": _file_counts(building),
        "channel_sums": [sum(channel) for channel in zip(*images, strict=True)] or [0, 0, 0],
        "sha256": sums,
    }


def has_building(out: Path, name: str) -> bool:
    return os.path.lexists(out / name / INDEX)


def write_building(
    out: Path, name: str, views: Sequence[View], arrays: Mapping[str, np.ndarray], size: int
) -> None:
    """A building whose arrays [views, ...] are there already, in the packed form; views in their order.

    Whoever else makes the same building at the same time makes the same bytes: the first to finish has made it.
    """
    building = Building(name, tuple(views), {}, {}, {}, 0)
    part = out / f".{name}.{os.getpid()}.part"
    _remove(part)
    part.mkdir()
    sums = {}
    for domain, array in arrays.items():
        path = part / f"{domain}.npy"
        np.save(path, array.astype(array.dtype.newbyteorder("<")))
        sums[domain] = checksum(path)
    states: _Done = []
    for row in range(len(views)):
        empty = {domain: nothing(array[row], DOMAINS[domain]) for domain, array in arrays.items()}
        problems = {domain: why for domain, why in empty.items() if why}
        states.append((problems, size, [int(channel.sum()) for channel in arrays["rgb"][row]]))
    _write(part / INDEX, _index(building, size, states, sums))
    try:
        os.rename(part, out / name)
    except OSError:
        if not has_building(out, name):
            raise
        _remove(part)


def _allocate(path: Path, domain: Domain, shape: tuple[int, ...]) -> None:
    """A file with npy's header and zeros: the rows of views that have no such label stay zero."""
    dtype = np.dtype(domain.dtype).newbyteorder("<")
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)) * dtype.itemsize)


def _pack_views(job: _Job) -> _Done:
    """Runs in a worker: decodes the views and writes their rows.

    With plain writes: on a full disk, writing to mapped memory would kill the process.
    """
    rows = {d.name: np.zeros((len(job.views), *d.shape(job.size)), d.dtype) for d in job.domains}
    done: _Done = []
    for row, view in enumerate(job.views):
        arrays, problems, pixels = read_view(job.building, view, job.domains, job.size)
        for name, array in arrays.items():
            rows[name][row] = array
        done.append((problems, pixels, [int(channel.sum()) for channel in rows["rgb"][row]]))
    for name, array in rows.items():
        with open(job.folder / f"{name}.npy", "r+b") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            file.seek(job.start * array[0].nbytes, os.SEEK_CUR)
            file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return done


@contextmanager
def in_order(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A map in order, over processes where there are several."""
    if workers == 1:
        yield map
        return
    # Not forks of this process: with threads (torch's) they can hang. Forks of a fresh one that has imported this
    # module, or, where there is no such thing, processes that import it each.
    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            yield pool.map
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    fresh = path.with_name(f".{path.name}.part")
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(content, file, sort_keys=True, separators=(",", ":"))
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
