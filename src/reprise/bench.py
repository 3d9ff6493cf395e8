"""`reprise bench`: a training step on Split-CIFAR shapes, driven in every way there is, beside its peers, in one run.

The images are random, since the time of a step does not depend on them. Timed are replaying steps of the second
task, in blocks: the device is waited for around a block only, and the median block counts.
"""

from __future__ import annotations

import gc
import itertools
import re
import statistics
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from reprise import peers
from reprise.build import Cell
from reprise.config import Experiment, make_experiment
from reprise.errors import Diverged, InputError
from reprise.ledger import settle
from reprise.machine import pick_device, set_arithmetic
from reprise.results import environment, write_json
from reprise.stepper import WARM_UP, GraphStepper, Stepper
from reprise.streams import CIFAR_MEAN, CIFAR_STD, STREAMS, stream_of
from reprise.streams.files import Images
from reprise.streams.split import Pool, make_pool
from reprise.train import Trainer
from reprise.values import read_value

STREAM = "split-cifar"
CLASSES = 100
TRAIN, TEST = 10, 1
"""Random images of each class: few, so that set-up is fast. An epoch more is no other step."""
BLOCKS = 5
GPU_LANES, CPU_LANES = (1, 5, 25, 60, 120), (1, 5)
GPU_STEPS, CPU_STEPS = 200, 20
PRECISIONS: tuple[str, ...] = typing.get_args(typing.get_type_hints(Experiment)["precision"])
PEER_PRECISIONS = ("float32", "tf32")
"""What a peer computes in without a change to its code."""

LANE_MODES = ("lanes", "lanes-plain")
"""Lanes as runs have them (on a GPU by our kernels, where the precision allows), and by torch's own operators."""

Row = dict[str, Any]
MEASURED = ("ms_per_step", "ms_per_lane_step", "peak_memory_bytes", "warm_up_seconds", "steps", "spread")
"""What a row holds beside its case; null where the case failed."""

Tell = Callable[[str, int, int], None]
"""Called between blocks, with a case's name, its steps done and its steps in all."""


@dataclass(frozen=True)
class Bench:
    """What is measured and where the numbers go. Every field is a command-line flag."""

    device: Literal["cpu", "cuda"] | None = None
    """where it is measured (default: cuda where there is a GPU)"""
    lanes: tuple[int, ...] | None = None
    """sizes of the groups of stacked lanes (default: 1,5,25,60,120 on a GPU, 1,5 on a CPU)"""
    precision: tuple[str, ...] | None = None
    """arithmetics to measure (default: tf32, and bf16 on a GPU where there is such)"""
    method: str = "er"
    """the method whose step is timed; `reprise list` names them"""
    encoder: str = "resnet18-reduced"
    """the shared encoder; a peer takes its own reduced ResNet-18, or else this one"""
    steps: int | None = None
    """timed steps of each row (default: 200 on a GPU, 20 on a CPU)"""
    warmup: int = 20
    """steps before the timed ones, the capture of a CUDA graph among them"""
    peers: bool = True
    """measure the installed peers too (Avalanche)"""
    out: Path = Path("benchmarks")
    """folder of the result file"""

    def __post_init__(self) -> None:
        if self.lanes is not None and (min(self.lanes) < 1 or len(set(self.lanes)) < len(self.lanes)):
            shown = ",".join(map(str, self.lanes))
            raise InputError(f"lanes: {shown} are not different numbers from 1 up; write for example 1,5,25.")
        if self.precision is not None and len(set(self.precision)) < len(self.precision):
            raise InputError(f"precision: {','.join(self.precision)} names one twice; name each once.")
        for name in self.precision or ():
            if name not in PRECISIONS:
                raise InputError(
                    f"precision: {name!r} is not known; choose one or more of {', '.join(PRECISIONS)}."
                )
        for name, least in (("steps", BLOCKS), ("warmup", WARM_UP + 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name}: {value} is too few to measure; give {least} or more.")

    @property
    def place(self) -> torch.device:
        return pick_device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    @property
    def groups(self) -> tuple[int, ...]:
        return self.lanes or (GPU_LANES if self.place.type == "cuda" else CPU_LANES)

    @property
    def precisions(self) -> tuple[str, ...]:
        usual = ("tf32", "bf16") if self.place.type == "cuda" else ("tf32",)
        return self.precision or tuple(name for name in usual if name in PRECISIONS)

    @property
    def timed(self) -> int:
        return self.steps or (GPU_STEPS if self.place.type == "cuda" else CPU_STEPS)

    def options(self) -> dict[str, Any]:
        """What was asked for, with every default in its place; the folder is no part of a measurement."""
        return {
            "device": self.place.type,
            "lanes": list(self.groups),
            "precision": list(self.precisions),
            "method": self.method,
            "encoder": self.encoder,
            "steps": self.timed,
            "warmup": self.warmup,
            "peers": self.peers,
        }


HINTS: dict[str, Any] = typing.get_type_hints(Bench)


def make_bench(given: Mapping[str, Any]) -> Bench:
    return Bench(**{name: read_value(name, value, HINTS[name]) for name, value in given.items()})


# ---- the clock


class Stopwatch:
    """Told of each step; waits for the device and takes the time where a block begins or ends."""

    def __init__(self, device: torch.device, warmup: int, steps: int, tell: Callable[[int], None]) -> None:
        self._device, self._tell = device, tell
        self._sizes = [len(block) for block in np.array_split(np.arange(steps), BLOCKS)]
        self._ends = {warmup + end for end in itertools.accumulate([0, *self._sizes])}
        self._done = 0
        self._stamps: list[tuple[float, float]] = []
        self._started = time.perf_counter()

    def __call__(self) -> None:
        self._done += 1
        if self._done in self._ends:
            reached = self._now()
            self._tell(self._done)  # in no block
            self._stamps.append((reached, self._now()))

    @property
    def warm_up(self) -> float:
        """Seconds from nothing to the first timed step: the models, the memory, the warm-up steps, the capture."""
        return self._stamps[0][0] - self._started

    def blocks(self) -> list[float]:
        """Seconds a step of each block."""
        pairs = itertools.pairwise(self._stamps)
        return [(end[0] - start[1]) / size for (start, end), size in zip(pairs, self._sizes, strict=True)]

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


# ---- what is timed


@dataclass(frozen=True)
class Case:
    """A row to be: how the step is driven, by how many lanes, and the function that takes the steps."""

    mode: str
    lanes: int
    precision: str
    method: str
    take_steps: Callable[[Stopwatch], None]
    deterministic: bool = True
    """Our runs fix the order of summation; a peer's users do not."""

    @property
    def name(self) -> str:
        return f"{self.mode}{f' of {self.lanes}' if self.mode in LANE_MODES else ''}, {self.precision}"


def make_cases(bench: Bench) -> list[Case]:
    """The rows, in order; what cannot be measured at all is refused here, before anything is written."""
    pool, place = random_pool(), bench.place
    drives = [("eager", 1), *([("graph", 1)] if place.type == "cuda" else [])]
    drives += [("lanes", lanes) for lanes in bench.groups]
    if place.type == "cuda":
        drives += [("lanes-plain", lanes) for lanes in bench.groups]
    cases = []
    for precision in bench.precisions:
        given = {"encoder": bench.encoder, "precision": precision, "steps": bench.warmup + bench.timed}
        experiment = make_experiment(STREAM, bench.method, given, STREAMS[STREAM].protocol)
        settled = settle(experiment, stream_of(experiment, 0, pool))
        for mode, lanes in drives:
            take_steps = partial(_take_our_steps, mode, lanes, settled, pool, place)
            cases.append(Case(mode, lanes, precision, bench.method, take_steps))
    if bench.peers and peers.available() is None:
        encoder = peers.encoder_like(bench.encoder)
        for precision in [name for name in bench.precisions if name in PEER_PRECISIONS] or ["float32"]:
            for mode, (method, step_times) in peers.PEERS.items():
                own = partial(_take_a_peers_steps, step_times, encoder, bench.timed, bench.warmup, place)
                cases.append(Case(mode, 1, precision, method, own, deterministic=False))
    return cases


def random_pool() -> Pool:
    """A data set of CIFAR-100's shapes: 17 tasks of 5 classes, 3 more for validation."""
    rng = np.random.default_rng(0)
    names = tuple(f"class-{c}" for c in range(CLASSES))

    def draw(count: int) -> Images:
        x = rng.integers(0, 256, (CLASSES * count, 3, 32, 32), dtype=np.uint8)
        return Images(x, np.repeat(np.arange(CLASSES), count), names)

    return make_pool(draw(TRAIN), draw(TEST), CIFAR_MEAN, CIFAR_STD, "random")


def _take_our_steps(
    mode: str, lanes: int, experiment: Experiment, pool: Pool, place: torch.device, watch: Stopwatch
) -> None:
    cells = [Cell(experiment, seed, stream_of(experiment, seed, pool)) for seed in range(lanes)]
    trainer = Trainer(cells, place, stacked=mode in LANE_MODES, kernels=False if mode != "lanes" else None)
    feed = trainer.skip_to(min(1, len(trainer.phases) - 1))  # tasks learned together are one phase
    steppers = trainer.steppers
    stepper = Stepper(trainer.method, trainer.engine, feed, 0) if mode == "eager" else steppers.stepper(feed)
    if mode == "graph" and not isinstance(stepper, GraphStepper):
        raise InputError(f"the steps of {experiment.method_name} are not all alike and cannot be one graph.")
    assert experiment.steps is not None
    for step in range(experiment.steps):
        stepper.run(step)
        watch()
    if not stepper.losses(0, experiment.steps).isfinite().all():
        raise Diverged("a loss was not finite, and what was timed is no training.")


def _take_a_peers_steps(
    step_times: Callable[..., peers.StepTimes],
    encoder: Callable[[], torch.nn.Module],
    steps: int,
    warmup: int,
    place: torch.device,
    watch: Stopwatch,
) -> None:
    try:
        step_times(place, encoder, steps, warmup, between=watch, synchronise=False)
    except (RuntimeError, MemoryError):
        raise
    except Exception as error:  # another's code may raise anything, and costs its own row only
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


# ---- measuring


def measure(case: Case, bench: Bench, tell: Tell) -> Row:
    """The row of a case; where it fails, a sentence that says why, and the others go on."""
    place, total = bench.place, bench.warmup + bench.timed
    row: Row = {"mode": case.mode, "K": case.lanes, "precision": case.precision, "method": case.method}
    row |= dict.fromkeys(MEASURED)
    tell(case.name, 0, total)
    _tidy(place)
    watch = Stopwatch(place, bench.warmup, bench.timed, lambda done: tell(case.name, done, total))
    try:
        with _arithmetic(case.precision, case.deterministic):
            case.take_steps(watch)
    except (RuntimeError, MemoryError, InputError) as error:
        return row | {"error": _sentence(case, error)}
    milliseconds = [1000 * seconds for seconds in watch.blocks()]
    a_lane = [block / case.lanes for block in milliseconds]
    return row | {
        "ms_per_step": statistics.median(milliseconds),
        "ms_per_lane_step": statistics.median(a_lane),
        "peak_memory_bytes": torch.cuda.max_memory_reserved(place) if place.type == "cuda" else None,
        "warm_up_seconds": watch.warm_up,
        "steps": bench.timed,
        "spread": {"min": min(a_lane), "median": statistics.median(a_lane), "max": max(a_lane)},
    }


def _tidy(place: torch.device) -> None:
    """What the case before left is no part of this one's peak."""
    gc.collect()
    if place.type == "cuda":
        torch.cuda.init()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(place)


@contextmanager
def _arithmetic(precision: str, deterministic: bool) -> Iterator[None]:
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    set_arithmetic(precision, deterministic)
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before


def _sentence(case: Case, error: BaseException) -> str:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return f"{case.name}: the memory of the device was not enough; ask for fewer lanes."
    why = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    return f"{case.name}: {why}."


# ---- the file


class Report:
    """The result file, written anew after every row: what was measured is there whatever happens next."""

    def __init__(self, bench: Bench) -> None:
        here = environment(bench.place)
        today = date.today().isoformat()
        self._content: dict[str, Any] = {
            "about": f"a training step of {bench.method} on Split-CIFAR shapes: 10 current 3x32x32 images and what "
            f"the method replays (er: 5), {bench.encoder}, plain SGD; the median of {BLOCKS} blocks of steps",
            "rows": [],
            "environment": here,
            "peers": {"avalanche": peers.available() or peers.version()} if bench.peers else {},
            "date": today,
            "command_options": bench.options(),
        }
        device = slug(here["device_name"]) if bench.place.type == "cuda" else "cpu"
        self.path = new_file(bench.out, f"bench-{device}-torch{slug(torch.__version__)}-{today}")
        self._write()

    @property
    def rows(self) -> list[Row]:
        return self._content["rows"]

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._write()

    def _write(self) -> None:
        try:
            write_json(self.path, self._content)
        except OSError as error:
            raise InputError(
                f"out: {self.path} cannot be written ({error.strerror}); make room there."
            ) from None


def slug(name: str) -> str:
    """`nvidia-h200` of `NVIDIA H200`, `2.11.0-cu130` of `2.11.0+cu130`: a file name that travels everywhere."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def new_file(folder: Path, name: str) -> Path:
    """`name.json` in a folder, or `name-2.json` and so on: nothing is overwritten."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = folder / f"{name}{f'-{number}' if number > 1 else ''}.json"
            if not path.exists():
                path.touch(exist_ok=False)
                return path
    except OSError as error:
        raise InputError(
            f"out: {folder} cannot be written ({error.strerror}); name another folder."
        ) from None
    raise AssertionError("numbers do not end")
