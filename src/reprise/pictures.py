"""Pictures to look at: what methods answer to a test image, beside the image and the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from reprise.errors import InputError
from reprise.results import SAMPLES_FILE, Record, folder_of

GAP, LABEL, LEAST = 4, 16, 96
"""Pixels between pictures, of a line of text, and of a picture's side at least."""
PAPER, INK, NOWHERE = (255, 255, 255), (30, 30, 30), (235, 235, 235)

Samples = Mapping[str, np.ndarray]
"""What `Evaluator.samples` keeps of one run."""


def read_samples(path: Path) -> dict[str, np.ndarray]:
    """A run's `samples.npz`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no file of samples ({error!s:.80}); run the method again.") from None


def draw_grids(records: Sequence[Record], store: Path, seed: int) -> list[Path]:
    """What the runs of a seed answer to each sampled test view: a picture each, in the store."""
    own = [record for record in records if record["seed"] == seed]
    several = {record["method"] for record in own if sum(r["method"] == record["method"] for r in own) > 1}
    runs = {}
    for record in own:
        name = f"{record['method']} {record['m']}" if record["method"] in several else record["method"]
        folder = store / folder_of(record["configuration"]) / f"seed-{seed}"
        runs[name] = read_samples(folder / SAMPLES_FILE)
    paths = []
    for view in range(len(next(iter(next(iter(runs.values())).values())))):
        paths.append(store / f"predictions-seed{seed}-view{view}.png")
        draw_grid(runs, view).save(paths[-1])
    return paths


def draw_grid(runs: Mapping[str, Samples], view: int = 0) -> Image.Image:
    """A row for each task; columns: the image, the truth, and each run's answer."""
    first = next(iter(runs.values()))
    tasks = [name.removesuffix(".input") for name in first if name.endswith(".input")]
    heads = ["", "image", "truth", *runs]
    side = max(LEAST, first[f"{tasks[0]}.input"].shape[-1])
    wide = [_width(tasks), *[side] * (len(heads) - 1)]
    sheet = Image.new(
        "RGB", (sum(wide) + GAP * (len(wide) + 1), LABEL + (side + GAP) * len(tasks) + GAP), PAPER
    )
    pen = ImageDraw.Draw(sheet)
    lefts = [GAP + sum(wide[:i]) + GAP * i for i in range(len(wide))]
    for left, head in zip(lefts, heads, strict=True):
        pen.text((left, 2), head, INK)
    for row, task in enumerate(tasks):
        top = LABEL + row * (side + GAP)
        pen.text((lefts[0], top + side // 2 - 6), task, INK)
        cells = [_photo(first[f"{task}.input"][view]), _shown(task, first, "truth", view)]
        cells += [_shown(task, own, "answer", view) for own in runs.values()]
        for left, cell in zip(lefts[1:], cells, strict=True):
            if isinstance(cell, str):
                pen.multiline_text((left, top), cell, INK)
            else:
                sheet.paste(Image.fromarray(cell).resize((side, side), Image.Resampling.NEAREST), (left, top))
    return sheet


def _width(words: Sequence[str]) -> int:
    font = ImageFont.load_default()
    return max(int(font.getlength(word)) for word in words) + GAP


def _photo(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(image, 0, -1))


def _shown(task: str, samples: Samples, what: str, view: int) -> np.ndarray | str:
    """A label or an answer as a picture [h, w, 3]; the likeliest classes of a whole image as words."""
    values = samples[f"{task}.{what}"][view]
    if values.ndim == 1:
        return _likeliest(values.astype(np.float64), logits=what == "answer")
    if values.ndim == 2:
        picture = _palette()[values]
    else:
        # Two channels are curvatures: red and green, as in the official files.
        blank = np.full_like(values[:1], 0.0)
        channels = {1: [0, 0, 0], 2: [0, 1], 3: [0, 1, 2]}[len(values)]
        chosen = np.concatenate([values[channels], *([blank] if len(values) == 2 else [])])
        low, high = _range(task, samples, view) if len(values) == 1 else (-1.0, 1.0)
        level = (chosen.astype(np.float32) - low) / (high - low)
        picture = np.moveaxis((255 * level).clip(0, 255), 0, -1).astype(np.uint8)
    mask = samples.get(f"{task}.mask")
    if what == "truth" and mask is not None:
        picture = np.where(
            mask[view].reshape(*picture.shape[:2], 1) > 0, picture, np.array(NOWHERE, np.uint8)
        )
    return np.ascontiguousarray(picture)


def _range(task: str, samples: Samples, view: int) -> tuple[float, float]:
    """Where the truth lies: depth or edges fill a small part of [-1, 1], in which nobody could see them."""
    truth, mask = samples[f"{task}.truth"][view].astype(np.float32), samples.get(f"{task}.mask")
    known = truth if mask is None else truth[mask[view].reshape(truth.shape) > 0]
    low, high = (float(value) for value in np.quantile(known, (0.01, 0.99)))
    return (low, high) if high > low else (-1.0, 1.0)


def _likeliest(values: np.ndarray, logits: bool) -> str:
    if logits:
        values = np.exp(values - values.max())
        values = values / values.sum()
    best = np.argsort(-values)[:3]
    return "\n".join(f"class {c}: {100 * values[c]:.0f} %" for c in best)


def _palette() -> np.ndarray:
    """17 colours that differ, the background grey."""
    turn = np.arange(17)[:, None] * 2.399963 + np.array([0.0, 2.1, 4.2])
    colours = 150 + 90 * np.cos(turn) * np.where(np.arange(17)[:, None] % 2, 1, -0.8)
    colours[0] = 200
    return colours.clip(0, 255).astype(np.uint8)
