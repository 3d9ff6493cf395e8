"""How the steps of a phase are driven: one by one from the host, or captured as CUDA graphs and replayed.

Where all steps of a phase are alike and everything lives on the device, a step reads its row of the tables through a
cursor there: replaying it needs no host work. Phases that look alike share one graph: the next phase's tables are
copied to where it reads them.

Where they are of several sorts (a current batch, or one of this or that old task, each with a head of its own), each
sort is a graph, and a step's columns are copied to where it reads them. A network of hundreds of small kernels is
bound by the host that launches them; replayed, by the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.feed import Feed, Sort
from reprise.graphs import Captured, SideStream
from reprise.method import Method
from reprise.types import Batch, Tree

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


class SortStepper(Stepper):
    """Steps of several sorts, each a CUDA graph of its own."""

    def __init__(self, method: Method, engine: Engine, feed: Feed, start: int, graphs: SortGraphs) -> None:
        super().__init__(method, engine, feed, start)
        self._graphs = graphs

    def run(self, step: int) -> None:
        columns = self.feed.columns(step)
        graph = self._graphs.graph(self.feed.sort(step), columns)
        self._losses.append(graph(columns))


class SortGraphs:
    """The captured steps of a run by sort and form: phases share them, since most sorts replay an old task."""

    def __init__(self, method: Method, engine: Engine) -> None:
        self.method, self.engine = method, engine
        self._found: dict[object, Captured] = {}
        # Steps never run side by side, so they may use the same memory.
        self._pool = torch.cuda.graph_pool_handle()

    def graph(self, sort: Sort, columns: Tree) -> Captured:
        key = sort, tuple((name, column.shape, column.dtype) for name, column in columns.items())
        if key not in self._found:
            self._found[key] = Captured(partial(self._step, sort), self._pool)
        return self._found[key]

    def _step(self, sort: Sort, columns: Tree) -> Tensor:
        return self.method.step(self.engine, self.engine.reader.step(sort, columns))


class Steppers:
    """Makes the steppers of a run: graphs where a phase allows them, shared by phases as far as they look alike."""

    def __init__(self, method: Method, engine: Engine, capturable: bool = True) -> None:
        self.method, self.engine = method, engine
        self.captures = capturable and method.captures and engine.ranks is None
        self._graphs: dict[object, GraphStepper] = {}
        self._sorts: dict[frozenset[str], SortGraphs] = {}
        """By what learns."""

    def stepper(self, feed: Feed, start: int = 0) -> Stepper:
        """On a GPU, with a method and modules that allow it: graphs, if there are steps enough to be worth them."""
        captures = feed.current.is_cuda and self.captures
        if not captures or feed.steps <= max(start, feed.quiet) + WARM_UP + 1:
            return Stepper(self.method, self.engine, feed, start)
        learning = frozenset(name for name, p in self.engine.params.items() if p.requires_grad)
        # With a head per task no two phases are alike, and graphs with memory of their own would fill the device.
        alike = feed.uniform and self.engine.reader.shared_head
        if not (alike and feed.phase.train.source.resident):
            if learning not in self._sorts:
                # Graphs of parameters that have stopped learning will not be asked for again.
                self._sorts = {learning: SortGraphs(self.method, self.engine)}
            return SortStepper(self.method, self.engine, feed, start, self._sorts[learning])
        key = feed.form, learning
        if key in self._graphs:
            self._graphs[key].turn_to(feed, start)
        else:
            self._graphs[key] = GraphStepper(self.method, self.engine, feed, start)
        return self._graphs[key]
