"""What is there of a stream's data: each file official, well-formed, missing or corrupt, and the counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from reprise.errors import InputError
from reprise.streams import files
from reprise.streams.fetch import CIFAR_FOLDER, OFFICIAL_FILES, PathLike, is_intact, locate, shown, some

WELL_FORMED = "well-formed, not the official files"
MINI_FOLDER = "mini-imagenet"
MINI_PER_CLASS = {"train": 500, "test": 100}
LISTED = 10  # broken pictures named one by one; the rest is a number

Finding = tuple[bool, str]
"""Whether a thing is as it should be, and the line about it."""


@dataclass(frozen=True)
class Report:
    """`ok` when the stream can be read; `lines` say what was found, one thing each."""

    ok: bool
    lines: list[str]


def check(stream: str, data_dir: PathLike) -> Report:
    """Looks at all data files of the stream; does not stop at the first problem."""
    if stream not in CHECKS:
        raise InputError(f"stream: {stream!a} has no data files to check; choose one of {', '.join(CHECKS)}.")
    findings = list(CHECKS[stream](data_dir))
    return Report(all(ok for ok, _ in findings), [line for _, line in findings])


def _cifar(data_dir: PathLike) -> Iterator[Finding]:
    folder = _folder(data_dir, CIFAR_FOLDER, OFFICIAL_FILES)
    sound = True
    for name, md5 in OFFICIAL_FILES.items():
        path, title = folder / name, f"{CIFAR_FOLDER}/{name}"
        try:
            content = _read(path, files.read_cifar_names if name == "meta" else files.read_cifar_part)
        except InputError as state:
            sound = False
            yield False, f"{title}: {state}"
        else:
            yield True, f"{title}: {'official' if is_intact(path, md5) else WELL_FORMED}"
            if name != "meta":
                yield True, _counts(name, np.bincount(content[1], minlength=files.CLASSES))
    if not sound:
        yield False, f"{CIFAR_FOLDER}: incomplete in {shown(data_dir)}; {files.GET_CIFAR}"


def _mini(data_dir: PathLike) -> Iterator[Finding]:
    # No checksums of mini-ImageNet are published, so no copy of it can be known as the official one.
    folder = _folder(data_dir, MINI_FOLDER, (*files.MINI_FOLDERS, *files.MINI_PICKLES))
    counts: dict[str, dict[str, int]] = {"train": {}, "test": {}}
    pickled = any(os.path.lexists(folder / name) for name in files.MINI_PICKLES)
    if pickled and not any(os.path.isdir(folder / part) for part in files.MINI_FOLDERS):
        for name in files.MINI_PICKLES:
            yield from _mini_pickle(folder / name, counts["train"], counts["test"])
    else:
        for name, found in zip(files.MINI_FOLDERS, counts.values(), strict=True):
            yield from _mini_folder(folder / name, found)
    classes = {*counts["train"], *counts["test"]}
    for part, found in counts.items():
        yield True, _counts(part, found.values())
        full = MINI_PER_CLASS[part]
        if few := [f"{name} ({n})" for name, n in sorted(found.items()) if 0 < n < full]:
            yield True, f"{part}: fewer images than the full set's {full} in {len(few)} classes: {some(few)}"
        if lacking := sorted(name for name in classes if not found.get(name)):
            yield False, f"{part}: missing: no images of {some(lacking)}"
    if len(classes) != files.CLASSES:
        yield False, f"{MINI_FOLDER}: {len(classes)} classes, not {files.CLASSES}; {files.GET_MINI}"


def _mini_pickle(path: Path, train: dict[str, int], test: dict[str, int]) -> Iterator[Finding]:
    """The state of one pickle; its images are counted, divided as the reader divides them."""
    try:
        for name, images in _read(path, files.read_mini_pickle).items():
            train[name] = len(images) * 5 // 6
            test[name] = len(images) - train[name]
        yield True, f"{MINI_FOLDER}/{path.name}: {WELL_FORMED}"
    except InputError as state:
        yield False, f"{MINI_FOLDER}/{path.name}: {state}"


def _mini_folder(path: Path, counts: dict[str, int]) -> Iterator[Finding]:
    """The state of the folder `train` or `val`, every picture of it opened and counted."""
    title = f"{MINI_FOLDER}/{path.name}"
    try:
        pictures = _read(path, files.jpegs)
    except InputError as state:
        yield False, f"{title}: {state}"
        return
    counts.update({name: len(paths) for name, paths in pictures.items()})
    with ThreadPoolExecutor(files.THREADS) as pool:
        broken = [line for line in pool.map(_complaint, chain.from_iterable(pictures.values())) if line]
    corrupt = f"corrupt: {len(broken)} of {sum(counts.values())} pictures"
    yield not broken, f"{title}: {corrupt if broken else WELL_FORMED}"
    yield from ((False, f"  {line}") for line in broken[:LISTED])
    if len(broken) > LISTED:
        yield False, f"  and {len(broken) - LISTED} more"


def _complaint(path: Path) -> str | None:
    try:
        files.read_jpeg(path)
    except InputError as error:
        return str(error)
    return None


def _folder(data_dir: PathLike, name: str, inside: Iterable[str]) -> Path:
    """Where the files are or, when there are none, where they belong: each is then listed as missing."""
    try:
        return locate(data_dir, name, inside, "")
    except InputError:
        return Path(data_dir, name)


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    """What the reader makes of the path, or an InputError that is its state: `missing` or `corrupt: why`."""
    if not os.path.lexists(path):
        raise InputError("missing")
    try:
        return read(path)
    except InputError as error:
        raise InputError(f"corrupt: {error}") from error


def _counts(part: str, counts: Iterable[int]) -> str:
    known = list(counts)
    low, high = min(known, default=0), max(known, default=0)
    each = f"{low}" if low == high else f"{low} to {high}"
    return f"{part}: {sum(known)} images of {len(known)} classes, {each} a class"


CHECKS: dict[str, Callable[[PathLike], Iterator[Finding]]] = {
    "split-cifar": _cifar,
    "split-mini-imagenet": _mini,
}
