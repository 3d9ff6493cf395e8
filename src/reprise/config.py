"""Experiment: everything that decides a result, as one frozen object that can be written, read and hashed.

Order of precedence: flag > file > the stream's protocol table > field default. What is resolved is stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from reprise.errors import InputError
from reprise.fill import POLICIES
from reprise.method import Method
from reprise.methods import METHODS, name_of

RESULTS_VERSION = 1
"""Raised when a fix moves numbers: older records are then of another experiment."""


@dataclass(frozen=True)
class Experiment:
    """A stream, a method and the protocol between them. Every field is a command-line flag."""

    stream: str
    method: Method
    # ---- the stream
    scenario: Literal["task", "class"] = "task"
    """task: the task of a test image is known; class: one head over all classes seen"""
    split: Literal["report", "validation"] = "report"
    """report: the tasks results are given for; validation: those for hyper-parameter search"""
    tasks: int | None = None
    """train only the first N tasks"""
    normalise: Literal["channel", "mean_image"] = "channel"
    """channel: subtract mean, divide by deviation of each channel; mean_image: subtract the mean image"""
    # ---- training
    encoder: str = "resnet18-reduced"
    """the shared encoder"""
    steps: int | None = None
    """steps of each task, instead of whole epochs"""
    epochs: int = 1
    """passes over each task"""
    batch: int = 10
    """examples of the current batch"""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """sgd: plain, no momentum; adam: PyTorch's defaults"""
    lr: float = 0.03
    """learning rate"""
    clip: float | None = None
    """clip the gradient's norm to this value"""
    bn: Literal["joint", "separate"] = "joint"
    """joint: current and replayed images in one encoder pass; separate: one pass each"""
    precision: Literal["float32", "tf32", "float64"] = "float32"
    """arithmetic; tf32 is float32 on a CPU"""
    # ---- memory and replay
    m: int | None = None
    """examples remembered: of the whole stream on Split, per task elsewhere"""
    m_per_class: int | None = None
    """the same, given per class"""
    m_per_task: int | None = None
    """the same, given per task"""
    memory: str | None = None
    """the same, given in bytes of all that the method keeps (2MB, 512KiB)"""
    fill: Literal["uniform_class", "uniform_task", "ring_class", "reservoir"] = "uniform_class"
    """what is remembered"""
    replay: int = 5
    """examples replayed in a step"""
    scope: Literal["union", "one_task", "each_task", "each_class"] = "union"
    """where a step's replayed examples come from"""
    p_replay: float | None = None
    """replay a whole step with this probability, instead of beside each current batch"""
    # ---- the run
    plan_seed: int = 0
    """seed of the replay coin, shared by all seeds"""
    curve: int = 0
    """measure the accuracy after each of a task's first N steps (learning curve area)"""

    def __post_init__(self) -> None:
        self._positive("tasks", "steps", "epochs", "batch", "replay", "lr", "clip")
        for name in ("m", "m_per_class", "m_per_task", "curve"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"{name}: {value} is negative; give 0 or more.")
        if self.p_replay is not None and not 0 < self.p_replay < 1:
            raise InputError(
                f"p_replay: {self.p_replay} is not between 0 and 1; give a probability, or leave it out."
            )
        given = [
            name for name in ("m", "m_per_class", "m_per_task", "memory") if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} say the same thing twice; give one of them.")
        if self.fill not in POLICIES:
            raise InputError(f"fill: {self.fill!r} is not known; choose one of {', '.join(POLICIES)}.")

    def _positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name}: {value} is not positive; give a number above 0.")

    @property
    def method_name(self) -> str:
        return name_of(self.method)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `from_dict` is the inverse."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "method"}
        return {"method": self.method_name, **values, **dataclasses.asdict(self.method)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Experiment:
        return make_experiment(str(values.get("stream")), str(values.get("method")), values)

    def hash(self, fingerprint: str) -> str:
        """12 hex digits of all that decides the result: these fields, the data, and `results_version`."""
        content = self.to_dict() | {"data": fingerprint, "results_version": RESULTS_VERSION}
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Setting:
    """How an experiment is run; nothing of it changes a result."""

    seeds: tuple[int, ...] = (0,)
    data: Path | None = None
    device: str = "cpu"
    out: Path | None = None
    lanes: int | None = None
    """runs stacked in one process; None: all that fit on a GPU, one on a CPU"""
    extra: dict[str, Any] = field(default_factory=dict)


def make_experiment(
    stream: str, method: str, given: Mapping[str, Any], protocol: Mapping[str, Any] | None = None
) -> Experiment:
    """Build an experiment from plain values; unknown fields and wrong types are named."""
    if method not in METHODS:
        raise InputError(f"method: {method!r} is not known; choose one of {', '.join(METHODS)}.")
    kind = METHODS[method]
    method_fields = {f.name: hint for f in fields(kind) for hint in [typing.get_type_hints(kind)[f.name]]}
    own_hints = typing.get_type_hints(Experiment)
    protocol_fields = {
        f.name: own_hints[f.name] for f in fields(Experiment) if f.name not in ("stream", "method")
    }
    values = {k: v for k, v in (protocol or {}).items() if k in protocol_fields or k in method_fields}
    for name in given:
        if name in ("stream", "method"):
            continue
        if name not in protocol_fields and name not in method_fields:
            known = ", ".join(sorted([*protocol_fields, *method_fields]))
            raise InputError(f"{name}: {method} has no such field; the fields are {known}.")
    # Two ways of saying m never meet: a given one displaces the table's.
    if any(given.get(name) is not None for name in MEMORY_FIELDS):
        values = {k: v for k, v in values.items() if k not in MEMORY_FIELDS}
    values |= {k: v for k, v in given.items() if k not in ("stream", "method")}
    checked = {k: check_type(k, v, (protocol_fields | method_fields)[k]) for k, v in values.items()}
    built = kind(**{k: v for k, v in checked.items() if k in method_fields})
    return Experiment(stream, built, **{k: v for k, v in checked.items() if k in protocol_fields})


MEMORY_FIELDS = ("m", "m_per_class", "m_per_task", "memory")


def check_type(name: str, value: Any, hint: Any) -> Any:
    """The value as the field's type, or a sentence that names the field."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        if value not in options:
            raise InputError(f"{name}: {value!r} is not known; choose one of {', '.join(map(str, options))}.")
        return value
    if options and type(None) in options:
        if value is None:
            return None
        hint = next(option for option in options if option is not type(None))
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if value != value or value in (float("inf"), float("-inf")):
            raise InputError(f"{name}: {value} is not a finite number; give one.")
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    kinds = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
    raise InputError(f"{name}: {value!r} is not {kinds.get(hint, 'of the right type')}.")


def read_config(path: Path) -> dict[str, Any]:
    """Fields from a YAML file. It never names code: only plain values are read."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"config: {path} does not exist; name a YAML file of fields.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"config: {path} cannot be read ({error}); name a YAML file of fields.") from None
    except yaml.YAMLError as error:
        where = str(error).splitlines()[0]
        raise InputError(
            f"config: {path} is not plain YAML ({where}); write lines of `field: value`."
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(f"config: {path} holds no fields; write lines of `field: value`.")
    return {key.replace("-", "_"): value for key, value in content.items()}


def parse_bytes(text: str) -> int:
    """Bytes of `2MB` (MB = 1e6) or `512KiB` (KiB = 2^10)."""
    units = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
    number = text.strip().rstrip("BKMGIbkmgi ")
    unit = text.strip()[len(number) :].strip().upper() or "B"
    try:
        amount = float(number)
    except ValueError:
        amount = -1.0
    if unit not in units or not 0 < amount < 1e15:
        raise InputError(f"memory: {text!r} is not a size; write for example 2MB or 512KiB.")
    return int(amount * units[unit])
