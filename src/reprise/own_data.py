"""A user's data as examples: a pair of arrays, any map-style dataset, a Hugging Face dataset.

A pair is held as it is. The items of a dataset are read when they are needed, each under generators of its own:
Python, NumPy and torch are seeded from (seed, task, step, position) before it, so that random transforms are the
same whatever else draws, and in a run that was resumed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprise.errors import InputError
from reprise.examples import Names, Source
from reprise.randomness import named_seed
from reprise.types import Tree

LOOKED_AT = 32
"""Items of a dataset that are read before training, evenly spread, to see what it holds."""


@dataclass(frozen=True)
class Form:
    """What a task wants of its targets, and where in an item they are.

    kind     classify, segment or regress
    columns  names of image, target and mask in items that are mappings
    """

    kind: str
    where: str
    classes: int | None = None
    ignore: int | None = None
    columns: tuple[str, ...] | None = None

    def refuse(self, what: str, way_out: str) -> InputError:
        return InputError(f"{self.where}: {what}; {way_out}.")

    # ---- one item
    def read(self, item: Any) -> Tree:
        """x [c, h, w] or [d], y and, where some of it does not count, mask."""
        parts = self._parts(item)
        x = self.image(parts[0])
        return {"x": x} | self.target(parts[1], parts[2] if len(parts) > 2 else None)

    def _parts(self, item: Any) -> Sequence[Any]:
        if isinstance(item, Mapping):
            names = self.columns or _guess_columns(item)
            if names is None or any(name not in item for name in names):
                raise self.refuse(
                    f"an item has the columns {', '.join(map(str, item))}",
                    "say which are image and target with columns=(image, target)",
                )
            return [item[name] for name in names]
        if isinstance(item, tuple | list) and len(item) in (2, 3):
            return item
        raise self.refuse(
            f"an item is {_named(item)}", "items are (image, target), (image, target, mask) or a mapping"
        )

    def image(self, value: Any) -> Tensor:
        x = _tensor(value)
        if x is None or x.dim() not in (1, 3):
            raise self.refuse(
                f"an image is {_named(value)}", "give [channels, height, width], as uint8 or as real numbers"
            )
        if x.dim() == 3 and x.shape[-1] in (1, 3) and x.shape[0] not in (1, 2, 3, 4):
            raise self.refuse(
                f"an image is {list(x.shape)}, channels last", "permute it to [channels, height, width]"
            )
        if x.dtype != torch.uint8 and not x.is_floating_point():
            raise self.refuse(f"an image is {x.dtype}", "give uint8 (0 to 255) or real numbers")
        return x if x.dtype == torch.uint8 else x.float()

    def target(self, value: Any, mask: Any = None) -> Tree:
        y = _tensor(value)
        if y is None:
            raise self.refuse(f"a target is {_named(value)}", "give a number or an array")
        if self.kind == "classify":
            return {"y": self._labels(y.reshape(()) if y.numel() == 1 else y, 0)}
        if self.kind == "segment":
            return self._segments(y, mask)
        return self._values(y, mask)

    def _labels(self, y: Tensor, dims: int) -> Tensor:
        assert self.classes is not None
        if y.dim() != dims:
            wanted = "one class index per example" if dims == 0 else "[height, width] class indices"
            raise self.refuse(f"a target has the shape {list(y.shape)}", f"give {wanted}")
        if y.is_floating_point() or y.dtype == torch.bool:
            raise self.refuse(f"a target is {y.dtype}", "class indices are whole numbers")
        y = y.long()
        if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
            wrong = int(y.min()) if int(y.min()) < 0 else int(y.max())
            raise self.refuse(
                f"a target is class {wrong}, and classes={self.classes} allows 0 to {self.classes - 1}",
                "count the classes from 0, or give the right number",
            )
        return y

    def _segments(self, y: Tensor, mask: Any) -> Tree:
        y = y.squeeze(0) if y.dim() == 3 and y.shape[0] == 1 else y
        counted = None if mask is None else _tensor(mask)
        if self.ignore is not None:
            known = y != self.ignore
            counted = known if counted is None else known & counted.bool().view_as(known)
            y = torch.where(known, y, 0)
        found = {"y": self._labels(y, 2).to(torch.uint8 if (self.classes or 0) <= 256 else torch.int32)}
        return found if counted is None else found | {"mask": counted.to(torch.uint8).view_as(y)}

    def _values(self, y: Tensor, mask: Any) -> Tree:
        """[c, h, w] maps or [d] vectors; what is not a number is left out of the loss."""
        if y.dim() > 3:
            raise self.refuse(
                f"a target has the shape {list(y.shape)}", "give [channels, height, width] or [d]"
            )
        y = y.float()
        y = y.unsqueeze(0) if y.dim() in (0, 2) else y
        unknown = y.isnan()
        counted = None if mask is None else _tensor(mask)
        if counted is not None:
            counted = counted if counted.dim() == y.dim() else counted.unsqueeze(0)
            return {"y": y.nan_to_num(), "mask": counted.bool().expand_as(y).to(torch.uint8) & ~unknown}
        return {"y": y.nan_to_num(), "mask": (~unknown).to(torch.uint8)}


class ItemSource(Source):
    """The items of a dataset, read when they are asked for."""

    resident = False

    def __init__(self, dataset: Any, form: Form, seed: int, task: int) -> None:
        super().__init__({})
        self.dataset, self.form, self.seed, self.task = dataset, form, seed, task
        self.device = torch.device("cpu")
        self.row: Tree = {}
        """The first item: what all others must look like."""

    def take(self, rows: Tensor, names: Names | None = None, step: int | None = None) -> Tree:
        flat = [int(row) for row in rows.reshape(-1)]
        items = [self.item(row, step, position) for position, row in enumerate(flat)]
        columns = {name: torch.stack([item[own] for item in items]) for name, own in (names or {}).items()}
        return {name: column.view(*rows.shape, *column.shape[1:]) for name, column in columns.items()}

    def item(self, row: int, step: int | None = None, position: int = 0) -> Tree:
        """Item `row`, drawn for a place in a training step; elsewhere it depends on nothing but itself."""
        draw = f"augment:item:{row}" if step is None else f"augment:step:{step}:{position}"
        with drawn_by(named_seed(self.seed, draw, self.task)):
            found = self.form.read(self.dataset[row])
        for name, first in self.row.items():
            own = found.get(name)
            if own is None or own.shape != first.shape or own.dtype != first.dtype:
                there = "nothing" if own is None else f"{list(own.shape)} {own.dtype}"
                raise self.form.refuse(
                    f"item {row} has {there} as {name}, item 0 {list(first.shape)} {first.dtype}",
                    "all items of a task have one shape",
                )
        return found

    def on_device(self, columns: Tree) -> Tree:
        return {name: column.to(self.device) for name, column in columns.items()}

    def to(self, device: torch.device) -> None:
        self.device = device


@contextmanager
def drawn_by(number: int) -> Iterator[None]:
    """Everything random in the block is drawn by this number; the generators are left as they were."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 (what transforms use)
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(number)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def labels_of(dataset: Any, form: Form, source: ItemSource) -> Tensor:
    """All class labels [n], without reading images where the dataset knows them."""
    n = len(dataset)
    known: Any = None
    if (columns := getattr(dataset, "column_names", None)) and isinstance(columns, list):
        names = form.columns or _guess_columns(dict.fromkeys(columns))
        known = dataset[names[1]] if names and names[1] in columns else None
    else:
        known = next(
            (own for name in ("targets", "labels") if (own := getattr(dataset, name, None)) is not None), None
        )
    found = (
        None
        if known is None
        else _tensor(list(known) if not isinstance(known, Tensor | np.ndarray) else known)
    )
    if found is None or found.shape != (n,) or found.is_floating_point():
        return torch.stack([source.item(row)["y"] for row in range(n)])
    # Target transforms may have other ideas than the list of labels: then every item is asked.
    first, last = int(source.item(0)["y"]), int(source.item(n - 1)["y"])
    if (first, last) != (int(found[0]), int(found[-1])):
        return torch.stack([source.item(row)["y"] for row in range(n)])
    form._labels(found[found.argmax()], 0)
    form._labels(found[found.argmin()], 0)
    return found.long()


def names_told(dataset: Any, columns: Sequence[str] | None) -> Any:
    """The classes as a dataset names them: its `classes`, or those of a Hugging Face dataset's label column."""
    features = getattr(dataset, "features", None)
    if not isinstance(features, Mapping):
        return getattr(dataset, "classes", None)
    found = columns or _guess_columns(features)
    return getattr(features.get(found[1]), "names", None) if found else None


def read_images(images: Any, shape: Sequence[int], dtype: str) -> Tensor:
    """Images to be answered [n, *shape], of the learner's dtype: an array, or a list of arrays or pictures."""
    form = Form("classify", "predict")
    if isinstance(images, Tensor | np.ndarray) and images.ndim == len(shape) + 1:
        x = torch.as_tensor(images)
        form.image(x[0])
    else:
        x = torch.stack([form.image(image) for image in images])
    if list(x.shape[1:]) != list(shape):
        raise form.refuse(f"images are {list(x.shape[1:])}, the learner's {list(shape)}", "resize them")
    if (x.dtype == torch.uint8) != (dtype == "uint8"):
        wanted = "uint8 from 0 to 255" if dtype == "uint8" else "real numbers, as they were when it learned"
        raise form.refuse(f"images are {str(x.dtype).removeprefix('torch.')}", f"this learner takes {wanted}")
    return x if x.dtype == torch.uint8 else x.float()


def is_pair(data: Any) -> bool:
    return (
        isinstance(data, tuple | list)
        and len(data) in (2, 3)
        and all(isinstance(part, Tensor | np.ndarray) for part in data)
    )


def hash_tree(parts: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(parts.items()):
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _guess_columns(item: Mapping[str, Any]) -> tuple[str, ...] | None:
    image = next((name for name in ("image", "img", "pixel_values", "x", "input") if name in item), None)
    target = next(
        (name for name in ("label", "labels", "target", "y", "annotation", "fine_label") if name in item),
        None,
    )
    if image is None or target is None:
        return None
    return (image, target, "mask") if "mask" in item else (image, target)


def _tensor(value: Any) -> Tensor | None:
    """A number, an array, a tensor or a picture as a tensor; None for anything else."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if hasattr(value, "getbands") and hasattr(value, "mode"):  # a PIL image, channels last
        array = np.asarray(
            value if value.mode in ("RGB", "L", "I", "P", "I;16") else value.convert("RGB")
        ).copy()
        return torch.from_numpy(array).permute(2, 0, 1).contiguous() if array.ndim == 3 else _grey(array)
    if isinstance(value, bool | int | float | np.ndarray | np.generic | list):
        try:
            array = np.asarray(value)
            return torch.from_numpy(array.astype(np.int64) if array.dtype == np.uint16 else array.copy())
        except (TypeError, ValueError):
            return None
    return None


def _grey(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64) if array.dtype == np.uint16 else array).unsqueeze(0)


def _named(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}{'' if shape is None else f' {list(shape)}'}"
