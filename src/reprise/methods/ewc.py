"""Elastic weight consolidation: parameters that mattered for old tasks are pulled back to where they were.

L = L_task + λ Σ_k F_k (θ_k − θ*_k)². Its gradient 2 λ F (θ − θ*) is added to the plain gradient as a tree.

running    the published Split numbers (called EWC there, EWC++ elsewhere): squared gradients of mini-batches are
           summed up, folded in every 50 steps (F ← 0.1 F + 0.9 mean), and scaled to [0, 1] at the end of a task
per_task   the classic form: F_j and θ*_j of every old task, F_j the mean squared gradient at the end of task j
collapsed  the same penalty exactly, kept as Σ F_j and Σ F_j θ*_j: two tensors however many tasks there are
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.errors import InputError
from reprise.examples import Examples
from reprise.method import Method, Recall
from reprise.randomness import rng
from reprise.streams.stream import Stream
from reprise.types import Batch, Tree


@dataclass(frozen=True)
class EWC(Method):
    """Penalise moving what old tasks depend on."""

    lam: float = 10.0
    """λ, weight of the penalty"""
    variant: Literal["auto", "running", "per_task", "collapsed"] = "auto"
    """running Fisher, a term per old task, or those in two tensors; auto: running on Split, else collapsed"""
    guarded: Literal["auto", "all", "encoder"] = "auto"
    """what the penalty holds: all parameters or the encoder; auto: all on Split, else the encoder"""
    ema: float = 0.9
    """weight of the newest estimate when the running Fisher is folded"""
    every: int = 50
    """steps between two foldings"""
    samples: int = 5000
    """examples behind a task's Fisher (per_task, collapsed)"""
    fisher_batch: int = 10
    """examples of one squared gradient of it; 1 is the empirical Fisher"""

    inert: ClassVar[frozenset[str]] = frozenset({"ema"})

    def __post_init__(self) -> None:
        if not self.lam >= 0:
            raise InputError(f"lam: {self.lam} is not a weight; give 0 or more.")
        for name in ("samples", "fisher_batch", "every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)} is not positive; give 1 or more.")

    def resolve(self, stream: Stream, features_shape: tuple[int, ...]) -> EWC:
        split = stream.shared_head
        variant = ("running" if split else "collapsed") if self.variant == "auto" else self.variant
        guarded = ("all" if split else "encoder") if self.guarded == "auto" else self.guarded
        return replace(
            self, variant=cast("Literal['running']", variant), guarded=cast("Literal['all']", guarded)
        )

    # ---- state: one tensor for each guarded parameter and purpose
    def start(self, engine: Engine) -> Tree:
        names = [name for name in engine.params if self._guards(name)]
        kinds = {
            "running": ("fisher", "recent", "importance", "anchor"),
            "per_task": ("fisher", "anchor"),
            "collapsed": ("fisher", "pull"),
        }[self.variant]
        zeros = {name: torch.zeros_like(engine.params[name].detach()) for name in names}
        if self.variant == "per_task":
            # [lanes, tasks, ...]: every task that another follows gets a slot, from the start.
            slots, axis = max(1, len(engine.kinds) - (not engine.open_ended)), 1 if engine.stacked else 0
            zeros = {n: z.unsqueeze(axis).repeat_interleave(slots, axis) for n, z in zeros.items()}
        state = {f"{kind}.{name}": zero.clone() for kind in kinds for name, zero in zeros.items()}
        return state | {"steps": engine.place(torch.zeros(()))}

    def _guards(self, name: str) -> bool:
        return self.guarded != "encoder" or name.startswith("encoder.")

    # ---- a step
    def step(self, engine: Engine, batches: Sequence[Batch]) -> Tensor:
        grads, loss = engine.gradient(self.objective, batches)
        with torch.no_grad():
            if self.variant == "running":
                engine.update_state(self.fold, grads)
            params = {name: engine.params[name].detach() for name in grads}
            penalties = engine.lift(self.penalties)(params, engine.state)
            engine.apply({n: g + penalties[n] if n in penalties else g for n, g in grads.items()})
        return loss

    def fold(self, state: Tree, grads: Tree) -> Tree:
        """T ← T + g²; every 50 steps F ← (1 − ema) F + ema T / 50 and T ← 0."""
        steps = state["steps"] + 1
        due = steps % self.every == 0
        found: Tree = {"steps": steps}
        for name, grad in grads.items():
            if f"recent.{name}" in state:
                recent, fisher = state[f"recent.{name}"] + grad.square(), state[f"fisher.{name}"]
                folded = (1 - self.ema) * fisher + self.ema / self.every * recent
                found[f"fisher.{name}"] = torch.where(due, folded, fisher)
                found[f"recent.{name}"] = torch.where(due, torch.zeros_like(recent), recent)
        return found

    def penalties(self, params: Tree, state: Tree) -> Tree:
        """The penalty's gradient, 2 λ F (θ − θ*), for every guarded parameter."""
        found: Tree = {}
        for name, param in params.items():
            if f"fisher.{name}" not in state:
                continue
            if self.variant == "running":
                pull = state[f"importance.{name}"] * (param - state[f"anchor.{name}"])
            elif self.variant == "per_task":
                pull = (state[f"fisher.{name}"] * (param - state[f"anchor.{name}"])).sum(0)
            else:
                pull = param * state[f"fisher.{name}"] - state[f"pull.{name}"]
            found[name] = 2 * self.lam * pull
        return found

    # ---- the end of a task
    def end_task(self, engine: Engine, examples: Examples, task: int, recall: Recall) -> Tree:
        params = {name: p.detach() for name, p in engine.params.items() if self._guards(name)}
        if self.variant == "running":
            return engine.lift(self.consolidate)(params, engine.state)
        state, fisher = engine.state, self._fisher(engine, examples, task)
        if self.variant == "collapsed":
            sums = {f"fisher.{n}": state[f"fisher.{n}"] + f for n, f in fisher.items()}
            return sums | {f"pull.{n}": state[f"pull.{n}"] + f * params[n] for n, f in fisher.items()}
        if task + 1 == len(engine.kinds) and not engine.open_ended:
            return {}
        found: Tree = {}
        for name, own in fisher.items():
            for kind, value in (("fisher", own), ("anchor", params[name])):
                slots = state[f"{kind}.{name}"].clone()
                slots[(slice(None), task) if engine.stacked else task] = value
                found[f"{kind}.{name}"] = slots
        return found

    def consolidate(self, params: Tree, state: Tree) -> Tree:
        """F scaled to [0, 1] over all parameters together, and the parameters as they are now."""
        fisher = {name: state[f"fisher.{name}"] for name in params}
        least = torch.stack([f.min() for f in fisher.values()]).min()
        most = torch.stack([f.max() for f in fisher.values()]).max()
        scale = (most - least).clamp(min=1e-32)
        importance = {f"importance.{n}": (f - least) / scale for n, f in fisher.items()}
        return importance | {f"anchor.{n}": p.clone() for n, p in params.items()}

    def _fisher(self, engine: Engine, examples: Examples, task: int) -> Tree:
        """The mean squared gradient of mini-batch losses, in evaluation mode."""
        count = min(self.samples, len(examples))
        order = rng(0, "end", task).permutation(len(examples))[:count]
        total: Tree = {}
        batches = 0
        for batch in engine.batches(examples.subset(order), task, self.fisher_batch):
            grads, _ = engine.gradient(self.objective, [batch], mode="eval", statistics=False)
            batches += 1
            for name, grad in grads.items():
                if self._guards(name):
                    total[name] = total.get(name, torch.zeros_like(grad)) + grad.square()
        return {name: value / batches for name, value in total.items()}
