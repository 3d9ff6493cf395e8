"""Jobs, and which of them may be lanes of one group (docs/decisions/0006)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from reprise.archive import Archive
from reprise.config import Experiment
from reprise.fill import Quota
from reprise.ledger import quota_of
from reprise.method import Method, Needs, neutral_values
from reprise.plan import count_steps
from reprise.streams import stream_kind
from reprise.streams.stream import Stream

LARGEST_GROUP = 120
"""Lanes of one group, unless the user says otherwise: more gain no speed."""


@dataclass(frozen=True)
class Job:
    """One run to do: a settled experiment and a seed, and what its stream makes of them (`make_job`)."""

    experiment: Experiment
    seed: int
    number: int = 1
    """Which of several experiments it belongs to: tells jobs of one method apart."""
    needs: Needs = field(default_factory=Needs)
    quota: Quota | None = None
    steps: int = 0
    """Of all its tasks together."""
    workers: int | None = None
    compiled: bool = False
    """How it is run: neither changes a result."""
    folder: Path | None = None
    """Where its files go; None keeps nothing."""
    artifacts: tuple[str, ...] = ()
    """What it leaves there beside its record."""
    log: tuple[str, ...] = ()
    """Tools that show its curves while it trains."""
    key: str = ""
    """What the runs trained beside it know it by."""

    @property
    def name(self) -> str:
        number = f" #{self.number}" if self.number > 1 else ""
        return f"{self.experiment.method_name}{number} seed {self.seed}"


def make_job(experiment: Experiment, seed: int, stream: Stream, number: int = 1) -> Job:
    """A settled experiment's job; any seed's stream will do, since they differ only in who is in which task."""
    e = experiment
    trained = stream.merged() if e.method.merged else stream
    steps = sum(
        count_steps(
            len(phase.train), e.batch, e.epochs, None if e.steps is None else e.steps * phase.epochs_of
        )
        for phase in trained.phases
    )
    quota = None if e.m is None else quota_of(e, stream, e.m)
    return Job(e, seed, number, e.method.needs(stream), quota, steps)


@dataclass(frozen=True)
class LaneKey:
    """What lanes of one group must have in common. The rest (seed, m, lr, the method's floats) is theirs alone."""

    kind: type[Method]
    choices: tuple[tuple[str, str], ...]
    """The method's fields that are no floats."""
    settings: str
    """The experiment's other fields, what the method needs drawn, the shapes of replayed batches."""

    def carries(self, other: LaneKey) -> bool:
        """Whether jobs of the other key, of an ancestor of this method, may be lanes beside jobs of this one."""
        names = {f.name for f in fields(other.kind)}
        return (
            self.kind is not other.kind
            and neutral_values(self.kind, other.kind) is not None
            and tuple(choice for choice in self.choices if choice[0] in names) == other.choices
            and self.settings == other.settings
        )


def lane_key(job: Job) -> LaneKey:
    e = job.experiment
    settings = {f.name: getattr(e, f.name) for f in fields(e) if f.name not in ("method", "m", "lr")}
    if e.optimizer != "sgd":
        settings["lr"] = e.lr
    own = {f.name: getattr(e.method, f.name) for f in fields(e.method)}
    choices = {name: repr(value) for name, value in own.items() if not isinstance(value, float)}
    shared = (sorted(settings.items()), job.needs, _replay_shapes(job))
    return LaneKey(type(e.method), tuple(sorted(choices.items())), repr(shared))


def _replay_shapes(job: Job) -> object:
    """What decides the rows of replayed batches: min(asked for, there are) of the union, of each task or class."""
    e, needs, quota = job.experiment, job.needs, job.quota
    if quota is None:
        return None
    if needs.share == "seen":  # shares shrink from task to task
        return e.m
    if quota.policy == "reservoir":
        there = quota.capacity if e.scope == "union" or needs.current_task else None
    else:
        there = quota.per_class if e.scope == "each_class" else int(quota.per_task)
    if there is None:  # how many of a task or class are held is the luck of the seed
        return job.seed, e.m
    return {role: min(size, there) for role, size in needs.sizes(e.replay).items()}


def lane_groups(jobs: Sequence[Job], largest: int) -> Iterator[list[Job]]:
    """The jobs in groups of lanes, in the order of each group's first job.

    Jobs of a method that is a special case of another's join the first group of that one which carries them.
    """
    keys = [lane_key(job) for job in jobs]
    different = list(dict.fromkeys(keys))
    hosts = {key: next((host for host in different if host.carries(key)), key) for key in different}
    by_host: dict[LaneKey, list[Job]] = {}
    for job, key in zip(jobs, keys, strict=True):
        while hosts[key] != key:
            key = hosts[key]
        by_host.setdefault(key, []).append(job)
    for members in by_host.values():
        for start in range(0, len(members), largest):
            yield members[start : start + largest]


def group_name(group: Sequence[Job]) -> str:
    """The job's own name, or the number of lanes and their methods."""
    if len(group) == 1:
        return group[0].name
    methods = sorted({job.experiment.method_name for job in group})
    return f"{len(group)} lanes · {', '.join(methods)}"


def divide(jobs: Sequence[Job], lanes: int | None, stacked: bool) -> list[list[Job]]:
    """Lanes where a stream's networks are small; those that fill a GPU alone come one after another."""
    small = [job for job in jobs if stream_kind(job.experiment.stream).stacks]
    large = [job for job in jobs if job not in small]
    return [*companies(small, (lanes or LARGEST_GROUP) if stacked else 1), *companies(large, lanes or 1)]


def companies(jobs: Sequence[Job], largest: int) -> list[list[Job]]:
    """Runs that were interrupted together go on together; the others are grouped anew."""
    own = [None if job.folder is None else Archive(job.folder / "checkpoints").company() for job in jobs]
    # One that was killed before its first checkpoint is known by those that were faster.
    known = {key: company for company in own if company is not None for key in company}
    found: dict[tuple[str, ...] | None, list[Job]] = {}
    for job, company in zip(jobs, own, strict=True):
        found.setdefault(company or known.get(job.key), []).append(job)
    fresh = found.pop(None, [])
    groups = []
    for company, members in found.items():
        assert company is not None
        members.sort(key=lambda job: company.index(job.key) if job.key in company else len(company))
        groups += [members[start : start + largest] for start in range(0, len(members), largest)]
    return [*groups, *lane_groups(fresh, largest)]
