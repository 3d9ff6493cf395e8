"""Work captured as a CUDA graph: first run as it is on a stream of its own and measured, then captured there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from reprise.types import Tree

Result = TypeVar("Result")


class SideStream:
    """Runs a function, then captures it.

    A capture takes as much memory again as the plain run took, from a pool of its own, and one that runs out of it
    half-way cannot be cleaned up. So what the run kept is given back first, and where the capture would not fit, the
    error comes before it.
    """

    def __init__(self) -> None:
        self._stream = _stream()
        self._needed = 0

    def run(self, fn: Callable[[], Result]) -> Result:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            found = fn()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._needed = torch.cuda.memory_reserved() - before
        return found

    def fits(self, times: int = 1) -> bool:
        """Whether there is memory for so many times what the run took."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0] >= times * self._needed

    def capture(
        self, fn: Callable[[], Tensor | None], pool: Any = None
    ) -> tuple[torch.cuda.CUDAGraph, Tensor | None]:
        """The graph, and what `fn` returned: where its replays leave their result."""
        if not self.fits():
            raise torch.OutOfMemoryError(
                f"a captured step would be out of memory: it takes {self._needed:,} bytes"
            )
        graph = torch.cuda.CUDAGraph()
        # Threads that read ahead may go on: only what this thread does belongs to the graph.
        with uncollected(), torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"):
            found = fn()
        return graph, found


@contextmanager
def uncollected() -> Iterator[None]:
    """Garbage waits: a graph among it, destroyed in the middle of a capture, would spoil that."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Captured:
    """A function of a tree: run as it is the first time, captured the second, replayed from then on.

    The tree is copied to where the graph reads it. Functions that never run side by side may share a memory pool. It
    stays taken: where others could not be run as they are beside it, this one is always run so.
    """

    def __init__(self, fn: Callable[[Tree], Tensor], pool: Any) -> None:
        self._fn, self._pool = fn, pool
        self._side = SideStream()
        self._tree: Tree | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: Tensor | None = None
        self._fits: bool | None = None

    def __call__(self, tree: Tree) -> Tensor:
        if self._tree is None:
            own = self._tree = {name: tensor.clone() for name, tensor in tree.items()}
            return self._side.run(lambda: self._fn(own))
        if self._fits is None:
            self._fits = self._side.fits(times=2)
        if not self._fits:
            return self._fn(tree)
        own = self._tree
        for name, tensor in tree.items():
            own[name].copy_(tensor)
        if self._graph is None:
            self._graph, self._found = self._side.capture(lambda: self._fn(own), self._pool)
        assert self._found is not None
        self._graph.replay()
        return self._found.clone()


@cache
def _stream() -> torch.cuda.Stream:
    """One for all: libraries keep a workspace for every stream they have met."""
    return torch.cuda.Stream()
