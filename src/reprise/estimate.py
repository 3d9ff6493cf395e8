"""What an experiment takes, before any data is there: what is kept, the model, a query, a step, the memory.

Everything is counted from shapes. The record of a run says what it really took.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import Any

from reprise.config import Experiment
from reprise.cost import count_macs, count_parameters, queried
from reprise.ledger import bytes_kept, make_memory, model_bytes, quota_of, settle
from reprise.step_cost import StepCost, shape_engine, step_costs
from reprise.streams.blank import blank_stream

MOMENTS = {"sgd": 0, "adam": 2}
"""Numbers that the optimizer keeps for each parameter."""


class Estimate:
    """Of an experiment as the user gives it. Each part is counted when it is asked for; lists are over the tasks."""

    def __init__(self, experiment: Experiment) -> None:
        self._stream = blank_stream(experiment)
        self.experiment = settle(experiment, self._stream)
        self._engine = shape_engine(self.experiment, self._stream)

    @property
    def tasks(self) -> list[str]:
        return [task.name for task in self._stream.tasks]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self._stream.input_shape

    @cached_property
    def kept(self) -> dict[str, int]:
        """Bytes that the method keeps besides the model when all tasks are remembered, by kind."""
        e, memory = self.experiment, None
        if e.method.replays:
            quota = quota_of(e, self._stream, e.m or 0)
            memory = make_memory(self._engine, e.method, self._stream, [quota])
        return bytes_kept(self._engine, memory, e.method, self._stream, 0)

    @property
    def kept_in_all(self) -> int:
        return sum(self.kept.values())

    @property
    def model(self) -> int:
        """Bytes of parameters and statistics, heads and all."""
        return model_bytes(self._engine.model)

    @cached_property
    def macs_per_query(self) -> list[int]:
        with queried(self._engine.model):
            return [
                count_macs(self._engine.model, self._stream, task) for task in range(len(self._stream.tasks))
            ]

    @cached_property
    def parameters_per_query(self) -> list[int]:
        with queried(self._engine.model):
            return [
                count_parameters(self._engine.model, self._stream, task)
                for task in range(len(self._stream.tasks))
            ]

    @cached_property
    def steps(self) -> dict[str, StepCost]:
        """By sort, and their mean."""
        return step_costs(self.experiment, self._stream)

    @property
    def training(self) -> int:
        """Bytes that must fit at once: model, gradients, the optimizer's moments, what is kept, what waits for the
        backward pass. What the device's libraries work in comes on top."""
        params = self._engine.params.values()
        moments = MOMENTS[self.experiment.optimizer] * sum(parameter.nbytes for parameter in params)
        gradients = max(self.parameters_per_query) * next(iter(params)).itemsize
        held = max(round(cost.held) for cost in self.steps.values())
        return self.model + gradients + moments + self.kept_in_all + held

    @property
    def record(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "configuration": self.experiment.to_dict(),
            "tasks": self.tasks,
            "kept": {**self.kept, "total": self.kept_in_all},
            "model": self.model,
            "macs_per_query": self.macs_per_query,
            "parameters_per_query": self.parameters_per_query,
            "steps": {sort: asdict(cost) for sort, cost in self.steps.items()},
            "training": self.training,
        }
