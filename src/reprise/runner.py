"""Run experiments: settle, group into lanes or processes, save each result as it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypedDict

import torch

from reprise import fit, stopping
from reprise.archive import Archive
from reprise.artifacts import ArtifactWriter, Asked, check_kinds
from reprise.build import Cell
from reprise.config import Experiment
from reprise.errors import Diverged, InputError
from reprise.files import remove_partial
from reprise.following import Leader, Wish, announce, dismiss, follow, hand_on
from reprise.forking import Fork
from reprise.groups import Job, group_name, lane_groups, make_job
from reprise.keeping import GroupKeeper, Saving, Seat, go_on, tidy
from reprise.ledger import settle
from reprise.locks import try_lock
from reprise.loggers import check_loggers, make_loggers
from reprise.observe import Observer, Several
from reprise.progress import Notice, Outlook, Report, Watch
from reprise.ranks import Ranks, join, launched, leave
from reprise.ray_pool import in_ray
from reprise.results import (
    Folder,
    Record,
    environment,
    folder_of,
    make_record,
    read_record,
    save_record,
    trouble,
)
from reprise.streams import require_fields, stream_kind, stream_of
from reprise.streams.loading import Wanted
from reprise.streams.scenes import Scenes
from reprise.streams.split import Pool
from reprise.train import Keeper, Outcome, Trainer
from reprise.workers import in_processes, many_cores

LARGEST_GROUP = 120
"""Lanes of one group, unless the user says otherwise: more gain no speed."""

PATIENCE = 1.0
"""Seconds between two looks at runs that another process is training."""


@dataclass(frozen=True)
class Ended:
    """How a job ended: with a record, with the sentence that says why there is none, or in another process' hands."""

    record: Record | None = None
    why: str | None = None

    @property
    def elsewhere(self) -> bool:
        return self.record is None and self.why is None


@lru_cache(maxsize=4)
def load_pool(stream: str, data: Path | None, wanted: Wanted = Wanted()) -> Pool | Scenes:  # noqa: B008 (frozen)
    return stream_kind(stream).load(data, wanted)


def wanted_of(experiment: Experiment, workers: int | None = None, watch: Watch | None = None) -> Wanted:
    """What an experiment asks of its data; `watch` hears how far its preparation is."""
    e, began = experiment, time.perf_counter()

    def tell(what: str, done: int, total: int) -> None:
        if watch is not None:
            watch(Report(what, 0, done, total, what, time.perf_counter() - began, over=done == total))

    return Wanted(e.size, e.buildings, e.views, workers, tell)


def named_device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise InputError(f"device: {name!r} is not known; choose cpu or cuda.")
    return torch.device(name)


def pick_device(name: str) -> torch.device:
    """A device that this machine has."""
    device = named_device(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device: cuda was asked for, but this machine shows no GPU; use --device cpu.")
    return device


class _How(TypedDict):
    """How runs are made; nothing of it changes a result."""

    workers: int | None
    compiled: bool
    ray: str | None


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
    """Yield the record of every experiment and seed as it is known.

    ray        address of a Ray cluster that trains the runs, or "local"; it sees the same folders as this process
    artifacts  what each run leaves beside its record (artifacts.KINDS); a finished run that left none runs again
    log        tools that show curves while runs train (loggers.LOGGERS)

    Where `torchrun` started several ranks they train one run after another together: the first yields the records,
    the others nothing.
    """
    # A cluster's machines may have what this one lacks; each worker looks for itself.
    where = pick_device(device) if ray is None else named_device(device)
    how = _How(workers=workers, compiled=compiled, ray=ray)
    if ray is not None:  # its workers stand in folders of their own
        data, out, store = (None if path is None else path.absolute() for path in (data, out, store))
        fork = None if fork is None else replace(fork, run=fork.run.absolute())
    leaving = check_kinds(artifacts), check_loggers(log)
    if not launched():
        yield from _run_experiments(
            experiments, seeds, data, where, out, store, lanes, watch, saving, fork, leaving, **how
        )
        return
    if ray is not None:
        raise InputError("ray: ranks of one run train together; leave --ray out, or start without torchrun.")
    if leaving[0]:
        raise InputError("artifacts: a run on several ranks leaves none; leave it out, or use one process.")
    ranks = join(where)
    if not ranks.first:
        follow(ranks, partial(_follower, ranks, data, where))
        leave()
        return
    try:
        yield from _run_experiments(
            experiments, seeds, data, where, out, store, 1, watch, saving, fork, leaving, ranks, **how
        )
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
    return Trainer([_cell(experiment, seed, data)], device, ranks=ranks)


def _run_experiments(
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
    data: Path | None,
    where: torch.device,
    out: Path | None,
    store: Path | None,
    lanes: int | None,
    watch: Watch | None,
    saving: Saving | None,
    fork: Fork | None,
    leaving: tuple[tuple[str, ...], tuple[str, ...]],
    ranks: Ranks | None = None,
    *,
    workers: int | None,
    compiled: bool,
    ray: str | None,
) -> Iterator[Record]:
    """Yield the record of every experiment and seed as it is known; what is on disk already is not run again.

    An interrupted run goes on from its newest whole checkpoint. A run that another process is training is waited
    for, after all others.

    out      the folder of the one experiment
    store    a folder of such folders, for several
    fork     where the runs begin, if not at the beginning
    leaving  artifacts that each run leaves, and tools that show its curves
    """
    watch = watch or _unwatched
    kinds, tools = leaving
    if store is not None and (store / "experiment.json").exists():
        raise InputError(f"out: {store} holds one experiment, no store of several; name another folder.")
    folders: dict[Experiment, Folder | None] = {}
    jobs: dict[Experiment, Job] = {}
    fingerprints: dict[Experiment, str] = {}
    methods: list[str] = []
    for experiment in experiments:
        require_fields(experiment)
        pool = load_pool(experiment.stream, data, wanted_of(experiment, workers, watch))
        stream = stream_of(experiment, 0, pool)
        settled = settle(experiment, stream)
        if settled in folders:
            continue
        if isinstance(pool, Scenes) and not folders:
            for sentence in pool.warnings([task.name for task in stream.tasks], settled.masks is not False):
                watch(Notice(sentence))
        methods.append(settled.method_name)
        job = make_job(settled, 0, stream, number=methods.count(settled.method_name))
        jobs[settled] = replace(job, workers=workers, compiled=compiled)
        fingerprints[settled] = pool.fingerprint
        path = out or (store / folder_of(settled.configuration(pool.fingerprint)) if store else None)
        folders[settled] = None if path is None else Folder(path, settled, pool.fingerprint)
        if fork is not None:
            fork.check(settled.configuration(pool.fingerprint), seeds)
    todo: list[Job] = []
    done: list[Record] = []
    for settled, folder in folders.items():
        if folder is not None:
            folder.open()
        for seed in seeds:
            known = None if folder is None else folder.record(seed)
            if known is not None and folder is not None and artifacts_of(folder.of_seed(seed), kinds).there():
                tidy(folder.of_seed(seed))
                done.append(known)
                continue
            key = f"{settled.hash(fingerprints[settled])}/{seed}"
            place = None if folder is None else folder.make_room(seed)
            job = replace(jobs[settled], seed=seed, folder=place, key=key, artifacts=kinds, log=tools)
            todo.append(job)
    yield from done
    watch(Outlook(len(todo), sum(job.steps for job in todo)))
    lost: list[str] = []
    while todo:
        elsewhere: list[Job] = []
        for job, ended in execute(todo, data, where, lanes, watch, saving or Saving(), fork, ranks, ray):
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


def _unwatched(said: Outlook | Report | Notice) -> None:
    """Nobody looks."""


def execute(
    jobs: Sequence[Job],
    data: Path | None,
    device: torch.device,
    lanes: int | None,
    watch: Watch,
    saving: Saving | None = None,
    fork: Fork | None = None,
    ranks: Ranks | None = None,
    ray: str | None = None,
) -> Iterator[tuple[Job, Ended]]:
    """Train the jobs: lanes on a GPU; on a CPU, where stacked convolutions are slow, one process each; with ranks one
    after another. A Ray cluster is handed the same groups or single runs."""
    saving = saving or Saving()
    stacked = ranks is None and (device.type == "cuda" or (lanes or 1) > 1)
    apart = not stacked and ranks is None and len(jobs) > 1 and many_cores()
    groups = [[job] for job in jobs] if apart else _grouped(jobs, lanes, stacked)
    if apart or ray is not None:
        work = [(group, (group, data, device, saving, fork)) for group in groups]
        if ray is None:
            ends = in_processes(_apart, work, watch, _last_report)
        else:
            ends = in_ray(ray, _apart, work, watch, _last_report, gpu=device.type == "cuda")
        for group, ended in ends:
            yield from zip(group, ended, strict=True)
        return
    while groups:
        group = groups.pop(0)
        together = _try_group(group, data, device, watch, saving, fork, ranks)
        if together is None:
            size = _fitting_size(group, data, device, lanes)
            watch(
                Notice(
                    f"{len(group)} lanes do not fit into the GPU's memory; going on with {size} at a time."
                )
            )
            groups = _groups([job for waiting in (group, *groups) for job in waiting], size)
            continue
        yield from zip(group, together, strict=True)


def _groups(jobs: Sequence[Job], largest: int) -> list[list[Job]]:
    """Runs that were interrupted together go on together; the others are grouped anew."""
    own = [None if job.folder is None else Archive(job.folder / "checkpoints").company() for job in jobs]
    # One that was killed before its first checkpoint is known by those that were faster.
    known = {key: company for company in own if company is not None for key in company}
    companies: dict[tuple[str, ...] | None, list[Job]] = {}
    for job, company in zip(jobs, own, strict=True):
        companies.setdefault(company or known.get(job.key), []).append(job)
    fresh = companies.pop(None, [])
    groups = []
    for company, members in companies.items():
        assert company is not None
        members.sort(key=lambda job: company.index(job.key) if job.key in company else len(company))
        groups += [members[start : start + largest] for start in range(0, len(members), largest)]
    return [*groups, *lane_groups(fresh, largest)]


def _apart(
    watch: Watch,
    asked: Callable[[], int | None],
    group: Sequence[Job],
    data: Path | None,
    device: torch.device,
    saving: Saving,
    fork: Fork | None,
) -> list[Ended]:
    """A group in a process of its own, here or on a cluster."""
    device = pick_device(device.type)
    with _claimed(group) as (free, ended):
        trained: list[Ended] | None = []
        try:
            if free:
                trained = train_group(free, data, device, watch, saving, fork, asked)
        except RuntimeError as error:
            if not fit.is_shortage(error):
                raise
            trained = None
        if trained is None:
            raise _too_many(free, fit.measure_fit(cells_of(free, data), device))
        return _in_places(trained, ended)


def _in_places(trained: Sequence[Ended], ended: Mapping[int, Ended]) -> list[Ended]:
    """How all jobs of a group stand: those just trained, between those that were not to be, by place."""
    by_turns = iter(trained)
    return [ended[place] if place in ended else next(by_turns) for place in range(len(trained) + len(ended))]


def _grouped(jobs: Sequence[Job], lanes: int | None, stacked: bool) -> list[list[Job]]:
    """Lanes where a stream's networks are small; those that fill a GPU alone come one after another."""
    small = [job for job in jobs if stream_kind(job.experiment.stream).stacks]
    large = [job for job in jobs if job not in small]
    return [*_groups(small, (lanes or LARGEST_GROUP) if stacked else 1), *_groups(large, lanes or 1)]


def _try_group(
    group: Sequence[Job],
    data: Path | None,
    device: torch.device,
    watch: Watch,
    saving: Saving,
    fork: Fork | None,
    ranks: Ranks | None,
) -> list[Ended] | None:
    """How a group ended, or None where the GPU's memory was too small; by then nothing holds any of it."""
    with _claimed(group) as (free, ended):
        if not free:
            watch(_last_report(group, [*ended.values()], 0.0))
            return [*ended.values()]
        began = time.perf_counter()
        trained: list[Ended] | None = None
        try:
            trained = train_group(free, data, device, watch, saving, fork, ranks=ranks)
        except RuntimeError as error:
            if not fit.is_shortage(error):
                raise
        watch(_last_report(free, trained, time.perf_counter() - began))
        if trained is None:
            return None
        return _in_places(trained, ended)


@contextmanager
def _claimed(group: Sequence[Job]) -> Iterator[tuple[list[Job], dict[int, Ended]]]:
    """The jobs of a group that nobody else trains, locked while the block runs; how the others stand, by place."""
    with ExitStack() as locks:
        free: list[Job] = []
        ended: dict[int, Ended] = {}
        for place, job in enumerate(group):
            if job.folder is not None:
                if not locks.enter_context(try_lock(job.folder)):
                    ended[place] = Ended()
                    continue
                known = read_record(job.folder, job.seed)
                if known is not None and artifacts_of(job.folder, job.artifacts).there():
                    ended[place] = Ended(known)
                    continue
                remove_partial(job.folder)
            free.append(job)
        yield free, ended


def _fitting_size(group: Sequence[Job], data: Path | None, device: torch.device, lanes: int | None) -> int:
    """Lanes that fit at a time where this group did not; a size the user insisted on is refused instead."""
    found = fit.measure_fit(cells_of(group, data), device)
    if found.lanes == 0 or lanes is not None:
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


def cells_of(group: Sequence[Job], data: Path | None) -> list[Cell]:
    return [_cell(job.experiment, job.seed, data, job.workers) for job in group]


def _cell(experiment: Experiment, seed: int, data: Path | None, workers: int | None = None) -> Cell:
    pool = load_pool(experiment.stream, data, wanted_of(experiment, workers))
    return Cell(experiment, seed, stream_of(experiment, seed, pool))


def train_group(
    group: Sequence[Job],
    data: Path | None,
    device: torch.device,
    watch: Watch,
    saving: Saving | None = None,
    fork: Fork | None = None,
    asked: Callable[[], int | None] = stopping.asked,
    ranks: Ranks | None = None,
) -> list[Ended]:
    """Train claimed jobs together, from where they were interrupted, and write their records."""
    set_arithmetic(group[0].experiment.precision)
    name, began = group_name(group), time.perf_counter()

    def progress(done: int, total: int, what: str) -> None:
        watch(Report(name, len(group), done, total, what, time.perf_counter() - began))

    seats = [Seat(job.folder, job.key) for job in group if job.folder is not None]
    cells = cells_of(group, data)
    if ranks is not None:
        announce(ranks, group[0].experiment, group[0].seed)
    trainer = Trainer(cells, device, compiled=group[0].compiled, ranks=ranks, observer=observer_of(group))
    resumed = bool(seats) and go_on(trainer, seats, lambda text: watch(Notice(text)))
    if fork is not None and not resumed:
        fork.begin(trainer, [job.seed for job in group], seats)
    if ranks is not None:
        hand_on(ranks, trainer, begun=resumed or fork is not None)
    wish = asked if ranks is None else Wish(ranks)
    keeper = GroupKeeper(seats, saving or Saving(), wish)
    kept: Keeper = Leader(keeper, wish) if isinstance(wish, Wish) else keeper
    with stopping.heeding():
        try:
            outcomes = trainer.run(progress, keeper=kept)
        except Diverged:
            outcomes = trainer.outcomes
        ended = [_recorded(job, outcome, data, device) for job, outcome in zip(group, outcomes, strict=True)]
        keeper.finish([one.why is None for one in ended])
    return [
        replace(one, why=f"{one.why.rstrip('.')}; {keeper.last_good(lane)}.") if one.why and seats else one
        for lane, one in enumerate(ended)
    ]


def _recorded(job: Job, outcome: Outcome, data: Path | None, device: torch.device) -> Ended:
    """A finished run's record, written where it belongs; or why it has none."""
    if (why := trouble(job.seed, outcome)) is not None:
        return Ended(why=why)
    pool = load_pool(job.experiment.stream, data, wanted_of(job.experiment, job.workers))
    place = environment(device)
    record = make_record(job.experiment, job.seed, outcome, job.quota, pool.fingerprint, place)
    if job.folder is not None:
        save_record(job.folder, record, outcome.log, outcome.samples)
    return Ended(record)


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


def _last_report(group: Sequence[Job], ended: Sequence[Ended] | None, seconds: float) -> Report:
    """How a group ended. One that did not fit has done nothing: its runs are still to come."""
    done = group[0].steps
    if ended is None:
        what, done = "out of memory", 0
    elif all(one.elsewhere for one in ended):
        what, done = "trained elsewhere", 0
    else:
        what = "diverged" if all(one.why for one in ended) else "done"
    return Report(group_name(group), len(group), done, group[0].steps, what, seconds, over=True)
