"""Three sizes of the paper's experiments: generated data on a CPU, one building and CIFAR-100, the full setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reprise.config import Experiment, make_experiment
from reprise.errors import InputError
from reprise.experiments.places import Place, printed_seeds
from reprise.methods import METHODS
from reprise.streams import stream_kind
from reprise.streams.split import CLASSES_PER_TASK

PAPER_CLASSES = 85
"""Classes of the paper's Split streams: m is a multiple of them."""
REFERENCE_STEPS = 3
"""The paper trains the multi-task reference for so many times the steps of a task."""
MEMORY_SHARE = 16
"""At smaller scales a Taskonomy task remembers one in so many of the paper's examples: no two scales meet."""


@dataclass(frozen=True)
class Scale:
    """Which stream stands for each benchmark, and what is changed in its protocol.

    fields  by stream
    seeds   0, 1, ...: so many instead of the paper's
    """

    name: str
    streams: Mapping[str, str]
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: int | None = None

    def experiment(self, place: Place) -> Experiment:
        """The run behind a place of the paper, at this scale."""
        stream = self.streams[place.benchmark]
        own = {**place.fields, **self.fields.get(stream, {})}
        if "m" in own:
            own["m"] = scaled_m(self, place)
        if METHODS[place.method].merged and "steps" in own:
            own["steps"] *= REFERENCE_STEPS
        return make_experiment(stream, place.method, own, stream_kind(stream).protocol_of(place.method))

    def seeds_of(self, place: Place) -> int:
        """How many seeds a place is the mean of."""
        return self.seeds or printed_seeds(place.benchmark)


def scaled_m(scale: Scale, place: Place) -> int | None:
    """What m of the paper becomes: as many a class on Split streams, a fixed share elsewhere."""
    m, stream = place.fields.get("m"), scale.streams[place.benchmark]
    if m is None or scale.name == "paper":
        return m
    if place.benchmark == "taskonomy":
        return m // MEMORY_SHARE
    return m // PAPER_CLASSES * stream_kind(stream).tasks * CLASSES_PER_TASK


_REAL = {
    "split_cifar": "split-cifar",
    "split_miniimagenet": "split-mini-imagenet",
    "taskonomy": "taskonomy",
}
SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            {"split_cifar": "split-shapes", "split_miniimagenet": "split-shapes", "taskonomy": "rooms"},
            {
                "split-shapes": {"tasks": 3, "steps": 12, "encoder": "convnet-small"},
                "rooms": {"steps": 6, "size": 32, "views": 8, "buildings": "8,1,2", "batch": 8, "replay": 8},
            },
            seeds=1,
        ),
        Scale("sample", _REAL, {"taskonomy": {"steps": 200, "size": 128, "batch": 32, "lr": 3e-4}}),
        Scale("paper", _REAL),
    )
}


def find_scale(name: str) -> Scale:
    if name not in SCALES:
        raise InputError(f"scale: {name!r} is not known; choose one of {', '.join(SCALES)}.")
    return SCALES[name]
