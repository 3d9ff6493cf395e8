"""Run experiments: settle, group into lanes or processes, save each result as it ends."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from reprise.config import Experiment
from reprise.errors import Diverged, InputError
from reprise.ledger import quota_of, settle
from reprise.results import Folder, Record, folder_name, make_record
from reprise.streams import make_stream, stream_kind
from reprise.streams.split import Pool
from reprise.streams.stream import Stream
from reprise.train import Cell, Outcome, Trainer

LARGEST_GROUP = 32
"""Lanes of one group, unless the user says otherwise."""

Watch = Callable[[str, int, int, str], None]
"""Called with a job's name, its steps done, its steps in all, and what it does."""


@dataclass(frozen=True)
class Job:
    """One run to do: a settled experiment and a seed."""

    experiment: Experiment
    seed: int

    @property
    def name(self) -> str:
        return f"{self.experiment.method_name} seed {self.seed}"


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
    todo: list[Job] = []
    folders: dict[Experiment, Folder] = {}
    pool = load_pool(experiments[0].stream, data)
    for experiment in experiments:
        settled, _ = settle(experiment, stream_of(experiment, 0, pool))
        path = out or (store / folder_name(settled, pool.fingerprint) if store else None)
        if path is not None:
            folders[settled] = Folder(path, settled, pool.fingerprint)
            folders[settled].open()
        for seed in seeds:
            known = folders[settled].record(seed) if path is not None else None
            if known is not None:
                yield known
            else:
                todo.append(Job(settled, seed))
    lost: list[str] = []
    for job, outcome in execute(todo, data, where, lanes, watch):
        if outcome.diverged is not None:
            lost.append(outcome.diverged)
            continue
        record = record_of(job, outcome, pool, where)
        if job.experiment in folders:
            folders[job.experiment].save(record, outcome.log)
        yield record
    if lost:
        raise Diverged(lost[0] + (f" ({len(lost) - 1} more runs diverged.)" if len(lost) > 1 else ""))


def record_of(job: Job, outcome: Outcome, pool: Pool, device: torch.device) -> Record:
    e = job.experiment
    quota = None if e.m is None else quota_of(e, stream_of(e, job.seed, pool), e.m)
    return make_record(e, job.seed, outcome, quota, pool.fingerprint, device)


def execute(
    jobs: Sequence[Job], data: Path | None, device: torch.device, lanes: int | None, watch: Watch | None
) -> Iterator[tuple[Job, Outcome]]:
    """Train the jobs: lanes on a GPU; on a CPU, where stacked convolutions are slow, one process each."""
    if device.type == "cuda" or (lanes or 1) > 1:
        for group in lane_groups(jobs, lanes or LARGEST_GROUP):
            yield from zip(group, train_group(group, data, device, watch), strict=True)
    elif len(jobs) == 1 or (os.cpu_count() or 1) == 1:
        for job in jobs:
            yield job, train_group([job], data, device, watch)[0]
    elif jobs:
        yield from _in_processes(jobs, data, watch)


def train_group(
    group: Sequence[Job], data: Path | None, device: torch.device, watch: Watch | None
) -> list[Outcome]:
    pool = load_pool(group[0].experiment.stream, data)
    torch.backends.cuda.matmul.allow_tf32 = group[0].experiment.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = group[0].experiment.precision == "tf32"
    cells = [Cell(job.experiment, job.seed, stream_of(job.experiment, job.seed, pool)) for job in group]
    name = group[0].name if len(group) == 1 else f"{len(group)} lanes, {group[0].name} first"

    def progress(done: int, total: int, what: str) -> None:
        if watch is not None:
            watch(name, done, total, what)

    try:
        return Trainer(cells, device).run(progress)
    except Diverged as error:
        return [Outcome(diverged=str(error)) for _ in group]


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


def _start_worker(reports: Any, threads: int) -> None:
    global _reports
    _reports = reports
    torch.set_num_threads(threads)


def _work(job: Job, data: Path | None) -> Outcome:
    def watch(name: str, done: int, total: int, what: str) -> None:
        _reports.put((name, done, total, what))

    return train_group([job], data, torch.device("cpu"), watch)[0]


def _in_processes(
    jobs: Sequence[Job], data: Path | None, watch: Watch | None
) -> Iterator[tuple[Job, Outcome]]:
    """One process per core, one thread each: small networks gain nothing from more threads."""
    workers = min(len(jobs), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    with ProcessPoolExecutor(workers, context, _start_worker, (reports, 1)) as executor:
        running = {executor.submit(_work, job, data): job for job in jobs}
        while running:
            finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            _pass_on(reports, watch)
            for future in finished:
                yield running.pop(future), future.result()


def _pass_on(reports: Any, watch: Watch | None) -> None:
    while True:
        try:
            report = reports.get_nowait()
        except queue.Empty:
            return
        if watch is not None:
            watch(*report)
