"""Our ER, A-GEM and EWC beside Avalanche 0.6.0's, in float64: same data, weights, heads and batches.

Avalanche trains three tiny tasks by its own loop (`Naive` with one plugin and plain SGD) and every mini-batch,
reference batch and gradient is written down. Our methods are then given the same batches. What is equal is asserted
to 1e-10; what is not is asserted too, as a formula, with the reason beside it. docs/against_avalanche.md is the
summary. The network is `convnet-small`, with BatchNorm. Its heads are ours (one tensor for all tasks, which both
sides run) or Avalanche's own (`MultiHeadClassifier`, a module per task, grown as tasks come).

The tests are skipped where Avalanche cannot be imported. src/reprise/peers.py says how to make an environment that
has it; with pytest installed there too, from the root of the repository:

    PYTHONPATH=src python -m pytest tests/test_against_avalanche.py -v -rs

Two habits of Avalanche matter in float64. Its multi-head outputs, its losses and its Fisher tensors have torch's
default dtype, so the tests set that to float64. And its EWC penalty is summed in float32 whatever the default is: the
penalty's *value* is good to about 1e-7, while its gradient is float64 as long as λ is a float32 number (8 is).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tiny import CPU, cell
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from reprise import peers
from reprise.engine import Engine
from reprise.method import Method
from reprise.methods.agem import AGEM
from reprise.methods.er import ER
from reprise.methods.ewc import EWC
from reprise.randomness import rng
from reprise.train import Trainer
from reprise.types import Batch, Tree

MISSING = peers.available()
pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=MISSING or ""),
    pytest.mark.usefixtures("float64"),
]
either_heads = pytest.mark.parametrize("heads", ["ours", "avalanche"])

TASKS = 3
LR = 0.25
LAMBDA = 8.0
PRECISION = 1e-10


@pytest.fixture
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


# ---- Avalanche's side


@dataclass
class Iteration:
    """What Avalanche saw and did in one step; trees are in our names."""

    task: int
    batch: Batch
    """The mini-batch: with replay, the current rows and then the remembered ones."""
    before: Tree
    """The parameters."""
    raw: Tree = field(default_factory=dict)
    """Gradients as `backward` left them."""
    grads: Tree = field(default_factory=dict)
    """Gradients the optimizer is given."""
    loss: Tensor | float = 0.0
    reference: Batch | None = None
    """A-GEM's memory batch."""


@dataclass
class Watch:
    """An Avalanche plugin that writes down each step. It stands last, so it sees what the method's plugin did."""

    run: Run
    iterations: list[Iteration] = field(default_factory=list)
    supports_distributed = False

    def before_training_exp(self, strategy: Any, **_: Any) -> None:
        """A head that Avalanche just grew gets our head's weights."""
        task = strategy.clock.train_exp_counter
        if self.run.heads == "avalanche":
            linear = strategy.model.classifier.classifiers[str(task)].classifier
            linear.load_state_dict(self.run.initial[task])

    def before_forward(self, strategy: Any, **_: Any) -> None:
        x, y, tasks = (t.clone() for t in strategy.mbatch)
        before = self.run.ours(dict(strategy.model.named_parameters()))
        self.iterations.append(Iteration(strategy.clock.train_exp_counter, Batch(x, y, tasks), before))

    def after_backward(self, strategy: Any, **_: Any) -> None:
        now = self.iterations[-1]
        now.loss = strategy.loss.detach().clone().squeeze()
        now.grads = self.run.gradients(strategy.model)


@dataclass
class Early:
    """The same before the method's plugin has touched the gradients."""

    run: Run
    raw: list[Tree] = field(default_factory=list)
    supports_distributed = False

    def after_backward(self, strategy: Any, **_: Any) -> None:
        self.raw.append(self.run.gradients(strategy.model))


class Run:
    """A trainer of ours that has not begun, and Avalanche's run from the same weights on the same data."""

    def __init__(self, method: Method, heads: str, batch: int) -> None:
        self.heads, self.batch = heads, batch
        self.trainer = Trainer([cell(method, tasks=TASKS, lr=LR)], CPU, stacked=False)
        self.engine: Engine = self.trainer.engine
        start = self.engine.snapshot()
        self.initial = [{n: start[f"heads.{n}"][t] for n in ("weight", "bias")} for t in range(TASKS)]

    # ---- names
    def ours(self, named: dict[str, Tensor], missing: Callable[[Tensor], Tensor] = torch.clone) -> Tree:
        """A tree of Avalanche's model in our names; what it lacks (heads to come) is `missing` of our parameter."""
        if self.heads == "ours":
            found = {name.removeprefix("model."): t.detach().clone() for name, t in named.items()}
            return {n: found[n] if n in found else missing(p.detach()) for n, p in self.engine.params.items()}
        tree = {name: missing(p.detach()) for name, p in self.engine.params.items()}
        for name, value in named.items():
            if name.startswith("classifier."):
                _, _, task, _, kind = name.split(".")
                tree[f"heads.{kind}"][int(task)] = value.detach()
            else:
                tree[name.replace("encoder.0.", "encoder.")] = value.detach().clone()
        return tree

    def gradients(self, model: nn.Module) -> Tree:
        """None counts as 0."""
        named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        return self.ours(named, torch.zeros_like)

    # ---- the same model and data for Avalanche
    def _model(self) -> nn.Module:
        twin = copy.deepcopy(self.engine.model).train()
        # Our model on a CPU is channels-last; Avalanche's A-GEM flattens gradients with `view`.
        twin.use_memory_format(torch.contiguous_format)
        if self.heads == "avalanche":
            return peers._multi_head(nn.Sequential(twin.encoder, peers._Averaged()))
        from avalanche.models import MultiTaskModule

        class OurModel(MultiTaskModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = twin

            def forward(self, x: Tensor, task_labels: Tensor) -> Tensor:
                return self.model([x], [task_labels])[0].prediction

        return OurModel()

    def _experiences(self) -> list[Any]:
        """Each task's examples, in the order in which our EWC takes them for its Fisher."""
        from avalanche.benchmarks import (
            benchmark_from_datasets,
            task_incremental_benchmark,
            with_classes_timeline,
        )
        from avalanche.benchmarks.utils import as_classification_dataset

        datasets = []
        for task, phase in enumerate(self.trainer.phases):
            order = torch.as_tensor(rng(0, "end", task).permutation(len(phase.train)))
            batch = self.trainer.reader.batch(phase.train.take(order), None)
            dataset = TensorDataset(batch.x, batch.y)
            dataset.targets = batch.y.tolist()
            datasets.append(as_classification_dataset(dataset))
        benchmark = task_incremental_benchmark(benchmark_from_datasets(train=datasets))
        return list(with_classes_timeline(benchmark).train_stream)

    def train(self, plugin: Callable[[], Any]) -> Any:
        """Train Avalanche's strategy on all tasks; its steps are then in `iterations`. Returns the plugin."""
        with peers._quiet():
            from avalanche.training import Naive
            from avalanche.training.plugins import EvaluationPlugin

            random.seed(0)
            torch.manual_seed(0)
            made, watch, early = plugin(), Watch(self), Early(self)
            self.model = self._model()
            strategy = Naive(
                model=self.model,
                optimizer=torch.optim.SGD(self.model.parameters(), lr=LR),
                criterion=nn.CrossEntropyLoss(),
                train_mb_size=self.batch,
                train_epochs=1,
                plugins=[early, made, watch],
                evaluator=EvaluationPlugin(),
            )
            for experience in self._experiences():
                strategy.train(experience, num_workers=0)
        self.iterations = watch.iterations
        for iteration, raw in zip(self.iterations, early.raw, strict=True):
            iteration.raw = raw
        return made

    def final(self) -> Tree:
        return self.ours(dict(self.model.named_parameters()))

    def statistics(self) -> Tree:
        """Avalanche's BatchNorm statistics in our names."""
        drop = "model." if self.heads == "ours" else ""
        named = {n.removeprefix(drop): b for n, b in self.model.named_buffers()}
        return {n.replace("encoder.0.", "encoder."): b for n, b in named.items() if "running" in n}

    def our_statistics(self) -> Tree:
        return {name: b for name, b in self.engine.buffers.items() if "running" in name}

    # ---- our side of the walk
    def tasks(self) -> Iterator[tuple[int, list[Iteration]]]:
        for task in range(TASKS):
            self.engine.enter(task)
            yield task, [i for i in self.iterations if i.task == task]


def apart(one: Tree, other: Tree) -> float:
    """The largest difference of two trees."""
    assert one.keys() == other.keys()
    assert all(one[n].dtype == other[n].dtype == torch.float64 for n in one)
    return max((one[name] - other[name]).abs().max().item() for name in one)


def combine(*terms: tuple[float, Tree]) -> Tree:
    """Σ factor · tree."""
    return {name: sum(factor * tree[name] for factor, tree in terms) for name in terms[0][1]}


def size(tree: Tree) -> float:
    return max(t.abs().max().item() for t in tree.values())


def rows(batch: Batch, start: int, stop: int, role: str) -> Batch:
    assert isinstance(batch.task, Tensor)
    return Batch(batch.x[start:stop], batch.y[start:stop], batch.task[start:stop], role=role)


# ---- experience replay
#
# Both make one joint forward pass over c current and r remembered rows. Avalanche takes ONE mean over all c + r rows:
#     (c · L_cur + r · L_rep) / (c + r)  =  c / (c + r) · (L_cur + r/c · L_rep)
# ours is the paper's equation 3, L_cur + λ · L_rep, a mean of each. So λ = r/c is Avalanche's objective up to the
# factor c / (c + r), which a learning rate can take. Our default, λ = 1, gives the remembered half the same weight
# as the current one whatever their sizes; with c = 10 and r = 5 Avalanche weighs a remembered batch half as much.


def replay_run(heads: str) -> Run:
    """c = 7 and 60 examples a task, so each task of Avalanche's ends with a short batch of 4: λ is then 3/4."""
    run = Run(ER(), heads, batch=7)

    def plugin() -> Any:
        from avalanche.training.plugins import ReplayPlugin

        return ReplayPlugin(mem_size=20, batch_size=7, batch_size_mem=3)

    run.train(plugin)
    return run


def split(iteration: Iteration) -> tuple[list[Batch], int, int]:
    """Avalanche's joint batch as our two batches, with their sizes."""
    tasks = iteration.batch.task
    assert isinstance(tasks, Tensor)
    current = int((tasks == iteration.task).sum())
    assert (tasks[:current] == iteration.task).all()
    batches = [rows(iteration.batch, 0, current, "current")]
    if current < len(tasks):
        batches.append(rows(iteration.batch, current, len(tasks), "replay"))
    return batches, current, len(tasks) - current


@either_heads
def test_er_with_lam_r_over_c_is_avalanches_replay_up_to_the_learning_rate(heads: str) -> None:
    run = replay_run(heads)
    sizes = set()
    for task, iterations in run.tasks():
        for iteration in iterations:
            batches, c, r = split(iteration)
            assert (r > 0) == (task > 0)
            sizes.add((c, r))
            method, share = ER(lam=r / c), c / (c + r)
            grads, loss = run.engine.gradient(method.objective, batches, statistics=False)
            assert abs(share * loss - iteration.loss) < PRECISION
            assert apart(combine((share, grads)), iteration.grads) < PRECISION
            run.engine.optimizer.param_groups[0]["lr"] = LR * share
            method.step(run.engine, batches)
    assert {(7, 3), (4, 3)} <= sizes
    assert apart(run.engine.snapshot(), run.final()) < PRECISION
    assert apart(run.our_statistics(), run.statistics()) < PRECISION


@either_heads
def test_er_by_default_weighs_the_replayed_half_more_than_avalanche(heads: str) -> None:
    run = replay_run(heads)
    iteration = next(i for i in run.iterations if i.task == 1)
    run.engine.enter(1)
    run.engine.assign(iteration.before)
    batches, c, r = split(iteration)

    def gradient(lam: float) -> Tree:
        return run.engine.gradient(ER(lam=lam).objective, batches, statistics=False)[0]

    default = run.engine.gradient(ER().objective, batches, statistics=False)[0]
    current = gradient(0.0)
    replayed = combine((1.0, default), (-1.0, current))
    assert apart(combine((c / (c + r), current), (r / (c + r), replayed)), iteration.grads) < PRECISION
    # What is left after the learning rate is set right is the weight of the replayed half.
    left = combine((1.0, default), (-(c + r) / c, iteration.grads))
    assert apart(left, combine((1 - r / c, replayed))) < PRECISION
    assert size(left) > 1e-3


# ---- A-GEM
#
# The same projection of the same two gradients over all parameters, memory rows under their own heads on both sides.
# Two differences: (1) Avalanche makes the reference pass before the current one, ours after it. In training mode
# neither gradient depends on it, but BatchNorm's running statistics end elsewhere. (2) With a module per head, a
# parameter without a current gradient (an old head) counts as 0 in the dot product on both sides, but Avalanche then
# does not write the projected value to it. Ours does, as the flat vector of the published method. `projected:
# encoder`, our default where heads are modules, has no counterpart: Avalanche's dot product always has the heads.


def projected_run(heads: str) -> Run:
    run = Run(AGEM(projected="all"), heads, batch=4)
    drawn: list[Any] = []

    def plugin() -> Any:
        from avalanche.training.plugins import AGEMPlugin

        class Remembering(AGEMPlugin):
            """Notes the batches it draws."""

            def sample_from_memory(self) -> Any:
                batch = super().sample_from_memory()
                drawn.append([t.clone() for t in batch])
                return batch

        return Remembering(patterns_per_experience=20, sample_size=6)

    run.train(plugin)
    later = [i for i in run.iterations if i.task > 0]
    for iteration, mb in zip(later, drawn, strict=True):
        iteration.reference = Batch(mb[0], mb[1], mb[-1], role="replay")
    return run


def dot(one: Tree, other: Tree) -> float:
    return sum((one[name] * other[name]).sum().item() for name in one)


@either_heads
def test_agem_projects_as_avalanche(heads: str) -> None:
    """Each step from Avalanche's weights. With modules as heads: all but the old heads, which only ours moves."""
    run = projected_run(heads)
    signs = {True: 0, False: 0}
    method = AGEM(projected="all")
    for task, iterations in run.tasks():
        for iteration in iterations:
            run.engine.assign(iteration.before)
            current, reference = iteration.batch, iteration.reference
            grads, loss = run.engine.gradient(method.objective, [current])
            assert abs(loss - iteration.loss) < PRECISION
            assert apart(grads, iteration.raw) < PRECISION
            if reference is None:
                assert task == 0
                continue
            against, _ = run.engine.gradient(method.objective, [reference])
            assert set(reference.task.tolist()) == set(range(task))
            conflict = dot(grads, against) < 0
            signs[conflict] += 1
            projected = run.engine.lift(method.project)(grads, against)
            assert abs(dot(projected, against)) < PRECISION if conflict else apart(projected, grads) == 0
            if heads == "avalanche":
                for name in ("heads.weight", "heads.bias"):
                    assert size({name: iteration.grads[name][:task]}) == 0
                    assert (size({name: projected[name][:task]}) > 1e-6) == conflict
                    projected[name][:task] = 0
            assert apart(projected, iteration.grads) < PRECISION
    assert min(signs.values()) >= 5


def test_agem_trains_to_avalanches_weights() -> None:
    """Over three tasks, by `step` alone; the heads are one tensor, so difference (2) does not arise."""
    run = projected_run("ours")
    for _, iterations in run.tasks():
        for i in iterations:
            batches = [i.batch] if i.reference is None else [i.batch, i.reference]
            run.trainer.method.step(run.engine, batches)
    assert apart(run.engine.snapshot(), run.final()) < PRECISION
    # Difference (1): both moved the statistics by the same batches, in another order.
    assert apart(run.our_statistics(), run.statistics()) > 1e-6


def test_agem_moves_statistics_by_the_same_passes_in_another_order() -> None:
    """The reference pass first, as Avalanche has it, and the statistics agree as well."""
    run = projected_run("ours")
    for _, iterations in run.tasks():
        for i in iterations:
            run.engine.assign(i.before)
            for batch in [i.batch] if i.reference is None else [i.reference, i.batch]:
                run.engine.gradient(run.trainer.method.objective, [batch])
    assert apart(run.our_statistics(), run.statistics()) < PRECISION


# ---- EWC
#
# The same Fisher: the mean over mini-batches, each counted once whatever its size, of the squared gradient of the
# mini-batch's mean loss, in evaluation mode, over all training examples. Avalanche's mini-batch is its training
# batch, ours is `fisher_batch`. Avalanche takes the examples as they lie, ours in an order drawn by name: a Fisher of
# mini-batches depends on who shares a batch, so Avalanche's data lie in our order here. The same penalty,
# λ Σ F (θ − θ*)² with no ½ on either side: lam = ewc_lambda. Avalanche's `separate` is our `per_task`; `collapsed` is
# that penalty held in two tensors. Avalanche guards all parameters: `guarded="all"`.
#
# Avalanche's `online` keeps Σ_j decay^(t-j) F_j and the LATEST anchor only. With one old task it is the same penalty;
# with more it pulls to θ*_t what ours pulls to each task's own θ*_j.
#
# Our `running` (the published Split numbers) has no counterpart: its Fisher is summed up from training-mode gradients
# as the task is learned, folded in every 50 steps with weight 0.9 on the newest and scaled to [0, 1] over all
# parameters together. Avalanche's Fisher is always an extra pass at the end of a task, and it scales nothing.

FISHER_BATCH = 7  # of 60 examples: eight batches of 7 and one of 4


def regularised_run(method: EWC, heads: str, **options: Any) -> tuple[Run, list[Tree]]:
    """The run and Avalanche's importances after each task."""
    run = Run(method, heads, batch=FISHER_BATCH)
    importances: list[Tree] = []

    def plugin() -> Any:
        from avalanche.training.plugins import EWCPlugin

        class Remembering(EWCPlugin):
            """Notes the importances, which `online` deletes."""

            def update_importances(self, found: Any, t: int) -> None:
                super().update_importances(found, t)
                named = {name: own.data for name, own in self.importances[t].items()}
                importances.append(run.ours(named, torch.zeros_like))

        return Remembering(LAMBDA, **options)

    run.train(plugin)
    return run, importances


def ewc(variant: Any) -> EWC:
    return EWC(lam=LAMBDA, variant=variant, guarded="all", samples=10**6, fisher_batch=FISHER_BATCH)


def penalty(run: Run) -> Tree:
    method = run.trainer.method
    assert isinstance(method, EWC)
    return run.engine.lift(method.penalties)(run.engine.snapshot(), run.engine.state)


def end_task(run: Run, task: int) -> None:
    method, examples = run.trainer.method, run.trainer.phases[task].train
    run.engine.write_state(method.end_task(run.engine, examples, task, lambda steps, size: iter(())))


def held(run: Run, kind: str, task: int) -> Tree:
    """A task's slot of our `per_task` state."""
    return {name: run.engine.state[f"{kind}.{name}"][task] for name in run.engine.params}


@either_heads
@pytest.mark.parametrize("variant", ["per_task", "collapsed"])
def test_ewc_is_avalanches_separate_mode(variant: str, heads: str) -> None:
    run, importances = regularised_run(ewc(variant), heads, mode="separate")
    method = run.trainer.method
    for task, iterations in run.tasks():
        for iteration in iterations:
            grads, loss = run.engine.gradient(method.objective, [iteration.batch], statistics=False)
            assert apart(combine((1.0, grads), (1.0, penalty(run))), iteration.grads) < PRECISION
            if task == 0:
                assert abs(loss - iteration.loss) < PRECISION
            method.step(run.engine, [iteration.batch])
        if task > 0:
            assert size(penalty(run)) > 1e-3
        end_task(run, task)
        if variant == "collapsed":
            ours = {name: run.engine.state[f"fisher.{name}"] for name in run.engine.params}
            assert apart(ours, combine(*((1.0, own) for own in importances[: task + 1]))) < PRECISION
        elif task + 1 < TASKS:  # ours keeps none of the last task, whose penalty nobody would pay
            assert apart(held(run, "fisher", task), importances[task]) < PRECISION
        assert size(importances[task]) > 1e-3
    assert apart(run.engine.snapshot(), run.final()) < PRECISION
    assert apart(run.our_statistics(), run.statistics()) < PRECISION


def test_ewc_penalty_has_avalanches_value() -> None:
    """Our step reports the task's loss without the penalty. Of a quadratic form the value is half of gradient times
    distance; Avalanche's is a float32 sum."""
    run, _ = regularised_run(ewc("per_task"), "ours", mode="separate")
    largest = 0.0
    for task, iterations in run.tasks():
        for iteration in iterations:
            if task == 1:
                moved = combine((1.0, run.engine.snapshot()), (-1.0, held(run, "anchor", 0)))
                ours = dot(penalty(run), moved) / 2
                _, loss = run.engine.gradient(
                    run.trainer.method.objective, [iteration.batch], statistics=False
                )
                assert (iteration.loss - loss).item() == pytest.approx(ours, rel=1e-6, abs=1e-9)
                largest = max(largest, ours)
            run.trainer.method.step(run.engine, [iteration.batch])
        end_task(run, task)
    assert largest > 1e-3


@either_heads
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_ewc_is_avalanches_online_mode_until_there_are_two_anchors(decay: float, heads: str) -> None:
    run, importances = regularised_run(ewc("per_task"), heads, mode="online", decay_factor=decay)
    method = run.trainer.method
    for task, iterations in run.tasks():
        if task < 2:
            for iteration in iterations:
                method.step(run.engine, [iteration.batch])
            end_task(run, task)
            continue
        first = iterations[0]
        assert apart(run.engine.snapshot(), first.before) < PRECISION
        # A step on, so that θ is no longer θ*_1, where one of the two terms is 0.
        second = iterations[1]
        run.engine.assign(second.before)
        fishers, anchors = [held(run, "fisher", t) for t in (0, 1)], [held(run, "anchor", t) for t in (0, 1)]
        assert apart(importances[0], fishers[0]) < PRECISION
        assert apart(importances[1], combine((decay, fishers[0]), (1.0, fishers[1]))) < PRECISION
        grads, _ = run.engine.gradient(method.objective, [second.batch], statistics=False)
        theirs = combine((1.0, second.grads), (-1.0, grads))
        # ours − theirs = 2 λ F_0 [(θ − θ*_0) − decay (θ − θ*_1)]
        expected = {
            name: 2 * LAMBDA * fishers[0][name] * ((p - anchors[0][name]) - decay * (p - anchors[1][name]))
            for name, p in second.before.items()
        }
        assert apart(combine((1.0, penalty(run)), (-1.0, theirs)), expected) < PRECISION
        assert size(expected) > 1e-3
