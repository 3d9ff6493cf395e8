"""Run experiments: settle, group into lanes or processes, save each result as it ends."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from reprise import fit
from reprise.artifacts import ArtifactWriter, Asked, check_kinds
from reprise.build import Cell
from reprise.config import Experiment
from reprise.errors import Diverged, InputError
from reprise.groups import Job, group_name, lane_groups, make_job
from reprise.ledger import settle
from reprise.loggers import check_loggers, make_loggers
from reprise.observe import Observer, Several
from reprise.progress import Notice, Outlook, Report, Watch
from reprise.results import Folder, Record, environment, folder_of, make_record, trouble
from reprise.streams import make_stream, stream_kind
from reprise.streams.split import Pool
from reprise.streams.stream import Stream
from reprise.train import Outcome, Trainer

LARGEST_GROUP = 120
"""Lanes of one group, unless the user says otherwise: more gain no speed."""

Environment = dict[str, Any]
"""Where a run took place, as its record tells."""


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
    artifacts: Sequence[str] = (),
    log: Sequence[str] = (),
) -> Iterator[Record]:
    """Yield the record of every experiment and seed as it is known; what is on disk already is not run again.

    out        the folder of the one experiment
    store      a folder of such folders, for several
    artifacts  what each run leaves beside its record (artifacts.KINDS); a finished run that left none runs again
    log        tools that show curves while runs train (loggers.LOGGERS)
    """
    where, kinds, tools = pick_device(device), check_kinds(artifacts), check_loggers(log)
    if store is not None and (store / "experiment.json").exists():
        raise InputError(f"out: {store} holds one experiment, no store of several; name another folder.")
    folders: dict[Experiment, Folder | None] = {}
    jobs: dict[Experiment, Job] = {}
    methods: list[str] = []
    for experiment in experiments:
        pool = load_pool(experiment.stream, data)
        stream = stream_of(experiment, 0, pool)
        settled = settle(experiment, stream)
        if settled in folders:
            continue
        methods.append(settled.method_name)
        jobs[settled] = make_job(settled, 0, stream, number=methods.count(settled.method_name))
        path = out or (store / folder_of(settled.configuration(pool.fingerprint)) if store else None)
        folders[settled] = None if path is None else Folder(path, settled, pool.fingerprint)
    todo: list[Job] = []
    done: list[Record] = []
    for settled, folder in folders.items():
        if folder is not None:
            folder.open()
        for seed in seeds:
            known = None if folder is None else folder.record(seed)
            own = None if folder is None else folder.of_seed(seed)
            if known is None or (own is not None and not artifacts_of(own, kinds).there()):
                todo.append(replace(jobs[settled], seed=seed, folder=own, artifacts=kinds, log=tools))
            else:
                done.append(known)
    yield from done
    lost: list[str] = []
    for job, outcome, place in execute(todo, data, where, lanes, watch or _unwatched):
        if (why := trouble(job.seed, outcome)) is not None:
            lost.append(why)
            continue
        fingerprint = load_pool(job.experiment.stream, data).fingerprint
        record = make_record(job.experiment, job.seed, outcome, job.quota, fingerprint, place)
        if (folder := folders[job.experiment]) is not None:
            folder.save(record, outcome.log)
        yield record
    if lost:
        raise Diverged(lost[0] + (f" ({len(lost) - 1} more runs diverged.)" if len(lost) > 1 else ""))


def _unwatched(said: Outlook | Report | Notice) -> None:
    """Nobody looks."""


def execute(
    jobs: Sequence[Job], data: Path | None, device: torch.device, lanes: int | None, watch: Watch
) -> Iterator[tuple[Job, Outcome, Environment]]:
    """Train the jobs: lanes on a GPU; on a CPU, where stacked convolutions are slow, one process each."""
    watch(Outlook(len(jobs), sum(job.steps for job in jobs)))
    stacked = device.type == "cuda" or (lanes or 1) > 1
    if jobs and not stacked and len(jobs) > 1 and (os.cpu_count() or 1) > 1:
        yield from _in_processes(jobs, data, watch)
        return
    groups = [*lane_groups(jobs, (lanes or LARGEST_GROUP) if stacked else 1)]
    while groups:
        group = groups.pop(0)
        outcomes = _try_group(group, data, device, watch)
        if outcomes is None:
            size = _fitting_size(group, data, device, lanes)
            watch(
                Notice(
                    f"{len(group)} lanes do not fit into the GPU's memory; going on with {size} at a time."
                )
            )
            groups = [*lane_groups([job for waiting in (group, *groups) for job in waiting], size)]
            continue
        for job, outcome in zip(group, outcomes, strict=True):
            yield job, outcome, environment(device)


def _try_group(
    group: Sequence[Job], data: Path | None, device: torch.device, watch: Watch
) -> list[Outcome] | None:
    """The outcomes of a group, or None where the GPU's memory was too small; by then nothing holds any of it."""
    began = time.perf_counter()
    outcomes: list[Outcome] | None = None
    try:
        outcomes = train_group(group, data, device, watch)
    except RuntimeError as error:
        if not fit.is_shortage(error):
            raise
    watch(_last_report(group, outcomes, time.perf_counter() - began))
    return outcomes


def _fitting_size(group: Sequence[Job], data: Path | None, device: torch.device, lanes: int | None) -> int:
    """Lanes that fit at a time where this group did not; a size the user insisted on is refused instead."""
    found = fit.measure_fit(cells_of(group, data), device)
    gpu = f"the GPU's {fit.all_bytes() / 2**30:.1f} GiB"
    if found.lanes == 0:
        raise InputError(
            f"device: not even one run fits into {gpu}, of which {fit.free_bytes() / 2**30:.1f} are free: "
            f"it takes {found.one / 2**30:.1f} or more; use a smaller batch or m, or --device cpu."
        )
    if lanes is not None:
        raise InputError(
            f"lanes: {len(group)} do not fit into {gpu}; at most {found.lanes} do; "
            f"give --lanes {found.lanes} or leave it out."
        )
    return found.lanes


def cells_of(group: Sequence[Job], data: Path | None) -> list[Cell]:
    pool = load_pool(group[0].experiment.stream, data)
    return [Cell(job.experiment, job.seed, stream_of(job.experiment, job.seed, pool)) for job in group]


def train_group(group: Sequence[Job], data: Path | None, device: torch.device, watch: Watch) -> list[Outcome]:
    set_arithmetic(group[0].experiment.precision)
    name, began = group_name(group), time.perf_counter()

    def progress(done: int, total: int, what: str) -> None:
        watch(Report(name, len(group), done, total, what, time.perf_counter() - began))

    try:
        return Trainer(cells_of(group, data), device, observer=observer_of(group)).run(progress)
    except Diverged as error:
        return [Outcome(diverged=str(error)) for _ in group]


def artifacts_of(folder: Path, kinds: Sequence[str]) -> Asked:
    return Asked(folder / "artifacts", tuple(kinds))


def observer_of(group: Sequence[Job]) -> Observer | None:
    """Who looks on while a group trains: those who write what its runs leave, and tools that show their curves."""
    places = [(job, job.folder) for job in group if job.folder is not None]
    if len(places) < len(group) or not (group[0].artifacts or group[0].log):
        return None
    folders = [folder for _, folder in places]
    writer = ArtifactWriter([artifacts_of(folder, job.artifacts) for job, folder in places])
    return Several(
        [writer, *make_loggers(group[0].log, folders, [job.experiment.to_dict() for job in group])]
    )


def set_arithmetic(precision: str, deterministic: bool = True) -> None:
    """How the device multiplies, and whether in a fixed order."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    # Without this the gradients of convolutions are summed in no fixed order, and a training this short and noisy
    # turns the last bit into percents: the same command would not give the same record.
    torch.backends.cudnn.deterministic = deterministic


def _last_report(group: Sequence[Job], outcomes: Sequence[Outcome] | None, seconds: float) -> Report:
    """How a group ended. One that did not fit has done nothing: its runs are still to come."""
    steps = group[0].steps
    if outcomes is None:
        what, done = "out of memory", 0
    else:
        what, done = "diverged" if all(o.diverged for o in outcomes) else "done", steps
    return Report(group_name(group), len(group), done, steps, what, seconds, over=True)


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


def _work(job: Job, data: Path | None) -> tuple[Outcome, Environment, float]:
    def watch(said: Outlook | Report | Notice) -> None:
        if _stop.is_set():
            raise _Stopped
        _reports.put(said)

    cpu, began = torch.device("cpu"), time.perf_counter()
    (outcome,) = train_group([job], data, cpu, watch)
    return outcome, environment(cpu), time.perf_counter() - began


def _in_processes(
    jobs: Sequence[Job], data: Path | None, watch: Watch
) -> Iterator[tuple[Job, Outcome, Environment]]:
    """One process per core, at most one per job."""
    workers = min(len(jobs), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    reports, stop = context.Queue(), context.Event()
    with ProcessPoolExecutor(workers, context, _start_worker, (reports, stop)) as executor:
        running = {executor.submit(_work, job, data): job for job in jobs}
        over: set[str] = set()
        try:
            while running:
                finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                _pass_on(reports, watch, over)
                for future in finished:
                    job = running.pop(future)
                    outcome, place, seconds = future.result()
                    over.add(job.name)
                    watch(_last_report([job], [outcome], seconds))
                    yield job, outcome, place
        finally:  # whatever ends this early, an interrupt or a refusal, ends the workers at their next report
            stop.set()
            executor.shutdown(wait=False, cancel_futures=True)


def _pass_on(reports: Any, watch: Watch, over: set[str]) -> None:
    """What the workers said since last time; a report may arrive after the result of its own run."""
    while True:
        try:
            report: Report = reports.get_nowait()
        except queue.Empty:
            return
        if report.name not in over:
            watch(report)
