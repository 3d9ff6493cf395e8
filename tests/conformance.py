"""Checks that every method of the table inherits: a new method is one file and one line in the table.

Each check takes a world (a stream with its protocol) and a method's name, and raises AssertionError. Its docstring
says what it protects from; test_conformance.py runs all over the table and plants the faults they must catch.

A method may declare, as class variables:
    first_task_is_sgd = False   its first task is not plain fine-tuning (its memory holds the current task)
    inert = frozenset({"x"})    float fields that act only in a variant other than the one that is run here
    captures = False            its step needs the host and is never captured as a CUDA graph
"""

from __future__ import annotations

import json
import random
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any
from zlib import crc32

import numpy as np
import torch
from tiny import CPU, cell, mixed_cell
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from reprise.build import Cell
from reprise.checkpoint import capture, restore
from reprise.config import Experiment
from reprise.docstrings import field_docs
from reprise.errors import InputError
from reprise.method import Method, Needs
from reprise.methods import METHODS
from reprise.net import Net
from reprise.streams.stream import Phase, Stream
from reprise.tasks import Classify
from reprise.train import Cursor, Outcome, Trainer
from reprise.types import Batch, Tree

BASIC = ("x", "y", "mask", "task")


# ---- worlds


@dataclass(frozen=True)
class World:
    """A stream with its protocol. `settings` has, by method, the few fields it needs to act in so small a run."""

    name: str
    make: Callable[..., Cell]
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tolerance: float = 1e-12

    def __str__(self) -> str:
        return self.name

    def stream(self) -> Stream:
        return self.make("sgd", **self.fields).stream

    def method(self, name: str, **given: Any) -> Method:
        """The method with its settings and other values of its own fields."""
        kind = METHODS[name]
        own = {f.name for f in fields(kind)}
        values = {key: value for key, value in self.settings.get(name, {}).items() if key in own}
        return kind(**(values | given))

    def needs(self, name: str) -> Needs:
        return self.method(name).needs(self.stream())

    def cell(self, name: str, seed: int = 0, **given: Any) -> Cell:
        """A cell with a method object of its own: nothing is shared between two of them."""
        both = {"p_replay": None} if self.needs(name).both else {}
        return self.make(name, seed, **{**self.fields, **both, **self.settings.get(name, {}), **given})

    def train(self, name: str, seed: int = 0, **given: Any) -> Trainer:
        """A trainer after its run."""
        trainer = Trainer([self.cell(name, seed, **given)], CPU)
        trainer.run()
        return trainer


def refusal(world: World, name: str) -> str | None:
    """The sentence with which a method declines a stream, or None where it must run."""
    try:
        world.needs(name)
    except InputError as error:
        return str(error)
    return None


WORLDS = (
    World("task", cell),
    World("class", cell, {"scenario": "class"}),
    World("mixed", mixed_cell),
)


# ---- what a run is made of


def contents(trainer: Trainer, lane: int = 0) -> Tree:
    """Everything of one lane that a run changes: weights, statistics, method state, optimizer, memory."""
    engine = trainer.engine

    def own(tensor: Tensor) -> Tensor:
        tensor = tensor[lane] if engine.stacked and tensor.dim() else tensor
        return tensor.detach().clone()

    found = {f"params.{name}": own(p) for name, p in engine.params.items()}
    found |= {f"buffers.{name}": own(b) for name, b in engine.buffers.items()}
    found |= {f"state.{name}": own(s) for name, s in engine.state.items()}
    for name, param in engine.params.items():
        for entry, value in engine.optimizer.state.get(param, {}).items():
            found[f"optimizer.{name}.{entry}"] = own(torch.as_tensor(value))
    if trainer.memory is not None:
        found["memory.seen"] = torch.tensor(trainer.memory.seen)
        for i, shelf in enumerate(trainer.memory.shelves):
            found |= {f"memory.{i}.{name}": own(column) for name, column in shelf.columns.items()}
            found[f"memory.{i}.owner"] = torch.tensor(shelf.owner[lane])
            found[f"memory.{i}.label"] = torch.tensor(shelf.label[lane])
    return found


def weights(trainer: Trainer) -> Tree:
    """Parameters and statistics of a single run."""
    named = {**trainer.engine.params, **trainer.engine.buffers}
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def written(outcome: Outcome) -> dict[str, Any]:
    """What a run writes down, but for the times and the places at which it logged."""
    names = ("accuracy", "loss", "initial", "next", "curve", "bytes", "diverged")
    return {name: getattr(outcome, name) for name in names}


def assert_same(one: Tree, other: Tree, what: str) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys(), what
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), f"{what}: {name} differs"


def assert_close(one: Tree, other: Tree, tolerance: float, what: str) -> None:
    """Real values relative to the largest of their tensor where that is above 1; integers exactly."""
    assert one.keys() == other.keys(), what
    for name, tensor in one.items():
        twin = other[name]
        assert tensor.shape == twin.shape, f"{what}: {name} has another shape"
        if not tensor.is_floating_point() or not tensor.numel():
            assert torch.equal(tensor, twin), f"{what}: {name} differs"
            continue
        scale = max(1.0, twin.abs().max().item())
        worst = torch.where(tensor == twin, 0.0, (tensor - twin).abs()).max().item()  # −∞ equals −∞
        assert worst <= tolerance * scale, f"{what}: {name} differs by {worst:.1e}"


def distance(one: Trainer, other: Trainer) -> float:
    """How far two runs end from each other: in weights they both have, in losses, in answers."""
    here, there = weights(one), weights(other)
    shared = [name for name in here if name in there and here[name].shape == there[name].shape]
    gaps = [(here[name].double() - there[name].double()).abs().max().item() for name in shared]
    for row, twin in zip(_rows(one), _rows(other), strict=False):
        gaps += [abs(a - b) for a, b in zip(row, twin, strict=True) if a is not None and b is not None]
    return max(gaps)


def _rows(trainer: Trainer) -> list[list[float | None]]:
    """The rows of both matrices, the last first: runs of one phase and of several then have their end in common."""
    outcome = trainer.outcomes[0]
    return [row for pair in zip(outcome.loss[::-1], outcome.accuracy[::-1], strict=True) for row in pair]


def float_fields(world: World, name: str) -> list[str]:
    method = world.method(name)
    return [f.name for f in fields(method) if isinstance(getattr(method, f.name), float)]


def another(world: World, name: str, field_name: str, factor: float = 2.0) -> float:
    """Another value of a float field that the method accepts: a multiple, if it may be one."""
    value = getattr(world.method(name), field_name)
    for other in (value * factor, value + 0.3, value / factor):
        try:
            world.method(name, **{field_name: other})
        except InputError:
            continue
        if other != value:
            return other
    raise AssertionError(f"{name}.{field_name} accepts no value but {value}")


def watch_phases(trainer: Trainer, look: Callable[[int], Any]) -> list[tuple[Any, Any]]:
    """Run, looking when each phase has begun and when it has ended (its memory filled)."""
    looks: list[tuple[int, Any]] = []
    ends: list[Any] = []
    enter = trainer.engine.enter

    def watched(task: int) -> None:
        if looks:
            ends.append(look(looks[-1][0]))
        enter(task)
        looks.append((task, look(task)))

    trainer.engine.enter = watched  # type: ignore[method-assign]
    trainer.run()
    trainer.engine.enter = enter  # type: ignore[method-assign]
    ends.append(look(looks[-1][0]))
    return [(before, after) for (_, before), after in zip(looks, ends, strict=True)]


def later_feed(trainer: Trainer) -> Any:
    """The batches of the second phase, where methods remember something; of the only one where there is one."""
    return trainer.skip_to(min(1, len(trainer.phases) - 1))


# ---- the checks


def check_refusal(world: World, name: str) -> None:
    """A method that cannot run on a stream says so in one sentence that names it and the way out.

    Planted: a refusal of two lines, one without a way out, one that does not say who refuses.
    """
    text = refusal(world, name)
    if text is None:
        return
    assert text.endswith("."), f"not a sentence: {text!r}"
    assert "\n" not in text, f"more than a line: {text!r}"
    assert ". " not in text, f"more than a sentence: {text!r}"
    assert name in text, f"does not name {name}: {text!r}"
    problem, _, way_out = text.partition("; ")
    assert problem, text
    assert len(way_out.split()) > 1, f"no way out after a semicolon: {text!r}"


def check_lanes(world: World, name: str) -> None:
    """Two lanes of different seeds and different float fields end as the two runs alone.

    Planted: gradients averaged over the lane axis; a step that reads a float field outside what the engine binds, so
    that both lanes use the first one's value; a state of another value in lanes.
    """
    # Halves: doubled weights may be at the edge of divergence, where rounding grows.
    other = {field_name: another(world, name, field_name, 0.5) for field_name in float_fields(world, name)}
    given: list[dict[str, Any]] = [{}, other]
    together = Trainer([world.cell(name, seed, **own) for seed, own in enumerate(given)], CPU)
    together.run()
    assert together.engine.stacked
    for lane, own in enumerate(given):
        alone, what = world.train(name, lane, **own), f"lane {lane}"
        assert_close(contents(together, lane), contents(alone), world.tolerance, what)
        one, two = written(together.outcomes[lane]), written(alone.outcomes[0])
        losses, twins = one.pop("loss"), two.pop("loss")
        assert one == two, what
        for row, twin in zip(losses, twins, strict=True):
            for a, b in zip(row, twin, strict=True):
                assert a == b or abs(a - b) <= 10 * world.tolerance * max(1, abs(b)), what


def check_resume(world: World, name: str) -> None:
    """A run stopped at some step of each phase, each time continued by a fresh trainer, ends as one left alone.

    Planted: a counter on the method object instead of in its state; checkpoints without state, statistics or memory.
    """
    pauses: list[tuple[int, int]] = []

    def note(phase: int, step: int) -> bool:
        pauses.append((phase, step))
        return False

    straight = Trainer([world.cell(name, 3)], CPU)
    straight.run(pause=note)
    generator = np.random.default_rng(crc32(f"{world}/{name}".encode()))
    trainer = Trainer([world.cell(name, 3)], CPU)
    for phase in range(len(straight.phases)):
        point = pauses[int(generator.choice([i for i, (p, _) in enumerate(pauses) if p == phase]))]
        trainer.run(pause=lambda *at, point=point: at == point)
        assert trainer.cursor == Cursor(point[0], point[1] + 1)
        saved = capture(trainer)
        trainer.run()  # what was captured must not be touched by what comes after
        trainer = Trainer([world.cell(name, 3)], CPU)
        restore(trainer, saved)
    trainer.run()
    assert_same(contents(trainer), contents(straight), "resumed")
    assert written(trainer.outcomes[0]) == written(straight.outcomes[0])


def check_first_task(world: World, name: str) -> None:
    """Before there is anything to remember, a method is plain fine-tuning: any other start is a hidden advantage.

    Planted: a loss scaled by 1.1; a method that declares the exemption and does not need it.
    """
    sgd, own = weights(world.train("sgd", tasks=1)), weights(world.train(name, tasks=1))
    if sgd.keys() <= own.keys():
        strangers = [key for key, tensor in sgd.items() if not torch.equal(tensor, own[key])]
    else:
        # A method that wraps the model renames its parts: each tensor must be found somewhere.
        strangers = [key for key, t in sgd.items() if not any(torch.equal(t, twin) for twin in own.values())]
    if getattr(METHODS[name], "first_task_is_sgd", True):
        assert not strangers, f"the first task is not SGD in {', '.join(strangers)}"
    else:
        assert strangers, "the first task is SGD; leave out first_task_is_sgd = False"


def check_trains(world: World, name: str) -> None:
    """What `trains` leaves out stands still through a task, BatchNorm statistics too; what it names moves.

    Planted: statistics of a frozen encoder that creep, frozen weights that are assigned, a task that moves nothing.
    """
    trainer = Trainer([world.cell(name)], CPU)
    method = trainer.method
    looks = watch_phases(trainer, lambda task: weights(trainer))
    params, buffers = list(trainer.engine.params), list(trainer.engine.buffers)
    for phase, (before, after) in zip(trainer.phases, looks, strict=True):
        # Statistics belong to a module, which runs in training mode if anything of its own learns.
        learning = {_module(key) for key in (*params, *buffers) if method.trains(key, phase.last)}
        moving = {key for key in params if method.trains(key, phase.last)}
        moving |= {key for key in buffers if _module(key) in learning}
        moved = {key for key in before if not torch.equal(before[key], after[key])}
        assert moved <= moving, f"{phase.name}: {', '.join(sorted(moved - moving))} moved"
        assert moved & set(params), f"{phase.name}: nothing was learned"


def _module(key: str) -> str:
    return key.rpartition(".")[0]


def check_bytes(world: World, name: str) -> None:
    """The ledger is rows × bytes of a row + the method's tensors, nothing is kept elsewhere, and quotas hold.

    Planted: a column left out of the ledger, state that hides a column of its name, tensors kept on the method
    object, quotas twice as large, a memory that stays empty.
    """
    cell_ = world.cell(name)
    method, m = cell_.experiment.method, cell_.experiment.m
    trainer = Trainer([cell_], CPU)
    needs = trainer.needs
    keys = set(trainer.engine.state)
    looks = watch_phases(trainer, lambda task: _held(trainer))
    expected: dict[str, int] = {}
    if trainer.memory is not None:
        assert m is not None
        # On Split all tasks share m rows of one shape; elsewhere each task has m of its own.
        shelves = (
            [(0, m)] if trainer.stream.shared_head else [(j, m) for j in range(len(trainer.stream.tasks))]
        )
        for index, rows in shelves:
            for key, size in _row_bytes(trainer, index).items():
                expected[key] = expected.get(key, 0) + rows * size
    kept = sum(expected.values())
    assert set(trainer.engine.state) == keys, "the state's entries changed during the run"
    state: dict[str, int] = {}
    for key, t in trainer.engine.state.items():
        kind = key.partition(".")[0]  # `fisher.encoder.conv1.weight` counts as `fisher`
        state[kind] = state.get(kind, 0) + t.numel() * t.element_size()
    found = trainer.outcomes[0].bytes
    assert found["total"] == kept + sum(state.values())
    assert found["model"] == sum(t.numel() * t.element_size() for t in weights(trainer).values())
    assert {key: n for key, n in found.items() if key not in ("total", "model")} == {**expected, **state}
    assert set(vars(method)) == {f.name for f in fields(method)}, "it keeps something on itself"
    if trainer.memory is None or m is None:
        assert not method.replays
        return
    for phase, (_, held) in zip(trainer.phases, looks, strict=True):
        assert set(held) <= set(range(phase.last + 1)), "a row of a task that has not come yet"
        assert sum(held.values()) > 0, "nothing is remembered"
        if trainer.stream.shared_head:
            assert sum(held.values()) <= m, f"{held} are more than {m} rows"
        even = needs.share == "fixed" and trainer.experiment.fill != "reservoir"
        if even:
            share = m // trainer.stream.full_tasks if trainer.stream.shared_head else m
            assert all(count == share for count in held.values()), f"{held} are not {share} a task"


def _held(trainer: Trainer) -> dict[int, int]:
    """Remembered rows by task."""
    shelves = [] if trainer.memory is None else trainer.memory.shelves
    owners = [int(task) for shelf in shelves for task in shelf.owner[0] if task >= 0]
    return {task: owners.count(task) for task in sorted(set(owners))}


def _row_bytes(trainer: Trainer, index: int) -> dict[str, int]:
    """Bytes of one row of a shelf, from what the stream shows and what the shelf holds beside it."""
    assert trainer.memory is not None
    task = trainer.stream.tasks[index]
    shown = task.train.take(torch.arange(1))
    sizes = {"inputs": int(np.prod(trainer.stream.input_shape))}  # a byte a value
    sizes["labels"] = 1 if isinstance(task.kind, Classify) else shown["y"].nbytes
    if "mask" in shown:
        sizes["masks"] = shown["mask"].nbytes
    if trainer.stream.shared_head:
        sizes["tasks"] = 1
    shelf = trainer.memory.shelf(index)
    rows = max(shelf.capacities)
    return sizes | {key: c.nbytes // rows for key, c in shelf.columns.items() if key not in BASIC}


def check_configuration(world: World, name: str) -> None:
    """An experiment written and read is the same one, with the same hash; another value of a field is another hash;
    every field says what it is, and a float field holds a float (whole numbers would not become lanes).

    Planted: a field without text, a default of 1 for a float, a field rescaled on construction, a device as a value.
    """
    kind = METHODS[name]
    docs, hints = field_docs(kind), typing.get_type_hints(kind)
    experiment = world.cell(name).experiment
    for f in fields(kind):
        assert docs.get(f.name), f"{f.name} is not documented"
        if hints[f.name] is float:
            assert isinstance(getattr(experiment.method, f.name), float), f"{f.name} is not a float"
    variants = [experiment]
    for field_name in float_fields(world, name):
        value = another(world, name, field_name)
        variants.append(world.cell(name, 0, **{field_name: value}).experiment)
        assert getattr(variants[-1].method, field_name) == value, f"{field_name} is not what was given"
    for one in variants:
        text = json.dumps(one.to_dict(), default=_plain)
        twin = Experiment.from_dict(json.loads(text))
        assert twin == one
        assert twin.hash("data") == one.hash("data")
    assert len({one.hash("data") for one in variants}) == len(variants)


def _plain(value: object) -> object:
    raise AssertionError(f"{value!r} is not a plain value")


def check_differs(world: World, name: str) -> None:
    """The method is not fine-tuning under another name, and every float field of it acts.

    Planted: a penalty that is always 0, a field that nothing reads, an `inert` that names no field.
    """
    inert: frozenset[str] = getattr(METHODS[name], "inert", frozenset())
    assert inert <= {f.name for f in fields(METHODS[name])}, "inert names what is no field"
    plain = world.train(name)
    if METHODS[name] is not METHODS["sgd"]:
        assert distance(plain, world.train("sgd")) > 1e-9, f"{name} ends where sgd ends"
    for field_name in float_fields(world, name):
        if field_name in inert:
            continue
        value = another(world, name, field_name)
        assert distance(plain, world.train(name, 0, **{field_name: value})) > 0, (
            f"{field_name} changes nothing"
        )


def check_learns(world: World, name: str) -> None:
    """Training lowers the loss on what is trained, in the first task and in the second.

    Planted: a step that applies nothing, one that climbs, a method that stops learning after the first task.
    """
    trainer = Trainer([world.cell(name, tasks=2, steps=60)], CPU)
    phases = {phase.last: phase for phase in trainer.phases}
    looks = watch_phases(trainer, lambda task: training_loss(trainer, phases[task]))
    for (before, after), bound in zip(looks, (0.8, 0.9), strict=False):
        assert after < bound * before, f"loss {before:.3f} before, {after:.3f} after"
    accuracy = trainer.outcomes[0].accuracy[0][0]
    if trainer.stream.shared_head:  # five classes; a method may have an answer of its own
        assert accuracy is not None
        assert accuracy > 0.4, f"accuracy {accuracy:.2f}"


def training_loss(trainer: Trainer, phase: Phase) -> float:
    """The heads' loss on the examples of a phase, whatever the method's own answer is."""

    def loss(net: Net, batch: Batch) -> Tensor:
        return net.loss(batch, net(batch.x, batch.task))

    columns = phase.train.take(torch.arange(len(phase.train)))
    return trainer.engine.compute(loss, trainer.reader.batch(columns, phase.parts[0][0])).item()


def check_determinism(world: World, name: str) -> None:
    """Randomness is named: the global generators are neither read nor moved, and nothing outlives a run.

    Planted: draws of torch, NumPy and Python in the loss, one that puts the generator back, a global seed in `start`,
    a counter on the class.
    """
    ends = []
    for seed in (1, 2):
        with global_generators(seed) as states:
            before = states()
            trainer = world.train(name)
            assert states() == before, "a global generator was moved"
        ends.append((contents(trainer), written(trainer.outcomes[0])))
    assert_same(ends[0][0], ends[1][0], "the same cell twice")
    assert ends[0][1] == ends[1][1]


@contextmanager
def global_generators(seed: int) -> Iterator[Callable[[], list[bytes]]]:
    """Seed Python's, NumPy's and torch's generators; yields a reader of their states and puts them back."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)

    def states() -> list[bytes]:
        numpy_state = np.random.get_state()  # noqa: NPY002
        return [
            repr(random.getstate()).encode(),
            repr(numpy_state).encode(),
            bytes(torch.get_rng_state().tolist()),
        ]

    try:
        yield states
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def check_purity(world: World, name: str) -> None:
    """A step changes neither the batches it is given nor the memory and the data behind them, alone and in lanes.

    Planted: inputs scaled in place by the step, and by the objective; a step that writes into the memory.
    """
    for seeds in ((0,), (0, 1)):
        trainer = Trainer([world.cell(name, seed) for seed in seeds], CPU)
        feed = later_feed(trainer)
        shelves = [] if trainer.memory is None else trainer.memory.shelves
        columns = {f"{i}.{key}": c for i, shelf in enumerate(shelves) for key, c in shelf.columns.items()}
        columns |= {f"data.{key}": c for key, c in feed.phase.train.source.columns.items()}
        stored = {key: column.clone() for key, column in columns.items()}
        for step in range(feed.steps):
            batches = feed.batches(step)
            before = [{key: t.clone() for key, t in batch.tensors().items()} for batch in batches]
            trainer.method.step(trainer.engine, batches)
            for batch, tree in zip(batches, before, strict=True):
                assert_same(batch.tensors(), tree, f"batch {batch.role!r}")
        assert_same(columns, stored, "what batches are read from")


def check_evaluation(world: World, name: str) -> None:
    """Asking a method for its answers changes nothing: not the answers, not the run, not the training that follows.

    Planted: an answer that counts how often it was asked, one in training mode, one that writes into the memory; a
    run that ends in another mode than its steps had.
    """
    trainer = world.train(name)
    tasks = range(len(trainer.stream.tasks))
    before, modes = contents(trainer), [module.training for module in trainer.engine.model.modules()]
    first = trainer.evaluator.scores(tasks)
    assert trainer.evaluator.scores(tasks) == first, "scoring twice gives two answers"
    assert [trainer.evaluator.scores([task])[0][0] for task in tasks] == first[0], "company changes a score"
    assert_same(contents(trainer), before, "after scoring")
    assert [module.training for module in trainer.engine.model.modules()] == modes, (
        "scoring leaves another mode"
    )
    assert [loss for loss, _ in first[0]] == trainer.outcomes[0].loss[-1]
    # A curve is scored between steps: more evaluation, the same training.
    assert_same(contents(world.train(name, curve=2)), before, "with a learning curve")


def check_capture(world: World, name: str) -> None:
    """A step can be captured as a CUDA graph: it asks no value from the device, copies nothing from the host, and
    writes parameters, statistics and state where they are. On a CPU the calls that would do so are refused.

    Planted: .item(), a branch on a tensor, nonzero, a boolean index, .cpu(), torch.tensor, a state that is replaced.
    """
    if not getattr(METHODS[name], "captures", True):
        return
    for seeds in ((0,), (0, 1)):
        # On a CPU Adam counts its steps on the host.
        trainer = Trainer([world.cell(name, seed, optimizer="sgd", lr=0.01) for seed in seeds], CPU)
        feed, engine = later_feed(trainer), trainer.engine
        for step in range(feed.steps):
            batches = feed.batches(step)
            places = _places(engine.params, engine.buffers, engine.state)
            with NoHostCalls(), NoHostOperators():
                trainer.method.step(engine, batches)
            assert _places(engine.params, engine.buffers, engine.state) == places, "a tensor was replaced"


def _places(*trees: Tree) -> list[dict[str, int]]:
    return [{key: tensor.data_ptr() for key, tensor in tree.items()} for tree in trees]


class NoHostCalls(TorchFunctionMode):
    """Refuses what reads a tensor on the host or makes one from the host's values, by the name it is called by."""

    READS = frozenset(
        {
            "item",
            "tolist",
            "numpy",
            "cpu",
            "nonzero",
            "argwhere",
            "masked_select",
            "unique",
            "unique_consecutive",
        }
        | {"equal", "allclose", "bincount", "__bool__", "__int__", "__float__", "__index__", "__array__"}
    )
    MAKES = frozenset({"tensor", "as_tensor", "from_numpy", "new_tensor", "asarray"})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = getattr(func, "__name__", "")
        assert called not in self.READS, f"{called} waits for the device"
        assert called not in self.MAKES, f"{called} copies from the host"
        if called in ("to", "type"):
            given = [
                str(value) for value in (*args[1:], *(kwargs or {}).values()) if not isinstance(value, Tensor)
            ]
            assert not any(text.startswith("cpu") for text in given), f"{called} moves to the host"
        return func(*args, **(kwargs or {}))


class NoHostOperators(TorchDispatchMode):
    """Refuses operators whose result the host waits for, or whose shape depends on values."""

    REFUSED = frozenset(
        {"_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "equal"}
        | {"unique_consecutive", "is_nonzero", "bincount", "repeat_interleave"}
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = func.overloadpacket.__name__
        assert called not in self.REFUSED, f"{called} waits for the device"
        if called.startswith(("index", "_index_put", "_unsafe_index")) and isinstance(args[1], Sequence):
            masks = [i for i in args[1] if isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8)]
            assert not masks, "a boolean index has a shape that depends on values"
        return func(*args, **(kwargs or {}))


def check_neutral(world: World, name: str) -> None:
    """At the values a method calls neutral it is its parent, bit for bit: the parent's runs may be its lanes.

    Planted: a claim that is not true.
    """
    kind = METHODS[name]
    neutral = vars(kind).get("neutral")
    if not neutral:
        return
    parents = [key for key, value in METHODS.items() if value is kind.__mro__[1]]
    assert parents, f"{name} claims to be a method that is not in the table"
    if refusal(world, parents[0]) is not None:
        return
    own, parent = world.train(name, **neutral), world.train(parents[0])
    assert_same(weights(own), weights(parent), "neutral")
    assert written(own.outcomes[0]) | {"bytes": 0} == written(parent.outcomes[0]) | {"bytes": 0}


CHECKS: tuple[Callable[[World, str], None], ...] = (
    check_lanes,
    check_resume,
    check_first_task,
    check_trains,
    check_bytes,
    check_configuration,
    check_differs,
    check_learns,
    check_determinism,
    check_purity,
    check_evaluation,
    check_capture,
    check_neutral,
)
"""Of a method in a world in which it runs."""
