"""How many lanes the GPU's memory holds: measured by short rehearsals, once a group has turned out too large."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from reprise.build import Cell, under_one_method
from reprise.errors import Diverged
from reprise.train import Trainer

REHEARSED = 16
"""Lanes of the larger rehearsal; the other has a quarter. The allocator rounds up by megabytes: two sizes too close
to each other, or too small, would measure its rounding."""

STEPS = 8
"""Steps of a rehearsed phase, enough for the step to be captured and replayed."""

MARGIN = 0.05
"""Part of the free memory that is left alone: fragments, and tables that grow with the length of a task."""


SHORTAGE = ("out of memory", "ALLOC_FAILED")
"""What libraries below the allocator say."""

# ---- what is asked of CUDA, each a function of its own so that a test can stand in for it


def free_all() -> None:
    """Give back everything that nobody holds any more, graphs of captured steps included."""
    gc.collect()
    # A capture that fails half-way may leave its own stream as the current one.
    torch.cuda.set_stream(torch.cuda.default_stream())
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def reserved() -> int:
    return torch.cuda.memory_reserved()


def forget_peak() -> None:
    """Count the peak from here on, without what the allocator keeps for later (an evaluation's rest, say)."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def peak_reserved() -> int:
    return torch.cuda.max_memory_reserved()


def free_bytes() -> int:
    """What the driver would give us, and what we hold without using it."""
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return torch.cuda.mem_get_info()[0] + unused


def all_bytes() -> int:
    return torch.cuda.mem_get_info()[1]


# ---- the line


@dataclass(frozen=True)
class Need:
    """Bytes of a group: base + per_lane · lanes."""

    base: float
    per_lane: float

    def at(self, lanes: int) -> int:
        return int(self.base + self.per_lane * lanes)

    def most(self, free: int) -> int:
        """The most lanes that fit, with the margin; 0 where none does."""
        room = (1 - MARGIN) * free - self.base
        return max(0, int(room // self.per_lane)) if self.per_lane > 0 else 0


def line_through(few: tuple[int, int], many: tuple[int, int]) -> Need:
    """The line through two measurements (lanes, bytes)."""
    (k, at_k), (n, at_n) = few, many
    per_lane = (at_n - at_k) / (n - k)
    return Need(at_k - per_lane * k, per_lane)


# ---- rehearsals


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that the GPU's memory is used up, or came while such an error was dealt with."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, torch.OutOfMemoryError):
            return True
        if isinstance(seen, RuntimeError) and any(words in str(seen) for words in SHORTAGE):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@dataclass(frozen=True)
class Rehearsal:
    """What a number of lanes took at most, or had taken when the memory was used up."""

    bytes: int
    fits: bool


def rehearse(cells: Sequence[Cell], device: torch.device, stacked: bool) -> Rehearsal:
    """Train a few steps that replay, and measure."""
    free_all()
    before = reserved()
    fits = _try_steps(cells, device, stacked)
    taken = peak_reserved() - before
    free_all()
    return Rehearsal(taken, fits)


def _try_steps(cells: Sequence[Cell], device: torch.device, stacked: bool) -> bool:
    """Train into the second phase, the first one that replays; of the first phase only the last step is made."""
    forget_peak()
    try:
        trainer = Trainer(cells, device, stacked)
        watched = min(1, len(trainer.phases) - 1)
        if watched:
            trainer.skip_to_last_step()

        def pause(phase: int, step: int) -> bool:
            if phase == watched and step == 0:
                forget_peak()
            return phase >= watched and step + 1 >= STEPS

        trainer.run(pause=pause)
    except Diverged:  # the steps were made all the same
        return True
    except RuntimeError as error:
        if not is_shortage(error):
            raise
        return False
    return True


@dataclass(frozen=True)
class Fit:
    """How many lanes fit, and the bytes of one: at least so many, where not even one does."""

    lanes: int
    one: int


def measure_fit(cells: Sequence[Cell], device: torch.device) -> Fit:
    """How many lanes fit of a group that as a whole did not.

    All lanes of a rehearsal are the group's largest: a shelf has as many rows for every lane as for the largest.
    """
    largest = max(under_one_method(cells), key=lambda cell: cell.experiment.m or 0)
    largest = replace(largest, experiment=replace(largest.experiment, curve=0))
    stacked = len(cells) > 1
    size = min(REHEARSED, len(cells))
    while not (many := rehearse([largest] * size, device, stacked)).fits:
        if size == 1:
            return Fit(0, many.bytes)
        size //= 2
    few, need = max(1, size // 4), Need(many.bytes, 0.0)
    if few < size:
        need = line_through((few, rehearse([largest] * few, device, stacked).bytes), (size, many.bytes))
    lanes = max(size, need.most(free_bytes()))
    # Where the line says that all of them fit, something besides the steps does not: half of them get another try.
    return Fit(lanes if lanes < len(cells) else len(cells) // 2, need.at(1))
