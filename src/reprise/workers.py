"""Processes, one per core: each works on one thing at a time, tells what it does, and ends with its parent."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any

import torch

from reprise import stopping
from reprise.groups import Job, group_name
from reprise.machine import cores
from reprise.progress import Notice, Outlook, Report, Watch

_reports: Any = None
_stop: Any = None
_orphaned = threading.Event()
_busy = threading.Lock()


def many_cores() -> bool:
    return cores() > 1


def _start(reports: Any, stop: Any) -> None:
    """One thread each: small networks gain nothing from more. Signals are the parent's to handle."""
    global _reports, _stop
    _reports, _stop = reports, stop
    reports.cancel_join_thread()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_outlive_no_parent, daemon=True).start()


def _outlive_no_parent() -> None:
    """A parent that was killed says nothing: a run under way is saved, then the process ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _orphaned.set()
    with _busy:
        os._exit(1)


def _asked() -> int | None:
    return signal.SIGTERM if _orphaned.is_set() or _stop.is_set() else None


def _work(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    def watch(said: Outlook | Report | Notice) -> None:
        _reports.put(said)

    began = time.perf_counter()
    with _busy:
        return fn(watch, _asked, *arguments), time.perf_counter() - began


def in_processes(
    fn: Callable[..., Any],
    work: Sequence[tuple[Sequence[Job], tuple[Any, ...]]],
    watch: Watch,
    last_report: Callable[[Sequence[Job], Any, float], Report],
) -> Iterator[tuple[Sequence[Job], Any]]:
    """fn(watch, asked, *arguments) for each group, at most one process per core; results as they come.

    A signal is passed on: what is under way is saved, what waits does not begin.
    """
    workers = min(len(work), cores())
    context = multiprocessing.get_context("spawn")
    reports, stop = context.Queue(), context.Event()
    with (
        ProcessPoolExecutor(workers, context, _start, (reports, stop)) as executor,
        stopping.heeding(),
    ):
        running = {executor.submit(_work, fn, arguments): group for group, arguments in work}
        over: set[str] = set()
        try:
            while running:
                finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                _pass_on(reports, watch, over)
                for future in finished:
                    group = running.pop(future)
                    results, seconds = future.result()
                    over.add(group_name(group))
                    watch(last_report(group, results, seconds))
                    yield group, results
                if (number := stopping.asked()) is not None:
                    stop.set()
                    executor.shutdown(wait=True, cancel_futures=True)
                    raise stopping.Stopped(number)
        finally:  # whatever ends this early, an interrupt or a refusal, ends the workers at their next step
            stop.set()
            executor.shutdown(wait=False, cancel_futures=True)


def _pass_on(reports: Any, watch: Watch, over: set[str]) -> None:
    """What the workers said since last time; a report may arrive after the result of its own run."""
    while True:
        try:
            said: Report | Notice = reports.get_nowait()
        except queue.Empty:
            return
        if isinstance(said, Notice) or said.name not in over:
            watch(said)
