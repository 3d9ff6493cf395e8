"""What to remember, in index space: fill policies as pure functions of labels, order and a generator."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from reprise.errors import InputError

CLASS_POLICIES = ("uniform_class", "ring_class")
POLICIES = (*CLASS_POLICIES, "uniform_task", "reservoir")


@dataclass(frozen=True)
class Quota:
    """How many examples a policy may hold.

    m          the number as the paper counts it: of the whole stream on Split, per task elsewhere
    per_task   examples of each task (a Fraction for a reservoir, where it is only an average)
    capacity   rows of a shelf: of the one all tasks share, or of each task's own
    """

    policy: str
    m: int
    per_task: Fraction
    per_class: int | None
    capacity: int


def make_quota(policy: str, m: int, tasks: int, full_tasks: int, classes_per_task: int | None) -> Quota:
    """Divide m over tasks and classes; an indivisible m is refused with its neighbours named.

    classes_per_task is None on streams whose tasks are not classifications of equal size: m counts per task there.
    """
    if policy not in POLICIES:
        raise InputError(f"fill: {policy!r} is not known; choose one of {', '.join(POLICIES)}.")
    if m < 0:
        raise InputError(f"m: {m} is negative; give 0 or more examples.")
    if classes_per_task is None:
        if policy != "uniform_task":
            raise InputError(f"fill: {policy!r} needs one class per example in every task; use uniform_task.")
        return Quota(policy, m, Fraction(m), None, m)
    parts = full_tasks * classes_per_task if policy in CLASS_POLICIES else full_tasks
    if policy == "reservoir":
        return Quota(policy, m, Fraction(m, full_tasks), None, m)
    if m % parts:
        below, what = m // parts * parts, "classes" if policy in CLASS_POLICIES else "tasks"
        raise InputError(
            f"m: {m} cannot be divided evenly over {parts} {what}; use {below} or {below + parts}, "
            "or fill=reservoir, which takes any m."
        )
    share = m // parts
    per_task = share * classes_per_task if policy in CLASS_POLICIES else share
    per_class = share if policy in CLASS_POLICIES else None
    return Quota(policy, m, Fraction(per_task), per_class, per_task * tasks)


def choose(
    quota: Quota, labels: np.ndarray | None, order: np.ndarray, n: int, rng: np.random.Generator
) -> np.ndarray:
    """Positions [q] among a task's n examples to remember, the most important first.

    order  positions in the order in which training saw them
    """
    if quota.policy == "uniform_task":
        count = int(quota.per_task)
        if count > n:
            raise InputError(
                f"m: {count} examples a task were asked for, but a task has only {n}; use a smaller m."
            )
        return rng.choice(n, count, replace=False)
    assert quota.per_class is not None
    assert labels is not None
    picks = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if quota.per_class > len(members):
            raise InputError(
                f"m: {quota.per_class} examples a class were asked for, but a class has only {len(members)}; "
                "use a smaller m."
            )
        if quota.policy == "ring_class":
            seen = _distinct(order[np.isin(order, members)][::-1])
            if quota.per_class > len(seen):
                raise InputError(
                    f"m: {quota.per_class} examples a class were asked for, but training sees only {len(seen)} of a "
                    "class in its first pass; use a smaller m, more steps or a smaller batch."
                )
            picks.append(seen[: quota.per_class])
        else:
            picks.append(rng.choice(members, quota.per_class, replace=False))
    # Interleaved, so that a shortened memory stays balanced over the classes.
    return np.stack(picks, 1).reshape(-1) if picks else np.empty(0, np.int64)


def reservoir_slots(seen: int, count: int, capacity: int, rng: np.random.Generator) -> np.ndarray:
    """The slot [count] each of the next examples is written to, or -1.

    Example n of the stream (0-based) takes slot n while there is room, afterwards slot r ~ U{0..n} if r is one.
    """
    n = seen + np.arange(count)
    drawn = rng.integers(0, n + 1)
    slots = np.where(n < capacity, n, drawn)
    return np.where(slots < capacity, slots, -1)


def reservoir_rows(slots: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and the positions that end up in them: the last writer of a slot wins."""
    last = {int(slot): int(position) for slot, position in zip(slots, order, strict=True) if slot >= 0}
    rows = np.array(sorted(last), dtype=np.int64)
    return rows, np.array([last[row] for row in rows], dtype=np.int64)


def _distinct(values: np.ndarray) -> np.ndarray:
    """Values without repeats, in the order of their first appearance."""
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]
