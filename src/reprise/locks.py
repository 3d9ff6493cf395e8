"""A lock on a run's folder: one process trains it, whoever else shares the store. The system frees it on death."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "lock"


@contextmanager
def try_lock(folder: Path) -> Iterator[bool]:
    """Hold the folder while the block runs, and say whether that succeeded; the file is gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    number = _take(folder / NAME)
    try:
        yield number is not None
    finally:
        if number is not None:
            (folder / NAME).unlink(missing_ok=True)
            os.close(number)


def _take(path: Path) -> int | None:
    while True:
        number = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            return None
        except OSError:
            os.close(number)
            raise
        if _is_at(number, path):
            return number
        # Its owner removed it after we had opened it: what we hold is no longer the folder's lock.
        os.close(number)


def _is_at(number: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(number)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
