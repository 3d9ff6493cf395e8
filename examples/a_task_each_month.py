"""A new classification task each month, and no longer all the old data.

Five new classes arrive every month. Plain fine-tuning answers the newest ones and forgets the rest; with one small
memory the old months stay. Run it: `python examples/a_task_each_month.py` (about a minute; `--small`: a few seconds).
"""

import sys

import torch

import reprise
from reprise.streams.shapes import render  # pictures drawn on the spot, in place of yours

CLASSES = 5


def months(small: bool) -> list[reprise.Task]:
    """Each month's task: uint8 images [n, 3, 16, 16] and labels 0 to 4."""
    count = 3 if small else 6
    train, test = render(count * CLASSES, 40 if small else 200, 20 if small else 40)
    tasks = []
    for month in range(count):
        parts = []
        for images in (train, test):
            own = (images.y >= month * CLASSES) & (images.y < (month + 1) * CLASSES)
            parts.append((torch.from_numpy(images.x[own]), torch.from_numpy(images.y[own] - month * CLASSES)))
        tasks.append(reprise.Task.classify(f"month-{month + 1}", *parts, classes=CLASSES))
    return tasks


def main(small: bool = False) -> dict[str, float]:
    """The mean accuracy lost since a month was learned, by method."""
    lost = {}
    for name, method in (("fine-tuning", reprise.SGD()), ("replay", reprise.ER())):
        encoder = "convnet-small" if small else "resnet18-tiny"
        learner = reprise.Learner(encoder, method, memory="100KB", lr=3e-3, batch=10)
        for task in months(small):
            learner.learn(task, epochs=8 if small else 2)
        print(f"{name}\n{learner.report()}")
        forgotten = [value for value in learner.forgetting.values() if value is not None]
        lost[name] = sum(forgotten) / len(forgotten)
    return lost


if __name__ == "__main__":
    main("--small" in sys.argv[1:])
