"""Run experiments: settle, group into lanes or processes, yield each record as it is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from reprise import fit
from reprise.artifacts import check_kinds
from reprise.config import Experiment
from reprise.errors import Diverged, InputError
from reprise.following import dismiss, follow
from reprise.forking import Fork
from reprise.group_run import (
    Ended,
    artifacts_of,
    cell_of,
    cells_of,
    claimed,
    in_places,
    last_report,
    open_stream,
    train_group,
)
from reprise.groups import Job, companies, divide, make_job
from reprise.keeping import Saving, tidy
from reprise.ledger import settle
from reprise.loggers import check_loggers
from reprise.machine import named_device, pick_device, set_arithmetic
from reprise.progress import Notice, Outlook, Report, Watch
from reprise.ranks import Ranks, join, launched, leave
from reprise.ray_pool import in_ray
from reprise.results import Folder, Record, folder_of
from reprise.streams import require_fields
from reprise.streams.scenes import Scenes
from reprise.train import Trainer
from reprise.workers import in_processes, many_cores

PATIENCE = 1.0
"""Seconds between two looks at runs that another process is training."""


@dataclass(frozen=True)
class Terms:
    """How runs are made. Nothing of it but the fork changes a result."""

    data: Path | None = None
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))
    lanes: int | None = None
    saving: Saving = field(default_factory=Saving)
    fork: Fork | None = None
    """Where the runs begin, if not at the beginning."""
    ranks: Ranks | None = None
    ray: str | None = None
    workers: int | None = None
    compiled: bool = False
    artifacts: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


def run_experiments(
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
    data: Path | None = None,
    device: str = "cpu",
    out: Path | None = None,
    store: Path | None = None,
    lanes: int | None = None,
    watch: Watch | None = None,
    saving: Saving | None = None,
    fork: Fork | None = None,
    workers: int | None = None,
    compiled: bool = False,
    artifacts: Sequence[str] = (),
    log: Sequence[str] = (),
    ray: str | None = None,
) -> Iterator[Record]:
    """Yield the record of every experiment and seed as it is known; what is on disk already is not run again.

    An interrupted run goes on from its newest whole checkpoint. A run that another process is training is waited
    for, after all others.

    out        the folder of the one experiment
    store      a folder of such folders, for several
    ray        address of a Ray cluster that trains the runs, or "local"; it sees the same folders as this process
    artifacts  what each run leaves beside its record (artifacts.KINDS); a finished run that left none runs again
    log        tools that show curves while runs train (loggers.LOGGERS)

    Where `torchrun` started several ranks they train one run after another together: the first yields the records,
    the others nothing.
    """
    # A cluster's machines may have what this one lacks; each worker looks for itself.
    where = pick_device(device) if ray is None else named_device(device)
    if ray is not None:  # its workers stand in folders of their own
        data, out, store = (None if path is None else path.absolute() for path in (data, out, store))
        fork = None if fork is None else replace(fork, run=fork.run.absolute())
    terms = Terms(
        data=data,
        device=where,
        lanes=lanes,
        saving=saving or Saving(),
        fork=fork,
        ray=ray,
        workers=workers,
        compiled=compiled,
        artifacts=check_kinds(artifacts),
        log=check_loggers(log),
    )
    study = partial(_run, experiments, seeds, out, store, watch or _unwatched)
    if not launched():
        yield from study(terms)
        return
    if ray is not None:
        raise InputError("ray: ranks of one run train together; leave --ray out, or start without torchrun.")
    if terms.artifacts:
        raise InputError("artifacts: a run on several ranks leaves none; leave it out, or use one process.")
    ranks = join(where)
    if not ranks.first:
        follow(ranks, partial(_follower, ranks, data, where))
        leave()
        return
    try:
        yield from study(replace(terms, ranks=ranks, lanes=1))
    except Diverged:  # raised last, after all other runs
        dismiss(ranks)
        raise
    # Any other error ends this process, which the others notice: they may be waiting for it anywhere.
    dismiss(ranks)
    leave()


def _follower(
    ranks: Ranks, data: Path | None, device: torch.device, experiment: Experiment, seed: int
) -> Trainer:
    set_arithmetic(experiment.precision)
    experiment = replace(experiment, first_weights=None)  # which the first rank hands on
    return Trainer([cell_of(experiment, seed, data)], device, ranks=ranks)


def _unwatched(said: Outlook | Report | Notice) -> None:
    """Nobody looks."""


def _run(
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
    out: Path | None,
    store: Path | None,
    watch: Watch,
    terms: Terms,
) -> Iterator[Record]:
    """The records of all that is finished, then those of all other runs as they end."""
    if store is not None and (store / "experiment.json").exists():
        raise InputError(f"out: {store} holds one experiment, no store of several; name another folder.")
    todo: list[Job] = []
    for job, folder in _settled(experiments, seeds, out, store, watch, terms):
        for seed in seeds:
            known = None if folder is None else _finished(folder, seed, terms)
            if known is not None:
                yield known
                continue
            place = None if folder is None else folder.make_room(seed)
            todo.append(replace(job, seed=seed, folder=place, key=f"{job.key}/{seed}"))
    watch(Outlook(len(todo), sum(job.steps for job in todo)))
    lost: list[str] = []
    while todo:
        elsewhere: list[Job] = []
        for job, ended in execute(todo, terms, watch):
            if ended.elsewhere:
                elsewhere.append(job)
            elif ended.record is not None:
                yield ended.record
            else:
                lost.append(str(ended.why))
        if todo := elsewhere:
            time.sleep(PATIENCE)
    if lost:
        raise Diverged(lost[0] + (f" ({len(lost) - 1} more runs diverged.)" if len(lost) > 1 else ""))


def _finished(folder: Folder, seed: int, terms: Terms) -> Record | None:
    """The record of a run that has left everything it is asked for."""
    known, place = folder.record(seed), folder.of_seed(seed)
    if known is None or not artifacts_of(place, terms.artifacts).there():
        return None
    tidy(place)
    return known


def _settled(
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
    out: Path | None,
    store: Path | None,
    watch: Watch,
    terms: Terms,
) -> list[tuple[Job, Folder | None]]:
    """The job of every different experiment, for any seed, and the folder it has been given.

    All are looked at before the first folder is made: a study with a mistake in it leaves nothing behind.
    """
    found: dict[Experiment, tuple[Job, Folder | None]] = {}
    methods: list[str] = []
    for experiment in experiments:
        require_fields(experiment)
        pool, stream = open_stream(experiment, 0, terms.data, terms.workers, watch)
        settled = settle(experiment, stream)
        if settled in found:
            continue
        if isinstance(pool, Scenes) and not found:
            for sentence in pool.warnings([task.name for task in stream.tasks], settled.masks is not False):
                watch(Notice(sentence))
        configuration = settled.configuration(pool.fingerprint)
        if terms.fork is not None:
            terms.fork.check(configuration, seeds)
        methods.append(settled.method_name)
        job = make_job(settled, 0, stream, number=methods.count(settled.method_name))
        job = replace(job, key=settled.hash(pool.fingerprint), workers=terms.workers, compiled=terms.compiled)
        job = replace(job, artifacts=terms.artifacts, log=terms.log)
        path = out or (store / folder_of(configuration) if store else None)
        found[settled] = job, None if path is None else Folder(path, settled, pool.fingerprint)
    for _, folder in found.values():
        if folder is not None:
            folder.open()
    return list(found.values())


def execute(jobs: Sequence[Job], terms: Terms, watch: Watch) -> Iterator[tuple[Job, Ended]]:
    """Train the jobs: lanes on a GPU; on a CPU, where stacked convolutions are slow, one process each; with ranks one
    after another. A Ray cluster is handed the same groups or single runs."""
    device, lanes = terms.device, terms.lanes
    stacked = terms.ranks is None and (device.type == "cuda" or (lanes or 1) > 1)
    apart = not stacked and terms.ranks is None and len(jobs) > 1 and many_cores()
    groups = [[job] for job in jobs] if apart else divide(jobs, lanes, stacked)
    if apart or terms.ray is not None:
        work = [(group, (group, terms)) for group in groups]
        if terms.ray is None:
            ends = in_processes(_apart, work, watch, last_report)
        else:
            ends = in_ray(terms.ray, _apart, work, watch, last_report, gpu=device.type == "cuda")
        for group, ended in ends:
            yield from zip(group, ended, strict=True)
        return
    while groups:
        group = groups.pop(0)
        together = _try_group(group, terms, watch)
        if together is None:
            size = _fitting_size(group, terms)
            watch(
                Notice(
                    f"{len(group)} lanes do not fit into the GPU's memory; going on with {size} at a time."
                )
            )
            groups = companies([job for waiting in (group, *groups) for job in waiting], size)
            continue
        yield from zip(group, together, strict=True)


def _apart(watch: Watch, asked: Callable[[], int | None], group: Sequence[Job], terms: Terms) -> list[Ended]:
    """A group in a process of its own, here or on a cluster."""
    device = pick_device(terms.device.type)
    with claimed(group) as (free, ended):
        trained: list[Ended] | None = []
        try:
            if free:
                trained = train_group(free, terms.data, device, watch, terms.saving, terms.fork, asked)
        except RuntimeError as error:
            if not fit.is_shortage(error):
                raise
            trained = None
        if trained is None:
            raise _too_many(free, fit.measure_fit(cells_of(free, terms.data), device))
        return in_places(trained, ended)


def _try_group(group: Sequence[Job], terms: Terms, watch: Watch) -> list[Ended] | None:
    """How a group ended, or None where the GPU's memory was too small; by then nothing holds any of it."""
    with claimed(group) as (free, ended):
        if not free:
            watch(last_report(group, [*ended.values()], 0.0))
            return [*ended.values()]
        began = time.perf_counter()
        trained: list[Ended] | None = None
        try:
            trained = train_group(
                free, terms.data, terms.device, watch, terms.saving, terms.fork, ranks=terms.ranks
            )
        except RuntimeError as error:
            if not fit.is_shortage(error):
                raise
        watch(last_report(free, trained, time.perf_counter() - began))
        if trained is None:
            return None
        return in_places(trained, ended)


def _fitting_size(group: Sequence[Job], terms: Terms) -> int:
    """Lanes that fit at a time where this group did not; a size the user insisted on is refused instead."""
    found = fit.measure_fit(cells_of(group, terms.data), terms.device)
    if found.lanes == 0 or terms.lanes is not None:
        raise _too_many(group, found)
    return found.lanes


def _too_many(group: Sequence[Job], found: fit.Fit) -> InputError:
    gpu = f"the GPU's {fit.all_bytes() / 2**30:.1f} GiB"
    if found.lanes == 0:
        return InputError(
            f"device: not even one run fits into {gpu}, of which {fit.free_bytes() / 2**30:.1f} are free: "
            f"it takes {found.one / 2**30:.1f} or more; use a smaller batch or m, or --device cpu."
        )
    return InputError(
        f"lanes: {len(group)} do not fit into {gpu}; at most {found.lanes} do; "
        f"give --lanes {found.lanes} or leave it out."
    )
