"""The byte ledger: what a method keeps, from shapes alone; and the largest m a budget of bytes allows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from reprise.config import MEMORY_FIELDS, SCENE_FIELDS, Experiment
from reprise.engine import Engine, Single
from reprise.errors import InputError
from reprise.feed import Reader
from reprise.fill import Quota, make_quota
from reprise.memory import Memory, Shelf, Spec, row_bytes
from reprise.method import Method, Needs
from reprise.models.conv import compute_in
from reprise.models.model import Model, build_model
from reprise.models.parts import Parts
from reprise.randomness import torch_seeded
from reprise.streams.stream import Stream
from reprise.tasks import Classify
from reprise.types import Tree
from reprise.values import parse_bytes

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "float64": torch.float64}
"""Of parameters, data and losses."""


def make_model(experiment: Experiment, stream: Stream, seed: int, parts: Parts | None = None) -> Model:
    """The model of a seed, wrapped and grown by the method; of a user's parts where they are given."""
    method, dtype = experiment.method, DTYPES[experiment.precision]
    model = build_model(parts or experiment.encoder, stream, seed, method.taps())
    if experiment.first_weights is not None:  # before the method looks at the encoder
        experiment.first_weights.load(model.encoder.to(dtype), experiment.encoder)
    model = method.wrap(model)
    for task in range(len(stream.tasks)):
        with torch_seeded(seed, "init:method", task):
            method.grow(model, task)
    if experiment.precision == "bf16":
        compute_in(model, torch.bfloat16)
    return model.to(dtype)


def make_reader(experiment: Experiment, stream: Stream, device: torch.device) -> Reader:
    dtype = DTYPES[experiment.precision]
    return Reader(
        stream.normalise.to(device, dtype), dtype, stream.shared_head, stream.input_shape, stream.labels
    )


def row_spec(engine: Engine, method: Method, stream: Stream, task: int) -> Spec:
    """Shape and dtype of one remembered example of a task, found by a dry run of `keep` on two examples."""
    train = stream.tasks[task].train
    device = next(iter(engine.params.values())).device
    columns = {name: c.to(device) for name, c in train.blank(2).items()}
    batch = engine.reader.batch(columns, task)
    if engine.stacked:
        batch = batch.with_tensors(
            {name: t.expand(engine.lanes, *t.shape) for name, t in batch.tensors().items()}
        )
    kept = method.keep(engine, batch)
    lead = 2 if engine.stacked else 1
    spec: Spec = {name: (tuple(c.shape[1:]), c.dtype) for name, c in columns.items()}
    kind = stream.tasks[task].kind
    if isinstance(kind, Classify) and not columns["y"].is_floating_point():
        spec["y"] = ((), _smallest_integer(kind.classes))
    if "task" in spec:
        spec["task"] = ((), _smallest_integer(len(stream.tasks)))
    return spec | {name: (tuple(c.shape[lead:]), c.dtype) for name, c in kept.items()}


def row_specs(engine: Engine, method: Method, stream: Stream) -> list[Spec]:
    """The rows of each shelf: one that all tasks share, or one of each task."""
    shelves = range(1) if stream.shared_head else range(len(stream.tasks))
    return [row_spec(engine, method, stream, task) for task in shelves]


def make_memory(engine: Engine, method: Method, stream: Stream, quotas: Sequence[Quota]) -> Memory:
    """Empty shelves for the quotas of all lanes."""
    device = next(iter(engine.params.values())).device
    shelves = [
        Shelf([rows_of_shelf(quota, stream, task) for quota in quotas], spec, engine.stacked, device)
        for task, spec in enumerate(row_specs(engine, method, stream))
    ]
    return Memory(shelves, len(stream.tasks))


def rows_of_shelf(quota: Quota, stream: Stream, task: int) -> int:
    """Of one that all tasks share, all rows; of a task's own, no more than the task has examples."""
    return quota.capacity if stream.shared_head else min(quota.capacity, len(stream.tasks[task].train))


def state_bytes(state: Tree, lanes: int) -> dict[str, int]:
    """Bytes of a method's own tensors, of one lane; those of one kind (`fisher.…`, one for each parameter)
    together."""
    found: dict[str, int] = {}
    for name, tensor in state.items():
        kind = name.partition(".")[0]
        found[kind] = found.get(kind, 0) + tensor.nbytes // lanes
    return found


def bytes_kept(
    engine: Engine, memory: Memory | None, method: Method, stream: Stream, lane: int
) -> dict[str, int]:
    """What the method of one lane keeps, by kind: its rows at full capacity, and its own tensors.

    It may be an ancestor of the engine's method, whose columns and tensors are then there for the other lanes:
    the ancestor is asked itself, and is charged for nothing else.
    """
    if type(method) is type(engine.method):
        kept = {} if memory is None else memory.nbytes(lane)
        return kept | state_bytes(engine.state, engine.lanes)
    alone = engine.only([lane])
    kept = {} if memory is None else memory.nbytes(lane, row_specs(alone, method, stream))
    return kept | state_bytes(method.start(alone), alone.lanes)


def model_bytes(model: Model) -> int:
    return sum(t.nbytes for t in [*model.parameters(), *model.buffers()])


def settle(experiment: Experiment, stream: Stream, parts: Parts | None = None) -> Experiment:
    """Replace everything relative by what it stands for: `auto` fields, m in bytes or shares, what the method needs.

    The settled experiment is what is stored and hashed.
    """
    method = experiment.method
    needs = method.needs(stream)
    _require_scenes(experiment, stream)
    if experiment.p_replay and needs.both:
        raise InputError(
            f"p_replay: {experiment.method_name} needs the current and the replayed batch in one step; leave it out."
        )
    fill = needs.fill or (experiment.fill if stream.classes_per_task is not None else "uniform_task")
    if experiment.optimizer != "sgd" and stream.shared_head:
        raise InputError(
            f"optimizer: {experiment.optimizer} would move the heads of tasks that are not trained, since all heads "
            f"of {stream.name} are one tensor; use sgd."
        )
    shaped = replace(experiment, first_weights=None)  # shapes are all that is asked for
    with torch.device("meta"):
        model = make_model(shaped, stream, 0, parts)
        shapes = model.layer_shapes(stream.input_shape)
    method = method.resolve(stream, shapes["features"])
    own: dict[str, Any] = {
        **stream.choices,
        "p_replay": _coin(experiment, needs, stream),
        "fill": fill,
        "replay": needs.replay or experiment.replay,
        "scope": needs.scope or (experiment.scope if stream.shared_head else "one_task"),
    }
    own |= dict.fromkeys(MEMORY_FIELDS)
    settled = replace(experiment, method=method, **own)
    if not method.replays:
        return settled
    if experiment.memory is not None:
        # Modules of other people may ask for values, which shapes do not have.
        place = torch.device("meta" if parts is None or parts.ours else "cpu")
        with place:
            model = make_model(shaped, stream, 0, parts)
            reader = make_reader(settled, stream, place)
            engine = Single(model, method, stream.kinds, layer_shapes=shapes, reader=reader)
        engine.enter(0)
        m = _largest_m(engine, settled, stream, parse_bytes(experiment.memory))
    else:
        m = _count(experiment, settled.fill, stream)
    return replace(settled, m=m)


def _coin(experiment: Experiment, needs: Needs, stream: Stream) -> float | None:
    """How often a whole step replays: 0 where a stream has a habit of its own, and it is not followed."""
    if not experiment.method.replays or stream.p_replay is None:
        return experiment.p_replay or None
    if needs.both:
        return 0.0
    return stream.p_replay if experiment.p_replay is None else experiment.p_replay


def _require_scenes(experiment: Experiment, stream: Stream) -> None:
    """Fields of scene streams say nothing about others."""
    given = [name for name in SCENE_FIELDS if getattr(experiment, name) is not None]
    if given and not stream.labels:
        raise InputError(f"{given[0]}: {stream.name} has no such choice; leave it out.")


def quota_of(experiment: Experiment, stream: Stream, m: int) -> Quota:
    """How m is divided; where tasks share it among those seen, the first may hold all of it."""
    quota = _quota(experiment.fill, stream, m)
    shared = experiment.method.needs(stream).share == "seen"
    return replace(quota, capacity=m) if shared else quota


def _quota(fill: str, stream: Stream, m: int) -> Quota:
    return make_quota(
        fill, m, len(stream.tasks), stream.full_tasks or len(stream.tasks), stream.classes_per_task
    )


def _count(experiment: Experiment, fill: str, stream: Stream) -> int:
    """m as the paper counts it, from whichever way it was given."""
    tasks, classes = stream.full_tasks or len(stream.tasks), stream.classes_per_task
    m = experiment.m
    if experiment.m_per_class is not None:
        if classes is None:
            raise InputError(
                "m_per_class: the tasks of this stream have no classes in common; use m_per_task."
            )
        m = experiment.m_per_class * classes * tasks
    elif experiment.m_per_task is not None:
        m = experiment.m_per_task * (tasks if classes is not None else 1)
    if m is None:
        raise InputError(
            f"m: {experiment.method_name} remembers examples; say how many with --m or --memory."
        )
    _quota(fill, stream, m)
    whole = stream.open_ended and not stream.shared_head  # a task of fewer examples is remembered whole
    if m > (most := _most(fill, stream)) and fill != "reservoir" and not whole:
        raise InputError(f"m: {m} is more than there are examples to remember; use {most} or less.")
    return m


def _most(fill: str, stream: Stream) -> int:
    """The largest m for which every task has the examples; of an open-ended stream, for which any has them: a small
    task that joins must not cost the others what they remember."""
    tasks, classes = stream.full_tasks or len(stream.tasks), stream.classes_per_task
    if stream.open_ended and not stream.shared_head:
        return max(len(task.train) for task in stream.tasks)
    if fill == "reservoir":
        return sum(len(task.train) for task in stream.tasks)
    if classes is None or fill == "uniform_task":
        return min(len(task.train) for task in stream.tasks) * (1 if classes is None else tasks)
    labels = [task.train.labels for task in stream.tasks]
    members = [np.unique(own, return_counts=True)[1] for own in labels if own is not None]
    return min(int(counts.min()) for counts in members) * classes * tasks


def _largest_m(engine: Engine, experiment: Experiment, stream: Stream, budget: int) -> int:
    """The largest m whose memory and state, at their peak, fit into the budget."""
    state = sum(state_bytes(engine.state, 1).values())
    specs = row_specs(engine, experiment.method, stream)
    sizes = [sum(row_bytes(spec).values()) for spec in specs]
    tasks, classes = stream.full_tasks or len(stream.tasks), stream.classes_per_task
    unit = {"uniform_task": tasks, "reservoir": 1}.get(experiment.fill, tasks * (classes or 1))
    if classes is None:
        unit = 1

    def needed(m: int) -> int:
        quota = quota_of(experiment, stream, m)
        return state + sum(size * rows_of_shelf(quota, stream, task) for task, size in enumerate(sizes))

    smallest = needed(unit)
    if smallest > budget:
        raise InputError(
            f"memory: {budget:,} bytes are less than the {smallest:,} that the smallest memory (m = {unit}) takes; "
            "give more."
        )
    units = range(1, _most(experiment.fill, stream) // unit + 1)
    return unit * bisect_right(units, budget, key=lambda count: needed(count * unit))


def _smallest_integer(values: int) -> torch.dtype:
    return torch.uint8 if values <= 256 else torch.int16 if values <= 2**15 else torch.int32
