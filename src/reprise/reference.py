"""The multi-task reference of a run: trained once for all methods, found in the store by its hash.

A performance drop compares a run's final losses with E^MT, those of one model trained on all tasks at once (the mean
over the reference's seeds). A run whose reference is not there yet has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reprise import metrics
from reprise.config import Experiment, hash_of, make_experiment
from reprise.group_run import open_stream
from reprise.ledger import settle
from reprise.methods import METHODS
from reprise.results import Record, folder_of, read_store, write_json
from reprise.runner import run_experiments
from reprise.streams import require_fields, stream_kind

SHARED = (
    *("split", "tasks", "size", "sequence", "buildings", "views", "masks", "flip", "norms", "normalise"),
    *("encoder", "batch", "optimizer", "lr", "clip", "precision"),
)
"""What a reference has in common with the runs it is compared with; memory and replay are not its business."""


def reference_of(experiment: Experiment) -> Experiment | None:
    """The multi-task experiment to compare with; None where there is none, or where it is one itself."""
    e, kind = experiment, stream_kind(experiment.stream)
    if kind.reference_steps is None or e.method.merged:
        return None
    method = next(name for name, own in METHODS.items() if own.merged)
    given: dict[str, Any] = {name: getattr(e, name) for name in SHARED}
    # The paper trains it for three times the steps of a task.
    longer = "epochs" if e.steps is None else "steps"
    given |= {"steps": e.steps, "epochs": e.epochs} | {longer: getattr(e, longer) * kind.reference_steps}
    made = make_experiment(e.stream, method, given, kind.protocol_of(method))
    return replace(made, first_weights=e.first_weights)


@dataclass(frozen=True)
class Comparison:
    """A run's folder, and that of its reference."""

    folder: Path
    reference: Path

    def losses(self, seeds: int) -> list[float] | None:
        """E^MT of each task, the mean over the reference's seeds; None while there are fewer than these."""
        rows = [record["matrix"]["loss"][-1] for record in read_store(self.reference)]
        return None if len(rows) < seeds else np.mean(np.array(rows, np.float64), axis=0).tolist()

    def complete(self, record: Record, losses: list[float]) -> Record:
        """The record with its reference and its performance drop, here and on disk."""
        drop = metrics.performance_drop_percent(record["matrix"]["loss"], losses)
        record = record | {"reference": losses, "performance_drop_percent": drop}
        write_json(self.folder / f"seed-{record['seed']}" / "record.json", record)
        return record


def run_compared(
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
    store: Path,
    out: Path | None = None,
    train: bool = False,
    **how: Any,
) -> Iterator[Record]:
    """`run_experiments`, each record with its performance drop where the store holds its reference.

    out    the folder of the one experiment, if it has one of its own; references are always in the store
    train  train the references that are missing, too; records wait for them
    """
    extra = [reference for e in experiments if (reference := reference_of(e)) is not None] if train else []
    if extra and (out is not None or how.get("fork") is not None):
        yield from run_experiments(extra, seeds, store=store, **(how | {"fork": None}))
        extra = []
    comparisons = _comparisons(experiments, store, out, how)
    needed = len(seeds) if train else 1
    waiting: list[Record] = []
    for record in run_experiments(
        [*extra, *experiments], seeds, out=out, store=None if out else store, **how
    ):
        held = [*waiting, record]
        known = [_completed(one, comparisons, needed) for one in held]
        yield from (one for one in known if one is not None)
        waiting = [one for one, done in zip(held, known, strict=True) if done is None]
        if not train:  # nobody is going to make the reference
            yield from waiting
            waiting = []
    yield from waiting


def _completed(record: Record, comparisons: dict[str, Comparison], needed: int) -> Record | None:
    """The record as far as it can be told; None while its reference is not there."""
    comparison = comparisons.get(hash_of(record["configuration"]))
    if comparison is None:
        return record
    losses = comparison.losses(needed)
    return None if losses is None else comparison.complete(record, losses)


def _comparisons(
    experiments: Sequence[Experiment], store: Path, out: Path | None, how: dict[str, Any]
) -> dict[str, Comparison]:
    """By the hash of a settled experiment: its folder and its reference's."""
    found = {}
    for experiment in experiments:
        reference = reference_of(experiment)
        if reference is None:
            continue
        require_fields(experiment)
        pool, stream = open_stream(experiment, 0, how.get("data"), how.get("workers"), how.get("watch"))
        own, other = (settle(e, stream).configuration(pool.fingerprint) for e in (experiment, reference))
        found[hash_of(own)] = Comparison(out or store / folder_of(own), store / folder_of(other))
    return found
