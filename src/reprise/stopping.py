"""SIGINT and SIGTERM: while a run trains, the first is a wish (finish the step, save), the second ends at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """A run has stopped at a step because a signal asked for it; what could be saved is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Wish:
    """What has been asked for so far, and whether someone is there who looks at it."""

    number: int | None = None
    heard = 0


_wish = _Wish()


def asked() -> int | None:
    """The signal that asked to stop, if any did."""
    return _wish.number


@contextmanager
def heeding() -> Iterator[None]:
    """Within the block a first signal is only noted: the block looks at `asked` and stops where it can be resumed."""
    _wish.heard += 1
    try:
        yield
    finally:
        _wish.heard -= 1


@contextmanager
def listening() -> Iterator[None]:
    """Handle both signals for a command."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _wish.number = None
    before = {number: signal.signal(number, _handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _wish.number = None


def _handle(number: int, frame: object) -> None:
    if _wish.number is not None:
        for process in multiprocessing.active_children():
            process.kill()
        os._exit(128 + number)
    if _wish.heard:
        _wish.number = number
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        raise SystemExit(128 + number)
