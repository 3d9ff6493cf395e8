"""Reading ahead: the columns of the next steps, fetched by threads while the device computes.

The plan is known, so the next steps' rows are too. A result is kept under its step: the number of threads decides
when it is there, never what it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Fetched = TypeVar("Fetched")

PER_WORKER = 2
"""Steps fetched ahead for each thread."""


class Ahead(Generic[Fetched]):
    """`fetch(step)` for steps asked for in ascending order, up to `steps`; without workers it is called directly."""

    def __init__(self, fetch: Callable[[int], Fetched], steps: int, workers: int) -> None:
        self.fetch, self.steps = fetch, steps
        self.waited = 0.0
        """Seconds in which the step had to wait."""
        self._threads = ThreadPoolExecutor(workers) if workers else None
        self._depth = PER_WORKER * workers
        self._under_way: dict[int, Future[Fetched]] = {}

    def get(self, step: int) -> Fetched:
        began = time.perf_counter()
        if self._threads is None:
            found = self.fetch(step)
        else:
            for later in range(step, min(step + 1 + self._depth, self.steps)):
                if later not in self._under_way:
                    self._under_way[later] = self._threads.submit(self.fetch, later)
            found = self._under_way.pop(step).result()
            for earlier in [other for other in self._under_way if other < step]:
                del self._under_way[earlier]  # steps that were left out
        self.waited += time.perf_counter() - began
        if step + 1 == self.steps:
            self.close()
        return found

    def close(self) -> None:
        """End the threads; what they were at is thrown away."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
