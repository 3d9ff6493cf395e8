"""The cost ledger: arithmetic of a query and of a step, counted from the model's operations."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from reprise.models.conv import use_kernels
from reprise.models.model import Model
from reprise.streams.stream import Stream


def count_macs(model: Model, stream: Stream, task: int) -> int:
    """Multiply-accumulates of one query of a task."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        _query(model, stream, task)
    return counter.get_total_flops() // 2


def count_parameters(model: Model, stream: Stream, task: int) -> int:
    """Parameters that a query of a task reads: of models that grow, more for later tasks."""
    reached: set[nn.Parameter] = set()

    def note(module: nn.Module, inputs: object) -> None:
        reached.update(module.parameters(recurse=False))

    hooks = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        with torch.no_grad():
            _query(model, stream, task)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(parameter.numel() for parameter in reached)


def measure_cost(model: Model, stream: Stream) -> dict[str, Any]:
    """MACs, parameters and seconds of one query per task, and the most memory that the run took on a GPU."""
    on_gpu = next(model.parameters()).is_cuda
    # Heads of one shape cost the same: one task speaks for all.
    tasks = range(1 if stream.shared_head else len(stream.tasks))
    with queried(model):
        macs = [count_macs(model, stream, task) for task in tasks]
        parameters = [count_parameters(model, stream, task) for task in tasks]
        seconds = [_seconds(model, stream, task) for task in tasks]
    return {
        "macs_per_query": macs,
        "parameters_per_query": parameters,
        "seconds_per_query": seconds,
        "peak_memory": torch.cuda.max_memory_allocated() if on_gpu else None,
    }


def guess_flops(macs_per_query: Sequence[int], examples: float) -> int:
    """Of a step that shows so many images, where it cannot be counted: a backward pass costs about twice its forward
    pass."""
    return round(3 * 2 * examples * sum(macs_per_query) / len(macs_per_query))


@contextmanager
def queried(model: Model) -> Iterator[None]:
    """Evaluation mode, and torch's operators, which are those that are counted; then each module as it was: what a
    method holds still is in another mode than the rest."""
    flags = ("training", "kernels")
    before = [
        (module, flag, vars(module)[flag])
        for module in model.modules()
        for flag in flags
        if flag in vars(module)
    ]
    model.eval()
    use_kernels(model, False)
    try:
        yield
    finally:
        for module, flag, value in before:
            setattr(module, flag, value)


def _seconds(model: Model, stream: Stream, task: int, repeats: int = 5) -> float:
    times = []
    with torch.no_grad():
        for _ in range(repeats):
            started = time.perf_counter()
            _query(model, stream, task)
            if next(model.parameters()).is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def _query(model: Model, stream: Stream, task: int) -> None:
    parameter = next(model.parameters())
    x = torch.zeros(1, *stream.input_shape, dtype=parameter.dtype, device=parameter.device)
    index = torch.full((1,), task, device=parameter.device) if stream.shared_head else task
    model([x], [index])
