"""What a learner writes about itself: `learner.json` says how it was made and what it has learned, task by task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reprise.errors import InputError
from reprise.examples import Gone
from reprise.files import write_bytes
from reprise.method import Method
from reprise.methods import METHODS
from reprise.models.outside import load_weights, weights_of
from reprise.own_data import Form
from reprise.own_tasks import OwnTask, Seen
from reprise.results import read_json, write_json
from reprise.tasks import Classify, Kind, Regress, Segment
from reprise.values import nearest

NAME = "learner.json"
WEIGHTS = "encoder.safetensors"
"""The weights that a user's encoder came with."""
FORMAT = 1
KINDS: dict[str, type] = {"classify": Classify, "segment": Segment, "regress": Regress}


@dataclass(frozen=True)
class Page:
    """A task as it was learned. Two pages that agree in `asked` stand for the same lesson."""

    name: str
    kind: dict[str, Any]
    hash: str
    train: int
    test: int
    row: dict[str, list[Any]]
    """One example: shape and dtype of each column."""
    own_head: bool
    epochs: int
    steps: int | None
    ignore: int | None = None
    columns: list[str] | None = None
    """How targets are found in the data, where the task said so."""
    names: list[str] | None = None
    """Of the classes, where they have any."""
    finished: bool = False
    m: int | None = None
    bytes: dict[str, int] = field(default_factory=dict)
    """When it was finished: examples remembered of each task, and what the method kept in all."""

    @staticmethod
    def of(seen: Seen, task: OwnTask, epochs: int, steps: int | None) -> Page:
        name = next(name for name, kind in KINDS.items() if isinstance(seen.kind, kind))
        row = {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in seen.row.items()}
        kind = {"kind": name, **dataclasses.asdict(seen.kind)}
        return Page(
            name=seen.name,
            kind=kind,
            hash=seen.hash,
            train=len(seen.train),
            test=len(seen.test),
            row=row,
            own_head=task.head is not None,
            epochs=epochs,
            steps=steps,
            ignore=task.form.ignore,
            columns=None if task.form.columns is None else list(task.form.columns),
            names=None if task.names is None else list(task.names),
        )

    @property
    def asked(self) -> dict[str, Any]:
        settled = dataclasses.asdict(self)
        return {
            name: settled[name] for name in ("kind", "hash", "train", "row", "own_head", "epochs", "steps")
        }

    def difference(self, other: Page) -> str | None:
        """What the two do not agree in, in words."""
        words = {
            "hash": "other data",
            "train": "another number of examples",
            "row": "examples of another shape",
            "kind": "targets of another kind",
            "own_head": "another head",
        }
        found = [
            words.get(name, f"{name}={self.asked[name]}, not {other.asked[name]}")
            for name in self.asked
            if self.asked[name] != other.asked[name]
        ]
        return " and ".join(found) or None

    def make_kind(self) -> Kind:
        fields = {name: value for name, value in self.kind.items() if name != "kind"}
        return KINDS[self.kind["kind"]](**fields)

    def as_task(self, data: Any) -> OwnTask:
        """The task again, around other data."""
        columns = None if self.columns is None else tuple(self.columns)
        form = Form(self.kind["kind"], "", self.kind.get("classes"), self.ignore, columns)
        return OwnTask(self.name, form, data, data, norm=self.kind.get("norm", "l2"))

    @property
    def about(self) -> dict[str, Any]:
        """What a program that answers this task has to know of it."""
        shape, dtype = self.row["x"]
        return {"task": self.name, "kind": self.kind, "names": self.names, "input": shape, "dtype": dtype}

    def gone(self, part: str, why: str) -> Gone:
        """Examples of which only number and look are known."""
        row = {
            name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, (shape, dtype) in self.row.items()
        }
        return Gone(self.train if part == "train" else self.test, row, why)


@dataclass
class Book:
    """The settings of a learner, and its pages."""

    settings: dict[str, Any]
    pages: list[Page] = field(default_factory=list)

    @staticmethod
    def open(folder: Path, settings: dict[str, Any], encoder: nn.Module | None) -> Book:
        """The book in a folder, if its learner was made with these settings, or a new one. A user's encoder gets the
        weights that it had when the learner was made."""
        given = encoder if settings["encoder"] is None else None
        if not (folder / NAME).exists():
            return Book(settings)._begin(folder, given)
        book = Book.read(folder)
        for name, value in settings.items():
            if book.settings.get(name) != value:
                raise InputError(
                    f"out: {folder} holds a learner with {name} {book.settings.get(name)!r}, here it is "
                    f"{value!r}; name another folder, or use Learner.load."
                )
        if given is not None:
            load_weights(given, folder / WEIGHTS)
        return book

    def _begin(self, folder: Path, encoder: nn.Module | None) -> Book:
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"out: {folder} is not empty and holds no learner; name a new folder.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if encoder is not None:
                write_bytes(folder / WEIGHTS, weights_of(encoder))
            self.write(folder)
        except OSError as error:
            raise InputError(
                f"out: {folder} cannot be written ({error.strerror}); name another folder."
            ) from None
        return self

    @property
    def finished(self) -> list[Page]:
        return [page for page in self.pages if page.finished]

    def find(self, name: str) -> int | None:
        return next((index for index, page in enumerate(self.pages) if page.name == name), None)

    def write(self, folder: Path) -> None:
        pages = [dataclasses.asdict(page) for page in self.pages]
        write_json(folder / NAME, {"format": FORMAT, **self.settings, "tasks": pages})

    @staticmethod
    def read(folder: Path) -> Book:
        path = folder / NAME
        if not path.exists():
            raise InputError(f"out: {folder} holds no learner; name the folder that one was given as `out`.")
        content = read_json(path)
        if content.pop("format", None) != FORMAT:
            raise InputError(f"out: {path} is of another version; it cannot be read by this one.")
        try:
            pages = [Page(**page) for page in content.pop("tasks")]
        except (KeyError, TypeError) as error:
            raise InputError(f"out: {path} is no learner's book ({error}); name another folder.") from None
        return Book(content, pages)


def method_to_dict(method: Method) -> dict[str, Any]:
    name = next((name for name, kind in METHODS.items() if type(method) is kind), None)
    if name is None:
        raise InputError(
            f"method: {type(method).__name__} is not in the table of methods; put it into METHODS under a name."
        )
    return {"name": name, **dataclasses.asdict(method)}


def find_method(method: Method | str | None) -> Method:
    """A method, the one of that name as it is by default, or CAR."""
    if isinstance(method, str):
        if method not in METHODS:
            near = nearest(method, METHODS)
            way_out = f"the nearest one is {near}" if near else f"choose one of {', '.join(METHODS)}"
            raise InputError(f"method: {method!r} is not known; {way_out}.")
        return METHODS[method]()
    if method is not None and not isinstance(method, Method):
        raise InputError(f"method: {method!r} is no method; give its name, or one such as reprise.CAR().")
    return METHODS["car"]() if method is None else method


def method_from_dict(values: Mapping[str, Any]) -> Method:
    name = values["name"]
    if name not in METHODS:
        raise InputError(f"method: {name!r} is not known here; add it to METHODS before loading.")
    return METHODS[name](**{key: value for key, value in values.items() if key != "name"})
