"""The peers of `reprise bench`: one training step of Avalanche 0.6.0, timed inside Avalanche's own loop.

Install the peer in an environment of its own. What depends on torch is installed without its dependencies,
which would pull another, much larger build of torch, and the light packages are listed by hand:

    python -m venv avalanche-venv && . avalanche-venv/bin/activate
    pip install torch==2.13.0 numpy pillow pyyaml jsonargparse safetensors rich
    pip install dill gdown gputil lightning-utilities matplotlib packaging psutil qpsolvers
    pip install tensorboard tqdm wandb
    pip install --no-deps torchvision==0.28.0 torchmetrics pytorchcv avalanche-lib==0.6.0
    PYTHONPATH=src python -m reprise bench --device cpu

Take the torchvision that goes with the torch at hand: 0.28 with 2.13, 0.26 with 2.11. Its wheel is built for
CUDA, so beside a CPU build of torch its C++ extension does not load, and `import torchvision` stops at the
first operator it wants to attach a shape function to. Avalanche needs torchvision's datasets and transforms,
never those operators, so `prepare_import` declares their names, without kernels, and the import goes through.

A timed step is what a user of Avalanche pays for: 10 current and 5 remembered images drawn by Avalanche's
loader from tensors in memory, one joint forward pass, the backward pass and a plain SGD update. The peer runs
lean, with no metric, logger or transform and no unit masking in its heads: each would only add to its time.
Avalanche is imported inside functions only: the package does not need it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from reprise.models.encoders import build_encoder

CLASSES_PER_TASK = 5
IMAGE = (3, 32, 32)
LEARNING_RATE = 0.03
FIRST_TASK_IMAGES = 200
REPLAY_MEMORY = 200
AGEM_PATTERNS = 25

# The operators torchvision attaches shape functions to at import, whether or not its extension was loaded.
_TORCHVISION_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a library takes its operators with it when it is collected


def prepare_import() -> None:
    """Declare torchvision's operators if its C++ extension is absent or does not load; else do nothing."""
    spec = find_spec("torchvision")
    if _declared or spec is None or spec.origin is None:
        return
    for extension in Path(spec.origin).parent.glob("_C*"):
        try:
            torch.ops.load_library(extension)
        except OSError:
            continue
    missing = [
        operator
        for operator in _TORCHVISION_OPERATORS
        if not hasattr(torch.ops.torchvision, operator.partition("(")[0])
    ]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in missing:
            library.define(operator)
        _declared.append(library)


def available() -> str | None:
    """None if Avalanche can be imported, else one sentence saying why it cannot."""
    if find_spec("avalanche") is None:
        return "Avalanche is not installed; src/reprise/peers.py says how to install it."
    try:
        with _quiet():
            prepare_import()
            importlib.import_module("avalanche.training")
    except (
        ImportError,
        RuntimeError,
        AttributeError,
        TypeError,
        ValueError,
    ) as error:  # as versions drift apart
        return f"Avalanche is installed but cannot be imported: {' '.join(str(error).split()).rstrip('.')}."
    return None


def version() -> str:
    """The installed Avalanche's version; unknown where only its folder is on the path."""
    try:
        return importlib.metadata.version("avalanche-lib")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@contextmanager
def _quiet() -> Iterator[None]:
    """Avalanche warns about missing solvers, loggers and streams, none of which the benchmark uses."""
    with warnings.catch_warnings(record=True, action="ignore"):  # Avalanche lifts `ignore`: record as well
        yield


@dataclass
class StepTimes:
    """Seconds per iteration: `loop` from update to update, `compute` from the batch in hand to its update."""

    loop: list[float]
    compute: list[float]

    def medians(self) -> dict[str, float]:
        return {"loop": statistics.median(self.loop), "compute": statistics.median(self.compute)}


@dataclass
class _Clock:
    """An Avalanche plugin that stamps the start and the end of each iteration of the second experience.

    It must be the first plugin: A-GEM computes its reference gradient in `before_training_iteration`, and the
    step includes that. After each iteration it calls `between`, whose time is in no iteration. Without
    `synchronise` the stamps do not wait for a GPU, which then works as far ahead as Avalanche lets it.
    """

    device: torch.device
    images: int
    between: Callable[[], object] | None
    synchronise: bool = True
    started: list[float] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    supports_distributed = False

    def before_training_iteration(self, strategy: Any, **_: Any) -> None:
        if strategy.clock.train_exp_counter == 1:
            if len(strategy.mb_x) != self.images:
                raise RuntimeError(f"Avalanche drew {len(strategy.mb_x)} images for a step of {self.images}.")
            self.started.append(self._now())

    def after_update(self, strategy: Any, **_: Any) -> None:
        if strategy.clock.train_exp_counter == 1:
            self.finished.append(self._now())
            if self.between is not None:
                self.between()
            self.resumed.append(self._now())

    def times(self, warmup: int) -> StepTimes:
        ends = self.finished[warmup:]
        return StepTimes(
            loop=[end - start for start, end in zip(self.resumed[warmup - 1 : -1], ends, strict=True)],
            compute=[end - start for start, end in zip(self.started[warmup:], ends, strict=True)],
        )

    def _now(self) -> float:
        if self.synchronise and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class _LabelledImages(TensorDataset):
    """Random images in memory, with the `targets` that Avalanche asks of a classification dataset."""

    def __init__(self, count: int) -> None:
        labels = torch.arange(count) % CLASSES_PER_TASK
        super().__init__(torch.rand(count, *IMAGE), labels)
        self.targets: list[int] = labels.tolist()


def _two_tasks(images_in_second: int) -> list[Any]:
    """Two experiences, each with a task label of its own and the classes 0 to 4."""
    from avalanche.benchmarks import (
        benchmark_from_datasets,
        task_incremental_benchmark,
        with_classes_timeline,
    )
    from avalanche.benchmarks.utils import as_classification_dataset

    datasets = [
        as_classification_dataset(_LabelledImages(count)) for count in (FIRST_TASK_IMAGES, images_in_second)
    ]
    benchmark = task_incremental_benchmark(benchmark_from_datasets(train=datasets))
    return list(with_classes_timeline(benchmark).train_stream)


def own_encoder() -> nn.Module:
    """Avalanche's reduced ResNet-18, the network its users train: the same layers and 160 features as ours."""
    from avalanche.models import SlimResNet18

    encoder = SlimResNet18(nclasses=1, nf=20)
    encoder.linear = nn.Identity()
    return encoder


def encoder_like(name: str) -> Callable[[], nn.Module]:
    """What the peer trains beside our encoder of this name: its own where it has one, else ours, maps averaged."""
    if name == "resnet18-reduced":
        return own_encoder
    return lambda: nn.Sequential(build_encoder(name), _Averaged())


class _Averaged(nn.Module):
    """Features [n, d] of vectors or maps."""

    def forward(self, features: Tensor) -> Tensor:
        return features.flatten(2).mean(2) if features.dim() > 2 else features


def _multi_head(encoder: nn.Module) -> nn.Module:
    """The encoder under Avalanche's multi-head classifier, put together as in Avalanche's `MTSimpleMLP`."""
    from avalanche.models import MultiHeadClassifier, MultiTaskModule

    with torch.no_grad():
        features = encoder.eval()(torch.rand(1, *IMAGE)).shape[1]

    class MultiHeadModel(MultiTaskModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder.train()
            self.classifier = MultiHeadClassifier(features, CLASSES_PER_TASK, masking=False)

        def forward(self, x: Tensor, task_labels: Tensor) -> Tensor:
            return self.classifier(self.encoder(x), task_labels)

    return MultiHeadModel()


def _step_times(
    plugin: Any,
    images_per_step: int,
    device: str | torch.device,
    encoder: Callable[[], nn.Module],
    steps: int,
    warmup: int,
    current: int,
    seed: int,
    between: Callable[[], object] | None,
    synchronise: bool,
) -> StepTimes:
    """Train two experiences with SGD and one plugin; the second, with the memory in use, is the one timed."""
    if warmup < 1:
        raise ValueError("warmup: at least 1, since a loop time runs from the end of the step before.")
    from avalanche.training import Naive
    from avalanche.training.plugins import EvaluationPlugin

    random.seed(seed)
    torch.manual_seed(seed)
    clock = _Clock(torch.device(device), images_per_step, between, synchronise)
    model = _multi_head(encoder()).to(clock.device)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=current,
        train_epochs=1,
        device=clock.device,
        plugins=[clock, plugin],
        evaluator=EvaluationPlugin(),
    )
    for experience in _two_tasks(images_in_second=current * (warmup + steps)):
        strategy.train(experience, num_workers=0)
    return clock.times(warmup)


def er_step_times(
    device: str | torch.device,
    encoder: Callable[[], nn.Module],
    steps: int,
    warmup: int,
    current: int = 10,
    replay: int = 5,
    seed: int = 0,
    between: Callable[[], object] | None = None,
    synchronise: bool = True,
) -> StepTimes:
    """Both times of each experience-replay step after `warmup` steps; the global random state is reseeded.

    `encoder` builds the module that maps images to features [n, d]. `between` is called off the clock after
    each iteration, the warm-up included: on a noisy machine the other side takes its steps there, so that both
    meet the same noise. Who keeps time there may do without the clock's own `synchronise`.
    """
    with _quiet():
        prepare_import()
        from avalanche.training.plugins import ReplayPlugin

        plugin = ReplayPlugin(REPLAY_MEMORY, batch_size=current, batch_size_mem=replay)
        images = current + replay
        return _step_times(
            plugin, images, device, encoder, steps, warmup, current, seed, between, synchronise
        )


def agem_step_times(
    device: str | torch.device,
    encoder: Callable[[], nn.Module],
    steps: int,
    warmup: int,
    current: int = 10,
    replay: int = 5,
    seed: int = 0,
    between: Callable[[], object] | None = None,
    synchronise: bool = True,
) -> StepTimes:
    """Both times of each A-GEM step, as `er_step_times`; `replay` images give the reference gradient."""
    with _quiet():
        prepare_import()
        from avalanche.training.plugins import AGEMPlugin

        plugin = AGEMPlugin(patterns_per_experience=AGEM_PATTERNS, sample_size=replay)
        return _step_times(
            plugin, current, device, encoder, steps, warmup, current, seed, between, synchronise
        )


PEERS: dict[str, tuple[str, Callable[..., StepTimes]]] = {
    "avalanche-er": ("er", er_step_times),
    "avalanche-agem": ("agem", agem_step_times),
}
"""Mode in the benchmark -> the method's name with us, and what times its steps."""
