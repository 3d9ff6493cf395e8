"""Streams of shapes: all that a stream says of itself, with no data behind it. What an experiment costs follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from reprise.examples import Examples, Source
from reprise.streams.packs import VALID
from reprise.streams.rooms.worlds import Worlds
from reprise.streams.scenes import P_REPLAY, require_scene_fields, task_names
from reprise.streams.shapes import CLASSES, SIZE, TRAIN
from reprise.streams.split import Pool, split_stream
from reprise.streams.stream import Normalise, Stream
from reprise.streams.taskonomy.domains import DOMAINS, SCENE_CLASSES, find_tasks
from reprise.streams.taskonomy.labels import TaskLabels
from reprise.tasks import Task

if TYPE_CHECKING:
    from reprise.config import Experiment

META = torch.device("meta")
PAPER_VIEWS = 324_864
"""Training images of the paper's Taskonomy buildings."""
SPLITS = {
    "split-cifar": (100, 500, 32),
    "split-mini-imagenet": (100, 500, 84),
    "split-shapes": (CLASSES, TRAIN, SIZE),
}
"""Classes, training images of each, and pixels a side."""
UNUSED = (0.5, 0.5, 0.5)
"""Mean and deviation of images that nobody will look at."""


def blank_stream(experiment: Experiment) -> Stream:
    """The stream of an experiment, whose examples have shapes and no values."""
    if experiment.stream in SPLITS:
        return _split(experiment)
    return _scenes(experiment)


def _split(e: Experiment) -> Stream:
    classes, train, size = SPLITS[e.stream]
    every = np.arange(classes)
    labels = np.concatenate([np.repeat(every, train), every])  # one image of each to test on
    images = torch.empty(len(labels), 3, size, size, dtype=torch.uint8, device=META)
    pool = Pool(Source({"x": images}), labels, classes * train, ("",) * classes, UNUSED, UNUSED, "blank")
    return split_stream(e.stream, pool, 0, e.scenario, e.split).first(e.tasks)


def _scenes(e: Experiment) -> Stream:
    require_scene_fields(e)
    size, views = e.size or 0, PAPER_VIEWS
    if e.stream == "rooms":
        views = Worlds.parse(e.buildings or "", e.views or 0, size).counts[0] * (e.views or 0)
    names, rows = task_names(e.sequence or "1"), torch.arange(views)
    source = Source({VALID: _blank(views, (1, size, size), "bool")})
    tasks = []
    for task in find_tasks(names):
        domain = DOMAINS[task.domain]
        for column in (DOMAINS["rgb"], domain):
            source.columns[column.name] = _blank(views, column.shape(size), column.dtype)
        if task.name == "class_scene":
            source.columns[domain.name] = _blank(views, (len(SCENE_CLASSES),), "float32")
        masked = task.masked and e.masks is not False
        columns = {"x": "rgb", "y": domain.name} | ({"mask": VALID} if masked else {})
        examples = Examples(source, rows, {}, columns)
        tasks.append(Task(task.name, task.under(e.norms), examples, examples))
    mean, half = (torch.full((channels, 1, 1), 0.5, dtype=torch.float64) for channels in (3, 1))
    return Stream(
        name=e.stream,
        tasks=tuple(tasks),
        input_shape=(3, size, size),
        normalise=Normalise(mean, half),
        fingerprint="blank",
        shared_head=False,
        labels=tuple(TaskLabels(name) for name in names),
        flips=e.flip is not False,
        p_replay=P_REPLAY,
    ).first(e.tasks)


def _blank(views: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    """As a pack hands it out: 16 bits as int16 of the same bits."""
    kind = torch.int16 if dtype == "uint16" else getattr(torch, dtype)
    return torch.empty(views, *shape, dtype=kind, device=META)
