"""Everything of a run that changes, as tensors and plain values. Randomness is named, so it needs no saving."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprise.engine import Engine
from reprise.errors import InputError
from reprise.fill import Quota
from reprise.memory import Memory
from reprise.train import Cursor, Outcome, Trainer
from reprise.types import Tree

BOOKKEEPING = ("owner", "label")
"""What a shelf knows of its rows besides their columns; -1 where a row is empty."""


COUNTER = "step"
"""What Adam calls its counter, one for all lanes; its other entries are shaped as their parameter is, which may be a
single number."""


@dataclass(frozen=True)
class Checkpoint:
    """tensors: weights, statistics, optimizer, method state, memory. values: the cursor and what is written down."""

    tensors: Tree
    values: dict[str, Any]


def capture(trainer: Trainer, device: torch.device | None = None, memory: bool = True) -> Checkpoint:
    """A copy of a paused run's state, all lanes of it, with or without what it remembers; where it is, or on another
    device."""
    engine = trainer.engine
    tensors = {f"params.{name}": p for name, p in engine.params.items()}
    tensors |= {f"buffers.{name}": b for name, b in engine.buffers.items()}
    tensors |= {f"state.{name}": s for name, s in engine.state.items()}
    for name, param in engine.params.items():
        entry = engine.optimizer.state.get(param, {})
        tensors |= {f"optimizer.{key}.{name}": torch.as_tensor(value) for key, value in entry.items()}
    tensors["window"] = torch.from_numpy(trainer.window)
    if memory and trainer.memory is not None:
        tensors |= _memory_tensors(trainer.memory)
    copies = {name: t.detach().to(device or t.device, copy=True) for name, t in tensors.items()}
    return Checkpoint(copies, values_of(trainer))


def values_of(trainer: Trainer) -> dict[str, Any]:
    """The cursor and what is written down."""
    return {
        "cursor": asdict(trainer.cursor),
        "outcomes": [asdict(outcome) for outcome in trainer.outcomes],
        "seen": 0 if trainer.memory is None else trainer.memory.seen,
        "seconds": dict(trainer.spent),
    }


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Put a fresh trainer of the same cells where the captured one stood. Tensors keep their memory format."""
    engine, tensors = trainer.engine, checkpoint.tensors
    groups = {"params": engine.params, "buffers": engine.buffers, "state": engine.state}
    with torch.no_grad():
        for group, tree in groups.items():
            for name, tensor in tree.items():
                _copy(tensor, f"{group}.{name}", tensors)
    _restore_optimizer(engine, tensors)
    if trainer.memory is not None:
        for name, tensor in _memory_tensors(trainer.memory).items():
            _copy(tensor, name, tensors)
        trainer.memory.seen = checkpoint.values["seen"]
    trainer.window = tensors["window"].numpy(force=True).copy()
    restore_values(trainer, checkpoint.values)


def grown(trainer: Trainer, checkpoint: Checkpoint) -> Checkpoint:
    """A task's end as the beginning of the next one: a checkpoint of a run that had fewer tasks than this fresh
    trainer has. What was there is what it was; what is new is as it was made.

    Where shares of the memory have become smaller, each old task keeps its most important rows.
    """
    outcome = checkpoint.values["outcomes"][0]
    before, now = len(outcome["initial"]), len(trainer.stream.tasks)
    if before == now:
        return checkpoint
    [untrained] = trainer.accuracies(range(before, now))
    if trainer.memory is not None:
        _rewrite(trainer.memory, trainer.quotas[0], trainer.needs.share == "seen", checkpoint.tensors, before)
        trainer.memory.seen = checkpoint.values["seen"]
    tensors = capture(trainer).tensors
    for name, tensor in checkpoint.tensors.items():
        if name.startswith(("params.", "buffers.", "state.")):
            fresh = tensors[name]
            if fresh.dim() != tensor.dim():
                raise InputError(f"out: {name} has another shape there; the encoder is not the same.")
            fresh[tuple(slice(size) for size in tensor.shape)] = tensor.to(fresh.device)
        elif name.startswith("optimizer."):
            tensors[name] = tensor
    more = [None] * (now - before)
    written = {
        "accuracy": [None if row is None else [*row, *more] for row in outcome["accuracy"]],
        "loss": [None if row is None else [*row, *more] for row in outcome["loss"]],
        "initial": [*outcome["initial"], *untrained],
        "bytes": trainer.outcomes[0].bytes,
    }
    return Checkpoint(tensors, checkpoint.values | {"outcomes": [outcome | written]})


def _rewrite(memory: Memory, quota: Quota, of_seen: bool, tensors: Tree, before: int) -> None:
    """Put the rows of a memory of fewer tasks into an empty one."""
    for index in range(len(memory.shelves)):
        if f"memory.{index}.owner" not in tensors:
            continue
        owner, label = (tensors[f"memory.{index}.{name}"].numpy(force=True)[0] for name in BOOKKEEPING)
        for task in range(before) if len(memory.shelves) == 1 else [index]:
            rows = np.flatnonzero(owner == task)
            shelf = memory.shelf(task)
            if quota.policy == "reservoir":
                if len(owner) != quota.capacity and bool((owner >= 0).all()):
                    raise InputError(
                        f"memory: a full reservoir of {len(owner)} examples cannot become one of {quota.capacity}; "
                        "give the learner a budget (memory=), or room= for all tasks."
                    )
                places = rows  # a slot is a place
            else:
                rows = rows[: quota.capacity // before if of_seen else int(quota.per_task)]
                places = shelf.free_rows(0, len(rows))
            stored = {name: tensors[f"memory.{index}.{name}"] for name in shelf.columns}
            columns = {
                name: (t[0] if shelf.stacked else t)[torch.from_numpy(rows)] for name, t in stored.items()
            }
            shelf.write(0, places, columns, task, label[rows])


def restore_values(trainer: Trainer, values: Mapping[str, Any]) -> None:
    """The cursor and what is written down: all there is to restore where a run has made its last step."""
    trainer.cursor = Cursor(**values["cursor"])
    trainer.outcomes = [Outcome(**copy.deepcopy(outcome)) for outcome in values["outcomes"]]
    trainer.spent = dict(values["seconds"])


def _copy(tensor: Tensor, name: str, tensors: Mapping[str, Tensor]) -> None:
    """From what was saved; another run's checkpoint may have no such tensor, or one of another shape."""
    found = tensors.get(name)
    if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
        there = "none" if found is None else f"{list(found.shape)} {found.dtype}"
        raise InputError(
            f"from: {name} is {list(tensor.shape)} {tensor.dtype} here and {there} in the checkpoint; "
            "keep the fields that decide what the model and the memory hold."
        )
    tensor.copy_(found)


def _memory_tensors(memory: Memory) -> Tree:
    """Columns and bookkeeping of all shelves; the bookkeeping as views, so that writing them writes the memory."""
    tensors: Tree = {}
    for index, shelf in enumerate(memory.shelves):
        tensors |= {f"memory.{index}.{name}": column for name, column in shelf.columns.items()}
        tensors[f"memory.{index}.held"] = shelf.held
        tensors[f"memory.{index}.owner"] = torch.from_numpy(shelf.owner)
        tensors[f"memory.{index}.label"] = torch.from_numpy(shelf.label)
    return tensors


def _restore_optimizer(engine: Engine, tensors: Tree) -> None:
    """What the optimizer knows of each parameter, laid out like it; counters stay where the optimizer keeps them."""
    engine.optimizer.state.clear()
    # Fused, it counts its steps where it makes them.
    on_device = engine.optimizer.defaults.get("fused", False)
    for key, tensor in tensors.items():
        if not key.startswith("optimizer."):
            continue
        _, entry, name = key.split(".", 2)
        param = engine.params[name]
        if entry == COUNTER:
            own = tensor.to(param.device if on_device else "cpu", copy=True)
        else:
            own = torch.empty_like(param, requires_grad=False).copy_(tensor)
        engine.optimizer.state[param][entry] = own


# ---- one lane at a time: what lies on disk is a run's own, whoever it was trained with


def lanes_of(trainer: Trainer, checkpoint: Checkpoint) -> list[Checkpoint]:
    """The checkpoint of each run by itself."""
    found = []
    for lane in range(len(trainer.cells)):
        tensors = {
            name: _own_rows(trainer, name, _of_lane(name, t, lane, trainer.stacked), lane)
            for name, t in checkpoint.tensors.items()
        }
        values = checkpoint.values | {"outcomes": [checkpoint.values["outcomes"][lane]]}
        found.append(Checkpoint(tensors, values))
    return found


def _of_lane(name: str, tensor: Tensor, lane: int, stacked: bool) -> Tensor:
    if name == "window":
        return tensor[:, lane : lane + 1]
    if name.endswith(BOOKKEEPING) and name.startswith("memory."):
        return tensor[lane]
    return tensor[lane] if stacked and not _is_counter(name) else tensor


def _own_rows(trainer: Trainer, name: str, tensor: Tensor, lane: int) -> Tensor:
    """Of the memory, the rows this lane may fill: others have as many as the largest lane needs."""
    if trainer.memory is None or not name.startswith("memory."):
        return tensor
    return tensor[: trainer.memory.shelves[int(name.split(".")[1])].capacities[lane]]


def joined(trainer: Trainer, lanes: Sequence[Checkpoint]) -> Checkpoint:
    """The runs' own checkpoints as one of a trainer that trains them together: the inverse of `lanes_of`."""
    tensors: Tree = {}
    for name in lanes[0].tensors:
        own = [lane.tensors[name] for lane in lanes if name in lane.tensors]
        if len(own) < len(lanes):  # a column that one of the methods does not have: nobody needs it
            continue
        if name == "window":
            tensors[name] = torch.cat(own, 1)
        elif name.startswith("memory."):
            rows = max(map(len, own))
            empty = -1 if name.endswith(BOOKKEEPING) else 0
            together = torch.stack([_lengthened(t, rows, empty) for t in own])
            alone = not trainer.stacked and not name.endswith(BOOKKEEPING)
            tensors[name] = together[0] if alone else together
        else:
            tensors[name] = torch.stack(own) if trainer.stacked and not _is_counter(name) else own[0]
    values = lanes[0].values | {"outcomes": [lane.values["outcomes"][0] for lane in lanes]}
    return Checkpoint(tensors, values)


def _is_counter(name: str) -> bool:
    return name.startswith(f"optimizer.{COUNTER}.")


def _lengthened(tensor: Tensor, rows: int, value: int) -> Tensor:
    missing = tensor.new_full((rows - len(tensor), *tensor.shape[1:]), value)
    return torch.cat([tensor, missing])


def parts_of(tensors: Tree) -> dict[str, Tree]:
    """The tensors by file: the weights, all else that a step changes, and each shelf of the memory."""
    parts: dict[str, Tree] = {}
    for name, tensor in tensors.items():
        kind, rest = name.partition(".")[::2]
        part = {"params": "weights", "buffers": "weights", "memory": f"memory.{rest.partition('.')[0]}"}
        parts.setdefault(part.get(kind, "state"), {})[name] = tensor
    return parts
