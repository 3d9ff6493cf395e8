"""Model: one encoder, a head per task. Knows no losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from reprise.models.heads import SeparateHeads, StackedHeads
from reprise.models.parts import NamedParts, Parts
from reprise.randomness import torch_seeded
from reprise.streams.stream import Stream
from reprise.types import Output, Tree


class Model(nn.Module):
    """Encoder and heads; `taps` names the encoder's layers whose output a method wants to see."""

    def __init__(self, encoder: nn.Module, heads: nn.Module, taps: Sequence[str] = ()) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = heads
        self.memory_format = torch.contiguous_format
        self.input_shape: tuple[int, ...] = ()
        self._tapped: Tree = {}
        self._nudges: Tree = {}
        for name in taps:
            encoder.get_submodule(name).register_forward_hook(self._tap(name))

    def _tap(self, name: str) -> Callable[[nn.Module, object, Tensor], Tensor]:
        def catch(module: nn.Module, inputs: object, out: Tensor) -> Tensor:
            out = out + self._nudges[name] if name in self._nudges else out
            self._tapped[name] = out
            return out

        return catch

    def features(self, x: Tensor, task: Tensor | int) -> Tensor:
        """The encoder's answer; `task` is for models whose features depend on it (Side-Tuning)."""
        return self.encoder(x)

    def encode(self, x: Tensor, task: Tensor | int) -> Tensor:
        """The features of images in the model's memory format."""
        if x.dim() == 4 and self.memory_format != torch.contiguous_format:
            x = x.contiguous(memory_format=self.memory_format)
        return self.features(x, task)

    def forward(
        self,
        xs: Sequence[Tensor],
        tasks: Sequence[Tensor | int],
        nudges: Tree | None = None,
        same_input: bool = False,
        held: Sequence[bool] | None = None,
    ) -> list[Output]:
        """One encoder pass over the concatenated inputs, then each batch's own head, which `held` keeps as it is.

        With `same_input` all batches show the same images (several tasks of one image): they are encoded once.
        `nudges` are zeros added to the features and tapped layers (key "features" or a tap's name): the gradient
        with respect to a nudge is the gradient with respect to that layer, in a plain run and under vmap alike.
        """
        if same_input:
            sizes, x, task = [len(xs[0])], xs[0], tasks[0]
        else:
            sizes = [len(x) for x in xs]
            x = xs[0] if len(xs) == 1 else torch.cat(list(xs))
            task = tasks[0] if len(tasks) == 1 else _joint_task(tasks)
        self._nudges, self._tapped = nudges or {}, {}
        features = self.encode(x, task)
        if "features" in self._nudges:
            features = features + self._nudges["features"]
        taps, self._tapped, self._nudges = self._tapped, {}, {}
        parts = list(features.split(sizes))
        tapped = {name: list(layer.split(sizes)) for name, layer in taps.items()}
        if same_input:
            parts = parts * len(xs)
            tapped = {name: layers * len(xs) for name, layers in tapped.items()}
        held = held or [False] * len(parts)
        return [
            Output(
                part,
                self.heads(part, tasks[i], held[i]),
                {name: layers[i] for name, layers in tapped.items()},
            )
            for i, part in enumerate(parts)
        ]

    def use_memory_format(self, memory_format: torch.memory_format) -> None:
        """Hold weights, and turn inputs, into this format."""
        self.memory_format = memory_format
        for parameter in self.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=memory_format)

    def compile_parts(self) -> None:
        """Compile the encoder and each head. Modes and batch sizes that change are compiled as they come."""
        torch._dynamo.config.recompile_limit = 64
        self.encoder.compile()
        for head in self.heads.of_task if isinstance(self.heads, SeparateHeads) else [self.heads]:
            head.compile()

    def layer_shapes(self, input_shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shapes of the features and tapped layers of one example, found by a dry run in evaluation mode."""
        was_training = self.training
        self.eval()
        parameter = next(self.parameters())
        with torch.no_grad():
            x = torch.zeros(1, *input_shape, dtype=parameter.dtype, device=parameter.device)
            features = self.features(x, 0)
        self.train(was_training)
        tapped, self._tapped = self._tapped, {}
        return {"features": tuple(features.shape[1:])} | {n: tuple(t.shape[1:]) for n, t in tapped.items()}

    def head_of(self, name: str) -> int | None:
        """The task whose head alone a parameter belongs to."""
        kind, _, rest = name.partition("heads.of_task.")
        return int(rest.partition(".")[0]) if rest and not kind else None

    def heads_asked(self, anew: bool = False) -> list[int]:
        """The heads of their own that have answered since they were counted `anew`."""
        if not isinstance(self.heads, SeparateHeads):
            return []
        if anew:
            self.heads.asked.clear()
        return sorted(self.heads.asked)

    def begin(self, task: int) -> dict[str, int]:
        """Counters, by buffer name, that change when a task begins: heads over all tasks seen read one."""
        return {"heads.seen": task} if isinstance(self.heads, StackedHeads) else {}


def _joint_task(tasks: Sequence[Tensor | int]) -> Tensor | int:
    if all(isinstance(task, Tensor) for task in tasks):
        return torch.cat([task for task in tasks if isinstance(task, Tensor)])
    return tasks[0]


def build_model(parts: Parts | str, stream: Stream, seed: int, taps: bool = False) -> Model:
    """The model of a stream. Part j is initialised from `rng(seed, "init", j)`: the encoder is part 0, the head
    of task j part j + 1, so that heads made early and late agree."""
    parts = NamedParts(parts) if isinstance(parts, str) else parts
    with torch_seeded(seed, "init", 0):
        encoder = parts.encoder()
    heads = SeparateHeads()
    model = Model(encoder, heads, parts.taps(encoder, stream.input_shape) if taps else ())
    model.input_shape = stream.input_shape
    features_shape = model.layer_shapes(stream.input_shape)["features"]
    if stream.shared_head:
        assert stream.classes_per_task is not None
        whole = stream.scenario == "class"
        model.heads = StackedHeads(len(stream.kinds), stream.classes_per_task, features_shape[0], whole)
    for task, kind in enumerate(stream.kinds):
        with torch_seeded(seed, "init", task + 1):
            if isinstance(model.heads, StackedHeads):
                model.heads.reset(task)
            else:
                heads.of_task.append(parts.head(task, kind, features_shape, stream.input_shape))
    return model
