"""Files written whole or not at all: a temporary file beside them, fsync, rename, fsync of the folder."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

PART = ".part"
"""The end of a temporary file's name; one that is found was left by a process that died."""


def write_bytes(path: Path, content: bytes) -> None:
    """A reader sees the whole file or the one before it, also after a crash; a full disk leaves nothing behind."""
    # Two processes may write the same file at once: each has a temporary one of its own.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def sync_folder(folder: Path) -> None:
    """A rename lasts once its folder is written."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove_partial(folder: Path) -> None:
    """What processes that died left half-written; only for one who holds the folder's lock."""
    for path in folder.glob(f"*{PART}"):
        path.unlink(missing_ok=True)
