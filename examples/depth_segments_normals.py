"""A robot learns depth, then segmentation, then surface normals: one encoder, a head for each kind of task.

Run it: `python examples/depth_segments_normals.py` (a few minutes; `--small`: half a minute).
"""

import sys

import numpy as np
import torch
from torch import nn

import reprise
from reprise.streams.rooms import render  # rooms drawn on the spot, in place of your recordings


def encoder() -> nn.Module:
    """Any module from images to maps; this one makes [n, 48, h / 4, w / 4]."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Conv2d(24, 48, 3, 2, 1), nn.BatchNorm2d(48), nn.ReLU()),
        *(nn.Conv2d(48, 48, 3, 1, 1), nn.BatchNorm2d(48), nn.ReLU()),
    )


def scenes(buildings: range, views: int, size: int) -> dict[str, torch.Tensor]:
    """Images, and of every pixel its depth, what it belongs to, and where its surface points."""
    parts = [render(building, views, size) for building in buildings]
    raw = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {
        "images": torch.from_numpy(raw["rgb"].transpose(0, 3, 1, 2).copy()),
        "depth": torch.from_numpy(np.log1p(raw["depth_zbuffer"].astype(np.float32)) / 10),
        "segments": torch.from_numpy(raw["segment_semantic"].astype(np.int64)),  # 0: unlabelled
        "normals": torch.from_numpy(raw["normal"].transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1),
    }


def main(small: bool = False) -> dict[str, float]:
    """By how many percent the loss of depth grew while the others were learned, by method."""
    size, views = (16, 32) if small else (32, 64)
    train, test = (
        scenes(range(3 if small else 8), views, size),
        scenes(range(20, 21 if small else 23), views, size),
    )
    tasks = [
        reprise.Task.regress("depth", *((part["images"], part["depth"]) for part in (train, test))),
        reprise.Task.segment(
            "segments", *((part["images"], part["segments"]) for part in (train, test)), classes=18, ignore=0
        ),
        reprise.Task.regress("normals", *((part["images"], part["normals"]) for part in (train, test))),
    ]
    grown = {}
    for name, method in (("fine-tuning", reprise.SGD()), ("car", reprise.CAR(lam_fm=1.0))):
        learner = reprise.Learner(encoder(), method, m_per_task=24, lr=3e-3, batch=8)
        for task in tasks:
            learner.learn(task, epochs=6)
        print(f"{name}\n{learner.report()}")
        grown[name] = learner.forgetting["depth"] or 0.0
    print(learner.predict("depth", test["images"][:2]).shape, "are two answers")
    return grown


if __name__ == "__main__":
    main("--small" in sys.argv[1:])
