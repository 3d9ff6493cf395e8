"""Phases that look alike may share a captured step: the next phase's feed takes the place of the captured one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from scenes import scene_cell
from tiny import CPU, cell, furthest, train, weights
from torch.utils._python_dispatch import TorchDispatchMode

from reprise.build import Cell
from reprise.feed import Feed
from reprise.graphs import Captured, uncollected
from reprise.stepper import SortGraphs, SortStepper
from reprise.train import Trainer
from reprise.types import Tree


def feeds(*methods: str) -> tuple[Feed, Feed]:
    """The feeds of the second and third task, both replaying, of lanes that have remembered the first two."""
    trainer = Trainer([cell(method, seed) for seed, method in enumerate(methods)], CPU, stacked=True)
    return trainer.skip_to(1), trainer.skip_to(2)


def test_a_feed_takes_the_place_of_another() -> None:
    second, third = feeds("er", "er")
    assert second.form == third.form
    captured = second.copy()
    captured.load(third)
    for step in range(third.steps):
        cursor = torch.tensor([step])
        for mine, theirs in zip(captured.batches_at(cursor), third.batches(step), strict=True):
            assert mine.tensors().keys() == theirs.tensors().keys()
            for name, tensor in theirs.tensors().items():
                assert torch.equal(mine.tensors()[name], tensor), name


def test_a_copy_leaves_the_phase_as_it_was() -> None:
    second, third = feeds("er", "er")
    before = second.phase.train.rows.clone()
    second.copy().load(third)
    assert torch.equal(second.phase.train.rows, before)


def test_the_first_task_has_a_form_of_its_own() -> None:
    """It replays nothing: the captured step of a replaying phase cannot stand for it."""
    trainer = Trainer([cell("er", 0), cell("er", 1)], CPU, stacked=True)
    assert trainer.skip_to(0).form != trainer.skip_to(1).form


def test_bf16_keeps_parameters_and_results_in_float32() -> None:
    run = train(cell("car", precision="bf16", tasks=2), stacked=False)
    seen: list[torch.dtype] = []
    run.engine.model.encoder.conv2.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    run.evaluator.scores([0])
    assert seen[0] == torch.bfloat16
    assert {p.dtype for p in run.engine.params.values()} == {torch.float32}
    assert run.memory is not None
    assert run.memory.shelf(0).columns["activation"].dtype == torch.float32


def test_bf16_lanes_follow_single_runs() -> None:
    """bf16 has 8 bits: after a few steps weights agree to a hundredth."""
    cells = [cell("er", seed, precision="bf16", tasks=2, steps=2) for seed in (0, 1)]
    lanes = train(*cells, stacked=True)
    for lane, one in enumerate(cells):
        single = train(one, stacked=False)
        for name, value in single.engine.params.items():
            torch.testing.assert_close(lanes.engine.params[name][lane], value, rtol=0, atol=2e-2)


class Copied:
    """Stands in for a captured step on a CPU: like a graph it reads nothing but what is copied to its own place."""

    made: ClassVar[list[Copied]] = []

    def __init__(self, fn: Callable[[Tree], torch.Tensor], pool: object) -> None:
        self.fn, self.tree, self.calls = fn, Tree(), 0
        self.made.append(self)

    def __call__(self, tree: Tree) -> torch.Tensor:
        if not self.tree:
            self.tree = {name: tensor.clone() for name, tensor in tree.items()}
        for name, tensor in tree.items():
            self.tree[name].copy_(tensor)
        self.calls += 1
        return self.fn(self.tree)


def by_sorts(cells: Sequence[Cell], captured: type[Copied], monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A trainer after its run on a CPU, whose steps go through the sorts of a GPU's."""
    monkeypatch.setattr(Copied, "made", [])
    monkeypatch.setattr("reprise.stepper.Captured", captured)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: None)
    trainer = Trainer(cells, CPU)
    graphs = SortGraphs(trainer.method, trainer.engine)
    monkeypatch.setattr(
        trainer.steppers,
        "stepper",
        lambda feed, start: SortStepper(trainer.method, trainer.engine, feed, start, graphs),
    )
    trainer.run()
    return trainer


@pytest.mark.parametrize("method", ["sgd", "er", "car", "agem", "ewc", "side_tuning", "multitask"])
def test_steps_of_several_sorts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sort a function of its own, kept from phase to phase: the same bits as step by step."""
    plain = train(scene_cell(method))
    trainer = by_sorts([scene_cell(method)], Copied, monkeypatch)
    assert furthest(weights(plain), weights(trainer)) == 0
    assert trainer.outcomes[0].loss == plain.outcomes[0].loss
    met = len(Copied.made)
    tasks = len(trainer.stream.tasks)
    if method in ("er", "car"):  # a current batch of each task, or a replayed one of each but the last
        assert tasks < met < 2 * tasks
    else:  # A-GEM sees both in a step: a sort for each pair
        assert met == {"multitask": 1, "agem": 1 + sum(range(1, tasks))}.get(method, tasks)
    assert sum(one.calls for one in Copied.made) > 2 * met


@pytest.mark.parametrize("method", ["er", "car", "derpp"])
@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_sorts_of_lanes_and_split_streams(
    method: str, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a coin decides what a step sees: a current batch or a replayed one, for all tasks."""
    cells = [cell(method, seed, p_replay=0.5, steps=8) for seed in seeds]
    plain = train(*cells)
    trainer = by_sorts(cells, Copied, monkeypatch)
    assert furthest(weights(plain), weights(trainer)) == 0
    assert [one.accuracy for one in trainer.outcomes] == [one.accuracy for one in plain.outcomes]
    assert len(Copied.made) == 2


class Side:
    """Stands in for a side stream: a graph is the function itself."""

    def __init__(self, free: int) -> None:
        self.free, self.asked, self.captures = free, 0, 0

    def run(self, fn: Callable[[], torch.Tensor]) -> torch.Tensor:
        return fn()

    def fits(self, times: int = 1) -> bool:
        self.asked += 1
        return self.free >= times

    def capture(self, fn: Callable[[], torch.Tensor], pool: object) -> tuple[Any, torch.Tensor]:
        self.captures += 1
        found = torch.zeros(())
        return SimpleNamespace(replay=lambda: found.copy_(fn())), found


@pytest.mark.parametrize(("free", "captures"), [(0, 0), (1, 0), (2, 1)])
def test_a_step_is_captured_where_another_still_fits_beside_it(
    free: int, captures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Side(free)
    monkeypatch.setattr("reprise.graphs.SideStream", lambda: side)
    step = Captured(lambda tree: 2 * tree["x"], None)
    given = [torch.tensor(float(value)) for value in (1, 2, 3, 4)]
    found = [step({"x": x}) for x in given]
    assert [x.item() for x in found] == [2, 4, 6, 8]
    assert (side.captures, side.asked) == (captures, 1)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_waits_for_a_capture(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the capture fails; a collector that was off stays off."""
    calls: list[str] = []
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)
    monkeypatch.setattr(gc, "disable", lambda: calls.append("off"))
    monkeypatch.setattr(gc, "enable", lambda: calls.append("on"))

    def fails() -> None:
        with uncollected():
            calls.append("capture")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert calls == ["off", "capture", *(["on"] if enabled else [])]


ATEN = torch.ops.aten


class HostQuestions(TorchDispatchMode):
    """Notes operations that a capture forbids on a GPU: a number or a shape read back, a constant brought there."""

    FORBIDDEN = (
        *(ATEN._local_scalar_dense, ATEN.item, ATEN.equal, ATEN.is_nonzero, ATEN.nonzero, ATEN.masked_select),
        *(ATEN.lift, ATEN.lift_fresh),
    )
    BY_MASK = (ATEN.index, ATEN.index_put, ATEN.index_put_)

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = op.overloadpacket
        masked = packet in self.BY_MASK and any(t is not None and t.dtype == torch.bool for t in args[1])
        if masked or packet in self.FORBIDDEN:
            self.asked.append(str(op))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("fields", [{}, {"clip": 1.0, "precision": "bf16"}], ids=str)
@pytest.mark.parametrize(
    "method", ["sgd", "er", "car", "agem", "ewc", "side_tuning", "multitask", "lwf", "derpp"]
)
def test_a_step_asks_nothing_of_the_host(
    method: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its second call on; Adam on a CPU counts its steps there, so plain SGD takes its place."""
    questions, met = HostQuestions(), set()

    class Questioned(Copied):
        def __call__(self, tree: Tree) -> torch.Tensor:
            if self not in met:
                met.add(self)
                return super().__call__(tree)
            with questions:
                return super().__call__(tree)

    by_sorts([scene_cell(method, optimizer="sgd", **fields)], Questioned, monkeypatch)
    assert met
    assert questions.asked == []
