"""From cells to the parts of a run: the engine, and the examples of all lanes on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from reprise.config import Experiment
from reprise.engine import Engine, Single
from reprise.examples import Examples
from reprise.feed import Reader
from reprise.kernels import available as kernels_available
from reprise.lanes import Lanes
from reprise.ledger import make_model
from reprise.method import Method, neutral_values
from reprise.models.conv import use_kernels
from reprise.models.norm import allow_mixed, allow_rows
from reprise.models.parts import Parts
from reprise.ranks import Ranks
from reprise.streams.stream import Phase, Stream


@dataclass(frozen=True)
class Cell:
    """One run: a settled experiment on the stream of its seed."""

    experiment: Experiment
    seed: int
    stream: Stream
    parts: Parts | None = None
    """Encoder and heads, where they are not those of the experiment's name."""

    @property
    def capturable(self) -> bool:
        """Whether its passes may become CUDA graphs: modules of other people may ask something of the host."""
        return self.parts is None or self.parts.ours


def under_one_method(cells: Sequence[Cell]) -> list[Cell]:
    """The cells as lanes of the most derived of their methods: those of an ancestor take its neutral values."""
    shared = max((cell.experiment.method for cell in cells), key=lambda method: len(type(method).__mro__))
    return [
        cell
        if type(cell.experiment.method) is type(shared)
        else replace(
            cell, experiment=replace(cell.experiment, method=_expressed(cell.experiment.method, shared))
        )
        for cell in cells
    ]


def _expressed(method: Method, shared: Method) -> Method:
    """A method as a special case of another one, which has its fields and more."""
    neutral = neutral_values(type(shared), type(method))
    own = {f.name: getattr(method, f.name) for f in fields(method)}
    differing = [
        name for name, value in own.items() if not isinstance(value, float) and getattr(shared, name) != value
    ]
    if neutral is None or differing:
        raise ValueError(f"{shared} is nowhere {method}: they cannot be lanes of one group")
    return replace(shared, **(own | neutral))


def make_engine(
    cells: Sequence[Cell],
    streams: Sequence[Stream],
    reader: Reader,
    stacked: bool,
    device: torch.device,
    kernels: bool = False,
    ranks: Ranks | None = None,
    compiled: bool = False,
) -> Engine:
    """A single model, or a stack of one per cell, run by torch's own operators or by our kernels for lanes."""
    experiment, stream = cells[0].experiment, streams[0]
    models = [make_model(cell.experiment, stream, cell.seed, cell.parts).to(device) for cell in cells]
    options: dict[str, Any] = {
        "layer_shapes": models[0].layer_shapes(stream.input_shape),
        "reader": reader,
        "bn": experiment.bn,
        "clip": experiment.clip,
        "open_ended": stream.open_ended,
        "optimizer": experiment.optimizer,
        "ranks": ranks,
    }
    if stacked:
        use_kernels(models[0], kernels)
        rates = [cell.experiment.lr for cell in cells]
        return Lanes(
            models,
            experiment.method,
            stream.kinds,
            lane_fields(cells),
            rates,
            channels_last=kernels,
            **options,
        )
    if device.type == "cpu" or not stream.shared_head:
        models[0].use_memory_format(torch.channels_last)
    allow_rows(models[0], device.type == "cpu" and not compiled)
    allow_mixed(models[0], device.type == "cuda")
    if compiled:
        models[0].compile_parts()
    return Single(models[0], experiment.method, stream.kinds, lr=experiment.lr, **options)


def fast_lanes(experiment: Experiment, device: torch.device) -> bool:
    """Whether lanes run by our kernels: on a GPU, where the asked precision allows their order of summation."""
    return device.type == "cuda" and experiment.precision in ("tf32", "bf16") and kernels_available(device)


def lane_fields(cells: Sequence[Cell]) -> dict[str, list[float]]:
    """The method's float fields, one value per lane."""
    methods = [cell.experiment.method for cell in cells]
    names = [f.name for f in fields(methods[0]) if isinstance(getattr(methods[0], f.name), float)]
    return {name: [getattr(method, name) for method in methods] for name in names}


def join_phases(streams: Sequence[Stream], stacked: bool, device: torch.device) -> list[Phase]:
    """The phases on the device; those of several lanes stacked."""
    phases = []
    for group in zip(*(stream.phases for stream in streams), strict=True):
        parts = tuple(
            (part[0][0], _join([examples for _, examples in part], stacked).to(device))
            for part in zip(*(phase.parts for phase in group), strict=True)
        )
        phases.append(replace(group[0], parts=parts))
    return phases


def join_tests(streams: Sequence[Stream], stacked: bool, device: torch.device) -> list[Examples]:
    """Each task's test examples on the device; those of several lanes stacked."""
    groups = zip(*(stream.tasks for stream in streams), strict=True)
    return [_join([task.test for task in group], stacked).to(device) for group in groups]


def _join(lanes: Sequence[Examples], stacked: bool) -> Examples:
    return Examples.stack(lanes) if stacked else lanes[0]
