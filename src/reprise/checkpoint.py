"""Everything of a run that changes, as tensors and plain values. Randomness is named, so it needs no saving."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch

from reprise.memory import Memory
from reprise.train import Cursor, Outcome, Trainer
from reprise.types import Tree


@dataclass(frozen=True)
class Checkpoint:
    """tensors: weights, statistics, optimizer, method state, memory. values: the cursor and what is written down."""

    tensors: Tree
    values: dict[str, Any]


def capture(trainer: Trainer) -> Checkpoint:
    """A copy of a paused run's state."""
    engine = trainer.engine
    tensors = {f"params.{name}": p for name, p in engine.params.items()}
    tensors |= {f"buffers.{name}": b for name, b in engine.buffers.items()}
    tensors |= {f"state.{name}": s for name, s in engine.state.items()}
    for index, entry in engine.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in entry.items()}
    if trainer.memory is not None:
        tensors |= _memory_tensors(trainer.memory)
    values = {
        "cursor": asdict(trainer.cursor),
        "outcomes": [asdict(outcome) for outcome in trainer.outcomes],
        "seen": 0 if trainer.memory is None else trainer.memory.seen,
    }
    return Checkpoint({name: t.detach().clone() for name, t in tensors.items()}, copy.deepcopy(values))


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Put a fresh trainer of the same cells where the captured one stood."""
    engine, tensors = trainer.engine, checkpoint.tensors
    groups = {"params": engine.params, "buffers": engine.buffers, "state": engine.state}
    with torch.no_grad():
        for group, tree in groups.items():
            for name, tensor in tree.items():
                tensor.copy_(tensors[f"{group}.{name}"])
    _restore_optimizer(engine.optimizer, tensors)
    if trainer.memory is not None:
        for name, tensor in _memory_tensors(trainer.memory).items():
            tensor.copy_(tensors[name])
        trainer.memory.seen = checkpoint.values["seen"]
    trainer.cursor = Cursor(**checkpoint.values["cursor"])
    trainer.outcomes = [Outcome(**copy.deepcopy(outcome)) for outcome in checkpoint.values["outcomes"]]


def _memory_tensors(memory: Memory) -> Tree:
    """Columns and bookkeeping of all shelves; the bookkeeping as views, so that writing them writes the memory."""
    tensors: Tree = {}
    for index, shelf in enumerate(memory.shelves):
        tensors |= {f"memory.{index}.{name}": column for name, column in shelf.columns.items()}
        tensors[f"memory.{index}.held"] = shelf.held
        tensors[f"memory.{index}.owner"] = torch.from_numpy(shelf.owner)
        tensors[f"memory.{index}.label"] = torch.from_numpy(shelf.label)
    return tensors


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tree) -> None:
    state: dict[int, Tree] = {}
    for key, tensor in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = tensor.clone()
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
