"""The equations of every method, with numbers worked out by hand, and the limit cases between methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import CPU, cell, furthest, mixed_cell, train, weights
from torch import Tensor

from reprise.engine import Engine
from reprise.errors import InputError
from reprise.ledger import settle
from reprise.methods.agem import AGEM
from reprise.methods.derpp import DERpp
from reprise.methods.ewc import EWC
from reprise.methods.hal import HAL
from reprise.methods.icarl import ICaRL, herd
from reprise.methods.lwf import LwF
from reprise.methods.mer import MER
from reprise.methods.side_tuning import SideTuning
from reprise.models.side import SideNetwork, StackedSideNetworks, side_layers
from reprise.net import Net
from reprise.tasks import Classify, Regress
from reprise.train import Trainer
from reprise.types import Batch, Output

F64 = torch.float64


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def same(one: Tensor, *values: float) -> None:
    torch.testing.assert_close(one, t(*values), rtol=0, atol=1e-12)


# ---- A-GEM


def test_agem_takes_away_what_points_against_the_reference() -> None:
    """g = (1, -2 | 3), r = (1, 1 | -1): g·r = -4, r·r = 3, so g + 4/3 r = (7/3, -2/3 | 5/3), at right angles to r."""
    grads = {"encoder.a": t(1, -2), "heads.b": t(3)}
    reference = {"encoder.a": t(1, 1), "heads.b": t(-1)}
    found = AGEM(projected="all").project(grads, reference)
    same(found["encoder.a"], 7 / 3, -2 / 3)
    same(found["heads.b"], 5 / 3)
    assert sum((found[n] * reference[n]).sum() for n in found).item() == pytest.approx(0, abs=1e-12)


def test_agem_leaves_a_gradient_alone_that_does_not() -> None:
    grads = {"encoder.a": t(1, 2)}
    same(AGEM(projected="all").project(grads, {"encoder.a": t(3, -1)})["encoder.a"], 1, 2)


def test_agem_projects_the_encoder_alone_where_heads_differ() -> None:
    """g·r over the encoder is -2, r·r is 4: the encoder moves by r/2; the head keeps its gradient."""
    grads, reference = {"encoder.a": t(-1, 0), "heads.0.b": t(5)}, {"encoder.a": t(2, 0), "heads.1.b": t(7)}
    found = AGEM(projected="encoder").project(grads, reference)
    same(found["encoder.a"], 0, 0)
    same(found["heads.0.b"], 5)
    assert "heads.1.b" not in found


def test_agem_counts_a_missing_gradient_as_zero() -> None:
    """The old head has no gradient of its own, and is moved by the projection: g·r = -2, r·r = 4 + 4."""
    found = AGEM(projected="all").project({"encoder.a": t(-1)}, {"encoder.a": t(2), "heads.1": t(2)})
    same(found["encoder.a"], -1 + 0.25 * 2)
    same(found["heads.1"], 0.25 * 2)


def test_agem_survives_a_reference_of_nothing() -> None:
    same(AGEM(projected="all").project({"encoder.a": t(1)}, {"encoder.a": t(0)})["encoder.a"], 1)


# ---- EWC


def test_ewc_penalty_gradient_of_the_running_form() -> None:
    """2 · 10 · F̂ (θ − θ*) with F̂ = (1, 0.5), θ − θ* = (0.1, −0.2): (2, −2)."""
    state = {"fisher.a": t(9, 9), "importance.a": t(1, 0.5), "anchor.a": t(1, 1)}
    same(EWC(lam=10, variant="running", guarded="all").penalties({"a": t(1.1, 0.8)}, state)["a"], 2, -2)


def test_ewc_penalty_gradient_is_the_penaltys() -> None:
    """Against autograd, for all three forms: Σ_j F_j (θ − θ*_j)² over two tasks."""
    theta = t(0.3, -0.7).requires_grad_()
    fishers, anchors = torch.stack([t(1, 2), t(0.5, 4)]), torch.stack([t(0, 1), t(2, -1)])
    penalty = 3.0 * (fishers * (theta - anchors).square()).sum()
    (expected,) = torch.autograd.grad(penalty, theta)
    now = {"a": theta.detach()}
    classic = EWC(lam=3, variant="per_task", guarded="all")
    torch.testing.assert_close(
        classic.penalties(now, {"fisher.a": fishers, "anchor.a": anchors})["a"], expected
    )
    two = {"fisher.a": fishers.sum(0), "pull.a": (fishers * anchors).sum(0)}
    torch.testing.assert_close(replace(classic, variant="collapsed").penalties(now, two)["a"], expected)


def test_ewc_folds_the_running_fisher_every_50_steps() -> None:
    """50 gradients of 2: T = 200, F = 0.1 · 1 + 0.9 · 200 / 50 = 3.7, and T starts again."""
    method, state = (
        EWC(variant="running", guarded="all"),
        {"fisher.a": t(1), "recent.a": t(0), "steps": t(0)[0]},
    )
    for _ in range(50 - 1):
        state |= method.fold(state, {"a": t(2)})
    same(state["fisher.a"], 1)
    same(state["recent.a"], 4 * (50 - 1))
    state |= method.fold(state, {"a": t(2)})
    same(state["fisher.a"], 3.7)
    same(state["recent.a"], 0)


def test_ewc_scales_the_fisher_over_all_parameters_together() -> None:
    """(1, 3) and (5): min 1, max 5, so (0, 0.5) and (1)."""
    state = {"fisher.a": t(1, 3), "fisher.b": t(5)}
    found = EWC(variant="running", guarded="all").consolidate({"a": t(7, 8), "b": t(9)}, state)
    same(found["importance.a"], 0, 0.5)
    same(found["importance.b"], 1)
    same(found["anchor.a"], 7, 8)


def test_ewc_collapsed_is_the_sum_of_the_terms() -> None:
    """Two whole trainings, with and without the collapse."""
    one, other = (train(cell("ewc", variant=v, lam=3.0, guarded="all")) for v in ("per_task", "collapsed"))
    assert furthest(weights(one), weights(other)) < 1e-12
    assert furthest(weights(one), weights(train(cell("sgd")))) > 1e-6


def test_ewc_fisher_is_the_mean_squared_gradient_of_mini_batches() -> None:
    """By hand from the same batches: 60 examples in batches of 15."""
    trainer = Trainer([cell("ewc", variant="per_task", guarded="all", fisher_batch=15)], CPU)
    engine, method, examples = trainer.engine, trainer.method, trainer.phases[0].train
    assert isinstance(method, EWC)
    found = method._fisher(engine, examples, 0)
    order = torch.as_tensor(np.array(_order_of(len(examples))))
    squares = []
    engine.model.eval()
    for chunk in order.split(15):
        batch = trainer.reader.batch(examples.take(chunk), None)
        loss = torch.nn.functional.cross_entropy(engine.model([batch.x], [batch.task])[0].prediction, batch.y)
        squares.append(torch.autograd.grad(loss, engine.params["encoder.conv2.weight"])[0].square())
    torch.testing.assert_close(found["encoder.conv2.weight"], torch.stack(squares).mean(0))


def _order_of(n: int) -> np.ndarray:
    from reprise.randomness import rng

    return rng(0, "end", 0).permutation(n)


def test_ewc_keeps_what_its_form_needs() -> None:
    """P numbers of 8 bytes: running 4 P, per task 2 P for each task but the last, collapsed 2 P; and a counter."""
    p = 13368  # bytes of the tiny model's parameters
    for variant, tensors in (("running", 4), ("per_task", 2 * 2), ("collapsed", 2)):
        trainer = Trainer([cell("ewc", variant=variant)], CPU)
        assert trainer.outcomes[0].bytes["total"] == tensors * p + 8


# ---- iCaRL


def test_herding_order_on_a_toy_set() -> None:
    """Mean (1, 1). First the point nearest to it: (1, 1.2). Then what brings the mean of two nearest, and so on."""
    points = np.array([[0.0, 0.0], [2.0, 2.0], [1.0, 1.2], [1.0, 0.8]])
    assert herd(points, 4).tolist()[:2] == [2, 3]
    line = np.array([[0.0], [1.0], [5.0], [2.0]])  # mean 2: 2 first; then 2 + 1 = 1.5 beats 2 + 5 = 3.5 and 1
    assert herd(line, 3).tolist() == [3, 1, 2]


def test_herding_never_repeats_and_gives_all_there_are() -> None:
    points = np.random.default_rng(0).normal(size=(7, 3))
    assert sorted(herd(points, 99).tolist()) == list(range(7))


def test_icarl_distils_each_task_by_its_own_mean() -> None:
    """Two old tasks of 2 classes, one example of each class: the sum of the tasks' mean KLs, so Σ KL / 2."""
    then, now = torch.randn(4, 2, dtype=F64), torch.randn(4, 2, dtype=F64)
    kl = torch.nn.functional.kl_div(now.log_softmax(1), then.softmax(1), reduction="none").sum(1)
    method = ICaRL(reg=3.0, feature="logits")

    class Told:
        @staticmethod
        def predict(features: Tensor, task: None) -> Tensor:
            return torch.stack([now, torch.full_like(now, 9.0)], 1)

    task = torch.zeros(4, dtype=torch.long)
    batch = Batch(now, task, task, role="replay", kept={"logits": then})
    found = method.objective(Told(), batch, Output(now, now))  # type: ignore[arg-type]
    assert found.item() == pytest.approx(3.0 * (kl[:2].mean() + kl[2:].mean()).item())


def test_icarl_answers_with_the_nearest_mean() -> None:
    trainer = train(cell("icarl", m=30))
    assert trainer.memory is not None
    engine, shelf, classes = trainer.engine, trainer.memory.shelf(0), 5
    test = trainer.tests[1]
    batch = trainer.reader.batch(test.take(torch.arange(len(test))), None)
    answer = engine.compute(_predicted(trainer.method), batch, trainer.memory.columns(0)).argmax(1)
    with torch.no_grad():
        engine.model.eval()
        logits = engine.model([batch.x], [batch.task])[0].prediction
        means = []
        for c in range(classes):
            rows = torch.as_tensor((shelf.owner[0] == 1) & (shelf.label[0] == c))
            stored = trainer.reader.batch({n: col[rows] for n, col in shelf.columns.items()}, None)
            means.append(engine.model([stored.x], [stored.task])[0].prediction.mean(0))
    expected = torch.cdist(logits, torch.stack(means)).argmin(1)
    assert torch.equal(answer, expected)


def _predicted(method: Any) -> Any:
    def fn(net: Net, batch: Batch, memory: Any) -> Tensor:
        return method.predict(net, batch.x, batch.task, memory)

    return fn


def test_icarl_never_holds_more_than_m() -> None:
    held: list[int] = []

    class Watched(ICaRL):
        def end_task(self, engine: Engine, examples: Any, task: int, recall: Any) -> Any:
            held.append(int(trainer.memory.shelf(0).held.sum()))  # type: ignore[union-attr]
            return {}

    trainer = Trainer([cell(Watched(feature="logits"), m=30)], CPU)
    trainer.run()
    assert [*held, int(trainer.memory.shelf(0).held.sum())] == [0, 30, 30, 30]  # type: ignore[union-attr]


# ---- MER


def test_reptile_interpolation() -> None:
    """θ₀ = (1, 2), θ = (3, −2), β = 0.25: (1.5, 1)."""
    same(MER(beta=0.25).interpolate({"a": t(1, 2)}, {"a": t(3, -2)})["a"], 1.5, 1)
    same(MER(gamma=0.5).across({"a": t(1, 2)}, {"a": t(3, -2)})["a"], 2, 0)


def test_mer_that_keeps_nothing_stays_where_it_was() -> None:
    trainer = Trainer([cell("mer", beta=0.0)], CPU)
    before = {name: p.detach().clone() for name, p in trainer.engine.params.items()}
    trainer.run()
    assert all(torch.equal(before[name], p) for name, p in trainer.engine.params.items())


@pytest.mark.parametrize("old_statistics", [False, True])
@pytest.mark.parametrize("variant", ["batch", "original"])
def test_mer_that_keeps_all_is_sequential_sgd(variant: str, old_statistics: bool) -> None:
    """β = γ = 1: a step of plain SGD on each drawn example and on the current ones, made here by hand.

    By hand every pass moves the running statistics; ours are the same only where remembered examples move them too.
    """
    given = {"s": 2.0, "variant": variant, "tasks": 1, "m": 10, "draws": 4, "old_statistics": old_statistics}
    trainer = Trainer([cell("mer", beta=1.0, gamma=1.0, **given)], CPU)
    engine, method = trainer.engine, trainer.method
    feed = trainer._feed(0, trainer.phases[0], trainer._orders(0, trainer.phases[0]))
    twin = Trainer([cell("sgd", tasks=1)], CPU)
    for step in range(feed.steps):
        batches = feed.batches(step)
        method.step(engine, batches)
        for x, y, task, scale in _sequence(batches, variant):
            model = twin.engine.model
            loss = torch.nn.functional.cross_entropy(model([x], [task])[0].prediction, y)
            grads = torch.autograd.grad(loss, list(twin.engine.params.values()))
            with torch.no_grad():
                for p, g in zip(twin.engine.params.values(), grads, strict=True):
                    p -= 0.05 * scale * g
    assert _apart(engine.params, twin.engine.params) < 1e-9
    assert (_apart(engine.buffers, twin.engine.buffers) < 1e-9) == old_statistics


def _apart(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def _sequence(batches: list[Batch], variant: str) -> list[tuple[Tensor, Tensor, Any, float]]:
    def singles(b: Batch) -> list[tuple[Tensor, Tensor, Any, float]]:
        assert isinstance(b.task, Tensor)
        return [(b.x[i : i + 1], b.y[i : i + 1], b.task[i : i + 1], 1.0) for i in range(len(b.x))]

    current, old = batches[0], singles(batches[1]) if len(batches) > 1 else []
    if variant == "batch":
        return [*old, (current.x, current.y, current.task, 2.0)]
    n = len(current.x)
    return [step for i, one in enumerate(singles(current)) for step in (*old[i::n], one)]


# ---- HAL


def test_hal_anchor_term() -> None:
    """Answers (1, 2) and (0, 0) now, (1, 0) and (1, 1) after the look-ahead: (4 + 2) / 2 anchors, times λ = 0.5."""
    now, then = torch.stack([t(1, 2), t(0, 0)]), torch.stack([t(1, 0), t(1, 1)])

    class There(Net):
        def at(self, params: Any) -> Any:
            return lambda x, task: Output(then, then)

    term = HAL(lam_anchor=0.5).hindsight(There(None, (), {}), Batch(now, t(0), 0), Output(now, now), {})  # type: ignore[arg-type]
    assert term.item() == pytest.approx(1.5)


def test_hal_running_means_follow_the_classes_shown() -> None:
    """β = 0.5: class 0 saw features 2 and 4 (mean 3), class 1 nothing: (0.5 · 1 + 0.5 · 3, 7)."""
    state = {"image": torch.zeros(2, 1, dtype=F64), "embedding": torch.stack([t(1), t(7)])}
    seen = {"x": torch.stack([t(10), t(30)]), "f": torch.stack([t(2), t(4)]), "y": torch.tensor([0, 0])}
    found = HAL(beta=0.5).follow(state, seen)
    same(found["embedding"].flatten(), 2, 7)
    same(found["image"].flatten(), 2, 0)  # 0.9 · 0 + 0.1 · 20


@pytest.mark.parametrize("bn", ["joint", "separate"])
def test_hal_without_anchors_is_er(bn: str) -> None:
    quick = {"anchor_steps": 2, "finetune_steps": 1}
    one = train(cell("hal", lam_anchor=0.0, bn=bn, **quick))
    assert furthest(weights(one), weights(train(cell("er", bn=bn)))) == 0.0
    assert furthest(weights(one), weights(train(cell("hal", bn=bn, **quick)))) > 1e-6


def test_hal_second_order_differs_and_is_the_gradient_of_the_whole() -> None:
    """Against finite differences of the two-step objective, one parameter at a time."""
    trainer = Trainer([cell("hal", second_order=True, anchor_steps=2, tasks=2, lr=0.2)], CPU)
    feed = trainer.skip_to(1)
    engine, method = trainer.engine, trainer.method
    assert isinstance(method, HAL)
    batches = feed.batches(0)
    from reprise.methods.hal import _as_anchors

    anchors = _as_anchors(engine, next(b for b in batches if b.role == "anchors"))
    seen = [b for b in batches if b.role != "anchors"]
    grads, loss = engine.gradient(method.objective, seen, create_graph=True, statistics=False)
    found, _ = method._with_hindsight(engine, grads, loss, anchors)

    def objective() -> float:
        grads, loss = engine.gradient(method.objective, seen, statistics=False)
        ahead = {n: engine.params[n].detach() - engine.lr * g for n, g in grads.items()}
        _, term = engine.gradient(method.hindsight, [anchors], ahead, statistics=False)
        return (loss + term).item()

    weight = engine.params["encoder.conv2.weight"]
    for place in ((0, 0, 1, 1), (3, 2, 0, 2)):
        with torch.no_grad():
            weight[place] += 1e-5
            up = objective()
            weight[place] -= 2e-5
            down = objective()
            weight[place] += 1e-5
        assert found["encoder.conv2.weight"][place].item() == pytest.approx(
            (up - down) / 2e-5, rel=1e-4, abs=1e-8
        )


def test_hal_learning_an_anchor_lowers_its_objective_and_stays_in_range() -> None:
    trainer = train(cell("hal", anchor_steps=1, finetune_steps=3, tasks=2))
    engine, method = trainer.engine, trainer.method
    assert isinstance(method, HAL)
    from reprise.methods.hal import _examples_of_classes

    first = _examples_of_classes(engine, trainer.phases[1].train, 1)
    engine.state["image"].copy_(first.x)
    finetuned = {n: p + 0.05 * torch.randn_like(p) for n, p in engine.snapshot().items()}

    def value(steps: int) -> float:
        learner = replace(method, anchor_steps=steps, anchor_lr=0.01)
        x = learner._learned(engine, first, finetuned)
        assert x.min() >= -2 - 1e-9
        assert x.max() <= 2 + 1e-9
        batch = first.with_tensors(first.tensors() | {"x": x})
        return engine.gradient(method.forgotten, [batch], finetuned, mode="eval", statistics=False)[1].item()

    assert value(20) < value(1)


# ---- Side-Tuning


def test_side_tuning_blend() -> None:
    """a = 0 gives α = 0.5: half the base, half the side network; the first task has the base alone."""
    trainer = Trainer([cell("side_tuning")], CPU)
    model = trainer.engine.model.eval()
    x = torch.randn(2, 3, 8, 8, dtype=F64)
    base = model.encoder(x)
    assert torch.equal(model.features(x, torch.tensor([0, 0])), base)
    blend, side = model.sides(x, torch.tensor([2, 2]))
    assert blend.item() == 0.5
    torch.testing.assert_close(model.features(x, torch.tensor([2, 2])), 0.5 * base + 0.5 * side)
    with torch.no_grad():
        model.sides.blends[1] = math.log(3)  # sigmoid 0.75
    torch.testing.assert_close(model.features(x, torch.tensor([2, 2])), 0.75 * base + 0.25 * side)


def test_stacked_side_networks_are_the_single_ones() -> None:
    stacked = StackedSideNetworks()
    singles = []
    for task in range(3):
        torch.manual_seed(task)
        stacked.add((16, 2, 2), (3, 8, 8), task)
        torch.manual_seed(task)
        singles.append(SideNetwork((16, 2, 2), (3, 8, 8)))
    x = torch.randn(2, 3, 8, 8)
    for task in (1, 2):
        torch.testing.assert_close(stacked(x, torch.tensor([task, task]))[1], singles[task](x))


@pytest.mark.parametrize("make", [cell, mixed_cell])
def test_side_tuning_forgets_nothing(make: Any) -> None:
    trainer = train(make("side_tuning"))
    outcome = trainer.outcomes[0]
    for column in zip(*outcome.loss, strict=True):
        assert len({value for value in column if value is not None}) == 1


def test_side_network_of_the_paper() -> None:
    """3→64 (8x8, stride 4), 256, 256, 512, 2048 on 256x256 images: 11,372,672 parameters, 2048 x 8 x 8."""
    layers = side_layers((2048, 8, 8), (3, 256, 256))
    assert [(s.outputs, s.size, s.stride) for s in layers] == [
        (64, 8, 4), (256, 3, 2), (256, 3, 2), (512, 3, 2), (2048, 3, 1)
    ]  # fmt: skip
    network = SideNetwork((2048, 8, 8), (3, 256, 256))
    assert sum(p.numel() for p in network.parameters()) == 11_372_672
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 256, 256)).shape == (1, 2048, 8, 8)


def test_side_tuning_model_grows_in_the_ledger() -> None:
    sizes = [Trainer([cell("side_tuning", tasks=n)], CPU).outcomes[0].bytes["model"] for n in (1, 2, 3)]
    plain = [Trainer([cell("sgd", tasks=n)], CPU).outcomes[0].bytes["model"] for n in (1, 2, 3)]
    side = sizes[1] - plain[1]
    assert [size - base for size, base in zip(sizes, plain, strict=True)] == [0, side, 2 * side]
    assert side == 8 * (1 + sum(p.numel() for p in SideNetwork((16, 2, 2), (3, 8, 8)).parameters()))


# ---- DER++ and LwF


def test_derpp_matches_logits_by_the_mean_square() -> None:
    """(1, 2) against (0, 4): (1 + 4) / 2. Classes that did not exist then (−∞) do not count."""
    net = Net(None, (), {})  # type: ignore[arg-type]
    assert net.mean(*DERpp.mismatch(torch.stack([t(1, 2)]), torch.stack([t(0, 4)]))).item() == 2.5
    grown = DERpp.mismatch(torch.stack([t(1, 2, 9)]), torch.stack([t(0, 4, -math.inf)]))
    assert net.mean(*grown).item() == 2.5


def test_derpp_without_its_terms_moves_only_statistics() -> None:
    one, other = train(cell("derpp", alpha=0.0, beta=0.0, bn="separate")), train(cell("sgd", bn="separate"))
    params = {n: p.detach() for n, p in one.engine.params.items()}
    assert furthest(params, {n: p.detach() for n, p in other.engine.params.items()}) == 0.0


def test_lwf_distillation() -> None:
    """T = 2, logits (2, 0) then and (0, 0) now: 4 · KL((e, 1)/(e + 1) ‖ (½, ½))."""
    p = math.e / (1 + math.e)
    kl = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    found = LwF(temperature=2.0).moved(Classify(2), torch.stack([t(0, 0)]), torch.stack([t(2, 0)]))
    assert found.item() == pytest.approx(4 * kl)
    same(LwF().moved(Regress(1), t(1, 2), t(1, 4)), 0, 4)


def test_lwf_agrees_with_its_copy_when_a_task_begins() -> None:
    """Nothing has moved yet: the loss of the first step of the second task is the task's own."""
    trainer = train(cell("lwf", tasks=1))
    feed = Trainer([cell("lwf", tasks=2)], CPU).skip_to(1)
    engine = trainer.engine
    assert engine.state["done"].item() == 1.0
    batch = feed.batches(0)[0]
    plain = engine.gradient(trainer.method.objective, [batch], statistics=False)[1]
    assert trainer.method.step(engine, [batch]).item() == pytest.approx(plain.item(), abs=1e-12)


@pytest.mark.parametrize("method", ["ewc", "lwf"])
def test_a_penalty_of_weight_zero_is_sgd(method: str) -> None:
    assert furthest(weights(train(cell(method, lam=0.0))), weights(train(cell("sgd")))) == 0.0


# ---- who cannot do what


@pytest.mark.parametrize("method", ["icarl", "mer"])
def test_a_method_that_cannot_says_why(method: str) -> None:
    with pytest.raises(InputError, match=f"method: {method} .*; use er, car or derpp on this stream\\."):
        mixed_cell(method)


def test_icarl_refuses_logits_of_different_tasks() -> None:
    with pytest.raises(
        InputError, match="feature: logits of different tasks have no common scale; use embedding"
    ):
        cell("icarl", m=30, scenario="class", feature="logits")


def test_methods_that_need_both_batches_refuse_the_coin() -> None:
    for method in ("agem", "hal"):
        with pytest.raises(InputError, match=f"p_replay: {method} needs the current and the replayed batch"):
            mixed_cell(method)


def test_settled_choices_are_stored() -> None:
    split, mixed = cell("ewc").experiment, mixed_cell("ewc").experiment
    assert (split.to_dict()["variant"], split.to_dict()["guarded"]) == ("running", "all")
    assert (mixed.to_dict()["variant"], mixed.to_dict()["guarded"]) == ("collapsed", "encoder")
    assert cell("agem").experiment.to_dict()["projected"] == "all"
    assert settle(split, cell("ewc").stream) == split


def test_side_tuning_is_one_class_and_two_hooks() -> None:
    assert not SideTuning().trains("encoder.conv1.weight", 1)
    assert SideTuning().trains("sides.blends", 1)
    assert not SideTuning().trains("sides.blends", 0)
