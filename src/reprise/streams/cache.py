"""Where data that is made once and read often lies: packs of rendered rooms and of official folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reprise.errors import InputError


def cache_folder() -> Path:
    """`REPRISE_CACHE`, or `reprise` in the user's cache folder (`XDG_CACHE_HOME`, `~/.cache`)."""
    if own := os.environ.get("REPRISE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reprise"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time makes what is in a folder; the others wait and then find it there."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two processes must not start at once
        yield
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f"{folder.name}.lock").open("w")
    except OSError as error:
        raise InputError(
            f"{folder.parent} cannot be written ({error.strerror}); set REPRISE_CACHE to a folder that can."
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
