"""`reprise predict`: a learner's answers to a folder of pictures, as a table or as pictures."""

from __future__ import annotations

import colorsys
import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from reprise.errors import InputError
from reprise.export import load_program
from reprise.files import write_bytes, write_text
from reprise.learner import Learner
from reprise.own_folder import ENDINGS, read_picture
from reprise.values import nearest

AT_ONCE = 64
COLOURS = [
    (0.2, 0.2, 0.2),
    *(colorsys.hsv_to_rgb(number * 0.381966 % 1, 0.65, 0.95) for number in range(1, 256)),
]
"""Of classes: the first one dark, as it mostly is the background; neighbours are far apart."""

Ask = Callable[[Tensor], Tensor]


def predict_folder(run: Path, task: str | None, folder: Path, out: Path) -> str:
    """Answer every picture of a folder, and say where the answers are.

    run  a learner's folder, or a `.pt2` file that one exported
    """
    about, ask = _program(run, task) if run.suffix == ".pt2" else _learner(run, task)
    if about["dtype"] != "uint8":
        raise InputError(
            f"task {about['task']!r} was learned from real numbers, and pictures are 0 to 255; use Learner.predict."
        )
    names = _pictures(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if about["kind"]["kind"] == "classify" or about["kind"].get("pooled"):
            return _write_table(about, ask, folder, names, out)
        return _write_maps(about, ask, folder, names, out)
    except OSError as error:
        raise InputError(f"out: {out} cannot be written ({error.strerror}); name another folder.") from None


def _program(path: Path, task: str | None) -> tuple[dict[str, Any], Ask]:
    if not path.exists():
        raise InputError(f"run: {path} does not exist; name a learner's folder or an exported .pt2 file.")
    program = load_program(path)
    if task not in (None, program.about["task"]):
        raise InputError(f"task: {path} answers {program.about['task']!r}, not {task!r}; leave --task out.")
    return program.about, program


def _learner(folder: Path, task: str | None) -> tuple[dict[str, Any], Ask]:
    try:
        learner = Learner.load(folder)
    except InputError as error:
        if "of your own" not in str(error):
            raise
        raise InputError(
            f"run: {folder} has modules of your own, which only your code can make; export the task in Python "
            "(learner.export(task, 'model.pt2')) and name that file."
        ) from None
    if task is None and len(learner.tasks) == 1:
        task = learner.tasks[0]
    if task not in learner.tasks:
        near = None if task is None else nearest(task, learner.tasks)
        hint = (
            f"the nearest one is {near}"
            if near
            else f"choose one of {', '.join(learner.tasks) or 'none yet'}"
        )
        found = "none was named" if task is None else f"{task!r} was not learned in {folder}"
        raise InputError(f"task: {found}; {hint}.")
    about = learner.book.pages[learner.index(task)].about
    return about, lambda images: learner.predict(about["task"], images, scores=True)


def _pictures(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise InputError(f"folder: {folder} is no folder; name one with pictures.")
    names = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
    if not names:
        raise InputError(f"folder: {folder} holds no picture ({', '.join(ENDINGS)}); name another.")
    return names


def _answers(about: dict[str, Any], ask: Ask, folder: Path, names: Sequence[str]) -> Any:
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        images = torch.stack([read_picture(folder / name, tuple(about["input"])) for name in part])
        yield from zip(part, ask(images).float(), strict=True)


def _write_table(about: dict[str, Any], ask: Ask, folder: Path, files: Sequence[str], out: Path) -> str:
    """A line a picture: its class, by name where classes have names, and how sure the answer is; or its values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    classes = about["kind"]["kind"] == "classify"
    names = about.get("names")
    outputs = about["kind"].get("channels", 0)
    writer.writerow(
        ["file", "class", "probability"] if classes else ["file", *(f"value{i}" for i in range(outputs))]
    )
    for file, answer in _answers(about, ask, folder, files):
        if classes:
            likely = answer.softmax(0)
            number = int(likely.argmax())
            writer.writerow([file, names[number] if names else number, f"{float(likely.max()):.4f}"])
        else:
            writer.writerow([file, *(f"{float(value):.6g}" for value in answer)])
    path = out / f"{about['task']}.csv"
    write_text(path, text.getvalue())
    return f"{len(files)} answers: {path}"


def _write_maps(about: dict[str, Any], ask: Ask, folder: Path, names: Sequence[str], out: Path) -> str:
    """Of classes a picture whose pixels are the class, each in a colour; of values an array (.npy), and a picture
    from least to most."""
    for name, answer in _answers(about, ask, folder, names):
        stem = f"{Path(name).stem}.{about['task']}"
        if about["kind"]["kind"] == "segment":
            shown = Image.fromarray(answer.argmax(0).to(torch.uint8).numpy(), "P")
            shown.putpalette([int(255 * part) for colour in COLOURS for part in colour])
            _write_picture(out / f"{stem}.png", shown)
            continue
        values = answer.numpy()
        content = io.BytesIO()
        np.save(content, values, allow_pickle=False)
        write_bytes(out / f"{stem}.npy", content.getvalue())
        least, most = float(values.min()), float(values.max())
        grey = ((values - least) / max(most - least, 1e-12) * 255).round().astype(np.uint8)
        shown = Image.fromarray(grey.transpose(1, 2, 0) if len(grey) == 3 else grey[0])
        _write_picture(out / f"{stem}.png", shown)
    return f"{len(names)} answers: {out}"


def _write_picture(path: Path, picture: Image.Image) -> None:
    content = io.BytesIO()
    picture.save(content, "PNG")
    write_bytes(path, content.getvalue())
