"""Run experiments: settle, group into lanes or processes, save each result as it ends."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from reprise.build import Cell
from reprise.config import Experiment
from reprise.errors import Diverged, InputError
from reprise.ledger import quota_of, settle
from reprise.results import Folder, Record, environment, folder_of, make_record, trouble
from reprise.streams import make_stream, stream_kind
from reprise.streams.split import Pool
from reprise.streams.stream import Stream
from reprise.train import Outcome, Trainer

LARGEST_GROUP = 32
"""Lanes of one group, unless the user says otherwise."""

Environment = dict[str, Any]
"""Where a run took place, as its record tells."""

Watch = Callable[[str, int, int, str], None]
"""Called with a job's name, its steps done, its steps in all, and what it does."""


@dataclass(frozen=True)
class Job:
    """One run to do: a settled experiment and a seed."""

    experiment: Experiment
    seed: int
    number: int = 1
    """Which of several experiments it belongs to: tells jobs of one method apart."""

    @property
    def name(self) -> str:
        number = f" #{self.number}" if self.number > 1 else ""
        return f"{self.experiment.method_name}{number} seed {self.seed}"


@lru_cache(maxsize=2)
def load_pool(stream: str, data: Path | None) -> Pool:
    return stream_kind(stream).load(data)


def stream_of(experiment: Experiment, seed: int, pool: Pool) -> Stream:
    e = experiment
    return make_stream(e.stream, pool, seed, e.scenario, e.split, e.normalise, e.tasks)


def pick_device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise InputError(f"device: {name!r} is not known; choose cpu or cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device: cuda was asked for, but this machine shows no GPU; use --device cpu.")
    return torch.device(name)


def run_experiments(
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
    data: Path | None = None,
    device: str = "cpu",
    out: Path | None = None,
    store: Path | None = None,
    lanes: int | None = None,
    watch: Watch | None = None,
) -> Iterator[Record]:
    """Yield the record of every experiment and seed as it is known; what is on disk already is not run again.

    out    the folder of the one experiment
    store  a folder of such folders, for several
    """
    where = pick_device(device)
    if store is not None and (store / "experiment.json").exists():
        raise InputError(f"out: {store} holds one experiment, no store of several; name another folder.")
    folders: dict[Experiment, Folder | None] = {}
    for experiment in experiments:
        pool = load_pool(experiment.stream, data)
        settled = settle(experiment, stream_of(experiment, 0, pool))
        path = out or (store / folder_of(settled.configuration(pool.fingerprint)) if store else None)
        folders[settled] = None if path is None else Folder(path, settled, pool.fingerprint)
    todo: list[Job] = []
    done: list[Record] = []
    methods: list[str] = []
    for settled, folder in folders.items():
        methods.append(settled.method_name)
        number = methods.count(settled.method_name)
        if folder is not None:
            folder.open()
        for seed in seeds:
            known = None if folder is None else folder.record(seed)
            if known is None:
                todo.append(Job(settled, seed, number))
            else:
                done.append(known)
    yield from done
    lost: list[str] = []
    for job, outcome, place in execute(todo, data, where, lanes, watch):
        if (why := trouble(job.seed, outcome)) is not None:
            lost.append(why)
            continue
        record = record_of(job, outcome, load_pool(job.experiment.stream, data), place)
        if (folder := folders[job.experiment]) is not None:
            folder.save(record, outcome.log)
        yield record
    if lost:
        raise Diverged(lost[0] + (f" ({len(lost) - 1} more runs diverged.)" if len(lost) > 1 else ""))


def record_of(job: Job, outcome: Outcome, pool: Pool, place: Environment) -> Record:
    e = job.experiment
    quota = None if e.m is None else quota_of(e, stream_of(e, job.seed, pool), e.m)
    return make_record(e, job.seed, outcome, quota, pool.fingerprint, place)


def execute(
    jobs: Sequence[Job], data: Path | None, device: torch.device, lanes: int | None, watch: Watch | None
) -> Iterator[tuple[Job, Outcome, Environment]]:
    """Train the jobs: lanes on a GPU; on a CPU, where stacked convolutions are slow, one process each."""
    stacked = device.type == "cuda" or (lanes or 1) > 1
    if jobs and not stacked and len(jobs) > 1 and (os.cpu_count() or 1) > 1:
        yield from _in_processes(jobs, data, watch)
        return
    for group in lane_groups(jobs, (lanes or LARGEST_GROUP) if stacked else 1):
        for job, outcome in zip(group, train_group(group, data, device, watch), strict=True):
            yield job, outcome, environment(device)


def train_group(
    group: Sequence[Job], data: Path | None, device: torch.device, watch: Watch | None
) -> list[Outcome]:
    pool = load_pool(group[0].experiment.stream, data)
    set_arithmetic(group[0].experiment.precision)
    cells = [Cell(job.experiment, job.seed, stream_of(job.experiment, job.seed, pool)) for job in group]
    name = group[0].name if len(group) == 1 else f"{len(group)} lanes, {group[0].name} first"

    def progress(done: int, total: int, what: str) -> None:
        if watch is not None:
            watch(name, done, total, what)

    try:
        return Trainer(cells, device).run(progress)
    except Diverged as error:
        return [Outcome(diverged=str(error)) for _ in group]


def set_arithmetic(precision: str, deterministic: bool = True) -> None:
    """How the device multiplies, and whether in a fixed order."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    # Without this the gradients of convolutions are summed in no fixed order, and a training this short and noisy
    # turns the last bit into percents: the same command would not give the same record.
    torch.backends.cudnn.deterministic = deterministic


# ---- lanes


def lane_key(job: Job) -> tuple[Any, ...]:
    """Jobs with one key may be lanes of a group: same method and batch shapes; floats, lr, m and seed may differ."""
    e = job.experiment
    settings = {f.name: getattr(e, f.name) for f in fields(e) if f.name not in ("method", "m", "lr")}
    if e.optimizer != "sgd":
        settings["lr"] = e.lr
    own = {f.name: getattr(e.method, f.name) for f in fields(e.method)}
    fixed = {name: value for name, value in own.items() if not isinstance(value, float)}
    # A replayed batch is min(replay, rows there are): below that, m shapes the batches.
    per_task = e.m or 0
    if stream_kind(e.stream).m_is_total:
        per_task //= stream_kind(e.stream).tasks
    return (
        type(e.method),
        str(sorted(settings.items())),
        str(sorted(fixed.items())),
        min(per_task, e.replay),
    )


def lane_groups(jobs: Sequence[Job], largest: int) -> Iterator[list[Job]]:
    by_key: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        by_key.setdefault(lane_key(job), []).append(job)
    for members in by_key.values():
        for start in range(0, len(members), largest):
            yield members[start : start + largest]


# ---- processes

_reports: Any = None
_stop: Any = None


class _Stopped(Exception):
    """The parent wants no more: a worker's way out of a run."""


def _start_worker(reports: Any, stop: Any) -> None:
    """One thread each: small networks gain nothing from more. An interrupt is the parent's to handle."""
    global _reports, _stop
    _reports, _stop = reports, stop
    reports.cancel_join_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _work(job: Job, data: Path | None) -> tuple[Outcome, Environment]:
    def watch(name: str, done: int, total: int, what: str) -> None:
        if _stop.is_set():
            raise _Stopped
        _reports.put((name, done, total, what))

    cpu = torch.device("cpu")
    return train_group([job], data, cpu, watch)[0], environment(cpu)


def _in_processes(
    jobs: Sequence[Job], data: Path | None, watch: Watch | None
) -> Iterator[tuple[Job, Outcome, Environment]]:
    """One process per core, at most one per job."""
    workers = min(len(jobs), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    reports, stop = context.Queue(), context.Event()
    with ProcessPoolExecutor(workers, context, _start_worker, (reports, stop)) as executor:
        running = {executor.submit(_work, job, data): job for job in jobs}
        try:
            while running:
                finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                _pass_on(reports, watch)
                for future in finished:
                    yield running.pop(future), *future.result()
        finally:  # whatever ends this early, an interrupt or a refusal, ends the workers at their next report
            stop.set()
            executor.shutdown(wait=False, cancel_futures=True)


def _pass_on(reports: Any, watch: Watch | None) -> None:
    while True:
        try:
            report = reports.get_nowait()
        except queue.Empty:
            return
        if watch is not None:
            watch(*report)
