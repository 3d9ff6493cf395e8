"""The streams by name: how each is loaded, and its protocol table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reprise.errors import InputError
from reprise.streams.files import fingerprint, read_cifar100, read_mini_imagenet
from reprise.streams.loading import Wanted, load_rooms, load_taskonomy
from reprise.streams.scenes import Scenes, require_scene_fields, scene_stream
from reprise.streams.shapes import render
from reprise.streams.split import Pool, make_pool, split_stream
from reprise.streams.stream import Stream

if TYPE_CHECKING:
    from reprise.config import Experiment

CIFAR_MEAN, CIFAR_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class StreamKind:
    """A line of the table: what it is, how its data is read, its protocol."""

    about: str
    load: Callable[[Path | None, Wanted], Pool | Scenes]
    tasks: int
    m_is_total: bool = True
    """m counts the whole stream's examples, not each task's."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    of_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the protocol says of one method."""
    reference_steps: int | None = None
    """Steps of the multi-task reference for each step of a task; None where no reference is compared with."""
    stacks: bool = True
    """Runs on a GPU are lanes of one process unless the user says otherwise: networks too small to fill it alone."""

    def protocol_of(self, method: str) -> dict[str, Any]:
        return {**self.protocol, **self.of_method.get(method, {})}


def _cifar(data: Path | None, wanted: Wanted) -> Pool:
    train, test = read_cifar100(_needed("split-cifar", "cifar-100-python", data))
    return make_pool(train, test, CIFAR_MEAN, CIFAR_STD, fingerprint((train, test)))


def _mini_imagenet(data: Path | None, wanted: Wanted) -> Pool:
    train, test = read_mini_imagenet(_needed("split-mini-imagenet", "mini-imagenet", data))
    return make_pool(train, test, IMAGENET_MEAN, IMAGENET_STD, fingerprint((train, test)))


def _shapes(data: Path | None, wanted: Wanted) -> Pool:
    train, test = render()
    return make_pool(train, test, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), fingerprint((train, test)))


def _taskonomy(data: Path | None, wanted: Wanted) -> Scenes:
    return load_taskonomy(_needed("taskonomy", "the official layout or a pack", data), wanted)


def _rooms(data: Path | None, wanted: Wanted) -> Scenes:
    return load_rooms(wanted)


def _needed(stream: str, folder: str, data: Path | None) -> Path:
    if data is None:
        raise InputError(f"data: {stream} needs a folder with {folder}; give it with --data DIR.")
    return data


SCENES: dict[str, Any] = {
    **{"optimizer": "adam", "bn": "separate", "sequence": "1", "masks": True, "flip": True}
}
"""What both scene streams have in common. (Replay is stochastic unless said otherwise: `scenes.P_REPLAY`.)"""

STREAMS: dict[str, StreamKind] = {
    "split-cifar": StreamKind(
        "CIFAR-100 in 17 tasks of 5 classes (3 more for validation)", _cifar, 17, protocol={"m": 85}
    ),
    "split-mini-imagenet": StreamKind(
        "mini-ImageNet in 17 tasks of 5 classes (3 more for validation)",
        _mini_imagenet,
        17,
        protocol={"m": 85},
    ),
    "split-shapes": StreamKind(
        "procedural 16x16 images in 10 tasks of 5 classes (3 more for validation); needs no data",
        _shapes,
        10,
        protocol={"m": 50, "encoder": "resnet18-tiny"},
    ),
    "taskonomy": StreamKind(
        "the 11 Taskonomy tasks on photographs of buildings: the paper's large-scale benchmark",
        _taskonomy,
        11,
        m_is_total=False,
        protocol={
            **SCENES,
            **{"encoder": "resnet50", "size": 256, "buildings": "auto"},
            **{"batch": 64, "replay": 64, "steps": 12_500, "lr": 1e-4, "m": 64, "lam_fm": 50.0},
        },
        of_method={
            "multitask": {"steps": 37_500},
            "ewc": {"lam": 1e4, "samples": 5000, "fisher_batch": 64},
        },
        reference_steps=3,
        stacks=False,
    ),
    "rooms": StreamKind(
        "procedural indoor scenes with 11 tasks: classes, segments, dense regression; needs no data",
        _rooms,
        11,
        m_is_total=False,
        protocol={
            **SCENES,
            **{"encoder": "resnet-rooms", "size": 64, "buildings": "48,8,8", "views": 32},
            **{"batch": 16, "replay": 16, "steps": 150, "lr": 3e-3, "m": 16, "lam_fm": 0.1},
        },
        of_method={
            "multitask": {"steps": 450},
            "ewc": {"lam": 1e5, "samples": 512, "fisher_batch": 16},
        },
        reference_steps=3,
        stacks=False,
    ),
}


def stream_kind(name: str) -> StreamKind:
    if name not in STREAMS:
        raise InputError(f"stream: {name!r} is not known; choose one of {', '.join(STREAMS)}.")
    return STREAMS[name]


def make_stream(
    name: str,
    pool: Pool,
    seed: int,
    scenario: str = "task",
    split: str = "report",
    normalise: str = "channel",
    tasks: int | None = None,
) -> Stream:
    return split_stream(name, pool, seed, scenario, split, normalise).first(tasks)


def require_fields(experiment: Experiment) -> None:
    """Refuse an experiment that its stream cannot be asked for, before its data is prepared."""
    if stream_kind(experiment.stream).reference_steps is not None:
        require_scene_fields(experiment)


def stream_of(experiment: Experiment, seed: int, pool: Pool | Scenes) -> Stream:
    """The stream of an experiment and a seed."""
    e = experiment
    if isinstance(pool, Scenes):
        return scene_stream(pool, seed, e)
    return make_stream(e.stream, pool, seed, e.scenario, e.split, e.normalise, e.tasks)
