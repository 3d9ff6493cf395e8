"""The loop: phases of steps, the end of a task, evaluation. It contains no method's name."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprise.config import Experiment
from reprise.cost import measure_cost
from reprise.engine import Engine, Single
from reprise.errors import Diverged
from reprise.examples import Examples
from reprise.feed import Feed
from reprise.fill import Quota, choose, reservoir_rows, reservoir_slots
from reprise.lanes import Lanes
from reprise.ledger import make_memory, make_model, make_reader, model_bytes, quota_of, state_bytes
from reprise.memory import Memory
from reprise.plan import Draws, Plan, draw_order, draw_plan, draw_reservoir_replay
from reprise.randomness import rng
from reprise.stepper import make_stepper
from reprise.streams.stream import Phase, Stream

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and what is being done."""

CHECK_EVERY = 100
"""Steps between two looks at whether the loss is finite: each look waits for the device."""


@dataclass(frozen=True)
class Cell:
    """One run: a settled experiment on the stream of its seed."""

    experiment: Experiment
    seed: int
    stream: Stream


@dataclass
class Outcome:
    """What a run leaves: the matrices, the ledger, the times; or the sentence that says why it diverged."""

    accuracy: list[list[float | None]] = field(default_factory=list)
    loss: list[list[float | None]] = field(default_factory=list)
    initial: list[float | None] = field(default_factory=list)
    next: list[float | None] = field(default_factory=list)
    curve: list[list[float | None]] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    log: list[dict[str, float | int | str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    diverged: str | None = None


class Trainer:
    """Trains one cell, or several as lanes of one group: they share method, batch shapes and task count."""

    def __init__(self, cells: Sequence[Cell], device: torch.device, stacked: bool | None = None) -> None:
        self.cells, self.device = list(cells), device
        self.experiment = cells[0].experiment
        self.method = self.experiment.method
        self.stacked = len(cells) > 1 if stacked is None else stacked
        streams = [cell.stream.merged() if self.method.merged else cell.stream for cell in cells]
        self.stream = streams[0]
        self.phases, self.tests = _join(streams, self.stacked, device)
        self.reader = make_reader(self.experiment, self.stream, device)
        self.engine = self._build_engine(streams)
        self.needs = self.method.needs(self.stream)
        self.outcomes = [Outcome() for _ in cells]
        self.quotas: list[Quota] = []
        self.memory: Memory | None = None
        self.engine.enter(0)
        if self.method.replays:
            self.quotas = [
                quota_of(c.experiment, s, c.experiment.m or 0) for c, s in zip(cells, streams, strict=True)
            ]
            self.memory = make_memory(self.engine, self.method, self.stream, self.quotas)
            self.memory.replays_current = self.needs.current_task
        for lane, outcome in enumerate(self.outcomes):
            outcome.bytes = self._ledger(lane)

    def _build_engine(self, streams: Sequence[Stream]) -> Engine:
        models = [
            make_model(cell.experiment, stream, cell.seed).to(self.device)
            for cell, stream in zip(self.cells, streams, strict=True)
        ]
        kinds = [task.kind for task in self.stream.tasks]
        options = {
            "layer_shapes": models[0].layer_shapes(self.stream.input_shape),
            "reader": self.reader,
            "bn": self.experiment.bn,
            "clip": self.experiment.clip,
            "optimizer": self.experiment.optimizer,
        }
        if not self.stacked:
            model = models[0]
            if self.device.type == "cpu":
                model.to(memory_format=torch.channels_last)
                model.memory_format = torch.channels_last
            return Single(model, self.method, kinds, lr=self.experiment.lr, **options)
        lane_fields = {
            f.name: [getattr(cell.experiment.method, f.name) for cell in self.cells]
            for f in fields(self.method)
            if isinstance(getattr(self.method, f.name), float)
        }
        rates = [cell.experiment.lr for cell in self.cells]
        return Lanes(models, self.method, kinds, lane_fields, rates, **options)

    # ---- the run
    def run(self, progress: Progress | None = None) -> list[Outcome]:
        began = time.perf_counter()
        tasks = len(self.stream.tasks)
        total = sum(len(self._order(self.cells[0], i, phase)) for i, phase in enumerate(self.phases))
        done, spent = 0, {"train": 0.0, "evaluate": 0.0, "end_task": 0.0}
        initial = self._evaluate(range(tasks))
        for lane, outcome in enumerate(self.outcomes):
            outcome.initial = [accuracy for _, accuracy in initial[lane]]
        for i, phase in enumerate(self.phases):
            self._tell(progress, done, total, phase.name)
            self.engine.enter(phase.last)
            upcoming = self._evaluate([phase.last])
            for lane, outcome in enumerate(self.outcomes):
                outcome.next.append(upcoming[lane][0][1])
            feed = self._feed(i, phase)
            started = time.perf_counter()
            done = self._train(feed, i, phase, progress, done, total)
            self._wait()
            spent["train"] += time.perf_counter() - started
            started = time.perf_counter()
            self._end_task(i, phase)
            self._wait()
            spent["end_task"] += time.perf_counter() - started
            started = time.perf_counter()
            rows = self._evaluate(range(phase.last + 1))
            for lane, outcome in enumerate(self.outcomes):
                unseen: list[float | None] = [None] * (tasks - phase.last - 1)
                outcome.loss.append([loss for loss, _ in rows[lane]] + unseen)
                outcome.accuracy.append([accuracy for _, accuracy in rows[lane]] + unseen)
            spent["evaluate"] += time.perf_counter() - started
        self._tell(progress, total, total, "done")
        examples = self.experiment.batch + (self.experiment.replay if self.method.replays else 0)
        cost = measure_cost(self.engine.model, self.stream, examples)
        for outcome in self.outcomes:
            outcome.cost = cost
            # Lanes share the clock: a run's seconds are its share of the group's.
            share = len(self.cells)
            outcome.seconds = {name: value / share for name, value in spent.items()}
            outcome.seconds["total"] = (time.perf_counter() - began) / share
        return self.outcomes

    def _train(
        self, feed: Feed, i: int, phase: Phase, progress: Progress | None, done: int, total: int
    ) -> int:
        stepper = make_stepper(self.method, self.engine, feed, self.experiment.optimizer)
        watched = 0
        for step in range(feed.steps):
            stepper.run(step)
            if step < self.experiment.curve:
                self._extend_curve(phase)
            if (step + 1) % CHECK_EVERY == 0 or step + 1 == feed.steps:
                self._log(i, phase, watched, stepper.losses(watched, step + 1))
                watched = step + 1
            done += bool(feed.plan.trains[step])
            if step % 10 == 9:
                self._tell(progress, done, total, phase.name)
        return done

    def _log(self, i: int, phase: Phase, first: int, losses: Tensor) -> None:
        """Write down the mean loss since the last look [steps, (lanes)], and stop what is no longer finite."""
        table = losses.float().cpu().numpy().reshape(len(losses), -1)
        for lane, outcome in enumerate(self.outcomes):
            column = table[:, lane]
            outcome.log.append(
                {"phase": i, "name": phase.name, "step": first + len(column), "loss": float(column.mean())}
            )
            if outcome.diverged is None and not np.isfinite(column).all():
                step = first + int(np.flatnonzero(~np.isfinite(column))[0])
                outcome.diverged = (
                    f"seed {self.cells[lane].seed}: the loss was not finite in {phase.name} at step {step}; "
                    f"lower lr (now {self.cells[lane].experiment.lr:g}) or set clip."
                )
        if all(outcome.diverged for outcome in self.outcomes):
            raise Diverged(self.outcomes[0].diverged)

    # ---- plans
    def _order(self, cell: Cell, i: int, phase: Phase) -> np.ndarray:
        e = self.experiment
        steps = None if e.steps is None else e.steps * phase.epochs_of
        return draw_order(cell.seed, i, len(phase.train), e.batch, e.epochs, steps)

    def _feed(self, i: int, phase: Phase) -> Feed:
        plans = [self._plan(lane, cell, i, phase) for lane, cell in enumerate(self.cells)]
        return Feed(phase, plans, self.memory, self.reader, self.stacked)

    def _plan(self, lane: int, cell: Cell, i: int, phase: Phase) -> Plan:
        e, order = self.experiment, self._order(cell, i, phase)
        if self.memory is None:
            return draw_plan(cell.seed, i, order, Draws(), {})
        replay = self.needs.replay or e.replay
        sizes = {"replay": replay, **self.needs.draws}
        if self.needs.current_task:
            capacity, a_pass = self.quotas[lane].capacity, len(phase.train) // e.batch * e.batch
            return draw_reservoir_replay(cell.seed, i, order, a_pass, sizes, self.memory.seen, capacity)
        scope = self.needs.scope or (e.scope if self.stream.shared_head else "one_task")
        rows = self.memory.rows_by_task(lane, phase.last)
        labels = self.memory.shelf(0).label[lane] if self.stream.shared_head else None
        return draw_plan(cell.seed, i, order, Draws(sizes, scope), rows, labels, e.p_replay, e.plan_seed)

    # ---- the end of a task
    def _end_task(self, i: int, phase: Phase) -> None:
        self.engine.write_state(self.method.end_task(self.engine, phase.train, phase.last))
        if self.memory is None:
            return
        picks = [self._picks(lane, cell, i, phase) for lane, cell in enumerate(self.cells)]
        chosen = self.method.select(self.engine, phase.train, [len(positions) for _, positions in picks])
        if chosen is not None:
            picks = [(rows, positions) for (rows, _), positions in zip(picks, chosen, strict=True)]
        # Lanes that remember equally many form one batch; activations stored in training mode depend on it.
        for count in sorted({len(positions) for _, positions in picks} - {0}):
            lanes = [lane for lane, (_, positions) in enumerate(picks) if len(positions) == count]
            self._remember(lanes, [picks[lane] for lane in lanes], phase)
        self.memory.seen += self._order(self.cells[0], i, phase)[
            : len(phase.train) // self.experiment.batch
        ].size
        if self.method.refresh:
            self._refresh(phase.last)

    def _picks(self, lane: int, cell: Cell, i: int, phase: Phase) -> tuple[np.ndarray, np.ndarray]:
        """Memory rows and the positions of the examples that go there."""
        assert self.memory is not None
        quota, order = self.quotas[lane], self._order(cell, i, phase)
        generator = rng(cell.seed, "select", i)
        shelf = self.memory.shelf(phase.last)
        if quota.policy == "reservoir":
            once = order[: len(phase.train) // self.experiment.batch].reshape(-1)
            return reservoir_rows(
                reservoir_slots(self.memory.seen, len(once), quota.capacity, generator), once
            )
        labels = phase.train.labels
        own = labels[lane] if labels is not None and labels.ndim == 2 else labels
        if self.needs.share == "seen":
            quota = _share_of_seen(quota, phase.last, self.stream)
            for task in range(phase.last):
                self.memory.shelf(task).shrink(lane, task, int(quota.per_task))
        positions = choose(quota, own, order.reshape(-1), len(phase.train), generator)
        return shelf.free_rows(lane, len(positions)), positions

    def _remember(self, lanes: list[int], picks: list[tuple[np.ndarray, np.ndarray]], phase: Phase) -> None:
        assert self.memory is not None
        engine = self.engine.only(lanes)
        positions = torch.as_tensor(np.stack([p for _, p in picks]), device=self.device)
        if self.stacked:
            where = torch.as_tensor(lanes, device=self.device)
            train = phase.train
            data = Examples(train.source, train.rows[where], {k: v[where] for k, v in train.own.items()})
        else:
            data, positions = phase.train, positions[0]
        columns = data.take(positions)
        task = phase.parts[0][0]
        columns |= self.method.keep(engine, self.reader.batch(columns, task))
        for index, (lane, (rows, _)) in enumerate(zip(lanes, picks, strict=True)):
            own = {name: column[index] if self.stacked else column for name, column in columns.items()}
            labels = None if own["y"].dim() != 1 else own["y"].cpu().numpy()
            self.memory.shelf(phase.last).write(lane, rows, own, phase.last, labels)

    def _refresh(self, last: int) -> None:
        """Recompute the columns that must follow the network, for every remembered row."""
        assert self.memory is not None
        for shelf_task in range(1 if self.stream.shared_head else last + 1):
            shelf = self.memory.shelf(shelf_task)
            rows = torch.arange(max(shelf.capacities), device=self.device)
            rows = rows.expand(len(self.cells), -1) if self.stacked else rows
            task = None if self.stream.shared_head else shelf_task
            fresh = self.method.keep(self.engine, self.reader.batch(shelf.take(rows), task))
            for name in self.method.refresh:
                shelf.columns[name].copy_(fresh[name])

    # ---- evaluation
    def _evaluate(self, tasks: Sequence[int] | range) -> list[list[tuple[float, float | None]]]:
        """Test loss and accuracy of each task, by lane."""
        sums = torch.stack([self._score(task) for task in tasks])
        table = sums.double().cpu().numpy().reshape(len(sums), -1, 4)
        return [
            [(float(s[0] / s[1]), float(s[2] / s[3]) if s[3] else None) for s in table[:, lane]]
            for lane in range(len(self.cells))
        ]

    def _score(self, task: int) -> Tensor:
        memory = self.memory.columns(task) if self.memory is not None else {}
        size = max(1, 12_500 // len(self.cells)) if self.device.type == "cuda" else 250
        batches = self.engine.batches(self.tests[task], task, min(size, 1000))
        return sum(
            (self.engine.compute(self.method.score, b, memory) for b in batches),
            torch.zeros((), device=self.device),
        )

    def _extend_curve(self, phase: Phase) -> None:
        row = self._evaluate([phase.last])
        for lane, outcome in enumerate(self.outcomes):
            while len(outcome.curve) < len(outcome.next):
                outcome.curve.append([outcome.next[-1]])
            outcome.curve[-1].append(row[lane][0][1])

    # ---- small things
    def _ledger(self, lane: int) -> dict[str, int]:
        kept = self.memory.nbytes(lane) if self.memory is not None else {}
        kept |= state_bytes(self.engine.state, len(self.cells))
        return kept | {"total": sum(kept.values()), "model": model_bytes(self.engine.model)}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @staticmethod
    def _tell(progress: Progress | None, done: int, total: int, what: str) -> None:
        if progress is not None:
            progress(done, total, what)


def _join(
    streams: Sequence[Stream], stacked: bool, device: torch.device
) -> tuple[list[Phase], list[Examples]]:
    """Phases and test examples on the device; those of several lanes stacked."""
    stack = Examples.stack if stacked else lambda lanes: lanes[0]
    phases = []
    for group in zip(*(stream.phases for stream in streams), strict=True):
        parts = tuple(
            (part[0][0], stack([examples for _, examples in part]).to(device))
            for part in zip(*(phase.parts for phase in group), strict=True)
        )
        phases.append(replace(group[0], parts=parts))
    tests = [
        stack([task.test for task in group]).to(device)
        for group in zip(*(stream.tasks for stream in streams), strict=True)
    ]
    return phases, tests


def _share_of_seen(quota: Quota, last: int, stream: Stream) -> Quota:
    """m divided by the classes seen so far: every task's share shrinks when another joins."""
    classes = stream.classes_per_task or 1
    per_class = quota.m // ((last + 1) * classes)
    return replace(quota, per_class=per_class, per_task=type(quota.per_task)(per_class * classes))
