"""Every check of conformance.py over every method of the table; and, for each check, faults that it catches.

A check that cannot fail is a defect: each fault below is a small method that exists only here, put into the table
under the name `faulty`, or a part of the machinery replaced.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import conformance
import numpy as np
import pytest
import torch
from conformance import CHECKS, WORLDS, World, refusal
from tiny import CPU
from torch import Tensor

import reprise.train
from reprise.checkpoint import Checkpoint
from reprise.engine import Engine
from reprise.errors import InputError
from reprise.feed import Feed
from reprise.fill import Quota
from reprise.method import Method, Needs
from reprise.methods import METHODS
from reprise.methods.er import ER
from reprise.net import Net
from reprise.streams.stream import Stream
from reprise.train import Trainer
from reprise.types import Batch, Output, Tree

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "ewc": {"every": 2},
    "hal": {"anchor_steps": 3, "finetune_steps": 2},
}
"""Fields without which a method would not act, or act for minutes, in runs of a few steps."""

Check = Callable[[World, str], None]

SETTLED = tuple(replace(world, settings=SETTINGS) for world in WORLDS)
EVERYWHERE = [(world, name) for name in METHODS for world in SETTLED]
CASES = [(world, name) for world, name in EVERYWHERE if refusal(world, name) is None]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("world", "name"), CASES, ids=str)
def test_every_method(check: Check, world: World, name: str) -> None:
    check(world, name)


@pytest.mark.parametrize(("world", "name"), EVERYWHERE, ids=str)
def test_a_refusal_is_one_sentence_with_a_way_out(world: World, name: str) -> None:
    conformance.check_refusal(world, name)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_somewhere(name: str) -> None:
    assert name in [own for _, own in CASES]


# ---- planted faults


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Method]], str]:
    """Put a method into the table for the length of a test."""

    def into_table(kind: type[Method]) -> str:
        monkeypatch.setitem(METHODS, "faulty", kind)
        return "faulty"

    return into_table


Plant = Callable[[type[Method]], str]
TASK, _, MIXED = WORLDS
PLANTED = (TASK, MIXED)


@dataclass(frozen=True)
class Sound(ER):
    """No fault: what the faulty methods below do not share with it is what is caught."""

    pull: float = 0.5
    """weight of a pull towards 0"""

    def start(self, engine: Engine) -> Tree:
        return {"steps": engine.place(torch.zeros(()))}

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, loss = engine.gradient(self.objective, batches)
        engine.update_state(self.count)
        engine.apply(grads)
        return loss

    def count(self, state: Tree) -> Tree:
        return {"steps": state["steps"] + 1}

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        loss = super().objective(net, batch, out)
        return loss + self.pull * out.features.square().mean() if batch.replayed else loss


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_the_sound_method_passes(check: Check, world: World, plant: Plant) -> None:
    """Else the faults below could be caught for a reason that is not theirs."""
    check(world, plant(Sound))


# -- lanes


@dataclass(frozen=True)
class MixesLanes(Sound):
    """Averages the gradients over the lanes."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, loss = engine.gradient(self.objective, batches)
        if engine.stacked:
            grads = {name: grad.mean(0, keepdim=True).expand_as(grad) for name, grad in grads.items()}
        engine.apply(grads)
        return loss


@dataclass(frozen=True)
class ReadsItsFieldsTooEarly(Sound):
    """Every lane uses the first one's value: the engine binds the fields of methods, not of closures."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, loss = engine.gradient(lambda net, batch, out: self.objective(net, batch, out), batches)
        engine.apply(grads)
        return loss


@dataclass(frozen=True)
class StateOfAllLanes(Sound):
    """Counts the steps of all lanes together; no weight depends on it."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        loss = super().step(engine, batches)
        engine.state["steps"].add_(engine.lanes - 1)
        return loss


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize("fault", [MixesLanes, ReadsItsFieldsTooEarly, StateOfAllLanes])
def test_fault_in_lanes_is_caught(world: World, fault: type[Method], plant: Plant) -> None:
    with pytest.raises(AssertionError, match="lane"):
        conformance.check_lanes(world, plant(fault))


# -- resume


@dataclass(frozen=True)
class CountsOnItself(Sound):
    """The loss depends on a counter that no checkpoint holds."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        return super().step(engine, batches)

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        return super().objective(net, batch, out) * (1 + 0.01 * vars(self).get("calls", 0))


@pytest.mark.parametrize("world", PLANTED, ids=str)
def test_fault_in_resuming_is_caught(world: World, plant: Plant) -> None:
    with pytest.raises(AssertionError, match="resumed"):
        conformance.check_resume(world, plant(CountsOnItself))


@pytest.mark.parametrize("group", ["state.", "memory.0.x", "buffers."])
def test_a_checkpoint_that_leaves_something_out_is_caught(
    group: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(trainer: Trainer, checkpoint: Checkpoint) -> None:
        blank = {n: t * 0 if n.startswith(group) else t for n, t in checkpoint.tensors.items()}
        honest(trainer, replace(checkpoint, tensors=blank))

    honest = conformance.restore
    monkeypatch.setattr(conformance, "restore", forgetful)
    with pytest.raises(AssertionError, match="resumed"):
        conformance.check_resume(TASK, plant(Sound))


# -- the first task


@dataclass(frozen=True)
class StartsFaster(Sound):
    """Not SGD from the first step on."""

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        return 1.1 * super().objective(net, batch, out)


@dataclass(frozen=True)
class ExemptForNothing(Sound):
    """Declares an exemption it does not need."""

    first_task_is_sgd: ClassVar[bool] = False


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize("fault", [StartsFaster, ExemptForNothing])
def test_fault_in_the_first_task_is_caught(world: World, fault: type[Method], plant: Plant) -> None:
    with pytest.raises(AssertionError, match="the first task is"):
        conformance.check_first_task(world, plant(fault))


def test_a_declared_first_task_is_accepted(plant: Plant) -> None:
    @dataclass(frozen=True)
    class Declared(StartsFaster):
        first_task_is_sgd: ClassVar[bool] = False

    conformance.check_first_task(TASK, plant(Declared))


# -- what trains


@dataclass(frozen=True)
class HoldsTheEncoder(Sound):
    """No fault yet: after the first task only heads learn."""

    def trains(self, name: str, task: int) -> bool:
        return task == 0 or not name.startswith("encoder")


@dataclass(frozen=True)
class CreepingStatistics(HoldsTheEncoder):
    """Statistics of a part that stands still move."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        engine.buffers["encoder.bn1.running_mean"].add_(1e-9)
        return super().step(engine, batches)


@dataclass(frozen=True)
class TrainingMode(HoldsTheEncoder):
    """Puts everything into training mode."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        engine.model.train()
        return super().step(engine, batches)


@dataclass(frozen=True)
class CreepingWeights(HoldsTheEncoder):
    """Weights that stand still are assigned."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        loss = super().step(engine, batches)
        engine.assign({name: param * 0.999 for name, param in engine.snapshot().items()})
        return loss


@dataclass(frozen=True)
class NothingMoves(Sound):
    """Takes every step back after the first task."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        before = engine.snapshot()
        loss = super().step(engine, batches)
        engine.assign(before)
        return loss


@pytest.mark.parametrize("world", PLANTED, ids=str)
def test_parts_that_stand_still_pass(world: World, plant: Plant) -> None:
    conformance.check_trains(world, plant(HoldsTheEncoder))


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (CreepingStatistics, "running_mean moved"),
        (TrainingMode, "running_mean"),
        (CreepingWeights, "encoder"),
        (NothingMoves, "nothing was learned"),
    ],
)
def test_fault_in_what_trains_is_caught(world: World, fault: type[Method], said: str, plant: Plant) -> None:
    with pytest.raises(AssertionError, match=said):
        conformance.check_trains(world, plant(fault))


# -- bytes


@dataclass(frozen=True)
class HidesAColumn(Sound):
    """Its state has the name of a column: one of the two is not counted."""

    def start(self, engine: Engine) -> Tree:
        return super().start(engine) | {"inputs": engine.place(torch.zeros(3))}


@dataclass(frozen=True)
class HoardsOnItself(Sound):
    """Keeps every batch where no ledger looks."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        object.__setattr__(self, "hoard", (*getattr(self, "hoard", ()), batches[0].x))
        return super().step(engine, batches)


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize("fault", [HidesAColumn, HoardsOnItself])
def test_fault_in_what_is_kept_is_caught(world: World, fault: type[Method], plant: Plant) -> None:
    with pytest.raises(AssertionError):
        conformance.check_bytes(world, plant(fault))


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize("column", ["inputs", "labels", "activation"])
def test_a_column_missing_in_the_ledger_is_caught(
    world: World, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = reprise.train.bytes_kept
    monkeypatch.setattr(
        reprise.train, "bytes_kept", lambda *a: {k: n for k, n in honest(*a).items() if k != column}
    )
    with pytest.raises(AssertionError):
        conformance.check_bytes(world, "car")


@pytest.mark.parametrize("world", PLANTED, ids=str)
def test_a_memory_larger_than_asked_for_is_caught(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, ledger = reprise.train.quota_of, world.train("er").outcomes[0].bytes

    def generous(*given: Any) -> Quota:
        quota = honest(*given)
        more = None if quota.per_class is None else 2 * quota.per_class
        return replace(quota, per_class=more, per_task=2 * quota.per_task, capacity=2 * quota.capacity)

    monkeypatch.setattr(reprise.train, "quota_of", generous)
    with pytest.raises(AssertionError):
        conformance.check_bytes(world, "er")
    # Not by the bytes alone: the rows are counted too.
    monkeypatch.setattr(Trainer, "_ledger", lambda self, lane: ledger)
    with pytest.raises(AssertionError, match="rows|a task"):
        conformance.check_bytes(world, "er")


@pytest.mark.parametrize("world", PLANTED, ids=str)
def test_a_memory_that_stays_empty_is_caught(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reprise.train, "remember", lambda *given: None)
    with pytest.raises(AssertionError, match="nothing is remembered"):
        conformance.check_bytes(world, "er")


# -- configuration


@dataclass(frozen=True)
class Undocumented(Sound):
    """A field without a text."""

    secret: float = 0.5


@dataclass(frozen=True)
class WholeNumber(Sound):
    """A float field that does not hold one: it would not become a lane."""

    weight: float = 1
    """a weight"""


@dataclass(frozen=True)
class Rescaled(Sound):
    """Written and read again it is another method."""

    rate: float = 0.5
    """a rate"""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rate", self.rate * 2)


@dataclass(frozen=True)
class NotPlain(Sound):
    """Holds what no file can."""

    device: Any = CPU
    """a device"""


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize("fault", [Undocumented, WholeNumber, Rescaled, NotPlain])
def test_fault_in_the_configuration_is_caught(world: World, fault: type[Method], plant: Plant) -> None:
    with pytest.raises(AssertionError):
        conformance.check_configuration(world, plant(fault))


# -- the method acts


@dataclass(frozen=True)
class ZeroPenalty(Method):
    """A penalty that is always 0: SGD under another name."""

    strength: float = 1.0
    """weight of the penalty"""

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        return net.loss(batch, out) + self.strength * (out.features - out.features).square().mean()


@dataclass(frozen=True)
class UnreadField(Sound):
    """Nothing depends on one of its fields."""

    unread: float = 1.0
    """weight of nothing"""


@dataclass(frozen=True)
class InertStranger(Sound):
    """Exempts a field it does not have."""

    inert: ClassVar[frozenset[str]] = frozenset({"lambda_"})


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize(
    ("fault", "said"),
    [(ZeroPenalty, "ends where sgd ends"), (UnreadField, "unread changes nothing"), (InertStranger, "inert")],
)
def test_fault_of_not_acting_is_caught(world: World, fault: type[Method], said: str, plant: Plant) -> None:
    with pytest.raises(AssertionError, match=said):
        conformance.check_differs(world, plant(fault))


def test_a_declared_inert_field_is_accepted(plant: Plant) -> None:
    @dataclass(frozen=True)
    class Declared(UnreadField):
        inert: ClassVar[frozenset[str]] = frozenset({"unread"})

    conformance.check_differs(TASK, plant(Declared))


# -- learning


@dataclass(frozen=True)
class NeverSteps(Sound):
    """Computes a gradient and leaves it."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        return engine.gradient(self.objective, batches)[1]


@dataclass(frozen=True)
class Climbs(Sound):
    """Against the gradient."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, loss = engine.gradient(self.objective, batches)
        engine.apply({name: -0.01 * grad for name, grad in grads.items()})
        return loss


@dataclass(frozen=True)
class LearnsOnce(Sound):
    """Stops with the first task."""

    def trains(self, name: str, task: int) -> bool:
        return task == 0 or name == "encoder.bn1.bias"


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize("fault", [NeverSteps, Climbs, LearnsOnce])
def test_fault_of_not_learning_is_caught(world: World, fault: type[Method], plant: Plant) -> None:
    with pytest.raises(AssertionError, match="loss"):
        conformance.check_learns(world, plant(fault))


# -- randomness


@dataclass(frozen=True)
class UnnamedTorch(Sound):
    """Draws from torch's global generator."""

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        return super().objective(net, batch, out) * (1 + 0.01 * torch.rand((), dtype=out.features.dtype))


@dataclass(frozen=True)
class UnnamedNumpy(Sound):
    """Draws from NumPy's."""

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        return super().objective(net, batch, out) * (1 + 0.01 * np.random.rand())  # noqa: NPY002


@dataclass(frozen=True)
class UnnamedPython(Sound):
    """Draws from Python's."""

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        return super().objective(net, batch, out) * (1 + 0.01 * random.random())


@dataclass(frozen=True)
class SeedsTheWorld(Sound):
    """Gives the same bits twice, by seeding what belongs to everybody."""

    def start(self, engine: Engine) -> Tree:
        torch.manual_seed(0)
        return super().start(engine)


@dataclass(frozen=True)
class ReadsUntouched(Sound):
    """Reads the global generator and puts it back: only the result tells."""

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            factor = 1 + 0.01 * torch.rand(()).item()
        return super().objective(net, batch, out) * factor


@dataclass(frozen=True)
class RemembersRuns(Sound):
    """A counter that outlives the run."""

    runs: ClassVar[list[int]] = []

    def start(self, engine: Engine) -> Tree:
        self.runs.append(1)
        return super().start(engine)

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        return super().objective(net, batch, out) * (1 + 0.01 * len(self.runs))


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize(
    "fault", [UnnamedTorch, UnnamedNumpy, UnnamedPython, SeedsTheWorld, ReadsUntouched, RemembersRuns]
)
def test_fault_of_unnamed_randomness_is_caught(world: World, fault: type[Method], plant: Plant) -> None:
    with pytest.raises(AssertionError, match="generator was moved|twice"):
        conformance.check_determinism(world, plant(fault))


# -- purity


@dataclass(frozen=True)
class ScalesItsInput(Sound):
    """Changes the batch in place in its step."""

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        batches[-1].x.mul_(0.9)
        return super().step(engine, batches)


@dataclass(frozen=True)
class ScalesInTheObjective(Sound):
    """Changes the batch in its objective, past autograd, which would notice."""

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        batch.x.data.mul_(0.9)
        return super().objective(net, batch, out)


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize("fault", [ScalesItsInput, ScalesInTheObjective])
def test_fault_of_changing_a_batch_is_caught(world: World, fault: type[Method], plant: Plant) -> None:
    with pytest.raises(AssertionError, match="batch"):
        conformance.check_purity(world, plant(fault))


@pytest.mark.parametrize("world", PLANTED, ids=str)
def test_fault_of_changing_the_memory_is_caught(
    world: World, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers: list[Trainer] = []
    honest = conformance.later_feed

    def shown(trainer: Trainer) -> Feed:
        trainers.append(trainer)
        return honest(trainer)

    @dataclass(frozen=True)
    class WritesBehindTheBatch(Sound):
        def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
            memory = trainers[-1].memory
            assert memory is not None
            memory.shelves[0].columns["x"].add_(1)
            return super().step(engine, batches)

    monkeypatch.setattr(conformance, "later_feed", shown)
    with pytest.raises(AssertionError, match="what batches are read from"):
        conformance.check_purity(world, plant(WritesBehindTheBatch))


# -- evaluation


@dataclass(frozen=True)
class CountsQuestions(Sound):
    """An answer that leaves a trace."""

    def predict(self, net: Net, x: Tensor, task: Tensor | int, memory: Tree) -> Tensor:
        net.state["steps"].add_(1)
        return super().predict(net, x, task, memory)


@dataclass(frozen=True)
class AnswersInTraining(Sound):
    """Moves the statistics when asked."""

    def predict(self, net: Net, x: Tensor, task: Tensor | int, memory: Tree) -> Tensor:
        net.model.train()
        return super().predict(net, x, task, memory)


@dataclass(frozen=True)
class WritesMemory(Sound):
    """Changes what it remembers when asked."""

    def predict(self, net: Net, x: Tensor, task: Tensor | int, memory: Tree) -> Tensor:
        memory["x"].add_(1)
        return super().predict(net, x, task, memory)


@pytest.mark.parametrize("world", PLANTED, ids=str)
@pytest.mark.parametrize("fault", [CountsQuestions, AnswersInTraining, WritesMemory])
def test_fault_of_answering_is_caught(world: World, fault: type[Method], plant: Plant) -> None:
    with pytest.raises(AssertionError):
        conformance.check_evaluation(world, plant(fault))


def test_a_run_that_ends_in_another_mode_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As measuring the cost once did."""
    honest = reprise.train.measure_cost

    def careless(model: Any, *given: Any) -> dict[str, Any]:
        found = honest(model, *given)
        model.eval()
        return found

    monkeypatch.setattr(reprise.train, "measure_cost", careless)
    with pytest.raises(AssertionError, match="another mode"):
        conformance.check_evaluation(TASK, "sgd")


# -- capture


def _item(engine: Engine, loss: Tensor) -> None:
    loss.sum().item()


def _branch(engine: Engine, loss: Tensor) -> None:
    if loss.sum() > 0:
        engine.state["steps"].add_(1)


def _nonzero(engine: Engine, loss: Tensor) -> None:
    torch.nonzero(loss)


def _where(engine: Engine, loss: Tensor) -> None:
    torch.where(loss > 0)


def _boolean_index(engine: Engine, loss: Tensor) -> None:
    param = next(iter(engine.params.values())).detach()
    param[param > 0].sum()


def _boolean_write(engine: Engine, loss: Tensor) -> None:
    copy = next(iter(engine.snapshot().values()))
    copy[copy > 0] = 0.0


def _cpu(engine: Engine, loss: Tensor) -> None:
    loss.cpu()


def _to_cpu(engine: Engine, loss: Tensor) -> None:
    loss.to("cpu")


def _numpy(engine: Engine, loss: Tensor) -> None:
    loss.numpy()


def _float(engine: Engine, loss: Tensor) -> None:
    float(loss.sum())


def _from_host(engine: Engine, loss: Tensor) -> None:
    engine.state["steps"].add_(torch.tensor([1.0]).sum())


def _replaces_state(engine: Engine, loss: Tensor) -> None:
    engine.state["steps"] = engine.state["steps"] + 1


def _replaces_weights(engine: Engine, loss: Tensor) -> None:
    param = next(iter(engine.params.values()))
    param.data = param.data * 0.99


CALLS = [
    *(_item, _branch, _nonzero, _where, _boolean_index, _boolean_write, _cpu, _to_cpu, _numpy, _float),
    *(_from_host, _replaces_state, _replaces_weights),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_fault_of_asking_the_host_is_caught(call: Callable[[Engine, Tensor], None], plant: Plant) -> None:
    @dataclass(frozen=True)
    class AsksTheHost(Sound):
        def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
            loss = super().step(engine, batches)
            call(engine, loss)
            return loss

    with pytest.raises(AssertionError, match="device|host|index|replaced"):
        conformance.check_capture(TASK, plant(AsksTheHost))


def test_asking_within_the_objective_is_caught_in_lanes_too(plant: Plant) -> None:
    @dataclass(frozen=True)
    class Asks(Sound):
        def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
            loss = super().objective(net, batch, out)
            return loss * 2 if torch._C._functorch.is_batchedtensor(loss) and loss > 0 else loss

    with pytest.raises(AssertionError, match="__bool__"):
        conformance.check_capture(TASK, plant(Asks))


def test_a_method_that_is_never_captured_may_ask(plant: Plant) -> None:
    @dataclass(frozen=True)
    class Declared(Sound):
        captures: ClassVar[bool] = False

        def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
            loss = super().step(engine, batches)
            _item(engine, loss)
            return loss

    conformance.check_capture(TASK, plant(Declared))


# -- neutral values and refusals


@dataclass(frozen=True)
class NotNeutral(Sound):
    """Claims to be its parent where it is not."""

    neutral: ClassVar[Mapping[str, float]] = {"scale": 0.0}

    scale: float = 1.0
    """weight of the replayed loss, and of a pull"""

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        return (1 + self.scale) * super().objective(net, batch, out) + 1e-6 * out.features.square().mean()


@pytest.mark.parametrize("world", PLANTED, ids=str)
def test_fault_of_a_false_neutral_value_is_caught(
    world: World, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "sound", Sound)
    with pytest.raises(AssertionError, match="neutral"):
        conformance.check_neutral(world, plant(NotNeutral))


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("faulty answers by class, and these tasks have none; use er.", True),
        ("faulty answers by class, and these tasks have none.", False),
        ("faulty answers by class.\nThese tasks have none; use er.", False),
        ("faulty answers by class. These tasks have none; use er.", False),
        ("these tasks have no classes; use er.", False),
        ("faulty cannot; use er", False),
    ],
)
def test_fault_in_a_refusal_is_caught(text: str, passes: bool, plant: Plant) -> None:
    @dataclass(frozen=True)
    class Refuses(Method):
        def needs(self, stream: Stream) -> Needs:
            raise InputError(text)

    name = plant(Refuses)
    assert refusal(MIXED, name) == text
    if passes:
        conformance.check_refusal(MIXED, name)
    else:
        with pytest.raises(AssertionError):
            conformance.check_refusal(MIXED, name)
