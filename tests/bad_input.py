"""Bad and hostile input, and the sentence each gets: the rows of docs/bad_input.md, which a test runs.

`python tests/bad_input.py` writes the document anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import reprise
from reprise.cli import main
from reprise.errors import InputError
from reprise.models.encoders import build_encoder

DOCUMENT = Path(__file__).parents[1] / "docs" / "bad_input.md"
SHAPES = ("run", "split-shapes", "--method", "er")
ROOMS = ("run", "rooms", "--method", "er")
FROM_FILE = ("run", "split-shapes", "--config", "a.yaml")
RING = ("--fill", "ring_class", "--m_per_class", "200")
TINY = ("--tasks", "1", "--steps", "1")
WEIGHTS = (*SHAPES, "--encoder", "convnet-small", "--weights", "a.pt")


@dataclass(frozen=True)
class Row:
    """What is wrong, what is asked for (words of a command, or a call), and what must lie in the folder before."""

    what: str
    ask: Sequence[str] | Callable[[], object]
    before: Callable[[], object] | None = None


class Evil:
    """A pickle that would run a command when it is read."""

    def __reduce__(self) -> Any:
        return os.system, ("touch hacked",)


def _file(name: str, text: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(text)


def _evil_cifar() -> None:
    folder = Path("cifar-100-python")
    folder.mkdir()
    for name in ("train", "test", "meta"):
        (folder / name).write_bytes(pickle.dumps({b"data": Evil()}))


def _weights(content: Any) -> Callable[[], object]:
    return lambda: torch.save(content, "a.pt")


def _weights_of(encoder: str, **changed: torch.Tensor) -> Callable[[], object]:
    """The state dict of an encoder, with some of its tensors changed."""
    own = {name.replace("__", "."): tensor for name, tensor in changed.items()}
    return lambda: torch.save(build_encoder(encoder).state_dict() | own, "a.pt")


def _finished_run() -> None:
    quietly([*SHAPES, *TINY, "--out", "study"])


def _damaged_record() -> None:
    _finished_run()
    path = Path("study/seed-0/record.json")
    path.write_text(path.read_text()[:100])


def _damaged_configuration() -> None:
    Path("study").mkdir()
    Path("study/experiment.json").write_text("{")


def _unpaired() -> object:
    y = torch.zeros(8).long()
    return _learner().learn(reprise.Task.classify("kinds", (_images(), y[1:]), (_images(), y), classes=2))


def _learner() -> reprise.Learner:
    return reprise.Learner(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), reprise.ER(), m_per_task=2, batch=4)


def _images(count: int = 8) -> torch.Tensor:
    return torch.zeros(count, 3, 8, 8, dtype=torch.uint8)


def _classify(y: torch.Tensor, classes: int = 3) -> Callable[[], object]:
    return lambda: _learner().learn(
        reprise.Task.classify(
            "kinds", (_images(len(y)), y), (_images(), torch.zeros(8).long()), classes=classes
        )
    )


def _regress(y: torch.Tensor) -> Callable[[], object]:
    return lambda: _learner().learn(reprise.Task.regress("depth", (_images(), y), (_images(), y)))


def _misfit() -> object:
    y = torch.zeros(8).long()
    learner = reprise.Learner(torch.nn.Conv2d(1, 4, 3), reprise.SGD())
    return learner.learn(reprise.Task.classify("kinds", (_images(), y), (_images(), y), classes=2))


def _twice() -> object:
    learner, y = _learner(), torch.zeros(8).long()
    learner.learn(reprise.Task.classify("kinds", (_images(), y), (_images(), y), classes=2))
    return learner.learn(reprise.Task.classify("kinds", (_images() + 1, y), (_images(), y), classes=2))


ROWS = (
    Row(
        "YAML that calls a function",
        FROM_FILE,
        _file("a.yaml", "method: !!python/object/apply:os.system [touch]"),
    ),
    Row("YAML that grows when it is written out", FROM_FILE, _file("a.yaml", "a: &a [er, er]\nb: [*a, *a]")),
    Row("a file that names code as a method", FROM_FILE, _file("a.yaml", "method: os.system")),
    Row("a file with a field nobody knows", FROM_FILE, _file("a.yaml", "method: er\nlearning_rate: 0.1")),
    Row("a file that is no text", FROM_FILE, lambda: Path("a.yaml").write_bytes(b"\xff\xfe\x00")),
    Row("an encoder that names code", (*SHAPES, "--encoder", "os.system")),
    Row("a pickle that runs a command", ("run", "split-cifar", "--method", "er", "--data", "."), _evil_cifar),
    Row("weights that run a command", WEIGHTS, _weights({"conv1.weight": Evil()})),
    Row("weights that are not there", WEIGHTS),
    Row("weights cut off in the middle", WEIGHTS, _file("a.pt", "PK")),
    Row(
        "a file with weights deeper within",
        WEIGHTS,
        _weights({"state_dict": {"conv1.weight": torch.ones(1)}}),
    ),
    Row("weights of another encoder", WEIGHTS, _weights_of("resnet-rooms")),
    Row("weights of another size", WEIGHTS, _weights_of("convnet-small", bn1__bias=torch.ones(9))),
    Row(
        "weights that are no numbers",
        WEIGHTS,
        _weights_of("convnet-small", bn1__bias=torch.full((8,), torch.nan)),
    ),
    Row("a data folder that is not there", ("run", "split-cifar", "--method", "er", "--data", "nowhere")),
    Row("a path that is no UTF-8", ("run", "split-cifar", "--method", "er", "--data", "data-\udcff")),
    Row("steps beyond any memory", (*SHAPES, "--steps", "1000000000000")),
    Row("epochs beyond any memory", (*SHAPES, "--epochs", "100000000000")),
    Row("a batch larger than a task", (*SHAPES, "--batch", "99999999999999999999")),
    Row("m larger than there are examples", (*SHAPES, "--m", "100000000")),
    Row("m that cannot be divided", (*SHAPES, "--m", "51")),
    Row("a memory of the last examples seen, more than a task sees", (*SHAPES, *RING, "--steps", "2")),
    Row("the same, since the last partial batch of a pass is left out", (*SHAPES, *RING, "--batch", "300")),
    Row("a budget that is no size", (*SHAPES, "--memory", "1e30GB")),
    Row("a learning rate that is no number", (*SHAPES, "--lr", "nan")),
    Row("a seed named twice", (*SHAPES, "--seeds", "1,1")),
    Row("a flag of another method", (*SHAPES, "--lam_fm", "5")),
    Row("a result folder that is a file", (*SHAPES, *TINY, "--out", "study"), _file("study", "")),
    Row(
        "a result folder of another configuration",
        (*SHAPES, *TINY, "--lr", "0.5", "--out", "study"),
        _finished_run,
    ),
    Row("a record cut off in the middle", (*SHAPES, *TINY, "--out", "study"), _damaged_record),
    Row("a configuration cut off in the middle", (*SHAPES, *TINY, "--out", "study"), _damaged_configuration),
    Row("a fork of a run that is not there", (*SHAPES, "--from", "nowhere", "--task", "1", "--out", "fork")),
    Row("a report of a folder without records", ("report", ".", "--out", "page")),
    Row("a task named twice", (*ROOMS, "--sequence", "depth,depth")),
    Row("a task that is none", (*ROOMS, "--sequence", "depth,os.system")),
    Row("images without end", (*ROOMS, "--size", "1000000")),
    Row("worlds without end", (*ROOMS, "--buildings", "100000000,1,1")),
    Row("a method that needs tasks of one kind", ("run", "rooms", "--method", "mer")),
    Row("a folder without Taskonomy's files", ("run", "taskonomy", "--method", "er", "--data", ".")),
    Row("a label out of range", _classify(torch.tensor([0, 1, 2, 3, 0, 1, 2, 0]))),
    Row("labels that are no whole numbers", _classify(torch.full((8,), 0.5))),
    Row("an encoder that does not take the images", _misfit),
    Row("fewer labels than images", _unpaired),
    Row("targets of which none is a number", _regress(torch.full((8, 1, 8, 8), torch.nan))),
    Row("other data under the name of a finished task", _twice),
)


def quietly(words: Sequence[str]) -> tuple[int, str]:
    """A command's exit code and what it says on stderr."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(list(words))
    return code, said.getvalue().strip()


def sentence_of(row: Row) -> str:
    """What a row gets, in a folder of its own; the command's exit code must be 2."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            if row.before is not None:
                row.before()
            if callable(row.ask):
                try:
                    row.ask()
                except InputError as error:
                    said = str(error)
                else:
                    raise AssertionError(f"{row.what}: nothing was refused")
            else:
                code, said = quietly(row.ask)
                assert code == 2, f"{row.what}: exit code {code}, {said}"
                assert said.count("\n") == 0, f"{row.what}: {said}"
                said = said.removeprefix("reprise: ")
            assert not Path("hacked").exists(), f"{row.what}: it ran"
        finally:
            os.chdir(home)
    return said.replace(os.path.realpath(folder), "DIR").replace(folder, "DIR")


def document() -> str:
    lines = [
        "# Bad input",
        "",
        "One sentence that names the field or file, what was found and the way out; exit code 2 (in Python an",
        "`InputError`); no traceback, nothing lost, nothing of it is run. Every row is a test",
        "(`tests/test_bad_input.py`).",
        "",
        "| what | the sentence |",
        "|---|---|",
    ]
    for row in ROWS:
        said = sentence_of(row).replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| {row.what} | {said} |")
    return "\n".join([*lines, "", MORE])


MORE = """Elsewhere: archives with `..`, links or devices (`tests/streams/test_fetch.py`); pickles and pictures
damaged in many ways (`tests/streams/test_files.py`, at random in `tests/streams/test_readers_fuzz.py`); pickles and
YAML of a few bytes that would fill the memory (`tests/streams/test_files.py`, `tests/test_config.py`); Taskonomy's
files truncated, missing, of a wrong size or kind (`tests/streams/test_taskonomy_wrong_input.py`); HTML in names
(`tests/report`); checkpoints with flipped bits, full disks, read-only folders (`tests/test_archive.py`,
`tests/test_interrupt.py`).
"""

if __name__ == "__main__":
    sys.stdout.write(f"{DOCUMENT}\n")
    DOCUMENT.write_text(document(), encoding="utf-8")
