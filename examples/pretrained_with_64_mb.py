"""A pre-trained encoder, 64 MB of memory, and tasks that come as they come: datasets with random transforms.

The encoder is trained on other classes first, by a plain loop, as one that you download was trained by others. (With
`pip install "reprise-cl[timm]"`, say `reprise.Learner("timm:resnet18:pretrained", ...)` instead.) The learner
copies it; yours stays as it is.

Run it: `python examples/pretrained_with_64_mb.py` (a minute or two; `--small`: some seconds).
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import reprise
from reprise.streams.shapes import render

CLASSES = 5


class Pictures:
    """Any dataset with a length and items: here images as real numbers, mirrored at random."""

    def __init__(self, x: Tensor, y: Tensor, train: bool) -> None:
        self.x, self.y, self.train = x, y, train

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = (self.x[index].float() / 255 - 0.5) / 0.25
        if self.train and torch.rand(()) < 0.5:
            x = x.flip(-1)
        return x, int(self.y[index])


def pretrained(x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    encoder = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, 1, 1), nn.BatchNorm2d(64), nn.ReLU()),
    )
    head = nn.Linear(64, int(y.max()) + 1)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(50):
            images = (x[rows].float() / 255 - 0.5) / 0.25
            loss = F.cross_entropy(head(encoder(images).mean((2, 3))), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return encoder


def main(small: bool = False) -> dict[str, float]:
    """The mean accuracy lost since a task was learned, by method."""
    count = 3 if small else 6
    train, test = render((count + 4) * CLASSES, 60 if small else 200, 20 if small else 40)
    first = 4 * CLASSES  # the classes that the encoder knows before
    known = torch.from_numpy(train.y < first)
    x, y = torch.from_numpy(train.x), torch.from_numpy(train.y)
    encoder = pretrained(x[known], y[known], 6)
    lost = {}
    for name, method in (("fine-tuning", reprise.SGD()), ("car", reprise.CAR(lam_fm=5.0))):
        learner = reprise.Learner(encoder, method, memory="64MB", lr=3e-3, batch=20)
        for task in range(count):
            parts = []
            for images, training in ((train, True), (test, False)):
                labels = torch.from_numpy(images.y) - first - task * CLASSES
                own = (labels >= 0) & (labels < CLASSES)
                parts.append(Pictures(torch.from_numpy(images.x)[own], labels[own], training))
            learner.learn(reprise.Task.classify(f"task-{task + 1}", *parts, classes=CLASSES), epochs=3)
        print(f"{name}\n{learner.report()}")
        forgotten = [value for value in learner.forgetting.values() if value is not None]
        lost[name] = sum(forgotten) / len(forgotten)
    return lost


if __name__ == "__main__":
    main("--small" in sys.argv[1:])
