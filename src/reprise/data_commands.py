"""What `reprise data` does: fetch, check, pack and render data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from reprise.errors import InputError
from reprise.machine import cores
from reprise.streams.check import CHECKS, Report, check
from reprise.streams.fetch import fetch_cifar100
from reprise.streams.rooms.worlds import Worlds, write_worlds
from reprise.streams.taskonomy import check_taskonomy, load_pack, pack
from reprise.streams.taskonomy.buildings import named_buildings
from reprise.streams.taskonomy.packed import ABOUT
from reprise.values import read_value, show_bytes

Tell = Callable[[int, int | None], object]


@contextmanager
def _bar(what: str, *columns: Any) -> Iterator[Tell]:
    """A bar on stderr; nothing where nobody looks."""
    console = Console(stderr=True)
    shown = ("{task.description}", BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*shown, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def check_data(stream: str, folder: Path, options: Mapping[str, Any]) -> int:
    """Look whether a stream's data is whole; the exit code."""
    if stream == "taskonomy":
        report = _check_scenes(folder, options)
    elif stream in CHECKS:
        report = check(stream, folder)
    else:
        known = ", ".join((*CHECKS, "taskonomy"))
        raise InputError(f"stream: {stream!a} has no data files to check; choose one of {known}.")
    _say(*report.lines)
    return 0 if report.ok else 2


def _check_scenes(folder: Path, options: Mapping[str, Any]) -> Report:
    if os.path.lexists(folder / ABOUT):
        packed = load_pack(folder)
        damaged = packed.verify()
        sound = f"a pack of {len(packed)} views, {packed.size} x {packed.size}: every checksum is right"
        return Report(not damaged, damaged or [sound])
    with _bar("checking views", MofNCompleteColumn()) as tell:
        return check_taskonomy(folder, _names(options, "tasks"), _buildings(options), tell)


def fetch_data(name: str, folder: Path) -> None:
    """Get a data set that may be fetched."""
    if name != "cifar100":
        raise InputError(
            f"data: {name!r} cannot be fetched; only cifar100 can, mini-ImageNet has no free copy."
        )
    with _bar(name, DownloadColumn()) as tell:
        said = fetch_cifar100(folder, progress=tell)
    _say(said)


def pack_data(name: str, folder: Path, options: Mapping[str, Any]) -> None:
    """Decode and resize official folders once, into a pack; called again it goes on where it stopped."""
    if name != "taskonomy":
        raise InputError(f"data: {name!r} cannot be packed; only taskonomy can.")
    if not options.get("out"):
        raise InputError("out: no folder for the pack was given; name one with --out DIR.")
    size, workers = _number(options, "size", 256), _number(options, "workers", cores())
    with _bar("packing views", MofNCompleteColumn()) as tell:
        done = pack(
            folder,
            options["out"],
            size,
            _buildings(options),
            _names(options, "tasks"),
            workers,
            tell,
        )
    new = f"{len(done.packed)} building{'' if len(done.packed) == 1 else 's'} packed"
    old = f", {len(done.already)} were there already" if done.already else ""
    _say(*done.warnings, f"{new}{old}: {done.views} views, {show_bytes(done.bytes)} in {options['out']}")


def write_rooms(folder: Path, options: Mapping[str, Any]) -> None:
    """Render rooms as files in the official layout."""
    worlds = Worlds.parse(
        options.get("buildings") or "4,1,1", _number(options, "views", 32), _number(options, "size", 256)
    )
    with _bar("rendering worlds", MofNCompleteColumn()) as tell:
        split = write_worlds(worlds, folder, _number(options, "workers", cores()), tell)
    run = f"reprise run taskonomy --method er --data {folder} --size {worlds.size} --buildings {split}"
    _say(f"{sum(worlds.counts)} worlds of {worlds.views} views in {folder}; train on them with", f"  {run}")


def _number(options: Mapping[str, Any], name: str, default: int) -> int:
    value = read_value(name, options.get(name, default), int)
    if value < 1:
        raise InputError(f"{name}: {value} is not positive; give 1 or more.")
    return value


def _buildings(options: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = _names(options, "buildings")
    return None if names is None else named_buildings(names)


def _names(options: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    return tuple(options[name].split(",")) if options.get(name) else None
