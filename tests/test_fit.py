"""Groups that fit the GPU. The GPU is played: so many bytes in all, so many for each lane of a trainer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from test_groups import job
from test_results import experiment
from tiny import CPU, cell

from reprise import fit, group_run, groups, runner
from reprise.errors import InputError
from reprise.fit import Fit, Need, is_shortage, line_through, measure_fit
from reprise.groups import Job
from reprise.progress import Notice, Outlook, Report
from reprise.results import read_store
from reprise.runner import run_experiments
from reprise.train import Pause, Trainer

GIB = 2**30


class PlayedGPU:
    """A GPU that takes `base` bytes for a trainer and `per_lane` for each of its lanes, and has `total` in all.

    hidden  bytes a whole run takes besides, which a rehearsal does not see
    real    whether rehearsals make their steps, which costs the tests time
    """

    def __init__(self, total: int, base: int, per_lane: int, hidden: int = 0, real: bool = False) -> None:
        self.real = real
        self.total, self.base, self.per_lane, self.hidden = total, base, per_lane, hidden
        self.peak = 0
        self.rehearsed: list[int] = []
        self.trained: list[int] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> PlayedGPU:
        run = Trainer.run

        def limited(
            trainer: Trainer, progress: Any = None, pause: Pause | None = None, keeper: Any = None
        ) -> Any:
            lanes = len(trainer.cells)
            (self.rehearsed if pause else self.trained).append(lanes)
            self.take(lanes, 0 if pause else self.hidden)
            return run(trainer, progress, pause, keeper) if self.real or not pause else trainer.outcomes

        monkeypatch.setattr(Trainer, "run", limited)
        monkeypatch.setattr(fit, "free_all", lambda: None)
        monkeypatch.setattr(fit, "reserved", lambda: 100)
        monkeypatch.setattr(fit, "forget_peak", lambda: None)
        monkeypatch.setattr(fit, "peak_reserved", lambda: 100 + self.peak)
        monkeypatch.setattr(fit, "free_bytes", lambda: self.total)
        monkeypatch.setattr(fit, "all_bytes", lambda: self.total)
        return self

    def take(self, lanes: int, hidden: int) -> None:
        needed = self.base + self.per_lane * lanes + hidden
        self.peak = min(needed, self.total)
        if needed > self.total:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


# ---- the line


def test_a_line_through_two_measurements() -> None:
    need = line_through((4, 1400), (16, 2600))
    assert need == Need(1000.0, 100.0)
    assert need.at(1) == 1100
    assert need.most(10_000) == 85  # 9500 are used
    assert need.most(1100) == 0
    assert need.most(500) == 0


def test_a_line_that_does_not_rise_promises_nothing() -> None:
    assert line_through((4, 1000), (16, 1000)).most(10**12) == 0


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (torch.OutOfMemoryError("any words"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_says_that_memory_is_short(error: Exception, short: bool) -> None:
    assert is_shortage(error) is short


def test_an_error_while_a_shortage_is_dealt_with_is_one() -> None:
    """Ending a capture that ran out of memory raises an error of its own."""
    error = RuntimeError("operation failed due to a previous error during capture")
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory.")
    assert is_shortage(error)


# ---- rehearsals


def cells(count: int, method: str = "er", **fields: Any) -> list[Any]:
    return [cell(method, 0, **fields)] * count


def test_the_largest_size_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = PlayedGPU(100 * GIB, GIB, GIB).install(monkeypatch)
    assert measure_fit(cells(120), CPU) == Fit(94, 2 * GIB)
    assert gpu.rehearsed == [16, 4]


def test_small_memories_are_measured_with_few_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = PlayedGPU(7 * GIB, GIB, GIB).install(monkeypatch)
    assert measure_fit(cells(20), CPU) == Fit(5, 2 * GIB)
    assert gpu.rehearsed == [16, 8, 4, 1]
    gpu.total, gpu.rehearsed = 2 * GIB, []
    assert measure_fit(cells(20), CPU) == Fit(1, 2 * GIB)
    assert gpu.rehearsed == [16, 8, 4, 2, 1]
    gpu.total, gpu.rehearsed = GIB, []
    assert measure_fit(cells(2), CPU) == Fit(0, GIB)
    assert gpu.rehearsed == [2, 1]


def test_a_rehearsal_that_promises_all_lanes_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedGPU(100 * GIB, GIB, GIB).install(monkeypatch)
    assert measure_fit(cells(10), CPU).lanes == 5
    assert measure_fit(cells(1), CPU).lanes == 0


def test_a_rehearsal_takes_the_largest_lane_and_the_general_method(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedGPU(100 * GIB, GIB, GIB).install(monkeypatch)
    seen: list[Any] = []
    run = Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda trainer, **k: (seen.append(trainer), run(trainer, **k)))
    group = [cell("car", 0, curve=3), cell("er", 1, m=45, curve=3), cell("er", 2, curve=3)]
    measure_fit(group, CPU)
    assert [c.experiment.m for c in seen[0].cells] == [45, 45, 45]
    assert seen[0].memory.shelf(0).columns.keys() >= {"activation"}


@pytest.mark.parametrize(("method", "phase"), [("er", 1), ("multitask", 0)])
def test_a_rehearsal_ends_a_few_steps_into_replay(
    monkeypatch: pytest.MonkeyPatch, method: str, phase: int
) -> None:
    """Only the last step of the first task is made, then some of the second."""
    PlayedGPU(100 * GIB, GIB, GIB, real=True).install(monkeypatch)
    made: list[list[str]] = []
    step = type(cell(method).experiment.method).step

    def watched(self: Any, engine: Any, batches: Any) -> Any:
        made.append([batch.role for batch in batches])
        return step(self, engine, batches)

    monkeypatch.setattr(type(cell(method).experiment.method), "step", watched)
    forgotten: list[int] = []
    monkeypatch.setattr(fit, "forget_peak", lambda: forgotten.append(len(made)))
    fit.rehearse(cells(2, method, steps=12), CPU, stacked=True)
    before = [["current"]] * phase
    assert made == before + [["current", "replay"] if phase else ["current"]] * fit.STEPS
    assert forgotten == [0, len(before) + 1]


def test_a_rehearsal_that_diverges_has_been_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedGPU(100 * GIB, GIB, GIB, real=True).install(monkeypatch)
    assert fit.rehearse(cells(2, lr=1e200), CPU, stacked=True) == fit.Rehearsal(3 * GIB, True)


def test_other_errors_of_a_rehearsal_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    PlayedGPU(100 * GIB, GIB, GIB).install(monkeypatch)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(Trainer, "run", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        measure_fit(cells(2), CPU)


# ---- a study on a GPU that is too small


class OnPaper:
    """A device that says it is a GPU; what is built for it is built on the CPU."""

    type = "cuda"


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Trainer.__init__

    def on_cpu(self: Trainer, cells: Any, device: Any, stacked: bool | None = None, **how: Any) -> None:
        made(self, cells, CPU, stacked, **how)

    monkeypatch.setattr(Trainer, "__init__", on_cpu)
    monkeypatch.setattr(group_run, "environment", lambda device: {"device": "cuda"})


def executed(monkeypatch: pytest.MonkeyPatch, jobs: list[Job], lanes: int | None = None) -> list[int]:
    """The seeds in the order of their outcomes."""
    for module in (runner, group_run):
        monkeypatch.setattr(module, "cells_of", lambda group, data: [cell("er", one.seed) for one in group])
    device: Any = OnPaper()
    terms = runner.Terms(device=device, lanes=lanes)
    return [one.seed for one, _ in runner.execute(jobs, terms, lambda said: None)]


def test_a_group_that_does_not_fit_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = PlayedGPU(7 * GIB, GIB, GIB, real=True).install(monkeypatch)
    monkeypatch.setattr(groups, "LARGEST_GROUP", 8)
    said: list[Any] = []
    monkeypatch.setattr(runner, "pick_device", lambda name: OnPaper())
    points = [experiment("er", steps=2), experiment("car", steps=2), experiment("er", steps=2, lam=0.5)]
    records = [*run_experiments(points, range(4), store=tmp_path, watch=said.append)]
    assert len(records) == len([*read_store(tmp_path)]) == 12
    assert gpu.trained == [8, 5, 5, 2]
    assert gpu.rehearsed == [8, 4, 1]
    (notice,) = [one for one in said if isinstance(one, Notice)]
    assert notice.text == "8 lanes do not fit into the GPU's memory; going on with 5 at a time."
    over = [(r.runs, r.what) for r in said if isinstance(r, Report) and r.over]
    assert over == [(8, "out of memory"), (5, "done"), (5, "done"), (2, "done")]
    assert sum(r.weight for r in said if isinstance(r, Report) and r.over) == said[0].steps
    assert isinstance(said[0], Outlook)


def test_a_size_the_user_insists_on_is_refused_with_the_one_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PlayedGPU(7 * GIB, GIB, GIB).install(monkeypatch)
    runs = run_experiments([experiment("er", steps=2)], range(12), store=tmp_path, lanes=8)
    with pytest.raises(InputError) as error:
        next(runs)
    assert str(error.value) == (
        "lanes: 8 do not fit into the GPU's 7.0 GiB; at most 5 do; give --lanes 5 or leave it out."
    )
    runs = run_experiments([experiment("er", steps=2)], range(12), store=tmp_path, lanes=5)
    assert len([*runs]) == 12


@pytest.mark.parametrize("hidden", [0, 2 * GIB])
def test_not_even_one(monkeypatch: pytest.MonkeyPatch, hidden: int) -> None:
    PlayedGPU(GIB + hidden, GIB, GIB, hidden).install(monkeypatch)
    for lanes in (None, 4):
        with pytest.raises(InputError) as error:
            executed(monkeypatch, [job("er")], lanes)
        assert re.fullmatch(
            r"device: not even one run fits into the GPU's [13]\.0 GiB, of which [13]\.0 are free: it takes "
            r"[12]\.0 or more; use a smaller batch or m, or --device cpu\.",
            str(error.value),
        )


def test_what_a_rehearsal_does_not_see_halves_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = PlayedGPU(20 * GIB, GIB, GIB, hidden=16 * GIB).install(monkeypatch)
    jobs = [job("er", seed) for seed in range(8)]
    assert executed(monkeypatch, jobs) == list(range(8))
    assert gpu.trained == [8, 4, 2, 2, 2, 2]
