"""Pictures in folders, one folder a class: the data most people have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from reprise.errors import InputError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")


class ImageFolder:
    """A dataset of `root/<class>/*.jpg` (png, …): images [3, size, size] uint8, and the number of their class.

    classes    names of the folders, counted from 0 in alphabetical order; give those of the training part to the test
               part, so that both count alike
    transform  called with each image, for example to mirror it at random
    """

    def __init__(
        self,
        root: str | Path,
        size: int,
        classes: list[str] | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        root = Path(root)
        if not root.is_dir():
            raise InputError(f"{root} is no folder; name one that holds a folder of pictures for each class.")
        there = sorted(
            path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
        )
        self.classes = list(classes) if classes is not None else there
        if unknown := [name for name in there if name not in self.classes]:
            raise InputError(
                f"{root} holds a folder {unknown[0]!r}, which is no class; remove it, or name it."
            )
        self.size, self.transform = size, transform
        self.files = [
            path
            for name in self.classes
            for path in sorted((root / name).glob("*"))
            if path.suffix.lower() in ENDINGS
        ]
        self.targets = [self.classes.index(path.parent.name) for path in self.files]
        if not self.files:
            raise InputError(f"{root} holds no pictures in folders ({', '.join(ENDINGS)}); name another.")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = read_picture(self.files[index], (3, self.size, self.size))
        return image if self.transform is None else self.transform(image), self.targets[index]


def read_picture(path: Path, shape: tuple[int, ...]) -> Tensor:
    """A picture [c, h, w] uint8, with these channels and resized to this size."""
    try:
        with Image.open(path) as picture:
            fitted = picture.convert("L" if shape[0] == 1 else "RGB").resize((shape[2], shape[1]))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a picture ({error}); remove it.") from None
    array = np.asarray(fitted)
    return torch.from_numpy(array.copy() if array.ndim == 3 else array[..., None].copy()).permute(2, 0, 1)
