"""The loop: phases of steps, the end of a task, evaluation. It contains no method's name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from reprise.build import Cell, fast_lanes, join_phases, join_tests, make_engine, under_one_method
from reprise.cost import measure_cost
from reprise.errors import Diverged
from reprise.evaluate import Evaluator, Scores
from reprise.examples import Gone
from reprise.feed import Feed
from reprise.ledger import bytes_kept, make_memory, make_reader, model_bytes, quota_of
from reprise.observe import Observer
from reprise.plan import Draws, Plan, check_steps, draw_flips, draw_order, draw_plan, draw_reservoir_replay
from reprise.ranks import Ranks
from reprise.remember import refuse_unseen, remember
from reprise.step_cost import recorded_step
from reprise.stepper import Stepper, Steppers
from reprise.streams.stream import Phase
from reprise.types import Batch

Progress = Callable[[int, int, str], None]
"""Called with steps done, steps in all, and what is being done."""

Pause = Callable[[int, int], bool]
"""Asked after each step, with the phase and the step: whether to stop here."""

CHECK_EVERY = 100
"""Steps between two looks at whether the loss is finite: each look waits for the device."""


Line = dict[str, float | int | str]
"""What is written down at a look: where the run is, and its mean loss since the last."""

Row = list[float | None] | None
"""Scores of all tasks after a phase, None for those not seen yet; None for all where nobody looked."""


@dataclass
class Outcome:
    """What a run leaves: the matrices, the ledger, the times; or the sentence that says why it diverged."""

    accuracy: list[Row] = field(default_factory=list)
    loss: list[Row] = field(default_factory=list)
    initial: list[float | None] = field(default_factory=list)
    next: list[float | None] = field(default_factory=list)
    curve: list[list[float | None]] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    log: list[Line] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    samples: dict[str, np.ndarray] = field(default_factory=dict)
    """Of scene streams: what the final model answers to a few test images (`Evaluator.samples`)."""
    diverged: str | None = None


@dataclass(frozen=True)
class Cursor:
    """Where a run stands: the phase, and the steps of it that are done."""

    phase: int = 0
    step: int = 0


class Keeper(Protocol):
    """Keeps a run from being lost; it may raise to end the run where it stands."""

    def due(self) -> bool:
        """Asked after each step: whether to save here."""

    def save(self, trainer: Trainer) -> None:
        """The run stands between two steps."""

    def end_task(self, trainer: Trainer) -> None:
        """The run stands between two tasks, or after the last."""

    def write(self, lane: int, line: Line) -> None:
        """A line of the log."""


class Trainer:
    """Trains one cell, or several as lanes of one group: they share method, batch shapes and task count.

    A cell whose method is a special case of another's is trained as that; what it keeps is counted by its own.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        device: torch.device,
        stacked: bool | None = None,
        kernels: bool | None = None,
        compiled: bool = False,
        observer: Observer | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.own_methods = [cell.experiment.method for cell in cells]
        self.cells, self.device = under_one_method(cells), device
        cells = self.cells
        self.experiment = cells[0].experiment
        self.method = self.experiment.method
        self.ranks = ranks
        if ranks is not None:
            if len(cells) > 1:
                raise ValueError("ranks train one run at a time, no lanes")
            stacked = kernels = False
        if kernels is None:
            shared = cells[0].stream.shared_head
            kernels = stacked is not False and shared and fast_lanes(self.experiment, device)
        # With kernels a run alone is a stack of one: its result does not depend on the company it is in.
        self.stacked = len(cells) > 1 or kernels if stacked is None else stacked
        streams = [cell.stream.merged() if self.method.merged else cell.stream for cell in cells]
        self.stream = streams[0]
        self.phases = join_phases(streams, self.stacked, device)
        self.tests = join_tests(streams, self.stacked, device)
        self.reader = make_reader(self.experiment, self.stream, device)
        dividing = ranks if self.method.divides else None
        self.engine = make_engine(
            cells, streams, self.reader, self.stacked, device, kernels, dividing, compiled
        )
        self.engine.enter(0)
        capturable = cells[0].capturable
        self.steppers = Steppers(self.method, self.engine, capturable)
        self.needs = self.method.needs(self.stream)
        self.quotas = [quota_of(cell.experiment, self.stream, cell.experiment.m or 0) for cell in cells]
        self.memory = (
            make_memory(self.engine, self.method, self.stream, self.quotas) if self.method.replays else None
        )
        if self.memory is not None:
            self.memory.replays_current = self.needs.current_task
        self.evaluator = Evaluator(self.engine, self.tests, self.memory, capturable)
        self.outcomes = [Outcome(bytes=self._ledger(lane)) for lane in range(len(cells))]
        self.cursor = Cursor()
        self.observer = observer or Observer()
        self.window = np.zeros((0, len(cells)), dtype=np.float32)
        """[steps, lanes] losses since the last look, where the run stands between two."""
        self.spent = {"train": 0.0, "end_task": 0.0, "evaluate": 0.0, "data": 0.0, "total": 0.0}
        self._clocks: dict[str, float] = {}
        """What is being timed, and since when."""

    # ---- the run
    def run(
        self, progress: Progress | None = None, pause: Pause | None = None, keeper: Keeper | None = None
    ) -> list[Outcome]:
        """Train from the cursor to the end, or to the first step after which `pause` says so.

        Everything random is named and everything that changes is in `checkpoint.capture`: a run that is paused,
        captured, restored elsewhere and continued gives the same bytes as one that was left alone.
        """
        self._clocks = {"total": time.perf_counter()}
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()  # that of this run, not of those before it in the process
        tell = progress or (lambda done, total, what: None)
        tasks = len(self.stream.tasks)
        # Tasks that an open-ended stream has behind it were learned with settings and sizes of their own.
        first = self.cursor.phase if self.stream.open_ended else 0
        lengths = [self._steps(i, self.phases[i]) for i in range(first, len(self.phases))]
        self._refuse_unseen()
        if self.cursor == Cursor(0, 0):
            for outcome, scores in zip(self.outcomes, self.accuracies(range(tasks)), strict=True):
                outcome.initial = scores
        for i in range(self.cursor.phase, len(self.phases)):
            phase, start = self.phases[i], self.cursor.step
            self.engine.enter(phase.last)
            if start == 0:
                for outcome, scores in zip(self.outcomes, self.accuracies([phase.last]), strict=True):
                    outcome.next += scores
            orders = self._orders(i, phase)
            feed = self._feed(i, phase, orders)

            place = f" ({i + 1}/{len(self.phases)})" if len(lengths) > 1 else ""
            within = partial(_tell, tell, sum(lengths[: i - first]), sum(lengths), phase.name + place)

            if not self._timed("train", self._train, feed, i, phase, start, within, pause, keeper):
                return self.outcomes
            self._timed("end_task", self._end_task, phase, orders)
            self._append_row(phase.last, tasks)
            self.cursor = Cursor(i + 1, 0)
            self.observer.task_ended(self, i)
            if keeper is not None:
                self.stop_clock()
                keeper.end_task(self)
        self.observer.ended(self)
        self._finish()
        return self.outcomes

    def stop_clock(self) -> None:
        """Count the seconds up to now, those before an interruption included."""
        now = time.perf_counter()
        for what, since in self._clocks.items():
            self.spent[what] += now - since
            self._clocks[what] = now

    def skip_to_last_step(self) -> None:
        """Stand before the last step of the first phase: for rehearsals, whose weights nobody reads."""
        self.cursor = Cursor(0, self._steps(0, self.phases[0]) - 1)

    def skip_to(self, i: int) -> Feed:
        """The batches of phase i, with the phases before it remembered but not trained: for timing a step."""
        for j, phase in enumerate(self.phases[:i]):
            self.engine.enter(phase.last)
            self._end_task(phase, self._orders(j, phase))
        self.engine.enter(self.phases[i].last)
        return self._feed(i, self.phases[i], self._orders(i, self.phases[i]))

    def _train(
        self,
        feed: Feed,
        i: int,
        phase: Phase,
        start: int,
        within: Callable[[int], None],
        pause: Pause | None,
        keeper: Keeper | None,
    ) -> bool:
        """The steps of a phase from `start` on; False where it was paused before the last one."""
        stepper = self.steppers.stepper(feed, start)
        earlier = self.window
        watched = start - len(earlier)
        paused = False
        trained = int(feed.plan.trains[:start].sum())
        within(trained)
        for step in range(start, feed.steps):
            stepper.run(step)
            trained += int(feed.plan.trains[step])
            if step < self.experiment.curve:
                self._extend_curve(phase)
            done, last = step + 1, step + 1 == feed.steps
            if done % CHECK_EVERY == 0 or last:
                self._log(i, phase, watched, _losses(stepper, start, watched, done, earlier), keeper)
                watched = done
            if step % 10 == 9 or last:
                within(trained)
            paused = not last and pause is not None and pause(i, step)
            due = not last and keeper is not None and keeper.due()
            if paused or due:
                self.cursor = Cursor(i, done)
                self.window = _losses(stepper, start, watched, done, earlier)
            if due and keeper is not None:
                self.stop_clock()
                keeper.save(self)
            if paused:
                break
        else:
            self.window = self.window[:0]
        self.spent["data"] += feed.ahead.waited
        feed.ahead.close()
        return not paused

    def _end_task(self, phase: Phase, orders: Sequence[np.ndarray]) -> None:
        recall = partial(self._recall, phase)
        self.engine.write_state(self.method.end_task(self.engine, phase.train, phase.last, recall))
        if self.memory is not None:
            remember(
                self.engine, self.memory, self.cells, self.quotas, self.needs, self.stream, phase, orders
            )
        if self.ranks is not None:
            # Everyone has done the same; should one have rounded otherwise, it must not stay so.
            self.ranks.agree(self._numbers())

    def _numbers(self) -> Iterator[Tensor]:
        """The tensors that a task changes."""
        for tree in (self.engine.params, self.engine.buffers, self.engine.state):
            yield from (tensor.data for tensor in tree.values())
        for shelf in self.memory.shelves if self.memory is not None else ():
            yield from shelf.columns.values()

    def _recall(self, phase: Phase, steps: int, size: int) -> Iterator[Batch]:
        """Batches from the memory of the tasks before this one: what a method's `end_task` may look back at."""
        memory, e = self.memory, self.experiment
        if memory is None or not all(
            memory.rows_by_task(lane, phase.last) for lane in range(len(self.cells))
        ):
            return
        plans = []
        for lane, cell in enumerate(self.cells):
            rows = memory.rows_by_task(lane, phase.last)
            labels = memory.shelf(0).label[lane] if self.stream.shared_head else None
            order = np.zeros((steps, 1), dtype=np.int64)
            draws = Draws({"recall": size}, "union" if self.stream.shared_head else "one_task")
            plans.append(draw_plan(cell.seed, phase.last, order, draws, rows, labels, None, e.plan_seed))
        feed = Feed(phase, plans, memory, self.reader, self.stacked)
        for step in range(steps):
            yield from (batch for batch in feed.batches(step) if batch.replayed)

    # ---- plans
    def _asked(self, phase: Phase) -> tuple[int, int, int, int | None]:
        """Examples, batch, epochs and steps of a phase."""
        e = self.experiment
        return len(phase.train), e.batch, e.epochs, None if e.steps is None else e.steps * phase.epochs_of

    def _steps(self, i: int, phase: Phase) -> int:
        """Current steps of a phase; drawing their order is left until it begins."""
        return check_steps(i, *self._asked(phase))

    def _orders(self, i: int, phase: Phase) -> list[np.ndarray]:
        """Each lane's positions [steps, batch] in a phase."""
        return [draw_order(cell.seed, i, *self._asked(phase)) for cell in self.cells]

    def _refuse_unseen(self) -> None:
        if self.memory is not None:
            for i in range(self.cursor.phase, len(self.phases)):
                phase = self.phases[i]
                draw = partial(self._orders, i, phase)
                refuse_unseen(self.cells, self.quotas, self.needs, self.stream, phase, draw)

    def _feed(self, i: int, phase: Phase, orders: Sequence[np.ndarray]) -> Feed:
        plans = [self._plan(lane, cell, i, phase, orders[lane]) for lane, cell in enumerate(self.cells)]
        if self.stream.flips:
            plans = [
                replace(plan, flipped=draw_flips(cell.seed, i, plan.current.shape))
                for cell, plan in zip(self.cells, plans, strict=True)
            ]
        return Feed(phase, plans, self.memory, self.reader, self.stacked, self.engine.ranks)

    def _plan(self, lane: int, cell: Cell, i: int, phase: Phase, order: np.ndarray) -> Plan:
        e = self.experiment
        if self.memory is None:
            return draw_plan(cell.seed, i, order, Draws(), {})
        sizes = self.needs.sizes(e.replay)
        if self.needs.current_task:
            capacity, first_pass = self.quotas[lane].capacity, len(phase.train) // e.batch * e.batch
            return draw_reservoir_replay(cell.seed, i, order, first_pass, sizes, self.memory.seen, capacity)
        rows = self.memory.rows_by_task(lane, phase.last)
        labels = self.memory.shelf(0).label[lane] if self.stream.shared_head else None
        return draw_plan(
            cell.seed, i, order, Draws(sizes, e.scope), rows, labels, e.p_replay or None, e.plan_seed
        )

    # ---- what is written down
    def _evaluate(self, tasks: Sequence[int]) -> Scores:
        return self._timed("evaluate", self.evaluator.scores, tasks)

    def accuracies(self, tasks: Sequence[int]) -> list[list[float | None]]:
        """By lane; tasks whose answers are neither right nor wrong have none, and cost nothing."""
        judged = [task for task in tasks if self.stream.tasks[task].kind.judged]
        scores = self._evaluate(judged) if judged else [[] for _ in self.outcomes]
        known = [dict(zip(judged, own, strict=True)) for own in scores]
        return [[own[task][1] if task in own else None for task in tasks] for own in known]

    def _append_row(self, last: int, tasks: int) -> None:
        """A row of the matrices after task `last`; every so many tasks, and after the last one always."""
        if (last + 1) % self.experiment.evaluate_every and last + 1 < tasks:
            for outcome in self.outcomes:
                outcome.loss.append(None)
                outcome.accuracy.append(None)
            return
        # Of a task whose test examples are not there any more nothing can be said.
        there = [task for task in range(last + 1) if not isinstance(self.tests[task], Gone)]
        for outcome, scores in zip(self.outcomes, self._evaluate(there), strict=True):
            known = dict(zip(there, scores, strict=True))
            row = [known.get(task, (None, None)) for task in range(tasks)]
            outcome.loss.append([loss for loss, _ in row])
            outcome.accuracy.append([accuracy for _, accuracy in row])

    def _extend_curve(self, phase: Phase) -> None:
        for outcome, scores in zip(self.outcomes, self.accuracies([phase.last]), strict=True):
            if len(outcome.curve) < len(outcome.next):
                outcome.curve.append([outcome.next[-1]])
            outcome.curve[-1] += scores

    def _log(self, i: int, phase: Phase, first: int, losses: np.ndarray, keeper: Keeper | None) -> None:
        """Write down the mean loss since the last look [steps, lanes], and stop what is no longer finite."""
        lanes = zip(self.cells, self.outcomes, losses.T, strict=True)
        for lane, (cell, outcome, column) in enumerate(lanes):
            finite = np.isfinite(column)
            if outcome.diverged is None and not finite.all():
                step = first + int(finite.argmin())
                outcome.diverged = (
                    f"seed {cell.seed}: the loss was not finite in {phase.name} at step {step}; "
                    f"lower lr (now {cell.experiment.lr:g}) or set clip."
                )
            if finite.all():
                line: Line = {
                    "phase": i,
                    "name": phase.name,
                    "step": first + len(column),
                    "loss": float(column.mean()),
                }
                outcome.log.append(line)
                self.observer.logged(self, lane, line)
                if keeper is not None:
                    keeper.write(lane, line)
        if all(outcome.diverged for outcome in self.outcomes):
            raise Diverged(self.outcomes[0].diverged)

    def _ledger(self, lane: int) -> dict[str, int]:
        kept = bytes_kept(self.engine, self.memory, self.own_methods[lane], self.stream, lane)
        return kept | {"total": sum(kept.values()), "model": model_bytes(self.engine.model)}

    def _finish(self) -> None:
        self.stop_clock()
        cost, steps = measure_cost(self.engine.model, self.stream), dict[object, dict[str, int | None]]()
        for cell, method, outcome in zip(self.cells, self.own_methods, self.outcomes, strict=True):
            own = replace(cell, experiment=replace(cell.experiment, method=method))
            key = type(method), own.experiment.m  # lanes differ in nothing else that costs
            if key not in steps:
                steps[key] = recorded_step(own, cost["macs_per_query"])
            outcome.cost = cost | steps[key]
        if self.stream.labels:
            names = [task.name for task in self.stream.tasks]
            for outcome, samples in zip(self.outcomes, self.evaluator.samples(names), strict=True):
                outcome.samples = samples
        # Lanes share the clock: a run's seconds are its share of the group's.
        share = len(self.cells)
        for outcome in self.outcomes:
            outcome.seconds = {name: value / share for name, value in self.spent.items()}

    def _timed(self, what: str, fn: Callable[..., Any], *arguments: Any) -> Any:
        self._clocks[what] = time.perf_counter()
        result = fn(*arguments)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.spent[what] += time.perf_counter() - self._clocks.pop(what)
        return result


def _losses(stepper: Stepper, start: int, first: int, last: int, earlier: np.ndarray) -> np.ndarray:
    """[last - first, lanes] losses of a phase's steps; those before `start` are `earlier`, of an interrupted run."""
    made = stepper.losses(max(first, start), last) if last > max(first, start) else None
    if made is None:
        return earlier[:0] if first >= start else earlier
    table = made.float().cpu().numpy().reshape(len(made), -1)
    return np.concatenate([earlier, table]) if first < start else table


def _tell(tell: Progress, before: int, total: int, what: str, done: int) -> None:
    """Steps done in a phase, counted from the beginning of the run."""
    tell(before + done, total, what)
