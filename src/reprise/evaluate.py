"""Evaluation: test loss and accuracy of tasks, all lanes at once, one transfer to the host.

A study forwards more images to evaluate than to train. On a GPU the pass over a chunk is captured once and replayed
for every chunk of its form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.examples import Examples
from reprise.graphs import SideStream
from reprise.memory import Memory
from reprise.types import Tree

Scores = list[list[tuple[float, float | None]]]
"""By lane, by task: test loss, and accuracy where the task has one."""

CHUNK = {"cuda": 100, "cpu": 250}
"""Images of a lane forwarded at once. It does not depend on the number of lanes: sums keep their order, and so few
images take less memory than a training step does."""


class Evaluator:
    """Scores tasks by their test examples. `tests` has each task's, `memory` what a method's answer may look at."""

    def __init__(self, engine: Engine, tests: Sequence[Examples], memory: Memory | None) -> None:
        self.engine, self.tests, self.memory = engine, tests, memory
        self._passes: dict[object, _Pass] = {}
        self._pool: Any = None

    def scores(self, tasks: Sequence[int]) -> Scores:
        sums = torch.stack([self._sums(task) for task in tasks])
        table = sums.double().cpu().numpy().reshape(len(sums), -1, 4)
        return [
            [(float(s[0] / s[1]), float(s[2] / s[3]) if s[3] else None) for s in table[:, lane]]
            for lane in range(self.engine.lanes)
        ]

    def _sums(self, task: int) -> Tensor:
        """[4] or [lanes, 4]: the sums of `Method.score` over all test examples of a task."""
        test = self.tests[task]
        columns = self.memory.columns(task) if self.memory is not None else {}
        ranks = self.engine.ranks
        chunks = self.engine.chunks(test, CHUNK[test.rows.device.type], ranks)
        if not test.rows.is_cuda:
            parts = [self._score(chunk, task, columns) for chunk in chunks]
        else:
            parts = [self._replayed(chunk, task, columns) for chunk in chunks]
        if ranks is None:
            return torch.stack(parts).sum(0)
        # A rank whose share has no chunk adds nothing.
        own = torch.stack(parts).sum(0) if parts else self.engine.place(torch.zeros(4))
        return ranks.total(own)

    def _score(self, columns: Tree, task: int, memory: Tree) -> Tensor:
        engine = self.engine
        return engine.compute(engine.method.score, engine.reader.batch(columns, task), memory)

    def _replayed(self, columns: Tree, task: int, memory: Tree) -> Tensor:
        """The same by the captured pass of its form; examples of one shape have the task among their columns."""
        head = None if self.engine.reader.shared_head else task
        key = head, tuple((name, column.shape, column.dtype) for name, column in columns.items())
        if key not in self._passes:
            # Passes never run side by side, so they may use the same memory.
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._passes[key] = _Pass(lambda given: self._score(given, task, memory), columns, self._pool)
        return self._passes[key](columns)


class _Pass:
    """A function of a tree as a CUDA graph: the tree is copied to where the graph reads it."""

    def __init__(self, fn: Callable[[Tree], Tensor], columns: Tree, pool: Any) -> None:
        self._columns = {name: column.clone() for name, column in columns.items()}
        side = SideStream()
        side.run(lambda: fn(self._columns))
        self._graph, found = side.capture(lambda: fn(self._columns), pool)
        assert found is not None
        self._found = found

    def __call__(self, columns: Tree) -> Tensor:
        for name, column in columns.items():
            self._columns[name].copy_(column)
        self._graph.replay()
        return self._found.clone()
