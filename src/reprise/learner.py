"""Learner: the door for a user's own tasks. One task at a time, open-ended, no stream known in advance.

Learning task j is resuming a run at its phase j with one more task than it had: the same trainer, methods, memory and
checkpoints as the command line's (docs/decisions/0010).
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from reprise import metrics, stopping
from reprise.archive import Archive
from reprise.book import Book, Page, method_from_dict, method_to_dict
from reprise.build import Cell
from reprise.config import Experiment
from reprise.errors import Diverged, InputError
from reprise.files import remove_partial, write_bytes
from reprise.keeping import GroupKeeper, Saving, Seat, go_on
from reprise.ledger import settle
from reprise.locks import try_lock
from reprise.method import Method
from reprise.methods import CAR
from reprise.models.encoders import ENCODERS
from reprise.models.outside import build_outside
from reprise.models.parts import OwnParts
from reprise.own_tasks import OwnTask, Seen, look_at, read_examples
from reprise.results import environment, make_record, save_record, trouble
from reprise.runner import pick_device, set_arithmetic
from reprise.stopping import Stopped
from reprise.streams.stream import Normalise, Stream
from reprise.tasks import Classify, Regress, Task
from reprise.train import Progress, Trainer
from reprise.types import Batch, Tree

WEIGHTS = "encoder.safetensors"
AT_ONCE = 100
"""Images that are answered at once."""

Numbers = float | Sequence[float]


class Learner:
    """Learns one task after another and keeps the old ones alive.

    encoder    any module from images [n, c, h, w] to features [n, d] or [n, c, h, w]: it is copied, never changed; or
               a name: one of ours (`resnet18-reduced`, …), `timm:NAME`, `torchvision:NAME` (`timm:NAME:pretrained`)
    method     how forgetting is held off; `reprise.CAR()` if nothing is said
    memory     a budget in bytes ("64MB") for all that the method keeps: shares shrink when a task joins
    m_per_task, m_per_class  the same as a number of examples, which no later task changes
    out        folder of checkpoints, record and log; a temporary one if nothing is said
    heads      separate: a head per task, whatever its kind. stacked: all tasks classify equally many classes, and a
               step may replay several of them at once (plain SGD only; the Split protocol)
    room       tasks that stacked heads and shares of the memory are laid out for, if known: within it nothing
               shrinks, and a task is learned to the bit as in a stream of so many
    mean, std  what uint8 images are normalised by, for all channels or each
    """

    def __init__(
        self,
        encoder: nn.Module | str,
        method: Method | None = None,
        memory: str | None = None,
        out: str | Path | None = None,
        *,
        m_per_task: int | None = None,
        m_per_class: int | None = None,
        heads: Literal["separate", "stacked"] = "separate",
        room: int | None = None,
        optimizer: Literal["adam", "sgd"] | None = None,
        lr: float | None = None,
        batch: int = 32,
        replay: int | None = None,
        p_replay: float | None = None,
        bn: Literal["joint", "separate"] | None = None,
        clip: float | None = None,
        mean: Numbers = 0.5,
        std: Numbers = 0.25,
        taps: Sequence[str] | None = None,
        device: str = "cpu",
        precision: Literal["float32", "tf32", "bf16", "float64"] = "float32",
        seed: int = 0,
    ) -> None:
        method = CAR() if method is None else method
        stacked = heads == "stacked"
        optimizer = optimizer or ("sgd" if stacked else "adam")
        given = [
            n for n, v in (("memory", memory), ("m_per_task", m_per_task), ("m_per_class", m_per_class)) if v
        ]
        if method.replays and not given:
            raise InputError('memory: this method remembers examples; give memory="64MB" or m_per_task=100.')
        if method.merged:
            raise InputError("method: multitask needs all tasks at once; use `reprise run`.")
        if heads not in ("separate", "stacked"):
            raise InputError(f"heads: {heads!r} is not known; choose separate or stacked.")
        if room is not None and (not stacked or room < 1):
            raise InputError(f'room: {room} tasks; it is a number above 0, and for heads="stacked" only.')
        if precision == "bf16" and not (isinstance(encoder, str) and encoder in ENCODERS):
            raise InputError(
                "precision: bf16 is for the encoders of Reprise; use float32 or tf32 with your own."
            )
        self.settings: dict[str, Any] = {
            "encoder": encoder if isinstance(encoder, str) else None,
            "method": method_to_dict(method),
            **{
                "memory": memory,
                "m_per_task": m_per_task,
                "m_per_class": m_per_class,
                "heads": heads,
                "room": room or 0,
            },
            **{"optimizer": optimizer, "lr": lr or (0.03 if optimizer == "sgd" else 1e-3), "batch": batch},
            **{
                "replay": replay or batch,
                "p_replay": p_replay,
                "bn": bn or ("joint" if stacked else "separate"),
            },
            **{
                "clip": clip,
                "mean": _listed(mean),
                "std": _listed(std),
                "taps": None if taps is None else list(taps),
            },
            **{"precision": precision, "seed": seed},
        }
        self.method, self.device, self.seed = method, pick_device(device), seed
        self._experiment(1, None)  # what is wrong with the settings is said now
        self.out = Path(out or tempfile.mkdtemp(prefix="reprise-"))
        self.temporary = out is None
        if self.temporary:
            weakref.finalize(self, shutil.rmtree, self.out, ignore_errors=True)
        self._own_heads: dict[str, nn.Module] = {}
        self._tests: dict[str, Any] = {}
        self._trainer: Trainer | None = None
        self._encoder = _take_encoder(encoder, seed)
        self.book = self._open()

    # ---- learning
    def learn(
        self,
        task: OwnTask,
        epochs: int = 1,
        steps: int | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, dict[str, float | None]]:
        """Learn a task, and say how well all tasks are answered afterwards.

        A task that is finished is not learned again where data and settings are the same; an interrupted one goes on.
        Anything else is refused unless `replace` is said: then the learner goes back to before that task, and tasks
        that came after it are gone too.
        """
        index = self._place_of(task, replace)
        seen = look_at(task, index, self.seed, self._stacked)
        self._fits_the_others(seen)
        page = Page.of(seen, task.head is not None, epochs, steps)
        known = self.book.find(task.name)
        if known is not None and (difference := self.book.pages[known].difference(page)) is not None:
            self._replace(
                known,
                f"was learned with {difference}"
                if self.book.pages[known].finished
                else f"was begun with {difference}",
                replace,
            )
            known = None
        if task.head is not None:
            self._own_heads[task.name] = task.head
        self._tests[task.name] = seen.test
        if known is not None and self.book.pages[known].finished:
            return self.scores
        if known is None:
            self.book.pages.append(page)
            self._write()
        with try_lock(self._folder) as mine:
            if not mine:
                raise InputError(
                    f"out: another process is learning in {self.out}; wait for it, or name another folder."
                )
            self._train(index, seen, epochs, steps, progress)
        return self.scores

    def _train(
        self, index: int, seen: Seen, epochs: int, steps: int | None, progress: Progress | None
    ) -> None:
        remove_partial(self._folder)
        trainer = self._make_trainer(seen, epochs, steps)
        self._check_heads(trainer, seen, index)
        seat = Seat(self._folder, "learner")
        go_on(trainer, [seat], _say)
        keeper = GroupKeeper([seat], Saving(tasks=True), stopping.asked)
        with stopping.listening(), stopping.heeding():
            try:
                [outcome] = trainer.run(progress, keeper=keeper)
            except Stopped as stop:
                raise KeyboardInterrupt(
                    f"stopped where it can go on (signal {stop.number}); learn {seen.name!r} again to do so"
                ) from None
        if (why := trouble(self.seed, outcome)) is not None:
            raise Diverged(why)
        keeper.finish([True])
        self._trainer = trainer
        page = self.book.pages[index]
        self.book.pages[index] = changed(
            page, finished=True, m=trainer.experiment.m, bytes=dict(trainer.outcomes[0].bytes)
        )
        self._write()
        self._record()

    # ---- asking
    @property
    def tasks(self) -> list[str]:
        """The names of the tasks learned so far."""
        return [page.name for page in self.book.finished]

    @property
    def matrix(self) -> dict[str, list[list[float | None]]]:
        """Accuracy and loss [i][j] of task j after task i was learned; None where nobody could look."""
        if not self.tasks:
            return {"accuracy": [], "loss": []}
        outcome = self._standing().outcomes[0]
        return {
            "accuracy": [list(r or ()) for r in outcome.accuracy],
            "loss": [list(r or ()) for r in outcome.loss],
        }

    @property
    def scores(self) -> dict[str, dict[str, float | None]]:
        """Loss and accuracy of every task as they were after the last one was learned."""
        matrix = self.matrix
        return {
            name: {"loss": matrix["loss"][-1][j], "accuracy": matrix["accuracy"][-1][j]}
            for j, name in enumerate(self.tasks)
        }

    @property
    def forgetting(self) -> dict[str, float | None]:
        """By how much each old task got worse since it was learned: accuracy lost, or % of loss gained."""
        matrix = self.matrix
        found: dict[str, float | None] = {}
        for j, name in enumerate(self.tasks[:-1]):
            then, now = matrix["accuracy"][j][j], matrix["accuracy"][-1][j]
            if then is not None and now is not None:
                found[name] = then - now
                continue
            was, became = matrix["loss"][j][j], matrix["loss"][-1][j]
            if was is None or became is None or was <= metrics.SMALLEST_REFERENCE:
                found[name] = None
            else:
                found[name] = 100 * (became - was) / was
        return found

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """After each task: examples of every task that were remembered, and all bytes the method kept, by kind."""
        return [
            {"after": page.name, "m_per_task": self._share(page, j), "bytes": page.bytes}
            for j, page in enumerate(self.book.finished)
        ]

    def evaluate(self, data: Mapping[str, Any] | None = None) -> dict[str, dict[str, float | None]]:
        """Loss and accuracy of every task by its test data, or by data given anew (by the task's name)."""
        trainer = self._standing()
        names = self.tasks if data is None else list(data)
        for name in names:
            index = self._index(name)
            if data is not None:
                self._tests[name] = self._read(name, index, data[name])
            elif name not in self._tests:
                raise InputError(
                    f"evaluate: the test data of {name!r} is not here any more; give it as "
                    f"evaluate({{{name!r}: data, …}})."
                )
            trainer.tests[index] = self._tests[name].to(self.device)
        [scores] = trainer.evaluator.scores([self._index(name) for name in names])
        return {n: {"loss": loss, "accuracy": right} for n, (loss, right) in zip(names, scores, strict=True)}

    def predict(self, task: str, images: Any, scores: bool = False) -> Tensor:
        """Answers [n, …] to images [n, c, h, w]: classes, a class per pixel, or values; with `scores` the logits."""
        trainer, index = self._standing(), self._index(task)
        x = _images(images, self.book.pages[index].row["x"][0])
        parts = [self._answer(trainer, index, part) for part in x.split(AT_ONCE)]
        found = torch.cat(parts).cpu()
        kind = self.book.pages[index].make_kind()
        if scores or isinstance(kind, Regress):
            return found
        return found.argmax(1)

    def _answer(self, trainer: Trainer, index: int, x: Tensor) -> Tensor:
        engine = trainer.engine
        columns = {"x": x.to(self.device), "y": torch.zeros(len(x), dtype=torch.long, device=self.device)}
        columns["task"] = torch.full((len(x),), index, device=self.device)
        if engine.stacked:
            columns = {name: column.unsqueeze(0) for name, column in columns.items()}
        batch = engine.reader.batch(columns, index)
        memory = trainer.memory.columns(index) if trainer.memory is not None else {}

        def answer(net: Any, batch: Batch, memory: Tree) -> Tensor:
            return engine.method.predict(net, batch.x, batch.task, memory)

        found = engine.compute(answer, batch, memory)
        return found[0] if engine.stacked else found

    def report(self) -> str:
        """What was learned, forgotten and remembered, as a table; with the extra `report` also as a page in
        `out`/report, which the last line names."""
        from reprise.learner_report import report_table, write_page

        return report_table(self) + write_page(self)

    def export(self, task: str, path: str | Path) -> Path:
        """Write the model of one task: `.pt2` (torch.export), `.onnx`, or `.safetensors` (weights alone).

        The program takes images as the learner does, and is checked to give the same answer before it is left there.
        """
        from reprise.export import export_task

        return export_task(self, task, Path(path))

    # ---- loading
    @staticmethod
    def load(
        out: str | Path,
        encoder: nn.Module | None = None,
        heads: Mapping[str, nn.Module] | None = None,
        device: str = "cpu",
        tests: Mapping[str, Any] | None = None,
    ) -> Learner:
        """A learner as it was left. Modules that were given must be given again; weights come from the folder.

        tests  test data by task, where learning is to go on and old tasks are to be measured
        """
        book = Book.read(Path(out))
        own = dict(book.settings)
        if own["encoder"] is None and encoder is None:
            raise InputError(f"encoder: the learner in {out} has one of your own; give it as encoder=.")
        method = method_from_dict(own.pop("method"))
        made: Any = own.pop("encoder") or encoder
        own["room"] = own["room"] or None
        learner = Learner(made, method, own.pop("memory"), out, device=device, **own)
        missing = [page.name for page in book.pages if page.own_head and page.name not in (heads or {})]
        if missing:
            raise InputError(
                f"heads: {missing[0]!r} has a head of your own; give it as heads={{{missing[0]!r}: head}}."
            )
        learner._own_heads = dict(heads or {})
        for name, data in (tests or {}).items():
            learner._tests[name] = learner._read(name, learner._index(name), data)
        if learner.tasks:
            learner._standing()
        return learner

    # ---- inside
    @property
    def _stacked(self) -> bool:
        return self.settings["heads"] == "stacked"

    @property
    def _folder(self) -> Path:
        return self.out / f"seed-{self.seed}"

    def _open(self) -> Book:
        """The book in the folder, if it is this learner's, or a new one."""
        if not (self.out / "learner.json").exists():
            if self.out.exists() and any(self.out.iterdir()):
                raise InputError(f"out: {self.out} is not empty and holds no learner; name a new folder.")
            book = Book(self.settings)
            try:
                self.out.mkdir(parents=True, exist_ok=True)
                if self.settings["encoder"] is None:
                    write_bytes(self.out / WEIGHTS, safetensors.torch.save(_tensors_of(self._encoder)))
                book.write(self.out)
            except OSError as error:
                raise InputError(
                    f"out: {self.out} cannot be written ({error.strerror}); name another folder."
                ) from None
            return book
        book = Book.read(self.out)
        differing = [name for name, value in self.settings.items() if book.settings.get(name) != value]
        if differing:
            name = differing[0]
            raise InputError(
                f"out: {self.out} holds a learner with {name} {book.settings.get(name)!r}, here it is "
                f"{self.settings[name]!r}; name another folder, or use Learner.load."
            )
        if self.settings["encoder"] is None:
            _load_weights(self._encoder, self.out / WEIGHTS)
        return book

    def _write(self) -> None:
        self.book.write(self.out)

    def _place_of(self, task: OwnTask, replace: bool) -> int:
        """Which task of the stream it is; an interrupted one must be finished first."""
        known = self.book.find(task.name)
        if known is not None:
            return known
        if self.book.pages and not self.book.pages[-1].finished:
            pending = len(self.book.pages) - 1
            self._replace(pending, "was interrupted and is to be learned first", replace)
        return len(self.book.pages)

    def _replace(self, index: int, why: str, replace: bool) -> None:
        """Go back to before a task, or refuse to."""
        name, later = self.book.pages[index].name, [page.name for page in self.book.pages[index + 1 :]]
        if not replace:
            lost = f" (and drops {', '.join(later)})" if later else ""
            raise InputError(
                f"task {name!r}: it {why}; learn it as it was, or say replace=True, which learns anew{lost}."
            )
        self.book.pages = self.book.pages[:index]
        self._trainer = None
        self._write()
        archive = Archive(self._folder / "checkpoints")
        for position, path in archive.positions().items():
            if position > (index, 0):
                path.unlink()
        if archive.folder.exists():
            archive.prune(keep=0, finished=True)

    def _fits_the_others(self, seen: Seen) -> None:
        if self.book.pages and (known := tuple(self.book.pages[0].row["x"][0])) != seen.input_shape:
            raise InputError(
                f"task {seen.name!r}: images are {list(seen.input_shape)}, those of {self.book.pages[0].name!r} "
                f"{list(known)}; resize them."
            )
        if not self._stacked:
            return
        if not isinstance(seen.kind, Classify):
            raise InputError(
                f'task {seen.name!r}: heads="stacked" is for classification; use heads="separate".'
            )
        others = {page.kind.get("classes") for page in self.book.pages if page.name != seen.name}
        if others - {seen.kind.classes}:
            raise InputError(
                f"task {seen.name!r}: it has {seen.kind.classes} classes, the others {others.pop()}, and stacked "
                'heads are of one size; use heads="separate".'
            )

    def _experiment(self, epochs: int, steps: int | None) -> Experiment:
        own = self.settings
        names = (
            "memory",
            "m_per_task",
            "m_per_class",
            "optimizer",
            "lr",
            "batch",
            "replay",
            "p_replay",
            "bn",
        )
        fields = {name: own[name] for name in (*names, "clip", "precision")}
        if not self.method.replays:
            fields |= {"memory": None, "m_per_task": None, "m_per_class": None}
        return Experiment(
            "own", self.method, encoder=own["encoder"] or "own", epochs=epochs, steps=steps, **fields
        )

    def _stream(self, seen: Seen | None) -> Stream:
        """All tasks so far; of the old ones only the test data is there, if that."""
        tasks = []
        for page in self.book.pages if seen is not None else self.book.finished:
            if seen is not None and page.name == seen.name:
                tasks.append(Task(seen.name, seen.kind, seen.train, seen.test))
                continue
            now = "it is finished" if seen is None else f"{seen.name!r} is being learned"
            why = f"task {page.name!r}: its training data was touched while {now}; only the memory may be."
            untold = f"task {page.name!r}: its test data is not here; give it to evaluate or load."
            test = self._tests.get(page.name) or page.gone("test", untold)
            tasks.append(Task(page.name, page.make_kind(), page.gone("train", why), test))
        shape = tuple(self.book.pages[0].row["x"][0])
        mean, std = (_per_channel(self.settings[name], shape) for name in ("mean", "std"))
        return Stream(
            name="own",
            tasks=tuple(tasks),
            input_shape=shape,
            normalise=Normalise(mean, std),
            fingerprint="/".join(page.hash for page in self.book.pages),
            shared_head=self._stacked,
            full_tasks=max(self.settings["room"], len(tasks)),
            room=self.settings["room"],
            classes_per_task=self.book.pages[0].kind["classes"] if self._stacked else None,
            open_ended=True,
        )

    def _parts(self) -> OwnParts:
        built = self.settings["encoder"] if self.settings["encoder"] in ENCODERS else None
        taps = self.settings["taps"]
        pages = list(enumerate(self.book.pages))
        return OwnParts(
            self._encoder,
            built,
            {j: self._own_heads[page.name] for j, page in pages if page.own_head},
            None if taps is None else tuple(taps),
            {j: tuple(page.row["y"][0][-2:]) for j, page in pages if len(page.row["y"][0]) >= 2},
        )

    def _make_trainer(self, seen: Seen | None, epochs: int = 1, steps: int | None = None) -> Trainer:
        set_arithmetic(self.settings["precision"])
        stream, parts = self._stream(seen), self._parts()
        experiment = self._experiment(epochs, steps)
        smallest = min(len(task.train) for task in stream.tasks)
        if experiment.replay > smallest:  # a task of few examples is remembered whole
            experiment = changed(experiment, replay=smallest)
        settled = settle(experiment, stream, parts)
        cell = Cell(settled, self.seed, stream, parts)
        # Modules of other people know nothing of lanes.
        return Trainer([cell], self.device, stacked=None if parts.built else False)

    def _check_heads(self, trainer: Trainer, seen: Seen, index: int) -> None:
        """A dry run of the new task's head: what it answers must be what its loss compares."""
        columns = {name: column.to(self.device) for name, column in seen.train.blank(2).items()}
        if trainer.stacked:
            return
        engine = trainer.engine
        batch = engine.reader.batch(columns, index)
        found = engine.compute(lambda net, batch: net(batch.x, batch.task).prediction, batch)
        outputs = seen.kind.outputs
        wanted = (2, outputs) if not seen.kind.dense else (2, outputs, *seen.target_size)
        if tuple(found.shape) != wanted:
            raise InputError(
                f"task {seen.name!r}: its head answers {list(found.shape[1:])} to an image, and the target asks for "
                f"{list(wanted[1:])}; give a head that fits, or none."
            )

    def _standing(self) -> Trainer:
        """The trainer after the last finished task."""
        if self._trainer is None:
            if not self.tasks:
                raise InputError("learner: no task was learned yet; call learn first.")
            trainer = self._make_trainer(None)
            self._restore(trainer)
            self._trainer = trainer
        return self._trainer

    def _restore(self, trainer: Trainer) -> None:
        from reprise.archive import tree_of
        from reprise.checkpoint import Checkpoint, joined, restore

        archive = Archive(self._folder / "checkpoints")
        entry = archive.load(archive.task_end(len(self.tasks)))
        restore(trainer, joined(trainer, [Checkpoint(tree_of(entry.parts), entry.values)]))

    def _index(self, name: str) -> int:
        if name not in self.tasks:
            known = ", ".join(self.tasks) or "none yet"
            raise InputError(f"task {name!r} was not learned; the learner knows {known}.")
        return self.tasks.index(name)

    def _read(self, name: str, index: int, data: Any) -> Any:
        page = self.book.pages[index]
        made = {"classify": OwnTask.classify, "segment": OwnTask.segment, "regress": OwnTask.regress}
        kind = dict(page.kind)
        options = {"norm": kind["norm"]} if kind["kind"] == "regress" else {"classes": kind["classes"]}
        task = made[kind["kind"]](name, data, data, **options)  # type: ignore[operator]
        return read_examples(task, "test", data, index, self.seed, self._stacked)[0]

    def _share(self, page: Page, j: int) -> int | None:
        if page.m is None:
            return None
        return page.m // max(self.settings["room"], j + 1) if self._stacked else page.m

    def _record(self) -> None:
        """The record of the run so far, where everything was measured."""
        trainer = self._standing()
        outcome = trainer.outcomes[0]
        if None in (outcome.loss[-1] or [None]):
            (self._folder / "record.json").unlink(missing_ok=True)
            return
        quota = trainer.quotas[0] if trainer.memory is not None else None
        record = make_record(
            trainer.experiment,
            self.seed,
            outcome,
            quota,
            trainer.stream.fingerprint,
            environment(self.device),
        )
        save_record(self._folder, record | {"tasks": self.tasks}, outcome.log)


def _say(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def _take_encoder(encoder: nn.Module | str, seed: int) -> nn.Module | None:
    """A copy of a user's encoder, or one built by another library; None for those that are built for each seed."""

    if isinstance(encoder, nn.Module):
        return copy.deepcopy(encoder).cpu()
    return None if encoder in ENCODERS else build_outside(encoder, seed)


def _tensors_of(module: nn.Module | None) -> dict[str, Tensor]:
    assert module is not None
    return {name: t.detach().cpu().contiguous().clone() for name, t in module.state_dict().items()}


def _load_weights(module: nn.Module | None, path: Path) -> None:
    """The weights an encoder had when the learner was made: a learner does not depend on those it is given later."""
    assert module is not None
    stored = safetensors.torch.load_file(path)
    own = module.state_dict()
    differing = [
        n
        for n in own.keys() | stored.keys()
        if n not in own or n not in stored or own[n].shape != stored[n].shape
    ]
    if differing:
        raise InputError(
            f"encoder: {sorted(differing)[0]} is not as in {path}; give the encoder the learner was made with."
        )
    module.load_state_dict(stored)


def _listed(value: Numbers) -> list[float]:
    return [float(value)] if isinstance(value, int | float) else [float(v) for v in value]


def _per_channel(values: Sequence[float], shape: tuple[int, ...]) -> Tensor:
    if len(values) not in (1, shape[0]):
        raise InputError(
            f"mean, std: {len(values)} values were given for {shape[0]} channels; give 1 or {shape[0]}."
        )
    return torch.tensor(values, dtype=torch.float64).view(-1, *[1] * (len(shape) - 1))


def _images(images: Any, shape: Sequence[int]) -> Tensor:
    from reprise.own_data import Form

    form = Form("classify", "predict")
    if isinstance(images, Tensor | np.ndarray) and images.ndim == len(shape) + 1:
        x = torch.as_tensor(images)
        form.image(x[0])
    else:
        x = torch.stack([form.image(image) for image in images])
    if list(x.shape[1:]) != list(shape):
        raise InputError(
            f"predict: images are {list(x.shape[1:])}, the learner's {list(shape)}; resize them."
        )
    return x if x.dtype == torch.uint8 else x.float()
