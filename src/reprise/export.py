"""Leave with the result: the model of one task as a program of its own, checked to answer as the learner does."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from reprise.errors import InputError
from reprise.files import PART
from reprise.method import Method
from reprise.models.heads import PooledLinear, SeparateHeads, StackedHeads
from reprise.models.model import Model
from reprise.models.norm import allow_rows
from reprise.randomness import rng

if TYPE_CHECKING:
    from reprise.learner import Learner

ABOUT = "task.json"
"""What a `.pt2` file says of itself: the task's name, its kind and the images it takes."""
TOLERANCE = 1e-4
"""Largest difference, relative to the largest answer, between a program and the learner: rounding, no more."""


class Answer(nn.Module):
    """One task's model, normalisation included: images [n, c, h, w] as the learner takes them -> answers."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model, task: int, mean: Tensor, std: Tensor, counts: bool) -> None:
        super().__init__()
        self.model, self.task, self.counts = copy.deepcopy(model).float().cpu().eval(), task, counts
        allow_rows(self.model, False)
        self.model.use_memory_format(torch.contiguous_format)
        self.head = _head_of(self.model, task)
        self.model.heads = nn.Identity()
        self.register_buffer("mean", mean.float())
        self.register_buffer("std", std.float())

    def forward(self, images: Tensor) -> Tensor:
        x = (images.float() / 255 - self.mean) / self.std if self.counts else images
        return self.head(self.model.features(x, self.task))


@dataclass(frozen=True)
class Program:
    """An exported task, read back."""

    about: dict[str, Any]
    run: Any

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.run(images)


def export_task(learner: Learner, task: str, path: Path) -> Path:
    """Write the task's model in the form its ending names; it is there only if it answers as the learner does."""
    writers = {".pt2": _write_pt2, ".onnx": _write_onnx, ".safetensors": _write_weights}
    if path.suffix not in writers:
        raise InputError(f"export: {path.name} ends in none of {', '.join(writers)}; name such a file.")
    if type(learner.method).predict is not Method.predict:
        raise InputError(
            f"export: {type(learner.method).__name__} answers by looking into the memory, which no program carries; "
            "use Learner.predict."
        )
    trainer, index = learner.standing(), learner.index(task)
    if trainer.stacked:
        raise InputError("export: load the learner on the cpu first: Learner.load(out, device='cpu').")
    about = learner.book.pages[index].about
    shape, counts = about["input"], about["dtype"] == "uint8"
    answer = Answer(
        trainer.engine.model, index, trainer.stream.normalise.mean, trainer.stream.normalise.std, counts
    ).eval()
    draw = rng(0, "data:export", index)
    drawn = draw.integers(0, 256, (3, *shape)) if counts else draw.normal(size=(3, *shape))
    images = torch.from_numpy(drawn.astype(np.uint8 if counts else np.float32))
    partial = path.with_name(path.name + PART)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        again = writers[path.suffix](answer, images, partial, about)
        _compare(learner.predict(task, images, scores=True).float(), again, path)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def load_program(path: Path) -> Program:
    """A `.pt2` file of `export_task`, which needs neither the learner nor its modules."""
    found = {ABOUT: ""}
    try:
        program = torch.export.load(io.BytesIO(path.read_bytes()), extra_files=found)
        about = json.loads(found[ABOUT])
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{path} is no exported task ({str(error).splitlines()[0]}); write one with export."
        ) from None
    return Program(about, program.module())


def _write_pt2(answer: Answer, images: Tensor, path: Path, about: dict[str, Any]) -> Tensor:
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(answer, (images,), dynamic_shapes=({0: batch},), strict=False)
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={ABOUT: json.dumps(about)})
    return load_program(path)(images)


def _write_onnx(answer: Answer, images: Tensor, path: Path, about: dict[str, Any]) -> Tensor:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch needs it)
    except ImportError:
        raise InputError("export: onnx is not installed; pip install 'reprise-cl[onnx]'.") from None
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        answer,
        (images,),
        str(path),
        dynamo=True,
        dynamic_shapes=({0: batch},),
        input_names=["images"],
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _write_weights(answer: Answer, images: Tensor, path: Path, about: dict[str, Any]) -> Tensor:
    weights = {name.removeprefix("model."): t.contiguous().clone() for name, t in answer.state_dict().items()}
    path.write_bytes(safetensors.torch.save(weights, {"about": json.dumps(about)}))
    twin = copy.deepcopy(answer)
    for tensor in twin.state_dict().values():
        tensor.zero_()
    stored = safetensors.torch.load(path.read_bytes())
    twin.load_state_dict({name: stored[name.removeprefix("model.")] for name in twin.state_dict()})
    with torch.no_grad():
        return twin(images)


def _compare(expected: Tensor, found: Tensor, path: Path) -> None:
    far = float((expected - found).abs().max()) / max(float(expected.abs().max()), 1e-12)
    if not far <= TOLERANCE:
        raise InputError(
            f"export: {path.name} would answer otherwise than the learner (by {far:.2g} of the largest answer); "
            "it was not written."
        )


def _head_of(model: Model, task: int) -> nn.Module:
    """The head of one task alone: of stacked ones its part."""
    heads = model.heads
    if isinstance(heads, SeparateHeads):
        return heads.of_task[task]
    assert isinstance(heads, StackedHeads)
    own = PooledLinear(heads.weight.shape[2], heads.weight.shape[1])
    with torch.no_grad():
        own.fc.weight.copy_(heads.weight[task])
        own.fc.bias.copy_(heads.bias[task])
    return own
