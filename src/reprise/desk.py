"""A learner's desk: what it has at hand, and the trainer of all tasks so far that is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reprise.archive import Archive, Damaged, tree_of
from reprise.book import Book
from reprise.build import Cell
from reprise.checkpoint import Checkpoint, joined, restore
from reprise.config import Experiment
from reprise.errors import InputError
from reprise.examples import Examples
from reprise.ledger import settle
from reprise.machine import set_arithmetic
from reprise.method import Method
from reprise.models.encoders import ENCODERS
from reprise.models.parts import OwnParts
from reprise.own_tasks import Seen, read_examples
from reprise.streams.stream import Normalise, Stream
from reprise.tasks import Classify, Task
from reprise.train import Trainer
from reprise.types import Batch, Tree

FIELDS = (
    *("memory", "m_per_task", "m_per_class", "optimizer", "lr", "batch", "replay", "p_replay", "bn"),
    *("clip", "precision"),
)
"""Settings of a learner that are fields of an experiment."""


def experiment_of(settings: dict[str, Any], method: Method, epochs: int, steps: int | None) -> Experiment:
    fields = {name: settings[name] for name in FIELDS}
    if not method.replays:
        fields |= {"memory": None, "m_per_task": None, "m_per_class": None}
    encoder = settings["encoder"] or "own"
    return Experiment("own", method, encoder=encoder, epochs=epochs, steps=steps, **fields)


@dataclass
class Desk:
    """encoder is None where it is built anew by name; heads and tests are by task."""

    book: Book
    method: Method
    device: torch.device
    encoder: nn.Module | None
    heads: dict[str, nn.Module] = field(default_factory=dict)
    tests: dict[str, Examples] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        return self.book.settings

    @property
    def stacked(self) -> bool:
        return self.settings["heads"] == "stacked"

    # ---- the trainer
    def trainer(self, seen: Seen | None = None, epochs: int = 1, steps: int | None = None) -> Trainer:
        """Of all tasks so far: the finished ones, and the one that is to be learned."""
        set_arithmetic(self.settings["precision"])
        stream, parts = self.stream(seen), self.parts()
        experiment = experiment_of(self.settings, self.method, epochs, steps)
        smallest = min(len(task.train) for task in stream.tasks)
        if experiment.replay > smallest:  # a task of few examples is remembered whole
            experiment = replace(experiment, replay=smallest)
        if seen is not None and experiment.batch > len(seen.train):  # and learned whole, in every step
            experiment = replace(experiment, batch=len(seen.train))
        cell = Cell(settle(experiment, stream, parts), self.settings["seed"], stream, parts)
        # Modules of other people know nothing of lanes.
        return Trainer([cell], self.device, stacked=None if parts.built else False)

    def stream(self, seen: Seen | None) -> Stream:
        """All tasks so far; of the old ones only the test data is there, if that."""
        tasks = []
        for page in self.book.pages if seen is not None else self.book.finished:
            if seen is not None and page.name == seen.name:
                tasks.append(Task(seen.name, seen.kind, seen.train, seen.test))
                continue
            now = "it is finished" if seen is None else f"{seen.name!r} is being learned"
            why = f"task {page.name!r}: its training data was touched while {now}; only the memory may be."
            untold = f"task {page.name!r}: its test data is not here; give it to evaluate or load."
            test = self.tests.get(page.name) or page.gone("test", untold)
            tasks.append(Task(page.name, page.make_kind(), page.gone("train", why), test))
        shape = tuple(self.book.pages[0].row["x"][0])
        mean, std = (_per_channel(self.settings[name], shape) for name in ("mean", "std"))
        return Stream(
            name="own",
            tasks=tuple(tasks),
            input_shape=shape,
            normalise=Normalise(mean, std),
            fingerprint="/".join(page.hash for page in self.book.pages),
            shared_head=self.stacked,
            full_tasks=max(self.settings["room"], len(tasks)),
            room=self.settings["room"],
            classes_per_task=self.book.pages[0].kind["classes"] if self.stacked else None,
            open_ended=True,
        )

    def parts(self) -> OwnParts:
        name, taps = self.settings["encoder"], self.settings["taps"]
        pages = list(enumerate(self.book.pages))
        return OwnParts(
            self.encoder,
            name if name in ENCODERS else None,
            {j: self.heads[page.name] for j, page in pages if page.own_head},
            None if taps is None else tuple(taps),
            {j: tuple(page.row["y"][0][-2:]) for j, page in pages if len(page.row["y"][0]) >= 2},
        )

    def restored(self, folder: Path) -> Trainer:
        """The trainer where the last finished task ended."""
        trainer, archive = self.trainer(), Archive(folder / "checkpoints")
        try:
            entry = archive.load(archive.task_end(len(self.book.finished)))
        except Damaged as error:
            raise InputError(
                f"out: the checkpoint in {archive.folder} is damaged ({error}); learn the last task again with "
                "replace=True."
            ) from None
        restore(trainer, joined(trainer, [Checkpoint(tree_of(entry.parts), entry.values)]))
        return trainer

    def answer(self, trainer: Trainer, index: int, x: Tensor) -> Tensor:
        """What the method answers to images [n, …] of a task: logits or values [n, outputs, …]."""
        engine, n = trainer.engine, len(x)
        columns = {"x": x, "y": torch.zeros(n, dtype=torch.long), "task": torch.full((n,), index)}
        columns = {name: column.to(self.device) for name, column in columns.items()}
        if engine.stacked:
            columns = {name: column.unsqueeze(0) for name, column in columns.items()}
        memory = trainer.memory.columns(index) if trainer.memory is not None else {}

        def predict(net: Any, batch: Batch, memory: Tree) -> Tensor:
            return engine.method.predict(net, batch.x, batch.task, memory)

        found = engine.compute(predict, engine.reader.batch(columns, index), memory)
        return found[0] if engine.stacked else found

    # ---- data
    def read_test(self, name: str, data: Any) -> Examples:
        """Test data of a task that was learned before."""
        index = self.book.find(name)
        assert index is not None
        task = self.book.pages[index].as_task(data)
        return read_examples(task, "test", data, index, self.settings["seed"], self.stacked)[0]

    def require_fit(self, seen: Seen) -> None:
        """Refuse a task that cannot stand beside the others."""
        pages = [page for page in self.book.pages if page.name != seen.name]
        if pages and (known := tuple(pages[0].row["x"][0])) != seen.input_shape:
            raise InputError(
                f"task {seen.name!r}: images are {list(seen.input_shape)}, those of {pages[0].name!r} "
                f"{list(known)}; resize them."
            )
        if pages and (pages[0].row["x"][1] == "uint8") != (seen.row["x"].dtype == torch.uint8):
            raise InputError(
                f"task {seen.name!r}: images are {str(seen.row['x'].dtype).removeprefix('torch.')}, those of "
                f"{pages[0].name!r} {pages[0].row['x'][1]}; give all of them as uint8, or all as real numbers."
            )
        if not pages and self.encoder is not None:
            _require_features(self.encoder, seen.input_shape)
        if not self.stacked:
            return
        if not isinstance(seen.kind, Classify):
            raise InputError(
                f'task {seen.name!r}: heads="stacked" is for classification; use heads="separate".'
            )
        if others := {page.kind["classes"] for page in pages} - {seen.kind.classes}:
            raise InputError(
                f"task {seen.name!r}: it has {seen.kind.classes} classes, the others {others.pop()}, and stacked "
                'heads are of one size; use heads="separate".'
            )

    def require_head(self, trainer: Trainer, seen: Seen, index: int) -> None:
        """A dry run of the new task's head: what it answers must be what its loss compares."""
        if self.stacked:
            return
        columns = {name: column.to(self.device) for name, column in seen.train.blank(2).items()}
        batch = trainer.engine.reader.batch(columns, index)
        found = trainer.engine.compute(lambda net, batch: net(batch.x, batch.task).prediction, batch)
        outputs = seen.kind.outputs
        wanted = (2, outputs, *seen.target_size) if seen.kind.dense else (2, outputs)
        if tuple(found.shape) != wanted:
            raise InputError(
                f"task {seen.name!r}: its head answers {list(found.shape[1:])} to an image, and the target asks "
                f"for {list(wanted[1:])}; give a head that fits, or none."
            )


def _require_features(encoder: nn.Module, shape: tuple[int, ...]) -> None:
    """A dry run of a user's encoder: it must take the images, and answer with features or maps."""
    was_training = encoder.training
    dtype = next((p.dtype for p in encoder.parameters()), torch.float32)
    try:
        with torch.no_grad():
            found = encoder.eval()(torch.zeros(2, *shape, dtype=dtype))
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"encoder: it does not take images {list(shape)} ({why}); give others, or another encoder."
        ) from None
    finally:
        encoder.train(was_training)
    if not isinstance(found, Tensor) or found.dim() not in (2, 4) or len(found) != 2:
        answer = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"encoder: it answers {answer} to two images, and features are [2, d] or maps [2, c, h, w]; wrap it in a "
            "module that gives one of these."
        )


def _per_channel(values: Sequence[float], shape: tuple[int, ...]) -> Tensor:
    if len(values) not in (1, shape[0]):
        raise InputError(
            f"mean, std: {len(values)} values were given for {shape[0]} channels; give 1 or {shape[0]}."
        )
    return torch.tensor(values, dtype=torch.float64).view(-1, *[1] * (len(shape) - 1))
