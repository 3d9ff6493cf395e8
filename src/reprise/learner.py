"""Learner: the door for a user's own tasks. One task at a time, open-ended, no stream known in advance.

Learning task j is resuming a run at its phase j with one more task than it had: the same trainer, methods, memory and
checkpoints as the command line's (docs/decisions/0010).
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reprise import metrics, stopping
from reprise.archive import Archive
from reprise.book import Book, Page, find_method, method_from_dict, method_to_dict
from reprise.desk import Desk, experiment_of
from reprise.errors import Diverged, InputError
from reprise.examples import Examples
from reprise.files import remove_partial
from reprise.keeping import GroupKeeper, Saving, Seat, go_on
from reprise.locks import try_lock
from reprise.machine import pick_device
from reprise.method import Method
from reprise.models.encoders import ENCODERS
from reprise.models.outside import take_encoder
from reprise.own_data import read_images
from reprise.own_tasks import OwnTask, Seen, look_at
from reprise.results import environment, make_record, save_record, trouble
from reprise.stopping import Stopped
from reprise.tasks import Regress
from reprise.terminal import step_bar
from reprise.train import Progress, Trainer

AT_ONCE = 100
"""Images that are answered at once."""

Numbers = float | Sequence[float]
Scores = dict[str, dict[str, float | None]]
"""By task: loss, and accuracy where answers are right or wrong."""


class Learner:
    """Learns one task after another and keeps the old ones alive.

    encoder    any module from images [n, c, h, w] to features [n, d] or [n, c, h, w]: it is copied, never changed; or
               a name: one of ours (`resnet18-reduced`, …), `timm:NAME`, `torchvision:NAME` (`timm:NAME:pretrained`)
    method     how forgetting is held off: a method, or its name; `reprise.CAR()` if nothing is said
    memory     a budget in bytes ("64MB") for all that the method keeps: shares shrink when a task joins
    m_per_task, m_per_class  the same as a number of examples, which no later task changes
    out        folder of checkpoints, record and log; a temporary one if nothing is said
    heads      separate: a head per task, whatever its kind. stacked: all tasks classify equally many classes, and a
               step may replay several of them at once (plain SGD only; the Split protocol)
    room       tasks that stacked heads and shares of the memory are laid out for, if known: within it nothing
               shrinks, and a task is learned to the bit as in a stream of so many
    bn         joint: images of the current task and remembered ones pass the encoder together, so that BatchNorm's
               statistics are those of all tasks, as they are when it answers; separate: one pass each
    mean, std  what uint8 images are normalised by, for all channels or each
    """

    def __init__(
        self,
        encoder: nn.Module | str,
        method: Method | str | None = None,
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
        bn: Literal["joint", "separate"] = "joint",
        clip: float | None = None,
        mean: Numbers = 0.5,
        std: Numbers = 0.25,
        taps: Sequence[str] | None = None,
        device: str = "cpu",
        precision: Literal["float32", "tf32", "bf16", "float64"] = "float32",
        seed: int = 0,
    ) -> None:
        method = find_method(method)
        stacked, own = heads == "stacked", not (isinstance(encoder, str) and encoder in ENCODERS)
        optimizer = optimizer or ("sgd" if stacked else "adam")
        if method.replays and memory is None and m_per_task is None and m_per_class is None:
            raise InputError('memory: this method remembers examples; give memory="64MB" or m_per_task=100.')
        if method.merged:
            raise InputError("method: multitask needs all tasks at once; use `reprise run`.")
        if heads not in ("separate", "stacked"):
            raise InputError(f"heads: {heads!r} is not known; choose separate or stacked.")
        if room is not None and (not stacked or room < 1):
            raise InputError(f'room: {room} tasks; it is a number above 0, and for heads="stacked" only.')
        if precision == "bf16" and own:
            raise InputError(
                "precision: bf16 is for the encoders of Reprise; use float32 or tf32 with your own."
            )
        settings: dict[str, Any] = {
            "encoder": encoder if isinstance(encoder, str) else None,
            "method": method_to_dict(method),
            "memory": memory,
            "m_per_task": m_per_task,
            "m_per_class": m_per_class,
            "heads": heads,
            "room": room or 0,
            "optimizer": optimizer,
            "lr": (0.03 if optimizer == "sgd" else 1e-3) if lr is None else lr,
            "batch": batch,
            "replay": batch if replay is None else replay,
            "p_replay": p_replay,
            "bn": bn,
            "clip": clip,
            "mean": _listed(mean),
            "std": _listed(std),
            "taps": None if taps is None else list(taps),
            "precision": precision,
            "seed": seed,
        }
        experiment_of(settings, method, 1, None)  # what is wrong with the settings is said now
        place = pick_device(device)
        taken = take_encoder(encoder, seed)
        self.method, self.seed = method, seed
        self.temporary = out is None
        self.out = Path(out or tempfile.mkdtemp(prefix="reprise-"))
        if self.temporary:
            weakref.finalize(self, shutil.rmtree, self.out, ignore_errors=True)
        self.book = Book.open(self.out, settings, taken)
        self.desk = Desk(self.book, method, place, taken)
        self._trainer: Trainer | None = None

    def __repr__(self) -> str:
        known = ", ".join(self.tasks) or "none yet"
        return f"Learner({self.settings['method']['name']}, out={str(self.out)!r}, tasks: {known})"

    # ---- learning
    def learn(
        self,
        task: OwnTask,
        epochs: int = 1,
        steps: int | None = None,
        replace: bool = False,
        progress: Progress | bool = True,
    ) -> Scores:
        """Learn a task, and say how well all tasks are answered afterwards.

        epochs    passes over the training data; or `steps`, a number of batches
        progress  a bar where there is a terminal to show it on, none (False), or a function of (steps done, all
                  steps, what is being done)

        A task that is finished is not learned again where data and settings are the same; an interrupted one goes on.
        Anything else is refused unless `replace` is said: then the learner goes back to before that task, and tasks
        that came after it are gone too.
        """
        index = self._place_of(task, replace)
        seen = look_at(task, index, self.seed, self.desk.stacked)
        self.desk.require_fit(seen)
        page = Page.of(seen, task, epochs, steps)
        known = self.book.pages[index] if index < len(self.book.pages) else None
        if known is not None and (difference := known.difference(page)) is not None:
            was = "learned" if known.finished else "begun"
            self._go_back(index, f"was {was} with {difference}", replace)
            known = None
        if task.head is not None:
            self.desk.heads[task.name] = task.head
        self.desk.tests[task.name] = seen.test
        if known is not None and known.finished:
            return self.scores
        if known is None:
            self.book.pages.append(page)
            self.book.write(self.out)
        if unknown := [name for name in self.tasks if name not in self.desk.tests]:
            _warn(
                f"tests: the test data of {', '.join(map(repr, unknown))} is not here, so what is forgotten of it is "
                f"not measured; give it as Learner.load(…, tests={{{unknown[0]!r}: data}})."
            )
        with try_lock(self.folder) as mine:
            if not mine:
                raise InputError(
                    f"out: another process is learning in {self.out}; wait for it, or name another folder."
                )
            try:
                self._train(index, seen, epochs, steps, progress)
            except InputError:
                if max(self._archive.positions(), default=(0, 0)) <= (index, 0):
                    # Nothing was trained: the task may be given again in any form.
                    del self.book.pages[index:]
                    self.book.write(self.out)
                raise
        return self.scores

    def _train(
        self, index: int, seen: Seen, epochs: int, steps: int | None, progress: Progress | bool
    ) -> None:
        remove_partial(self.folder)
        trainer = self.desk.trainer(seen, epochs, steps)
        self.desk.require_head(trainer, seen, index)
        seat = Seat(self.folder, "learner")
        go_on(trainer, [seat], _warn)
        keeper = GroupKeeper([seat], Saving(tasks=True), stopping.asked)
        with stopping.listening(), stopping.heeding(), step_bar(progress) as told:
            try:
                [outcome] = trainer.run(told, keeper=keeper)
            except Stopped as stop:
                raise KeyboardInterrupt(
                    f"stopped where it can go on (signal {stop.number}); learn {seen.name!r} again to do so"
                ) from None
        if (why := trouble(self.seed, outcome)) is not None:
            raise Diverged(why)
        keeper.finish([True])
        self._trainer = trainer
        kept: dict[str, Any] = {"m": trainer.experiment.m, "bytes": dict(outcome.bytes)}
        self.book.pages[index] = changed(self.book.pages[index], finished=True, **kept)
        self.book.write(self.out)
        self._record()

    # ---- asking
    @property
    def tasks(self) -> list[str]:
        """The names of the tasks learned so far."""
        return [page.name for page in self.book.finished]

    def classes(self, task: str) -> list[str]:
        """The names of a task's classes, or their numbers where they have no names; none where it has no classes."""
        page = self.book.pages[self.index(task)]
        return page.names or [str(number) for number in range(page.kind.get("classes", 0))]

    @property
    def matrix(self) -> dict[str, list[list[float | None]]]:
        """Accuracy and loss [i][j] of task j after task i was learned; None where nobody could look."""
        if not self.tasks:
            return {"accuracy": [], "loss": []}
        outcome = self.standing().outcomes[0]
        rows = {"accuracy": outcome.accuracy, "loss": outcome.loss}
        return {name: [list(row or ()) for row in own] for name, own in rows.items()}

    @property
    def scores(self) -> Scores:
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
            was, became = matrix["loss"][j][j], matrix["loss"][-1][j]
            if then is not None and now is not None:
                found[name] = then - now
            elif was is None or became is None or was <= metrics.SMALLEST_REFERENCE:
                found[name] = None
            else:
                found[name] = 100 * (became - was) / was
        return found

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """After each task: examples remembered of every task (of a smaller one, all of it), and all bytes the method
        kept, by kind."""
        return [
            {"after": page.name, "m_per_task": self._share(page.m, j + 1), "bytes": page.bytes}
            for j, page in enumerate(self.book.finished)
        ]

    def evaluate(self, data: Mapping[str, Any] | None = None) -> Scores:
        """Loss and accuracy of every task by its test data; or by other data (by the task's name), used this once."""
        names = self.tasks if data is None else list(data)
        for name in names:
            self.index(name)
            if data is None and name not in self.desk.tests:
                raise InputError(
                    f"evaluate: the test data of {name!r} is not here any more; give it as "
                    f"evaluate({{{name!r}: data, …}})."
                )
        asked = {n: self.desk.tests[n] if data is None else self.desk.read_test(n, data[n]) for n in names}
        return self._measured(asked)

    def predict(self, task: str, images: Any, scores: bool = False) -> Tensor:
        """Answers [n, …] to images [n, c, h, w]: classes, a class per pixel, or values; with `scores` the logits."""
        trainer, index = self.standing(), self.index(task)
        page = self.book.pages[index]
        x = read_images(images, *page.row["x"])
        found = torch.cat([self.desk.answer(trainer, index, part) for part in x.split(AT_ONCE)]).cpu()
        return found if scores or isinstance(page.make_kind(), Regress) else found.argmax(1)

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
        name, method = own.pop("encoder"), method_from_dict(own.pop("method"))
        if name is None and encoder is None:
            raise InputError(f"encoder: the learner in {out} has one of your own; give it as encoder=.")
        missing = [page.name for page in book.pages if page.own_head and page.name not in (heads or {})]
        if missing:
            raise InputError(
                f"heads: {missing[0]!r} has a head of your own; give it as heads={{{missing[0]!r}: head}}."
            )
        own["room"] = own["room"] or None
        made: Any = name or encoder
        learner = Learner(made, method, own.pop("memory"), out, device=device, **own)
        learner.desk.heads = dict(heads or {})
        for task, data in (tests or {}).items():
            learner.index(task)
            learner.desk.tests[task] = learner.desk.read_test(task, data)
        if learner.tasks:
            learner._fill_in()
        return learner

    # ---- what its other parts ask of it
    @property
    def settings(self) -> dict[str, Any]:
        """How it was made."""
        return self.book.settings

    @property
    def folder(self) -> Path:
        """Where record, log and checkpoints are."""
        return self.out / f"seed-{self.seed}"

    def index(self, name: str) -> int:
        """Which of the tasks learned so far it is."""
        if name not in self.tasks:
            known = ", ".join(self.tasks) or "none yet"
            raise InputError(f"task {name!r} was not learned; the learner knows {known}.")
        return self.tasks.index(name)

    def standing(self) -> Trainer:
        """The trainer after the last finished task."""
        if self._trainer is None:
            if not self.tasks:
                raise InputError("learner: no task was learned yet; call learn first.")
            self._trainer = self.desk.restored(self.folder)
        return self._trainer

    # ---- inside
    def _measured(self, examples: Mapping[str, Examples]) -> Scores:
        """By task, on these examples."""
        trainer = self.standing()
        places = {self.index(name): own.to(self.desk.device) for name, own in examples.items()}
        usual = {place: trainer.tests[place] for place in places}
        try:
            for place, own in places.items():
                trainer.tests[place] = own
            [scores] = trainer.evaluator.scores(list(places))
        finally:
            for place, own in usual.items():
                trainer.tests[place] = own
        both = zip(examples, scores, strict=True)
        return {name: {"loss": loss, "accuracy": right} for name, (loss, right) in both}

    def _fill_in(self) -> None:
        """Measure what could not be measured when the last task was learned: the weights are still those."""
        outcome = self.standing().outcomes[0]
        row = outcome.loss[-1]
        assert row is not None
        missing = [name for j, name in enumerate(self.tasks) if row[j] is None and name in self.desk.tests]
        if not missing:
            return
        for name, found in self._measured({name: self.desk.tests[name] for name in missing}).items():
            for kind, rows in (("loss", outcome.loss), ("accuracy", outcome.accuracy)):
                last = rows[-1]
                assert last is not None
                last[self.index(name)] = found[kind]
        self._record()

    @property
    def _archive(self) -> Archive:
        return Archive(self.folder / "checkpoints")

    def _place_of(self, task: OwnTask, replace: bool) -> int:
        """Which task of the stream it is; an interrupted one must be finished first."""
        known = self.book.find(task.name)
        if known is not None:
            return known
        if self.book.pages and not self.book.pages[-1].finished:
            self._go_back(len(self.book.pages) - 1, "was interrupted and is to be learned first", replace)
        return len(self.book.pages)

    def _go_back(self, index: int, why: str, replace: bool) -> None:
        """Go back to before a task, or refuse to."""
        name, *later = [page.name for page in self.book.pages[index:]]
        if not replace:
            lost = f" (and drops {', '.join(later)})" if later else ""
            raise InputError(
                f"task {name!r}: it {why}; learn it as it was, or say replace=True, which learns anew{lost}."
            )
        del self.book.pages[index:]
        self._trainer = None
        self.book.write(self.out)
        for position, path in self._archive.positions().items():
            if position > (index, 0):
                path.unlink()
        if self._archive.folder.exists():
            self._archive.prune(keep=0, finished=True)

    def _share(self, m: int | None, tasks: int) -> int | None:
        """Examples of one task: with stacked heads m counts those of all."""
        if m is None or not self.desk.stacked:
            return m
        return m // max(self.settings["room"], tasks)

    def _record(self) -> None:
        """The record of the run so far, where everything was measured."""
        trainer = self.standing()
        outcome = trainer.outcomes[0]
        if None in (outcome.loss[-1] or [None]):
            (self.folder / "record.json").unlink(missing_ok=True)
            return
        quota = trainer.quotas[0] if trainer.memory is not None else None
        data, place = trainer.stream.fingerprint, environment(self.desk.device)
        record = make_record(trainer.experiment, self.seed, outcome, quota, data, place)
        save_record(self.folder, record | {"tasks": self.tasks}, outcome.log)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def _listed(value: Numbers) -> list[float]:
    return [float(value)] if isinstance(value, int | float) else [float(v) for v in value]
