"""One group of jobs: claimed, trained from where it was interrupted, its records written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from reprise import stopping
from reprise.artifacts import ArtifactWriter, Asked
from reprise.build import Cell
from reprise.config import Experiment
from reprise.errors import Diverged
from reprise.files import remove_partial
from reprise.following import Leader, Wish, announce, hand_on
from reprise.forking import Fork
from reprise.groups import Job, group_name
from reprise.keeping import GroupKeeper, Saving, Seat, go_on
from reprise.locks import try_lock
from reprise.loggers import make_loggers
from reprise.machine import set_arithmetic
from reprise.observe import Observer, Several
from reprise.progress import Notice, Report, Watch
from reprise.ranks import Ranks
from reprise.results import Record, environment, make_record, read_record, save_record, trouble
from reprise.streams import stream_kind, stream_of
from reprise.streams.loading import Wanted
from reprise.streams.scenes import Scenes
from reprise.streams.split import Pool
from reprise.streams.stream import Stream
from reprise.train import Keeper, Outcome, Trainer


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


def open_stream(
    experiment: Experiment,
    seed: int,
    data: Path | None,
    workers: int | None = None,
    watch: Watch | None = None,
) -> tuple[Pool | Scenes, Stream]:
    """An experiment's data, and what a seed makes of it."""
    pool = load_pool(experiment.stream, data, wanted_of(experiment, workers, watch))
    return pool, stream_of(experiment, seed, pool)


def cells_of(group: Sequence[Job], data: Path | None) -> list[Cell]:
    return [cell_of(job.experiment, job.seed, data, job.workers) for job in group]


def cell_of(experiment: Experiment, seed: int, data: Path | None, workers: int | None = None) -> Cell:
    return Cell(experiment, seed, open_stream(experiment, seed, data, workers)[1])


@contextmanager
def claimed(group: Sequence[Job]) -> Iterator[tuple[list[Job], dict[int, Ended]]]:
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
        named = group[0].experiment.first_weights is not None  # only this rank looks at the file
        hand_on(ranks, trainer, begun=resumed or fork is not None or named)
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


def in_places(trained: Sequence[Ended], ended: Mapping[int, Ended]) -> list[Ended]:
    """How all jobs of a group stand: those just trained, between those that were not to be, by place."""
    by_turns = iter(trained)
    return [ended[place] if place in ended else next(by_turns) for place in range(len(trained) + len(ended))]


def last_report(group: Sequence[Job], ended: Sequence[Ended] | None, seconds: float) -> Report:
    """How a group ended. One that did not fit has done nothing: its runs are still to come."""
    done = group[0].steps
    if ended is None:
        what, done = "out of memory", 0
    elif all(one.elsewhere for one in ended):
        what, done = "trained elsewhere", 0
    else:
        what = "diverged" if all(one.why for one in ended) else "done"
    return Report(group_name(group), len(group), done, group[0].steps, what, seconds, over=True)
