"""Whatever is done to the bytes of a data file, its reader gives arrays of the right kind, or an InputError.

Where a format carries checksums (PNG), what is read is what was written, or refused.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from taskonomy_files import official, write_taskonomy
from test_files import WNIDS, mini_split, python2

from reprise.config import make_experiment, read_config
from reprise.errors import InputError
from reprise.methods import METHODS
from reprise.streams import files
from reprise.streams.pickles import load_pickle
from reprise.streams.taskonomy.domains import DOMAINS
from reprise.streams.taskonomy.layout import decode
from reprise.streams.taskonomy.packed import load_pack
from reprise.streams.taskonomy.packing import pack

FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Damage:
    """Bits flipped, the end cut off, a part left out, doubled or replaced; or other bytes altogether."""

    kind: str
    near: bool
    """In the first 400 bytes: headers are where a lie does most, and most bytes are pixels."""
    place: float
    length: int
    bits: tuple[tuple[int, int], ...]
    fresh: bytes

    def of(self, sound: bytes) -> bytes:
        start = int(self.place * (min(len(sound), 400) if self.near else len(sound)))
        end = min(len(sound), start + self.length)
        if self.kind == "flip":
            raw = bytearray(sound)
            for further, bit in self.bits:
                raw[min(start + further, len(raw) - 1)] ^= 1 << bit
            return bytes(raw)
        middle = {"drop": b"", "double": 2 * sound[start:end], "replace": self.fresh}.get(self.kind, b"")
        return {"any": self.fresh, "cut": sound[:start]}.get(self.kind, sound[:start] + middle + sound[end:])


DAMAGES = st.builds(
    Damage,
    st.sampled_from(("flip", "cut", "drop", "double", "replace", "any")),
    st.booleans(),
    st.floats(0, 1),
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 7)), min_size=1, max_size=4).map(tuple),
    st.binary(max_size=100),
)


def outcome(read: Callable[..., Any], *arguments: Any) -> Any:
    """What a reader gives; None where it refuses, with one sentence that any terminal can show."""
    try:
        return read(*arguments)
    except InputError as error:
        sentence = str(error)
    assert sentence.encode()
    assert len(sentence) < 2000
    return None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CIFAR_PER_CLASS", {"train": 1})


# ---- pickles

CIFAR = b"\x80\x02" + python2(
    {"data": np.arange(100 * 3072, dtype=np.uint8).reshape(100, 3072), "fine_labels": [*range(100)]}
)
CIFAR += b"."
MINI = pickle.dumps(mini_split(WNIDS[:3], 1))
OPCODES = [
    bytes([code])
    for code in b"(.012FGIJKLMNPQRSTUVX]abcdeghijlopqrstu}\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b"
]
OPCODES += [bytes([code]) for code in range(0x8C, 0x99)]
NAMES = [
    "numpy\ndtype",
    "numpy.core.multiarray\n_reconstruct",
    "numpy\nndarray",
    "numpy.core.numeric\n_frombuffer",
]
NAMES += ["_codecs\nencode", "builtins\nset", "os\nsystem", "numpy.core.multiarray\nscalar"]
PARTS = st.one_of(
    st.sampled_from(OPCODES),
    st.sampled_from(NAMES).map(lambda name: f"c{name}\n".encode()),
    st.binary(max_size=5),
    st.integers(0, 2**32 - 1).map(lambda number: b"r" + struct.pack("<I", number)),
    st.sampled_from(
        (b"U\x02u1", b"K\x00", b"(K\x01K\x02t", b"\x8e" + b"\xff" * 8, b"\x95" + b"\xff" * 7 + b"\x7f")
    ),
)


@FUZZ
@given(DAMAGES)
@pytest.mark.usefixtures("small")
def test_cifar(tmp_path: Path, damage: Damage) -> None:
    (tmp_path / "train").write_bytes(damage.of(CIFAR))
    if (found := outcome(files.read_cifar_part, tmp_path / "train")) is None:
        return
    x, y = found
    assert x.shape == (100, 3, 32, 32)
    assert (x.dtype, y.dtype, y.shape) == (np.uint8, np.int64, (100,))
    assert (np.sort(y) == np.arange(100)).all()


@FUZZ
@given(DAMAGES)
def test_mini_imagenet_pickle(tmp_path: Path, damage: Damage) -> None:
    (tmp_path / "x").write_bytes(damage.of(MINI))
    classes = outcome(files.read_mini_pickle, tmp_path / "x") or {}
    assert all(x.dtype == np.uint8 and x.shape[1:] == (3, 84, 84) for x in classes.values())
    assert sum(len(x) for x in classes.values()) <= 3 * len(classes)


@settings(FUZZ, max_examples=300)
@given(st.lists(PARTS, max_size=25).map(b"".join))
def test_any_program_of_a_pickle(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x").write_bytes(raw)
    outcome(load_pickle, tmp_path / "x")


# ---- pictures


def encoded(array: np.ndarray, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


JPEG = encoded(np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8), "JPEG")


@FUZZ
@given(DAMAGES)
def test_jpeg(tmp_path: Path, damage: Damage) -> None:
    (tmp_path / "x.jpg").write_bytes(damage.of(JPEG))
    found = outcome(files.read_jpeg, tmp_path / "x.jpg")
    assert found is None or (found.dtype, found.shape) == (np.uint8, (3, 84, 84))


def in_files(name: str) -> tuple[np.ndarray, bytes]:
    """A label of a domain, and the file that holds it."""
    array, file = official(name, np.random.default_rng(1)), io.BytesIO()
    if DOMAINS[name].mode == "npy":
        np.save(file, array)
        return array, file.getvalue()
    return array, encoded(array, "PNG")


@FUZZ
@given(DAMAGES)
@pytest.mark.parametrize("name", ["rgb", "depth_zbuffer", "segment_semantic"])
def test_taskonomy_png(tmp_path: Path, name: str, damage: Damage) -> None:
    array, sound = in_files(name)
    (tmp_path / "x.png").write_bytes(damage.of(sound))
    found = decode(tmp_path / "x.png", DOMAINS[name])
    if isinstance(found, str):
        assert found.split(":")[0] in ("unreadable", "mismatching")
    else:  # every chunk has its checksum
        expected = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        np.testing.assert_array_equal(found, expected[: DOMAINS[name].channels])


@FUZZ
@given(DAMAGES)
@example(Damage("replace", True, 10 / 400, 7, (), b"('''    "))  # Python's tokenizer has an error of its own
def test_taskonomy_vector(tmp_path: Path, damage: Damage) -> None:
    (tmp_path / "x.npy").write_bytes(damage.of(in_files("class_object")[1]))
    found = decode(tmp_path / "x.npy", DOMAINS["class_object"])
    if isinstance(found, str):
        assert found.split(":")[0] in ("unreadable", "mismatching")
    else:
        assert (found.dtype, found.shape) == (np.float32, (1000,))
        assert np.isfinite(found).all()


# ---- a pack


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("taskonomy")
    write_taskonomy(root / "files")
    pack(root / "files", root / "pack", 16, ["adams"], ["depth", "class_object"])
    return root / "pack"


def opened(folder: Path) -> list[str]:
    """All that is asked of a pack before training: which rows serve a task, and whether its arrays are whole."""
    found = load_pack(folder)
    for task in ("depth", "class_object"):
        rows = found.rows(task)
        assert len(rows) == 0 or 0 <= rows.min() <= rows.max() < len(found)
    return found.verify()


@FUZZ
@given(DAMAGES)
@pytest.mark.parametrize("name", ["pack.json", "adams/index.json", "adams/rgb.npy", "adams/class_object.npy"])
def test_pack(packed: Path, name: str, damage: Damage) -> None:
    """Opening it never fails otherwise; damaged rows are found by their checksum."""
    path = packed / name
    sound = path.read_bytes()
    raw = damage.of(sound)
    path.write_bytes(raw)
    try:
        verified = outcome(lambda: opened(packed))
    finally:
        path.write_bytes(sound)
    if path.suffix == ".npy" and verified is not None:
        assert (verified == []) == (raw == sound)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(("rgb", "views")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("0", "rgb", "x")), inner, max_size=3)
    ),
    max_leaves=6,
)


@FUZZ
@given(st.data())
@pytest.mark.parametrize("name", ["pack.json", "adams/index.json"])
def test_pack_with_other_values(packed: Path, name: str, data: st.DataObject) -> None:
    path = packed / name
    sound = path.read_text()
    content = json.loads(sound)
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(JSON)
    path.write_text(json.dumps(content))
    try:
        outcome(lambda: opened(packed))
    finally:
        path.write_text(sound)


# ---- configuration

LINES = "lr: 0.1\nm: 50\nseeds: [0, 1]\nscenario: class\nmemory: 2MB\np_replay: 0.5\nfill: reservoir\n"
WORDS = [
    "lr",
    "m",
    "tasks",
    "fill",
    "seeds",
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "\n",
    "&a ",
    "*a",
    "<<: ",
    "? ",
]
WORDS += [
    "!!int ",
    "!!bool ",
    "!!timestamp ",
    "| ",
    "> ",
    "'",
    '"',
    "~",
    "#",
    "%",
    "\t",
    "=",
    "0x_",
    "1e400",
    ".nan",
]
WORDS += ["2001-12-14t21:59:43.10-99:00", "9" * 400, "0", "190:20:30"]
YAML = st.one_of(
    DAMAGES.map(lambda damage: damage.of(LINES.encode())),
    st.lists(st.sampled_from(WORDS), max_size=15).map(lambda words: "".join(words).encode()),
    st.dictionaries(st.sampled_from(("lr", "m", "fill", "memory", "batch", "size")), JSON).map(
        lambda fields: yaml.safe_dump(fields).encode()
    ),
)


@settings(FUZZ, max_examples=300)
@given(YAML, st.sampled_from(sorted(METHODS)))
def test_configuration(tmp_path: Path, raw: bytes, method: str) -> None:
    (tmp_path / "x.yaml").write_bytes(raw)
    outcome(lambda: make_experiment("split-shapes", method, read_config(tmp_path / "x.yaml")))
