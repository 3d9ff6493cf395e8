"""Plan: integer tables drawn once per task. Which examples each step sees, which memory rows it replays.

Joint mode: a current and a replayed batch each step. Stochastic mode: one batch each step, replayed with
probability `p_replay`; current steps are counted, replay steps come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from reprise.errors import InputError
from reprise.fill import reservoir_slots
from reprise.randomness import rng


@dataclass(frozen=True)
class Draws:
    """What a step replays: rows of the replay batch, and of further batches by name."""

    rows: Mapping[str, int] = field(default_factory=dict)
    scope: str = "union"


@dataclass(frozen=True)
class Plan:
    """One lane's tables for one task.

    current   [current steps, batch]  positions among the task's examples
    replay    by role: [replaying steps, rows] memory rows; numbers from the shelf's capacity on are positions
              of the current task (a reservoir that replays it)
    old_task  [replaying steps] the task replayed, where a step replays one; else None
    replays   [steps] whether a step replays: every step in joint mode, by the coin in stochastic mode
    trains    [steps] whether a step sees the current batch
    flipped   [current steps, batch] which current examples are mirrored; None where none ever is
    """

    current: np.ndarray
    replay: dict[str, np.ndarray]
    old_task: np.ndarray | None
    replays: np.ndarray
    trains: np.ndarray
    flipped: np.ndarray | None = None

    @property
    def steps(self) -> int:
        return len(self.trains)


LARGEST = 2_000_000_000
"""Positions of one phase's plan, 16 GB of them: more is a slip of the pen, and would take all memory there is."""


def count_steps(n: int, batch: int, epochs: int, steps: int | None) -> int:
    """Steps of a phase of n examples: as many as were asked for, or those of whole passes."""
    return epochs * (n // batch) if steps is None else steps


def check_steps(task: int, n: int, batch: int, epochs: int, steps: int | None) -> int:
    """`count_steps`, where a plan can hold them; it takes no memory to find that it cannot."""
    if n < batch:
        raise InputError(f"batch: {batch} is more than the {n} examples of task {task}; use a smaller batch.")
    wanted = count_steps(n, batch, epochs, steps)
    if wanted * batch > LARGEST:
        field = "epochs" if steps is None else "steps"
        raise InputError(
            f"{field}: {wanted} steps of {batch} examples are more than a plan can hold ({LARGEST} positions); "
            "use fewer."
        )
    return wanted


def draw_order(seed: int, task: int, n: int, batch: int, epochs: int, steps: int | None) -> np.ndarray:
    """Positions [steps, batch]: whole passes in random order, each without its last partial batch."""
    wanted, a_pass = check_steps(task, n, batch, epochs, steps), n // batch
    generator = rng(seed, "order", task)
    passes = [
        generator.permutation(n)[: a_pass * batch].reshape(a_pass, batch) for _ in range(-(-wanted // a_pass))
    ]
    return np.concatenate(passes)[:wanted]


def draw_flips(seed: int, task: int, shape: tuple[int, ...]) -> np.ndarray:
    """Which example of which step is mirrored [steps, batch]: every other one."""
    return rng(seed, "augment", task).random(shape) < 0.5


def draw_plan(
    seed: int,
    task: int,
    order: np.ndarray,
    draws: Draws,
    rows: Mapping[int, np.ndarray],
    labels: np.ndarray | None = None,
    p_replay: float | None = None,
    plan_seed: int = 0,
) -> Plan:
    """The tables of a task.

    rows    memory rows of each earlier task; empty for the first task, which then replays nothing
    labels  class of each memory row, for the scope `each_class`
    """
    if not rows or not any(draws.rows.values()):
        always = np.ones(len(order), dtype=bool)
        return Plan(order, {}, None, np.zeros(len(order), dtype=bool), always)
    if p_replay is None:
        trains = replays = np.ones(len(order), dtype=bool)
    else:
        replays = _coin(plan_seed, task, len(order), p_replay)
        trains = ~replays
    count = int(replays.sum())
    # The coin and the old task of a step hash without the seed, so that lanes agree on them.
    old_task = None
    if draws.scope == "one_task":
        old_task = rng(plan_seed, "coin:task", task).choice(sorted(rows), count)
    tables = {
        role: _draw_rows(rng(seed, f"replay:{role}", task), size, draws.scope, rows, labels, old_task, count)
        for role, size in draws.rows.items()
    }
    return Plan(order, tables, old_task, replays, trains)


def _coin(plan_seed: int, task: int, current_steps: int, p_replay: float) -> np.ndarray:
    """Toss until the current task has had all its steps: True where a step replays."""
    generator = rng(plan_seed, "coin", task)
    tosses: list[np.ndarray] = []
    while sum(int((~t).sum()) for t in tosses) < current_steps:
        tosses.append(generator.random(current_steps) < p_replay)
    flat = np.concatenate(tosses)
    last = np.flatnonzero(~flat)[current_steps - 1]
    return flat[: last + 1]


def _draw_rows(
    generator: np.random.Generator,
    size: int,
    scope: str,
    rows: Mapping[int, np.ndarray],
    labels: np.ndarray | None,
    old_task: np.ndarray | None,
    count: int,
) -> np.ndarray:
    """Memory rows [count, r], without repeats within a step; all there are where there are fewer than asked."""
    if scope == "one_task":
        assert old_task is not None
        widths = {min(size, len(own)) for own in rows.values()}
        if len(widths) > 1:
            raise InputError(
                f"scope: one_task needs {size} remembered examples of each old task, but one has {min(widths)}; "
                "use scope=union, a smaller replay, or a fill policy with equal shares."
            )
        if count == 0:
            return np.empty((0, widths.pop()), dtype=np.int64)
        return np.stack([_sample(generator, rows[int(task)], size) for task in old_task])
    groups = [np.concatenate([rows[task] for task in sorted(rows)])]
    if scope == "each_task":
        groups = [rows[task] for task in sorted(rows)]
    elif scope == "each_class":
        assert labels is not None
        own = [rows[task] for task in sorted(rows)]
        groups = [members[labels[members] == c] for members in own for c in np.unique(labels[members])]
    width = sum(min(size, len(group)) for group in groups)
    table = np.empty((count, width), dtype=np.int64)
    for step in range(count):
        table[step] = np.concatenate([_sample(generator, group, size) for group in groups])
    return table


def _sample(generator: np.random.Generator, pool: np.ndarray, size: int) -> np.ndarray:
    return generator.choice(pool, min(size, len(pool)), replace=False)


def draw_reservoir_replay(
    seed: int,
    task: int,
    order: np.ndarray,
    first_pass: int,
    sizes: Mapping[str, int],
    seen: int,
    capacity: int,
) -> Plan:
    """The tables of a method that replays from a reservoir which fills while the task runs.

    The reservoir is simulated in index space: a number below the capacity is a memory row as it stood when the
    task began, `capacity + p` is example p of the current task. The first step of the first task replays nothing,
    so replaying starts at the first step at which the reservoir holds as much as any later step will draw.
    """
    flat = order.reshape(-1)
    slots = np.full(len(flat), -1)
    once = min(first_pass, len(flat))
    slots[:once] = reservoir_slots(seen, once, capacity, rng(seed, "select", task))
    held = np.arange(capacity)
    filled = min(seen, capacity)
    batch = order.shape[1]
    generators = {role: rng(seed, f"replay:{role}", task) for role in sizes}
    tables: dict[str, list[np.ndarray]] = {role: [] for role in sizes}
    replays = np.zeros(len(order), dtype=bool)
    widest = min(capacity, max(sizes.values(), default=0))
    for step in range(len(order)):
        if filled >= widest > 0:
            replays[step] = True
            for role, size in sizes.items():
                tables[role].append(_sample(generators[role], held[:filled], size))
        for offset in range(step * batch, (step + 1) * batch):
            if slots[offset] >= 0:
                held[slots[offset]] = capacity + flat[offset]
        filled = min(seen + min((step + 1) * batch, once), capacity)
    replay = {role: np.stack(rows) for role, rows in tables.items() if rows}
    return Plan(order, replay, None, replays, np.ones(len(order), dtype=bool))
