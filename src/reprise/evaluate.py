"""Evaluation: test loss and accuracy of tasks, all lanes at once, one transfer to the host.

A study forwards more images to evaluate than to train. On a GPU the pass over a chunk is captured once and replayed
for every chunk of its form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.examples import Examples
from reprise.graphs import Captured
from reprise.memory import Memory
from reprise.net import Net
from reprise.tasks import Segment
from reprise.types import Batch, Tree

SAMPLES = 3
"""Test images whose answers are kept to be looked at, evenly spread over the test part."""

Scores = list[list[tuple[float, float | None]]]
"""By lane, by task: test loss, and accuracy where the task has one."""

CHUNK = {"cuda": 100, "cpu": 250}
"""Images of a lane forwarded at once. It does not depend on the number of lanes: sums keep their order, and so few
images take less memory than a training step does."""


class Evaluator:
    """Scores tasks by their test examples. `tests` has each task's, `memory` what a method's answer may look at."""

    def __init__(
        self, engine: Engine, tests: Sequence[Examples], memory: Memory | None, capturable: bool
    ) -> None:
        self.engine, self.tests, self.memory = engine, tests, memory
        # Heads of different shapes would be a graph each, for a few chunks: not worth the capture.
        self.captures = capturable and engine.reader.shared_head and engine.reader.device.type == "cuda"
        self._passes: dict[object, Captured] = {}
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
        ranks, place = self.engine.ranks, self.engine.reader.device.type
        chunks = self.engine.chunks(test, CHUNK[place], ranks)
        score = self._replayed if self.captures else self._score
        parts = [score(chunk, task, columns) for chunk in chunks]
        if ranks is None:
            return torch.stack(parts).sum(0)
        # A rank whose share has no chunk adds nothing.
        own = torch.stack(parts).sum(0) if parts else self.engine.place(torch.zeros(4))
        return ranks.total(own)

    def samples(self, names: Sequence[str]) -> list[dict[str, np.ndarray]]:
        """By lane: `<task>.input` [k, 3, h, w] uint8, `.truth` and `.answer` as the task's loss sees them (float16),
        `.mask` where there is one; of pixel classes the likeliest."""
        found: list[dict[str, np.ndarray]] = [{} for _ in range(self.engine.lanes)]
        for task, name in enumerate(names):
            test = self.tests[task]
            index = torch.linspace(0, len(test) - 1, min(SAMPLES, len(test)), dtype=torch.float64).long()
            if self.engine.stacked:
                index = index.expand(self.engine.lanes, -1)
            columns = test.take(index)
            batch = self.engine.reader.batch(columns, task)
            memory = self.memory.columns(task) if self.memory is not None else {}
            shown = {"input": columns["x"], "truth": batch.y}
            shown["answer"] = self.engine.compute(self._answer, batch, memory)
            if batch.mask is not None:
                shown["mask"] = batch.mask
            for kind, tensor in shown.items():
                array = tensor.half() if tensor.is_floating_point() else tensor.byte()
                for lane, own in enumerate(array if self.engine.stacked else [array]):
                    found[lane][f"{name}.{kind}"] = own.cpu().numpy()
        return found

    def _answer(self, net: Net, batch: Batch, memory: Tree) -> Tensor:
        answer = self.engine.method.predict(net, batch.x, batch.task, memory)
        return answer.argmax(1) if isinstance(net.kind(batch.task), Segment) else answer

    def _score(self, columns: Tree, task: int, memory: Tree) -> Tensor:
        engine = self.engine
        return engine.compute(engine.method.score, engine.reader.batch(columns, task), memory)

    def _replayed(self, columns: Tree, task: int, memory: Tree) -> Tensor:
        """The same by the captured pass of its form; the task is among the columns."""
        key = tuple((name, column.shape, column.dtype) for name, column in columns.items())
        if key not in self._passes:
            # Passes never run side by side, so they may use the same memory.
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._passes[key] = Captured(lambda given: self._score(given, task, memory), self._pool)
        return self._passes[key](columns)
