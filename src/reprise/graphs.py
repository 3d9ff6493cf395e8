"""Work captured as a CUDA graph: first run as it is on a stream of its own and measured, then captured there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor


class SideStream:
    """Runs a function, then captures it.

    A capture takes as much memory again as the plain run took, from a pool of its own, and one that runs out of it
    half-way cannot be cleaned up. So what the run kept is given back first, and where the capture would not fit, the
    error comes before it.
    """

    def __init__(self) -> None:
        self._stream = _stream()
        self._needed = 0

    def run(self, fn: Callable[[], object]) -> None:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            fn()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._needed = torch.cuda.memory_reserved() - before

    def capture(
        self, fn: Callable[[], Tensor | None], pool: Any = None
    ) -> tuple[torch.cuda.CUDAGraph, Tensor | None]:
        """The graph, and what `fn` returned: where its replays leave their result."""
        torch.cuda.empty_cache()
        if torch.cuda.mem_get_info()[0] < self._needed:
            raise torch.OutOfMemoryError(
                f"a captured step would be out of memory: it takes {self._needed:,} bytes"
            )
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool, self._stream):
            found = fn()
        return graph, found


@cache
def _stream() -> torch.cuda.Stream:
    """One for all: libraries keep a workspace for every stream they have met."""
    return torch.cuda.Stream()
