"""The end of a task: which examples are remembered, and what is stored beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from reprise.build import Cell
from reprise.engine import Engine
from reprise.fill import Quota, choose, reservoir_rows, reservoir_slots
from reprise.memory import Memory
from reprise.method import Needs
from reprise.randomness import rng
from reprise.streams.stream import Phase, Stream

Pick = tuple[np.ndarray, np.ndarray]
"""Memory rows, and the positions of the examples that go there."""


def refuse_unseen(
    cells: Sequence[Cell],
    quotas: Sequence[Quota],
    needs: Needs,
    stream: Stream,
    phase: Phase,
    orders: Callable[[], Sequence[np.ndarray]],
) -> None:
    """Refuse, before anything is trained, a policy that will find too few examples among those training sees.

    orders  draws each lane's positions; the other policies need none of it
    """
    if all(quota.policy != "ring_class" for quota in quotas):
        return
    for lane, (cell, quota, order) in enumerate(zip(cells, quotas, orders(), strict=True)):
        labels, once = _labels(phase, lane), order[: len(phase.train) // order.shape[1]].reshape(-1)
        if needs.share == "seen":
            quota = _share_of_seen(quota, phase.last, stream, labels)
        choose(quota, labels, once, len(phase.train), rng(cell.seed, "select", phase.last))


def remember(
    engine: Engine,
    memory: Memory,
    cells: Sequence[Cell],
    quotas: Sequence[Quota],
    needs: Needs,
    stream: Stream,
    phase: Phase,
    orders: Sequence[np.ndarray],
) -> None:
    """Fill the memory with examples of the phase that has just ended.

    orders  each lane's positions [steps, batch] as training saw them
    """
    first_pass = len(phase.train) // orders[0].shape[1]
    once = [order[:first_pass].reshape(-1) for order in orders]
    picks: list[Pick] = []
    for lane, (cell, quota) in enumerate(zip(cells, quotas, strict=True)):
        own = _labels(phase, lane)
        if needs.share == "seen":
            quota = _share_of_seen(quota, phase.last, stream, own)
            for task in range(phase.last):
                memory.shelf(task).shrink(lane, task, int(quota.per_task))
        elif stream.open_ended and not stream.shared_head:  # a task of fewer examples is remembered whole
            quota = replace(quota, per_task=min(quota.per_task, Fraction(len(phase.train))))
        picks.append(_pick(memory, lane, cell.seed, quota, phase, own, once[lane]))
    chosen = engine.method.select(engine, phase.train, [len(positions) for _, positions in picks])
    if chosen is not None:
        picks = [(rows, positions) for (rows, _), positions in zip(picks, chosen, strict=True)]
    # Lanes that remember equally many form one batch: activations stored in training mode depend on it.
    for count in sorted({len(positions) for _, positions in picks} - {0}):
        lanes = [lane for lane, (_, positions) in enumerate(picks) if len(positions) == count]
        _write(engine, memory, lanes, [picks[lane] for lane in lanes], phase)
    memory.seen += len(once[0])
    if engine.method.refresh:
        _refresh(engine, memory, stream, phase.last)


def _labels(phase: Phase, lane: int) -> np.ndarray | None:
    """The classes [n] of a phase's examples, as one lane sees them."""
    labels = phase.train.labels
    return labels[lane] if labels is not None and labels.ndim == 2 else labels


def _pick(
    memory: Memory,
    lane: int,
    seed: int,
    quota: Quota,
    phase: Phase,
    labels: np.ndarray | None,
    once: np.ndarray,
) -> Pick:
    generator = rng(seed, "select", phase.last)
    if quota.policy == "reservoir":
        slots = reservoir_slots(memory.seen, len(once), quota.capacity, generator)
        return reservoir_rows(slots, once)
    positions = choose(quota, labels, once, len(phase.train), generator)
    return memory.shelf(phase.last).free_rows(lane, len(positions)), positions


def _write(engine: Engine, memory: Memory, lanes: list[int], picks: list[Pick], phase: Phase) -> None:
    data = phase.train.only(lanes) if engine.stacked else phase.train
    positions = torch.as_tensor(np.stack([p for _, p in picks]), device=data.rows.device)
    columns = data.take(positions if engine.stacked else positions[0])
    batch = engine.reader.batch(columns, phase.parts[0][0])
    columns |= engine.method.keep(engine.only(lanes), batch)
    for index, (lane, (rows, _)) in enumerate(zip(lanes, picks, strict=True)):
        own = {name: column[index] if engine.stacked else column for name, column in columns.items()}
        is_class = own["y"].dim() == 1 and not own["y"].is_floating_point()
        labels = own["y"].cpu().numpy() if is_class else None
        memory.shelf(phase.last).write(lane, rows, own, phase.last, labels)


def _refresh(engine: Engine, memory: Memory, stream: Stream, last: int) -> None:
    """Recompute the columns that must follow the network, for every remembered row."""
    for task in range(1 if stream.shared_head else last + 1):
        shelf = memory.shelf(task)
        rows = torch.arange(max(shelf.capacities), device=next(iter(shelf.columns.values())).device)
        stored = shelf.take(rows.expand(engine.lanes, -1) if engine.stacked else rows)
        fresh = engine.method.keep(
            engine, engine.reader.batch(stored, None if stream.shared_head else task, "replay")
        )
        for name in [name for name in engine.method.refresh if name in fresh]:
            shelf.columns[name].copy_(fresh[name])


def _share_of_seen(quota: Quota, last: int, stream: Stream, labels: np.ndarray | None) -> Quota:
    """m divided by the classes seen so far: every task's share shrinks when another joins."""
    classes = stream.classes_per_task or 1
    there = int(np.bincount(labels)[np.unique(labels)].min()) if labels is not None else quota.m
    per_class = min(quota.m // ((last + 1) * classes), there)
    return replace(quota, per_class=per_class, per_task=Fraction(per_class * classes))
