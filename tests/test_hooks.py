"""Every hook of the method interface, by small methods that exist only here: lanes must equal single runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tiny import CPU, cell, furthest, train, weights
from torch import Tensor, nn

from reprise.engine import Engine
from reprise.examples import Examples
from reprise.fill import reservoir_rows, reservoir_slots
from reprise.method import Method, Needs
from reprise.methods.er import ER
from reprise.models.model import Model
from reprise.net import Net
from reprise.plan import draw_order
from reprise.randomness import rng
from reprise.streams.stream import Stream
from reprise.train import Trainer
from reprise.types import Batch, Output, Tree


def dot(one: Tree, other: Tree) -> Tensor:
    return torch.stack([(one[name] * other[name]).sum() for name in one if name in other]).sum()


@dataclass(frozen=True)
class Projected(Method):
    """A-GEM in small: two gradients, a pure function of both, one step."""

    replays: ClassVar[bool] = True

    def needs(self, stream: Stream) -> Needs:
        return Needs(both=True)

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, loss = engine.gradient(self.objective, [b for b in batches if not b.replayed])
        old = [b for b in batches if b.replayed]
        if old:
            reference, _ = engine.gradient(self.objective, old)
            grads = engine.lift(self.project)(grads, reference)
        engine.apply(grads)
        return loss

    @staticmethod
    def project(grads: Tree, reference: Tree) -> Tree:
        factor = (dot(grads, reference) / dot(reference, reference)).clamp(max=0.0)
        return {name: grad - factor * reference[name] for name, grad in grads.items()}


@dataclass(frozen=True)
class Running(Method):
    """EWC in small: a state that follows the squared gradient, folded in every second step, used as a penalty."""

    strength: float = 0.5

    def start(self, engine: Engine) -> Tree:
        zeros = {name: torch.zeros_like(p.detach()) for name, p in engine.params.items()}
        return zeros | {"steps": engine.place(torch.zeros(()))}

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, loss = engine.gradient(self.objective, batches)
        engine.update_state(self.fold, grads)
        grads = engine.lift(self.penalised)(grads, engine.state)
        engine.apply(grads)
        return loss

    def fold(self, state: Tree, grads: Tree) -> Tree:
        due = (state["steps"] % 2 == 1).to(state["steps"].dtype)
        new = {n: state[n] + due * (g.square() - state[n]) * 0.9 for n, g in grads.items()}
        return new | {"steps": state["steps"] + 1}

    def penalised(self, grads: Tree, state: Tree) -> Tree:
        return {name: grad + self.strength * state[name] for name, grad in grads.items()}


@dataclass(frozen=True)
class Distilled(ER):
    """DER++ and iCaRL in small: logits kept beside each example and refreshed, a second draw, own selection."""

    refresh: ClassVar[tuple[str, ...]] = ("logits",)
    alpha: float = 0.5

    def needs(self, stream: Stream) -> Needs:
        return Needs(draws={"second": 2})

    def select(self, engine: Engine, examples: Examples, counts: Sequence[int]) -> list[np.ndarray]:
        return [np.arange(count)[::-1].copy() for count in counts]

    def keep(self, engine: Engine, batch: Batch) -> Tree:
        return {"logits": engine.compute(self.logits, batch)}

    def logits(self, net: Net, batch: Batch) -> Tensor:
        return net(batch.x, batch.task).prediction

    def objective(self, net: Net, batch: Batch, out: Output) -> Tensor:
        if batch.role == "second":
            return self.alpha * (out.prediction - batch.kept["logits"]).square().mean()
        return super().objective(net, batch, out)


@dataclass(frozen=True)
class Streaming(ER):
    """MER in small: a true reservoir that holds the current task too, single-example steps, interpolation."""

    beta: float = 0.5

    def needs(self, stream: Stream) -> Needs:
        return Needs(fill="reservoir", current_task=True, replay=2, both=True)

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        before = engine.snapshot()
        for batch in batches:
            grads, loss = engine.gradient(self.objective, [batch], statistics=not batch.replayed)
            engine.apply(grads)
        engine.assign(engine.lift(self.towards)(before, engine.snapshot()))
        return loss

    def towards(self, before: Tree, after: Tree) -> Tree:
        return {name: before[name] + self.beta * (after[name] - before[name]) for name in before}


@dataclass(frozen=True)
class LookAhead(ER):
    """HAL in small: a second objective that compares the answers now with those after a trial step."""

    rate: float = 0.05

    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, _ = engine.gradient(self.objective, batches, statistics=False)
        ahead = engine.lift(self.trial)(dict(engine.params), grads)
        grads, loss = engine.gradient(self.with_hindsight, batches, ahead)
        engine.apply(grads)
        return loss

    def trial(self, params: Tree, grads: Tree) -> Tree:
        return {name: (p - self.rate * grads[name]).detach() for name, p in params.items()}

    def with_hindsight(self, net: Net, batch: Batch, out: Output, ahead: Tree) -> Tensor:
        loss = self.objective(net, batch, out)
        if batch.replayed:
            loss = (
                loss
                + (out.prediction - net.at(ahead)(batch.x, batch.task).prediction).square().sum(-1).mean()
            )
        return loss


class Grown(nn.Module):
    """An encoder with one scalar per task on top."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.gains = nn.ParameterList()

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x) * (1 + torch.stack(list(self.gains)).sum())


@dataclass(frozen=True)
class Growing(Method):
    """Side-Tuning in small: parts added per task; after the first task only gains and heads learn."""

    def wrap(self, model: Model) -> Model:
        model.encoder = Grown(model.encoder)
        return model

    def grow(self, model: Model, task: int) -> None:
        model.encoder.gains.append(nn.Parameter(torch.rand(()) / 100))

    def trains(self, name: str, task: int) -> bool:
        return task == 0 or not name.startswith("encoder.encoder")


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        (Projected(), {}),
        (Running(strength=0.5), {}),
        (Distilled(), {}),
        (Streaming(), {"m": 10}),
        (LookAhead(), {}),
        (LookAhead(), {"bn": "separate"}),
        (Growing(), {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Method) else str(value),
)
def test_lanes_equal_single_runs(method: Method, fields: dict[str, Any]) -> None:
    cells = [cell(method, seed, **fields) for seed in range(2)]
    together = train(*cells)
    for lane, one in enumerate(cells):
        alone = train(one)
        assert furthest(weights(together, lane), weights(alone)) < 1e-12
        for name, value in alone.engine.state.items():
            torch.testing.assert_close(together.engine.state[name][lane], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "method", [Projected(), Running(strength=0.5), Distilled(), Streaming(), LookAhead()]
)
def test_the_hooks_really_change_the_run(method: Method) -> None:
    """Equality of lanes and single runs would mean little if a hook were never called."""
    assert furthest(weights(train(cell(method))), weights(train(cell("sgd")))) > 1e-6


def test_projected_gradient_never_points_against_the_reference() -> None:
    seen = []

    @dataclass(frozen=True)
    class Watched(Projected):
        def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
            old = [b for b in batches if b.replayed]
            if old:
                grads, _ = engine.gradient(self.objective, batches[:1], statistics=False)
                reference, _ = engine.gradient(self.objective, old, statistics=False)
                seen.append(
                    (dot(grads, reference).item(), dot(self.project(grads, reference), reference).item())
                )
            return super().step(engine, batches)

    train(cell(Watched(), steps=12))
    assert any(before < 0 for before, _ in seen)
    assert all(after > -1e-10 for _, after in seen)


def test_refreshed_columns_follow_the_network_and_selection_is_obeyed() -> None:
    trainer = train(cell(Distilled()))
    assert trainer.memory is not None
    shelf = trainer.memory.shelf(0)
    batch = trainer.reader.batch(shelf.take(torch.arange(15)), None)
    now = trainer.engine.compute(trainer.method.logits, batch)
    torch.testing.assert_close(shelf.columns["logits"], now)
    chosen = trainer.phases[2].train.take(torch.arange(5).flip(0))["x"]
    assert torch.equal(shelf.columns["x"][10:15], chosen)


def test_a_reservoir_that_fills_while_the_task_runs_ends_as_the_rule_says() -> None:
    trainer = train(cell(Streaming(), m=10))
    assert trainer.memory is not None
    seen, held = 0, {}
    for task in range(3):
        order = draw_order(0, task, 60, 4, 1, 4).reshape(-1)
        slots = reservoir_slots(seen, len(order), 10, rng(0, "select", task))
        rows, positions = reservoir_rows(slots, order)
        images = trainer.phases[task].train.take(torch.as_tensor(positions))["x"]
        held |= dict(zip(rows.tolist(), images, strict=True))
        seen += len(order)
    stored = trainer.memory.shelf(0).columns["x"]
    assert len(held) == 10
    assert all(torch.equal(stored[row], image) for row, image in held.items())


def test_what_trains_leaves_out_does_not_move_statistics_included() -> None:
    after_task: list[Tree] = []

    @dataclass(frozen=True)
    class Watched(Growing):
        def end_task(self, engine: Engine, examples: Examples, task: int, recall: Any) -> Tree:
            after_task.append({n: t.detach().clone() for n, t in (engine.params | engine.buffers).items()})
            return {}

    train(cell(Watched()))
    frozen = [name for name in after_task[0] if name.startswith("encoder.encoder")]
    assert any("running" in name for name in frozen)
    assert all(torch.equal(after_task[0][name], after_task[2][name]) for name in frozen)
    assert not torch.equal(after_task[0]["encoder.gains.2"], after_task[2]["encoder.gains.2"])


@pytest.mark.parametrize(("tasks", "m", "shares"), [(3, 45, [15, 15, 15]), (2, 45, [20, 20]), (1, 90, [60])])
def test_shares_shrink_when_tasks_join(tasks: int, m: int, shares: list[int]) -> None:
    """m is shared by the classes seen, whole examples each; a task never gives more than it has."""

    @dataclass(frozen=True)
    class Shared(ER):
        def needs(self, stream: Stream) -> Needs:
            return Needs(share="seen")

    trainer = train(cell(Shared(), m=m, tasks=tasks))
    assert trainer.memory is not None
    shelf = trainer.memory.shelf(0)
    assert [int((shelf.owner[0] == task).sum()) for task in range(tasks)] == shares
    per_class = [int(((shelf.owner[0] == 0) & (shelf.label[0] == c)).sum()) for c in range(5)]
    assert per_class == [shares[0] // 5] * 5


# ---- gradients with respect to other things


def engine_and_batch(stacked: bool) -> tuple[Trainer, Batch]:
    trainer = Trainer([cell("er", 0)], CPU, stacked=stacked)
    index = torch.arange(4).expand(1, 4) if stacked else torch.arange(4)
    return trainer, trainer.reader.batch(trainer.phases[0].train.take(index), None)


@pytest.mark.parametrize("stacked", [False, True])
def test_gradient_with_respect_to_inputs_matches_finite_differences(stacked: bool) -> None:
    trainer, batch = engine_and_batch(stacked)
    engine, method = trainer.engine, trainer.method
    grads, _ = engine.gradient(method.objective, [batch], wrt="inputs", statistics=False)
    direction = torch.randn(batch.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss_at(step: float) -> float:
        moved = batch.with_tensors(batch.tensors() | {"x": batch.x + step * direction})
        return engine.gradient(method.objective, [moved], statistics=False)[1].sum().item()

    slope = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6
    assert (grads["current"] * direction).sum().item() == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("stacked", [False, True])
def test_gradient_with_respect_to_features_is_the_heads_alone(stacked: bool) -> None:
    trainer, batch = engine_and_batch(stacked)
    engine, method = trainer.engine, trainer.method
    grads, _ = engine.gradient(method.objective, [batch], wrt="features", statistics=False, mode="eval")
    model = engine.model.eval()
    plain = batch.with_tensors({n: t[0] for n, t in batch.tensors().items()}) if stacked else batch
    features = model.encoder(plain.x).detach().requires_grad_()
    loss = nn.functional.cross_entropy(model.heads(features, plain.task), plain.y)
    (expected,) = torch.autograd.grad(loss, features)
    torch.testing.assert_close(grads["features"][0] if stacked else grads["features"], expected)


@pytest.mark.parametrize("stacked", [False, True])
def test_statistics_move_only_when_asked(stacked: bool) -> None:
    trainer, batch = engine_and_batch(stacked)
    before = {name: t.clone() for name, t in trainer.engine.buffers.items()}
    trainer.engine.gradient(trainer.method.objective, [batch], statistics=False)
    trainer.engine.compute(trainer.method.score, batch, {}, mode="train")
    assert all(torch.equal(before[name], t) for name, t in trainer.engine.buffers.items())
    trainer.engine.gradient(trainer.method.objective, [batch])
    assert any(not torch.equal(before[name], t) for name, t in trainer.engine.buffers.items())


@pytest.mark.parametrize("stacked", [False, True])
def test_a_gradient_can_be_differentiated_again(stacked: bool) -> None:
    trainer, batch = engine_and_batch(stacked)
    grads, _ = trainer.engine.gradient(trainer.method.objective, [batch], create_graph=True, statistics=False)
    size = sum(grad.square().sum() for grad in grads.values())
    weight = trainer.engine.params["encoder.conv1.weight"]
    (second,) = torch.autograd.grad(size, weight)
    assert torch.isfinite(second).all()
    assert second.abs().max() > 0
