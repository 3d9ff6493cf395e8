"""A user's task: `Task.classify`, `Task.segment`, `Task.regress`, and what the engine makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from reprise.errors import InputError
from reprise.examples import Examples, Source
from reprise.own_data import LOOKED_AT, Form, ItemSource, hash_tree, is_pair, labels_of, names_told
from reprise.streams.fetch import some
from reprise.tasks import Classify, Kind, Regress, Segment
from reprise.types import Tree


@dataclass(frozen=True, eq=False)
class OwnTask:
    """A name, data to train and to test on, and what the targets are: made by `classify`, `segment`, `regress`.

    Data is a pair of tensors or arrays (x [n, c, h, w], y), or (x, y, mask); any dataset with `len` and `[i]` whose
    items are such pairs or mappings; or a Hugging Face dataset. Images are uint8 (normalised by the learner) or real
    numbers (taken as they are).
    """

    name: str
    form: Form
    train: Any
    test: Any
    head: nn.Module | None = None
    norm: Literal["l1", "l2"] = "l2"
    names: tuple[str, ...] | None = None
    """Of the classes, where they have any."""

    @staticmethod
    def classify(
        name: str,
        train: Any,
        test: Any,
        classes: int | Sequence[str] | None = None,
        *,
        head: nn.Module | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> OwnTask:
        """One class per image: targets are numbers from 0 to classes - 1.

        classes  how many, or their names; a dataset that names them itself (`ImageFolder`, Hugging Face) needs none
        """
        count, names = _counted(name, classes, train, columns)
        for part, data in (("train", train), ("test", test)):
            own = getattr(data, "classes", None)
            if names is not None and isinstance(own, list | tuple) and tuple(map(str, own)) != names:
                raise InputError(
                    f"task {name!r}, {part}: its classes are {some(map(str, own))}, and the task's {some(names)}; "
                    "give both parts the same, in one order."
                )
        form = Form("classify", "", count, columns=columns)
        return OwnTask(name, form, train, test, head, names=names)

    @staticmethod
    def segment(
        name: str,
        train: Any,
        test: Any,
        classes: int | Sequence[str],
        *,
        ignore: int | None = None,
        head: nn.Module | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> OwnTask:
        """One class per pixel: targets [h, w] of numbers from 0 to classes - 1; `ignore` marks pixels that do not
        count."""
        count, names = _counted(name, classes, train, columns)
        return OwnTask(name, Form("segment", "", count, ignore, columns), train, test, head, names=names)

    @staticmethod
    def regress(
        name: str,
        train: Any,
        test: Any,
        *,
        norm: Literal["l1", "l2"] = "l2",
        head: nn.Module | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> OwnTask:
        """Real values: maps [c, h, w] or [h, w], or vectors [d]; what is not a number does not count."""
        if norm not in ("l1", "l2"):
            raise InputError(f"task {name!r}: norm {norm!r} is not known; choose l1 or l2.")
        return OwnTask(name, Form("regress", "", columns=columns), train, test, head, norm)


@dataclass(frozen=True)
class Seen:
    """A task as its data shows it.

    row   one example, all columns
    hash  of the training data: of all of it where it is a pair, else of its length, its labels and some items
    """

    name: str
    kind: Kind
    train: Examples
    test: Examples
    row: Tree
    hash: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.row["x"].shape)

    @property
    def target_size(self) -> tuple[int, ...]:
        return tuple(self.row["y"].shape[-2:])


def look_at(task: OwnTask, index: int, seed: int, stacked: bool) -> Seen:
    """Read what there is to know before training; what is wrong with the data is said here."""
    train, digest = read_examples(task, "train", task.train, index, seed, stacked)
    kind = kind_of(task, train)
    test, _ = read_examples(task, "test", task.test, index, seed, stacked)
    row = {name: column[0] for name, column in train.take(torch.arange(1)).items()}
    first = {name: column[0] for name, column in test.take(torch.arange(1)).items()}
    for name in ("x", "y"):  # one part may have a mask, and the other none
        own = row[name]
        if first[name].shape != own.shape:
            raise InputError(
                f"task {task.name!r}: {name} is {list(own.shape)} in train and {list(first[name].shape)} in test; "
                "give both one shape."
            )
    return Seen(task.name, kind, train, test, row, digest)


def read_examples(
    task: OwnTask, part: str, data: Any, index: int, seed: int, stacked: bool
) -> tuple[Examples, str]:
    """The examples of a task, and a hash of them."""
    form = replace(task.form, where=f"task {task.name!r}, {part}")
    try:
        n = len(data[0]) if is_pair(data) else len(data)
    except TypeError:
        raise form.refuse(
            f"the data is {type(data).__name__}", "give a pair of arrays, or a dataset with len() and [i]"
        ) from None
    if n == 0:
        raise form.refuse("there are no examples", "give at least two")
    extra = {"task": torch.full((n,), index)} if stacked else {}
    source: Source
    if is_pair(data):
        columns = _columns(data, form)
        own = {"y": columns.pop("y")} if form.kind == "classify" else {}
        if "mask" in columns and not columns["mask"].any():
            raise form.refuse("no target counts: all are NaN, masked or ignored", "give some that do")
        digest = hash_tree(columns | own)
        source, names = Source(columns), {name: name for name in columns}
    else:
        source = items = ItemSource(data, form, seed, index)
        items.row = items.item(0)
        looked = {
            f"{row}.{name}": column
            for row in np.linspace(0, n - 1, min(LOOKED_AT, n)).astype(int)
            for name, column in items.item(int(row)).items()
        }
        masks = [column for name, column in looked.items() if name.endswith(".mask")]
        if masks and not any(mask.any() for mask in masks):
            raise form.refuse(
                f"of {len(masks)} examples looked at no target counts: all are NaN, masked or ignored",
                "give some that do",
            )
        names = {name: name for name in items.row if form.kind != "classify" or name != "y"}
        own = {"y": labels_of(data, form, items)} if form.kind == "classify" else {}
        digest = hash_tree(looked | own | {"n": torch.tensor([n])})
    return Examples(source, torch.arange(n), own | extra, names), digest


def kind_of(task: OwnTask, train: Examples) -> Kind:
    form = task.form
    if form.kind == "classify":
        assert form.classes is not None
        return Classify(form.classes)
    if form.kind == "segment":
        assert form.classes is not None
        return Segment(form.classes)
    y = train.take(torch.arange(1))["y"][0]
    return Regress(y.shape[0], task.norm, pooled=y.dim() == 1)


def _columns(data: Any, form: Form) -> Tree:
    """A pair as columns, all examples at once; the first example stands for the shapes of all."""
    parts = [
        part if isinstance(part, Tensor) else torch.from_numpy(np.ascontiguousarray(part)) for part in data
    ]
    x, y = parts[0], parts[1]
    if any(len(part) != len(x) for part in parts):
        raise form.refuse(f"there are {len(x)} images and {len(y)} targets", "give one target for each image")
    form.image(x[0])
    form.target(y[0], parts[2][0] if len(parts) > 2 else None)
    x = x if x.dtype == torch.uint8 else x.float()
    if form.kind == "classify":
        flat = y.reshape(len(y))
        for extreme in (flat.argmin(), flat.argmax()):
            form.target(flat[extreme])
        return {"x": x, "y": flat.long()}
    rows = [form.target(own, parts[2][i] if len(parts) > 2 else None) for i, own in enumerate(y)]
    columns = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    if "mask" in columns and bool(columns["mask"].all()):
        del columns["mask"]  # everything counts: nothing to remember
    return {"x": x} | columns


def _counted(
    name: str, classes: int | Sequence[str] | None, train: Any, columns: Sequence[str] | None
) -> tuple[int, tuple[str, ...] | None]:
    """How many classes there are, and their names where they are known."""
    known = names_told(train, columns) if classes is None else classes
    if isinstance(known, list | tuple):
        names = tuple(str(own) for own in known)
        if len(set(names)) < len(names):
            raise InputError(f"task {name!r}: two classes have one name in {list(names)}; name each once.")
        return _count(name, len(names)), names
    told = names_told(train, columns)
    if isinstance(told, list | tuple) and isinstance(known, int) and len(told) != known:
        raise InputError(
            f"task {name!r}: classes={known}, and its data has {len(told)} ({some(map(str, told))}); leave "
            "classes out."
        )
    return _count(name, known), None


def _count(name: str, classes: Any) -> int:
    if not isinstance(classes, int) or classes < 2:
        found = (
            "classes: none were given" if classes is None else f"classes={classes!r} is no number of classes"
        )
        raise InputError(f"task {name!r}: {found}; give 2 or more, or their names.")
    return classes
