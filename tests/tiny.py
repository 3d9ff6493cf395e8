"""Small things tests share: a pool of random images, a stream of three different kinds of task, short runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from reprise.build import Cell
from reprise.config import Experiment, make_experiment
from reprise.examples import Examples, Source
from reprise.ledger import settle
from reprise.method import Method
from reprise.streams.files import Images
from reprise.streams.split import Pool, make_pool, split_stream
from reprise.streams.stream import Normalise, Stream
from reprise.tasks import Classify, Regress, Segment, Task
from reprise.train import Trainer

CPU = torch.device("cpu")
FIELDS: dict[str, Any] = {
    "encoder": "convnet-small",
    "precision": "float64",
    "batch": 4,
    "replay": 3,
    "steps": 4,
    "lr": 0.05,
    "m": 15,
}


def tiny_pool(size: int = 8, train: int = 12, test: int = 4) -> Pool:
    """30 classes: 3 validation tasks, 3 reported ones. Each class has a colour, so that it can be learned."""
    rng = np.random.default_rng(7)
    names = tuple(f"class-{c}" for c in range(30))
    colours = rng.integers(30, 226, (30, 3, 1, 1))

    def draw(count: int) -> Images:
        noise = rng.normal(0, 25, (30 * count, 3, size, size))
        x = (np.repeat(colours, count, 0) + noise).clip(0, 255).astype(np.uint8)
        return Images(x, np.repeat(np.arange(30), count), names)

    return make_pool(draw(train), draw(test), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "tiny")


POOL = tiny_pool()


def cell(method: str | Method, seed: int = 0, **fields: Any) -> Cell:
    """A settled cell on the tiny Split stream; a method of the table by name, or any other as an object."""
    given = FIELDS | fields
    if isinstance(method, Method):
        experiment = replace(make_experiment("split-shapes", "sgd", given), method=method)
    else:
        experiment = make_experiment("split-shapes", method, given)
    stream = split_stream(
        "split-shapes", POOL, seed, experiment.scenario, experiment.split, experiment.normalise
    )
    stream = stream.first(experiment.tasks)
    return Cell(settle(experiment, stream), seed, stream)


def train(*cells: Cell, stacked: bool | None = None) -> Trainer:
    """A trainer after its run."""
    torch.set_num_threads(1)
    trainer = Trainer(cells, CPU, stacked)
    trainer.run()
    return trainer


def weights(trainer: Trainer, lane: int | None = None) -> dict[str, torch.Tensor]:
    """Parameters and statistics, of one lane."""
    everything = trainer.engine.params | trainer.engine.buffers
    return {name: (t if lane is None else t[lane]).detach() for name, t in everything.items()}


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference between two sets of weights."""
    assert one.keys() == other.keys()
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


def mixed_stream(seed: int = 0, n: int = 12, size: int = 8) -> Stream:
    """Classification, segmentation and masked regression of the same images, each with its own head."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(0, 256, (2 * n, 3, size, size), dtype=np.uint8))
    grey = x.double().mean(1) / 255
    columns = {
        "colour": {"y": (x.double().mean((2, 3)).argmax(1)).long()},
        "bright": {"y": (grey > 0.5).long(), "mask": (grey < 0.9).double()},
        "grey": {"y": grey.unsqueeze(1), "mask": (grey > 0.1).double().unsqueeze(1)},
    }
    kinds = {"colour": Classify(3), "bright": Segment(2), "grey": Regress(1, "l1")}
    tasks = []
    for name, own in columns.items():
        source = Source({"x": x, **own})
        rows = torch.arange(2 * n)
        tasks.append(Task(name, kinds[name], Examples(source, rows[:n], {}), Examples(source, rows[n:], {})))
    half = torch.full((3, 1, 1), 0.5, dtype=torch.float64)
    return Stream(
        name="mixed",
        tasks=tuple(tasks),
        input_shape=(3, size, size),
        normalise=Normalise(half, half),
        fingerprint="mixed",
        shared_head=False,
    )


MIXED = mixed_stream()


def mixed_cell(method: str, seed: int = 0, **fields: Any) -> Cell:
    given = FIELDS | {"optimizer": "adam", "lr": 0.01, "m": 6, "p_replay": 0.5} | fields
    experiment: Experiment = make_experiment("split-shapes", method, given)
    stream = MIXED.first(experiment.tasks)
    return Cell(settle(experiment, stream), seed, stream)
