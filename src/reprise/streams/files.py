"""Safe readers of data files: CIFAR-100 and mini-ImageNet as arrays; whatever is wrong is an InputError."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from reprise.errors import InputError
from reprise.machine import cores
from reprise.streams.fetch import CIFAR_FOLDER, PathLike, listing, locate, open_file, shown, some
from reprise.streams.pickles import DAMAGE, load_pickle, text_of

CLASSES = 100
CIFAR_PER_CLASS = {"train": 500, "test": 100}
MINI_FOLDERS = ("train", "val")
MINI_PICKLES = tuple(f"mini-imagenet-cache-{split}.pkl" for split in ("train", "val", "test"))
THREADS = min(8, cores())
MAX_PIXELS = 1 << 26  # a picture that claims more is a decompression bomb, not a photograph
GET_CIFAR = "get it with `reprise data fetch cifar100 --data DIR`"
GET_MINI = "put {train,val}/<wnid>/*.jpg or mini-imagenet-cache-{train,val,test}.pkl of all 100 classes there"


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled pictures: x uint8 [N, 3, H, W], y int64 [N] in 0..C-1, and the C class names."""

    x: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...]


def _fields(path: Path, *names: str) -> list[Any]:
    """The named entries of the dictionary in a pickle."""
    content = load_pickle(path)
    fields = {text_of(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    if absent := [name for name in names if name not in fields]:
        raise InputError(f"{shown(path)} is not a dictionary with {some(absent)}; get another copy.")
    return [fields[name] for name in names]


def _pixels(path: Path, value: Any, *shape: int) -> np.ndarray:
    """`value` as uint8 [N, *shape], contiguous and writable (torch warns about read-only arrays)."""
    found = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    if not (isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape[1:] == shape):
        raise InputError(f"{shown(path)} holds {found}, not uint8 (N, {some(shape)}); get another copy.")
    return np.require(value.view(np.ndarray), requirements=["C", "W"])


def _indices(path: Path, field: str, value: Any, limit: int) -> np.ndarray:
    """`value`, a flat list or array of integers in 0..limit-1, as int64 [n]."""
    # Looked at one by one: numpy would follow lists within lists, even one that contains itself, without end.
    flat = value.ndim == 1 if isinstance(value, np.ndarray) else isinstance(value, list | tuple)
    if not flat or not all(isinstance(item, int | np.integer) and 0 <= item < limit for item in value):
        raise InputError(f"{shown(path)}: `{field}` is not a list of 0..{limit - 1}; get another copy.")
    return np.array(value, dtype=np.int64)


def read_cifar_names(path: Path) -> tuple[str, ...]:
    """The 100 fine class names of the file `meta`."""
    (found,) = _fields(path, "fine_label_names")
    names = [text_of(name) for name in found] if isinstance(found, list) else []
    if len({name for name in names if isinstance(name, str)}) != CLASSES or len(names) != CLASSES:
        raise InputError(f"{shown(path)}: `fine_label_names` is not a list of {CLASSES} names; {GET_CIFAR}.")
    return tuple(names)


def read_cifar_part(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The file `train` or `test` in its own order: x uint8 [N, 3, 32, 32] (R, G, B) and y int64 [N]."""
    data, labels = _fields(path, "data", "fine_labels")
    x, y = _pixels(path, data, 3072).reshape(-1, 3, 32, 32), _indices(path, "fine_labels", labels, CLASSES)
    wanted, counts = CIFAR_PER_CLASS[path.name], np.bincount(y, minlength=CLASSES)
    odd = [f"{count} of class {label}" for label, count in enumerate(counts) if count != wanted]
    if len(x) != len(y) or odd:
        found = some((f"{len(x)} images", f"{len(y)} labels", *odd))
        raise InputError(f"{shown(path)} holds {found}, not {wanted} of each class; {GET_CIFAR}.")
    return x, y


def read_cifar100(root: PathLike) -> tuple[Images, Images]:
    """Train and test of CIFAR-100, in file order; `root` is `cifar-100-python` or the folder above it."""
    folder = locate(root, CIFAR_FOLDER, ("train", "test", "meta"), GET_CIFAR)
    names = read_cifar_names(folder / "meta")
    train, test = (Images(*read_cifar_part(folder / part), names) for part in CIFAR_PER_CLASS)
    return train, test


def read_jpeg(path: PathLike) -> np.ndarray:
    """One picture as uint8 [3, 84, 84]; another size is resized bilinearly."""
    with open_file(path) as file:
        try:
            picture = Image.open(file, formats=("JPEG",))  # some of Pillow's other decoders start programs
            if picture.width * picture.height > MAX_PIXELS:
                raise ValueError(f"it claims {picture.width} x {picture.height} pixels")
            image = picture.convert("RGB").resize((84, 84), Image.Resampling.BILINEAR)
        except (*DAMAGE, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            why = "no JPEG data" if isinstance(error, UnidentifiedImageError) else error
            raise InputError(f"{shown(path)} is not a readable JPEG ({why}); replace it.") from error
    return np.asarray(image).transpose(2, 0, 1)


def jpegs(folder: Path) -> dict[str, list[Path]]:
    """The pictures of each class folder; classes and pictures sorted by name."""
    inside = {name: listing(folder / name) for name in listing(folder) if os.path.isdir(folder / name)}
    return {
        name: [folder / name / file for file in files if file.lower().endswith((".jpg", ".jpeg"))]
        for name, files in inside.items()
    }


def read_mini_pickle(path: Path) -> dict[str, np.ndarray]:
    """The pictures of each class of one few-shot split, in file order: uint8 [n, 3, 84, 84]."""
    data, rows = _fields(path, "image_data", "class_dict")
    images = _pixels(path, data, 84, 84, 3).transpose(0, 3, 1, 2)
    if not isinstance(rows, dict) or not all(isinstance(text_of(name), str) for name in rows):
        raise InputError(f"{shown(path)}: `class_dict` does not map wnids to rows; get another copy.")
    indices = {text_of(name): _indices(path, "class_dict", row, len(images)) for name, row in rows.items()}
    return {name: images[np.unique(row)] for name, row in indices.items()}


def _read_class(paths: list[Path]) -> np.ndarray:
    return np.stack([read_jpeg(path) for path in paths])


def _require_classes(folder: Path, train: Mapping[str, Sized], test: Mapping[str, Sized]) -> None:
    """Refuses anything but 100 classes with training and test images each."""
    for part, known in (("training", train), ("test", test)):
        if lacking := [name for name in sorted({*train, *test}) if not len(known.get(name, ()))]:
            raise InputError(f"{shown(folder)} has no {part} images of {some(lacking)}; {GET_MINI}.")
    if len(train) != CLASSES:
        raise InputError(f"{shown(folder)} holds {len(train)} classes, not {CLASSES}; {GET_MINI}.")


def _labelled(parts: Mapping[str, np.ndarray]) -> Images:
    """The pictures of all classes, each uint8 [n, 3, 84, 84], one class after the other, channels first."""
    names = sorted(parts)
    y = np.repeat(np.arange(len(names), dtype=np.int64), [len(parts[name]) for name in names])
    x = np.concatenate([parts[name] for name in names], out=np.empty((len(y), 3, 84, 84), np.uint8))
    return Images(x, y, tuple(map(shown, names)))


def read_mini_imagenet(root: PathLike) -> tuple[Images, Images]:
    """Train and test of mini-ImageNet; `root` is `mini-imagenet` or the folder above it.

    Both sources give one class after the other, labelled by the position of its wnid among the sorted ones.
    """
    folder = locate(root, "mini-imagenet", (*MINI_FOLDERS, *MINI_PICKLES), GET_MINI)
    if any(os.path.isdir(folder / part) for part in MINI_FOLDERS):
        train_files, test_files = (jpegs(folder / part) for part in MINI_FOLDERS)
        _require_classes(folder, train_files, test_files)
        with ThreadPoolExecutor(THREADS) as pool:  # its map keeps the order
            train = dict(zip(train_files, pool.map(_read_class, train_files.values()), strict=True))
            test = dict(zip(test_files, pool.map(_read_class, test_files.values()), strict=True))
    else:  # the few-shot splits divide the classes; here every class is divided, 500 and 100 of 600
        whole: dict[str, np.ndarray] = {}
        for name in MINI_PICKLES:
            whole |= read_mini_pickle(folder / name)
        train = {name: x[: len(x) * 5 // 6] for name, x in whole.items()}
        test = {name: x[len(x) * 5 // 6 :] for name, x in whole.items()}
        _require_classes(folder, train, test)
    return _labelled(train), _labelled(test)


def fingerprint(images: tuple[Images, Images]) -> str:
    """16 hex digits that tell this data (train and test) from any other: part of an experiment's hash."""
    digest = hashlib.sha256()
    for part in images:
        digest.update(ascii((part.x.dtype.str, part.x.shape, part.y.dtype.str, part.classes)).encode())
        for array in (part.x, part.y):
            digest.update(np.ascontiguousarray(array).reshape(-1).data)
    return digest.hexdigest()[:16]
