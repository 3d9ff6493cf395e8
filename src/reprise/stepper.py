"""How the steps of a phase are driven: one by one from the host, or captured once as a CUDA graph and replayed.

Data, memory, tables and state live on the device, and a step reads its row of the tables through a cursor there:
replaying it needs no host work. Phases whose steps are alike share one graph: the next phase's tables are copied
to where it reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.feed import Feed
from reprise.graphs import SideStream
from reprise.method import Method
from reprise.types import Batch

WARM_UP = 3
"""Steps run eagerly before the capture; they are real steps of the training."""


class Stepper:
    """Runs step after step and collects the losses [steps] or [steps, lanes]."""

    def __init__(self, method: Method, engine: Engine, feed: Feed, start: int) -> None:
        self.method, self.engine, self.feed, self.start = method, engine, feed, start
        self._losses: list[Tensor] = []

    def run(self, step: int) -> None:
        with self.engine.together():
            self._losses.append(self.method.step(self.engine, self.feed.batches(step)))

    def losses(self, first: int, last: int) -> Tensor:
        return torch.stack(self._losses[first - self.start : last - self.start])


class GraphStepper(Stepper):
    """The same steps as one CUDA graph. Every step of the phase must have the same batches."""

    def __init__(self, method: Method, engine: Engine, feed: Feed, start: int) -> None:
        super().__init__(method, engine, feed.copy(), start)
        device = feed.current.device
        self._cursor = torch.full((1,), start, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._side = SideStream()
        lanes = (engine.lanes,) if engine.stacked else ()
        self._table = torch.zeros(feed.steps, *lanes, device=device)

    def turn_to(self, feed: Feed, start: int) -> None:
        """Go on with another phase, whose feed looks like the captured one."""
        self.feed.load(feed)
        self.start = start
        self._cursor.fill_(start)

    def run(self, step: int) -> None:
        if step < self.feed.quiet:
            self._side.run(lambda: self._step(self.feed.batches(step)))
        elif self._graph is None and step < max(self.start, self.feed.quiet) + WARM_UP:
            self._side.run(self._any_step)
        else:
            if self._graph is None:
                self._graph, _ = self._side.capture(self._any_step)
            self._graph.replay()

    def _any_step(self) -> None:
        self._step(self.feed.batches_at(self._cursor))

    def _step(self, batches: Sequence[Batch]) -> None:
        loss = self.method.step(self.engine, batches)
        self._table.index_copy_(0, self._cursor, loss.to(self._table.dtype).unsqueeze(0))
        self._cursor += 1

    def losses(self, first: int, last: int) -> Tensor:
        return self._table[first:last]


class Steppers:
    """Makes the steppers of a run: a graph where a phase allows it, one for all phases that look alike."""

    def __init__(self, method: Method, engine: Engine, optimizer: str) -> None:
        self.method, self.engine, self.optimizer = method, engine, optimizer
        self._graphs: dict[object, GraphStepper] = {}

    def stepper(self, feed: Feed, start: int = 0) -> Stepper:
        """On a GPU, with steps all alike, an optimizer without host state and a method that allows it: a graph."""
        alike = (
            feed.uniform and self.optimizer == "sgd" and self.method.captures and self.engine.ranks is None
        )
        if not (feed.current.is_cuda and alike and feed.steps > max(start, feed.quiet) + WARM_UP + 1):
            return Stepper(self.method, self.engine, feed, start)
        learning = frozenset(name for name, p in self.engine.params.items() if p.requires_grad)
        key = feed.form, learning
        if key in self._graphs:
            self._graphs[key].turn_to(feed, start)
        else:
            self._graphs[key] = GraphStepper(self.method, self.engine, feed, start)
        return self._graphs[key]
