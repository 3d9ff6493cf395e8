"""The streams by name: how each is loaded, and its protocol table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reprise.errors import InputError
from reprise.streams.files import fingerprint, read_cifar100, read_mini_imagenet
from reprise.streams.shapes import render
from reprise.streams.split import Pool, make_pool, split_stream
from reprise.streams.stream import Stream

CIFAR_MEAN, CIFAR_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class StreamKind:
    """A line of the table: what it is, how its data is read, its protocol."""

    about: str
    load: Callable[[Path | None], Pool]
    tasks: int
    m_is_total: bool = True
    """m counts the whole stream's examples, not each task's."""
    protocol: Mapping[str, Any] = field(default_factory=dict)


def _cifar(data: Path | None) -> Pool:
    train, test = read_cifar100(_needed("split-cifar", "cifar-100-python", data))
    return make_pool(train, test, CIFAR_MEAN, CIFAR_STD, fingerprint((train, test)))


def _mini_imagenet(data: Path | None) -> Pool:
    train, test = read_mini_imagenet(_needed("split-mini-imagenet", "mini-imagenet", data))
    return make_pool(train, test, IMAGENET_MEAN, IMAGENET_STD, fingerprint((train, test)))


def _shapes(data: Path | None) -> Pool:
    train, test = render()
    return make_pool(train, test, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), fingerprint((train, test)))


def _needed(stream: str, folder: str, data: Path | None) -> Path:
    if data is None:
        raise InputError(f"data: {stream} needs a folder with {folder}; give it with --data DIR.")
    return data


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
