"""Meta-experience replay: steps on single remembered examples, then a small step towards where they led (Reptile).

batch      per incoming batch: θ₀ ← θ; a step on each of 10 examples of the reservoir; a step on the current batch at
           s times the rate; θ ← θ₀ + β (θ − θ₀)
original   per incoming example, several times: θ₀ ← θ; steps on its share of the reservoir's examples and, last, on
           itself; θ ← θ₀ + β (θ − θ₀). Afterwards the same with γ over all of these (algorithm 1 of that paper)

The reservoir holds the current task too. Single examples are normalised by their own statistics; remembered ones
move the running statistics only with `old_statistics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.errors import InputError
from reprise.method import Method, Needs
from reprise.streams.stream import Stream
from reprise.types import Batch, Tree


@dataclass(frozen=True)
class MER(Method):
    """Replay one by one, and move only part of the way."""

    replays: ClassVar[bool] = True
    first_task_is_sgd: ClassVar[bool] = False
    divides: ClassVar[bool] = False

    beta: float = 0.1
    """β, part of the way that is kept"""
    s: float = 5.0
    """weight of the current batch (variant batch)"""
    draws: int = 10
    """examples of the reservoir in a step"""
    variant: Literal["batch", "original"] = "batch"
    """steps per incoming batch, or per incoming example"""
    batches: int = 1
    """how often each example is gone through (variant original)"""
    gamma: float = 1.0
    """γ, part of the way over these that is kept (variant original)"""

    old_statistics: bool = False
    """remembered examples move BatchNorm's running statistics too, each with its own"""

    inert: ClassVar[frozenset[str]] = frozenset({"gamma"})

    def __post_init__(self) -> None:
        for name in ("beta", "gamma"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    f"{name}: {getattr(self, name)} is no part of a way; give a number from 0 to 1."
                )
        for name in ("s", "draws", "batches"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}: {getattr(self, name)} is not positive; give a number above 0.")

    def needs(self, stream: Stream) -> Needs:
        if not stream.shared_head:
            raise InputError(
                "method: mer keeps one reservoir for all tasks, which needs targets of one shape; "
                "use er, car or derpp on this stream."
            )
        return Needs(replay=self.draws, fill="reservoir", current_task=True, both=True)

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        current = batches[0]
        old = list(singles(batches[1], engine.stacked)) if len(batches) > 1 else []
        if self.variant == "original":
            return self._per_example(engine, list(singles(current, engine.stacked)), old)
        before = engine.snapshot()
        for example in old:
            self._walk(engine, example)
        grads, loss = engine.gradient(self.objective, [current])
        engine.apply(engine.lift(self._at_rate)(grads))
        engine.assign(engine.lift(self.interpolate)(before, engine.snapshot()))
        return loss

    def _per_example(self, engine: Engine, current: list[Batch], old: list[Batch]) -> Tensor:
        losses = []
        turns = len(current) * self.batches
        for index, example in enumerate(current):
            start = engine.snapshot()
            for turn in range(index * self.batches, (index + 1) * self.batches):
                before = engine.snapshot()
                for remembered in old[turn::turns]:
                    self._walk(engine, remembered)
                losses.append(self._walk(engine, example))
                engine.assign(engine.lift(self.interpolate)(before, engine.snapshot()))
            engine.assign(engine.lift(self.across)(start, engine.snapshot()))
        return torch.stack(losses).mean(0)

    def _walk(self, engine: Engine, example: Batch) -> Tensor:
        grads, loss = engine.gradient(
            self.objective, [example], statistics=self.old_statistics or not example.replayed
        )
        engine.apply(grads)
        return loss

    def _at_rate(self, grads: Tree) -> Tree:
        return {name: self.s * grad for name, grad in grads.items()}

    def interpolate(self, before: Tree, after: Tree) -> Tree:
        """θ₀ + β (θ − θ₀); β = 1 is where the steps led, bit for bit."""
        return _between(before, after, self.beta)

    def across(self, before: Tree, after: Tree) -> Tree:
        return _between(before, after, self.gamma)


def _between(before: Tree, after: Tree, part: float | Tensor) -> Tree:
    return {name: torch.lerp(start, after[name], part) for name, start in before.items()}


def singles(batch: Batch, stacked: bool) -> Iterator[Batch]:
    """The examples of a batch, each as a batch of one."""
    axis = 1 if stacked else 0
    for index in range(batch.x.shape[axis]):
        yield batch.with_tensors({name: t.narrow(axis, index, 1) for name, t in batch.tensors().items()})
