"""A Ray cluster in the place of this machine's processes: each unit of work a Ray task, its files in a shared store.

A worker that dies is replaced by Ray, and the runs it had go on from their newest checkpoint. Its lock died with it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from reprise import stopping
from reprise.errors import InputError, WorkersLost
from reprise.groups import Job, group_name
from reprise.machine import cores
from reprise.progress import Notice, Outlook, Report, Watch

LOCAL = "local"
OBJECT_STORE_BYTES = 128 * 2**20
"""Of a local cluster. Only reports and records pass through it; weights and data never do."""

RETRIES = 3
"""How often the work of a worker that died is begun again."""

EVERY = 0.3
"""Seconds between two reports of a run, and between a worker's looks at whether it is to stop."""


def installed() -> bool:
    return importlib.util.find_spec("ray") is not None


def _import() -> Any:
    # Read when it is imported: nothing is sent anywhere.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError(
            "ray: Ray is not installed; install the extra with `pip install 'reprise-cl[ray]'`, or leave --ray out."
        ) from None
    return ray


def connect(address: str, needs_gpu: bool = False) -> Any:
    """The module `ray`, connected; once for the whole process, which Ray leaves when it ends."""
    ray = _import()
    if not ray.is_initialized():
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _init(ray, address)
        finally:
            # Ray puts its own in place, which would end the command without a word to the workers.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
    lacking = "GPU" if needs_gpu else "CPU"
    if ray.cluster_resources().get(lacking, 0) < 1:
        raise InputError(f"ray: the cluster at {address} has no {lacking} to offer; add a node that has one.")
    return ray


def _init(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "error", "include_dashboard": False}
    if address == LOCAL:
        ray.init(LOCAL, num_cpus=cores(), object_store_memory=OBJECT_STORE_BYTES, **quiet)
        return
    _require_reachable(address)
    try:
        ray.init(address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise InputError(f"ray: {address} cannot be joined ({why}); give local, auto or HOST:PORT.") from None


def _require_reachable(address: str) -> None:
    """Ray itself tries for minutes before it says that nobody is there."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and "/" not in host):
        raise InputError(
            f"ray: {address!r} is no address; give local, auto (the cluster of this machine) or HOST:PORT."
        )
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"ray: nobody answers at {address} ({why}); start a cluster with `ray start --head`, or give local."
        ) from None


class _Desk:
    """Where workers and the command meet; a Ray actor, so one call at a time."""

    def __init__(self) -> None:
        self._said: list[Any] = []
        self._begun: set[int] = set()
        self._stopped = False

    def begin(self, number: int) -> bool:
        """A worker asks whether it may begin."""
        if not self._stopped:
            self._begun.add(number)
        return not self._stopped

    def stop(self) -> set[int]:
        """What has begun, and is to save and end; nothing else will begin."""
        self._stopped = True
        return self._begun

    def stopped(self) -> bool:
        return self._stopped

    def tell(self, said: Any) -> None:
        self._said.append(said)

    def hear(self) -> list[Any]:
        said, self._said = self._said, []
        return said


class _Line:
    """A worker's line to the desk: whether it may begin, its reports, thinned out, and whether it is to stop.

    Only a thread of its own waits for answers: while a worker's main thread waits, Ray gives its core away.
    """

    def __init__(self, ray: Any, desk: Any, number: int) -> None:
        self._ray, self._desk, self._number, self._last = ray, desk, number, 0.0
        self._answered, self._stop, self._over = (threading.Event() for _ in range(3))
        threading.Thread(target=self._listen, daemon=True).start()

    def may_begin(self) -> bool:
        self._answered.wait()
        return not self._stop.is_set()

    def watch(self, said: Outlook | Report | Notice) -> None:
        now = time.monotonic()
        if isinstance(said, Notice) or now - self._last >= EVERY:
            self._desk.tell.remote(said)
            self._last = now

    def asked(self) -> int | None:
        return signal.SIGTERM if self._stop.is_set() else None

    def _listen(self) -> None:
        try:
            wanted = self._ray.get(self._desk.begin.remote(self._number))
            while wanted:
                self._answered.set()
                if self._over.wait(EVERY):
                    return
                wanted = not self._ray.get(self._desk.stopped.remote())
        except self._ray.exceptions.RayError:
            pass  # the desk went with its command: what is under way is saved
        self._stop.set()
        self._answered.set()

    def close(self) -> None:
        self._over.set()


def _work(desk: Any, number: int, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What a Ray worker does: one unit, on one thread as everywhere; None where it is no longer wanted."""
    line, began = _Line(_import(), desk, number), time.perf_counter()
    torch.set_num_threads(1)
    try:
        return (
            (fn(line.watch, line.asked, *arguments), time.perf_counter() - began)
            if line.may_begin()
            else None
        )
    finally:
        line.close()


def in_ray(
    address: str,
    fn: Callable[..., Any],
    work: Sequence[tuple[Sequence[Job], tuple[Any, ...]]],
    watch: Watch,
    last_report: Callable[[Sequence[Job], Any, float], Report],
    gpu: bool = False,
) -> Iterator[tuple[Sequence[Job], Any]]:
    """As `workers.in_processes`, on a cluster: fn(watch, asked, *arguments) for each group, results as they come.

    A group whose workers died again and again is named at the end, when all others are there.
    """
    ray = connect(address, gpu)
    desk = _open_desk(ray, address)
    task = ray.remote(_work).options(num_cpus=1, num_gpus=int(gpu), max_retries=RETRIES)
    running = {
        task.remote(desk, number, fn, arguments): (number, group)
        for number, (group, arguments) in enumerate(work)
    }
    over: set[str] = set()
    lost: list[str] = []
    try:
        with stopping.heeding():
            while running:
                finished, _ = ray.wait([*running], timeout=0.2)
                _pass_on(ray, desk, watch, over)
                for reference in finished:
                    _, group = running.pop(reference)
                    over.add(group_name(group))
                    try:
                        results, seconds = ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        raise _cause(error) from None
                    except ray.exceptions.RayError as error:
                        lost.append(f"{group_name(group)} ({type(error).__name__})")
                        continue
                    watch(last_report(group, results, seconds))
                    yield group, results
                if (number := stopping.asked()) is not None:
                    raise stopping.Stopped(number)
    finally:  # whatever ends this early, a signal or a refusal, lets what is under way save itself
        _wind_up(ray, desk, running)
    if lost:
        raise WorkersLost(
            f"ray: the workers of {', '.join(lost)} died {RETRIES + 1} times; look into Ray's logs, then run the "
            "same command again: it goes on from what is saved."
        )


def _open_desk(ray: Any, address: str) -> Any:
    """The desk, beside the command: should it go, so do both."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    desk = ray.remote(_Desk).options(num_cpus=0, scheduling_strategy=here).remote()
    try:
        ray.get(desk.stopped.remote())
    except ray.exceptions.RayError as error:
        why = str(error).strip().rpartition("\n")[2].strip()
        raise InputError(
            f"ray: workers at {address} cannot load Reprise ({why:.120}); install this version where they run."
        ) from None
    return desk


def _pass_on(ray: Any, desk: Any, watch: Watch, over: set[str]) -> None:
    """What the workers said since last time; a report may arrive after the result of its own run."""
    try:
        heard = ray.get(desk.hear.remote())
    except ray.exceptions.RayError as error:
        raise WorkersLost(
            f"ray: the cluster was lost ({type(error).__name__}); run the same command again: it goes on from what "
            "is saved."
        ) from None
    for said in heard:
        if isinstance(said, Notice) or said.name not in over:
            watch(said)


def _cause(error: Any) -> BaseException:
    """What the work itself raised, without Ray's account of where."""
    cause = error.cause
    return cause if isinstance(cause, BaseException) else error


def _wind_up(ray: Any, desk: Any, running: dict[Any, tuple[int, Sequence[Job]]]) -> None:
    """Ends what has not begun, waits for what has, and leaves the cluster as it was."""
    try:
        begun = ray.get(desk.stop.remote())
    except ray.exceptions.RayError:
        return  # the cluster is gone, and everything on it
    waited_for = [reference for reference, (number, _) in running.items() if number in begun]
    for reference, (number, _) in running.items():
        if number not in begun:
            ray.cancel(reference)
    if waited_for:
        ray.wait(waited_for, num_returns=len(waited_for))
    ray.kill(desk)
