"""Evaluation: test loss and accuracy of tasks, all lanes at once, one transfer to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.examples import Examples
from reprise.memory import Memory

Scores = list[list[tuple[float, float | None]]]
"""By lane, by task: test loss, and accuracy where the task has one."""

CHUNK = {"cuda": 12_500, "cpu": 250}
"""Images forwarded at once, over all lanes."""


def evaluate(
    engine: Engine, tests: Sequence[Examples], tasks: Sequence[int], memory: Memory | None
) -> Scores:
    sums = torch.stack([_sums(engine, tests[task], task, memory) for task in tasks])
    table = sums.double().cpu().numpy().reshape(len(sums), -1, 4)
    return [
        [(float(s[0] / s[1]), float(s[2] / s[3]) if s[3] else None) for s in table[:, lane]]
        for lane in range(engine.lanes)
    ]


def _sums(engine: Engine, test: Examples, task: int, memory: Memory | None) -> Tensor:
    """[4] or [lanes, 4]: the sums of `Method.score` over all test examples of a task."""
    columns = memory.columns(task) if memory is not None else {}
    size = max(1, min(1000, CHUNK[test.rows.device.type] // engine.lanes))
    parts = [engine.compute(engine.method.score, b, columns) for b in engine.batches(test, task, size)]
    return torch.stack(parts).sum(0)
