"""Experiment: everything that decides a result, as one frozen object that can be written, read and hashed.

Order of precedence: flag > file > the stream's protocol table > field default. What is resolved is stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from reprise.errors import InputError
from reprise.fill import POLICIES
from reprise.first_weights import FirstWeights
from reprise.method import Method
from reprise.methods import METHODS, name_of
from reprise.values import nearest, parse_bytes, read_value

RESULTS_VERSION = 1
"""Raised when a fix moves numbers: older records are then of another experiment."""

MEMORY_FIELDS = ("m", "m_per_class", "m_per_task", "memory")
"""Four ways of saying how much is remembered."""

SCENE_FIELDS = ("size", "sequence", "buildings", "views", "masks", "flip", "norms")
"""Only scene streams have them; elsewhere they are None."""

LATER: dict[str, Any] = {"evaluate_every": 1} | dict.fromkeys(("start", "first_weights", *SCENE_FIELDS))
"""Fields that came later, left out of a configuration at these values: hashes of older results stand."""

LARGEST_CONFIG = 1 << 20
"""Characters of a file of fields."""

DEEPEST_CONFIG = 10
"""Lists and the like within each other: its fields hold one at most."""

UNTOLD = ("stream", "method", "start", "first_weights")
"""Fields that are no flags of their own."""


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
    # ---- scene streams (rooms, taskonomy)
    size: int | None = None
    """pixels a side of a view"""
    sequence: str | None = None
    """the tasks in their order: 1 or 2 (the paper's sequences), or names such as depth,normal"""
    buildings: str | None = None
    """who trains, validates and tests; rooms: numbers of worlds such as 24,6,6; taskonomy: auto, points (of each
    building), paper, tiny, medium, full, fullplus, or a csv file like the official ones"""
    views: int | None = None
    """views of each rendered world"""
    masks: bool | None = None
    """leave pixels without depth out of the loss"""
    flip: bool | None = None
    """mirror current images at random, with their labels"""
    norms: Literal["paper", "zamir"] | None = None
    """losses of real-valued maps; paper: curvature l1, the rest l2; zamir: the other way round, as in Taskonomy's own
    code (default: paper)"""
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
    precision: Literal["float32", "tf32", "bf16", "float64"] = "float32"
    """arithmetic; bf16: the encoder's products and activations, the rest float32; tf32 is float32 on a CPU"""
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
    """replay a whole step with this probability; 0: beside each current batch (default: as the stream does)"""
    # ---- the run
    plan_seed: int = 0
    """seed of the replay coin, shared by all seeds"""
    curve: int = 0
    """measure the accuracy after each of a task's first N steps (learning curve area)"""
    evaluate_every: int = 1
    """measure all tasks seen only after every Nth task, and after the last"""
    start: str | None = None
    """the run and the number of its tasks that this one goes on from; `--from RUN --task K` sets it"""
    first_weights: FirstWeights | None = None
    """the file that the encoder begins with, in a record its digest; `--weights FILE` sets it"""

    def __post_init__(self) -> None:
        self._positive("tasks", "steps", "epochs", "batch", "replay", "lr", "clip", "size", "views")
        self._positive("evaluate_every")
        for name in ("m", "m_per_class", "m_per_task", "curve"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"{name}: {value} is negative; give 0 or more.")
        if self.p_replay is not None and not 0 <= self.p_replay < 1:
            raise InputError(
                f"p_replay: {self.p_replay} is not between 0 and 1; give a probability, or leave it out."
            )
        given = [name for name in MEMORY_FIELDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} say the same thing twice; give one of them.")
        if self.memory is not None:
            parse_bytes(self.memory)
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
        if self.first_weights is not None:
            values["first_weights"] = self.first_weights.digest
        return {"method": self.method_name, **values, **dataclasses.asdict(self.method)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Experiment:
        given = {name: value for name, value in values.items() if name not in UNTOLD}
        made = make_experiment(str(values.get("stream")), str(values.get("method")), given)
        digest = values.get("first_weights")
        first_weights = None if digest is None else FirstWeights(digest)
        return dataclasses.replace(made, start=values.get("start"), first_weights=first_weights)

    def configuration(self, fingerprint: str) -> dict[str, Any]:
        """All that decides the result: these fields, the data, and `results_version`. A record holds it."""
        fields = {n: v for n, v in self.to_dict().items() if n not in LATER or v != LATER[n]}
        return fields | {"data": fingerprint, "results_version": RESULTS_VERSION}

    def hash(self, fingerprint: str) -> str:
        return hash_of(self.configuration(fingerprint))


def hash_of(configuration: Mapping[str, Any]) -> str:
    """12 hex digits of all that decides a result."""
    text = json.dumps(configuration, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Setting:
    """How an experiment is run; only what its files hold changes a result. Every field is a command-line flag."""

    seeds: tuple[int, ...] = (0,)
    """seeds to run, for example 0,1,2"""
    data: Path | None = None
    """root folder of the data sets, or the stream's own folder"""
    weights: Path | None = None
    """file of the encoder's first weights, .safetensors or a .pt state dict; of torchvision for resnet50 (default:
    random ones)"""
    out: Path | None = None
    """folder of the result (default: one below runs/)"""
    device: Literal["cpu", "cuda"] = "cpu"
    """where it is computed"""
    lanes: int | None = None
    """runs stacked in one process (default: up to 120 of those that fit on a GPU, one on a CPU)"""
    workers: int | None = None
    """processes that prepare data, and threads that read ahead of a GPU (default: as many as there are cores, 4)"""
    ray: str | None = None
    """hand the runs to a Ray cluster: local (this machine), auto or HOST:PORT (default: processes of this machine)"""
    compile: bool = False
    """compile encoder and heads (scene streams)"""
    compare: bool = False
    """scene streams: train the multi-task reference too where it is missing, so that the performance drop is known"""
    artifacts: tuple[str, ...] = ()
    """what runs leave beside their records for the report: features, memory (default: nothing)"""
    log: tuple[str, ...] = ()
    """tools that show curves while runs train: tensorboard, wandb (default: none)"""
    save_steps: int | None = None
    """write a checkpoint every N steps"""
    save_minutes: float = 5.0
    """write a checkpoint when so many minutes have passed since the last"""
    keep: int = 2
    """checkpoints kept besides those of task ends"""
    save_tasks: bool = True
    """keep weights, memory and state at the end of every task, to fork from (tune: never)"""

    def __post_init__(self) -> None:
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            shown = ",".join(map(str, self.seeds))
            raise InputError(f"seeds: {shown} are not different numbers from 0 up; write for example 0,1,2.")
        if self.lanes is not None and self.lanes < 1:
            raise InputError(f"lanes: {self.lanes} is not positive; give 1 or more, or leave it out.")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers: {self.workers} is not positive; give 1 or more, or leave it out.")
        for name in ("save_steps", "save_minutes", "keep"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name}: {value} is not positive; give a number above 0.")


SETTING_HINTS: dict[str, Any] = typing.get_type_hints(Setting)


def make_setting(given: Mapping[str, Any]) -> Setting:
    return Setting(**{name: read_value(name, value, SETTING_HINTS[name]) for name, value in given.items()})


def field_hints(method: str) -> dict[str, Any]:
    """The fields of an experiment with this method, and their types: the protocol's, then the method's own."""
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"method: {method!r} is not known; choose one of {', '.join(METHODS)}.")
    protocol, own = typing.get_type_hints(Experiment), typing.get_type_hints(METHODS[method])
    names = [f.name for f in fields(Experiment) if f.name not in UNTOLD]
    return {name: protocol[name] for name in names} | {f.name: own[f.name] for f in fields(METHODS[method])}


def no_such_field(name: str, method: str, known: Iterable[str], where: str = "") -> InputError:
    """The sentence about a field that a method does not have, with the way out."""
    plain, known = name.lstrip("-").replace("-", "_"), sorted(known)
    owners = [owner for owner, kind in METHODS.items() if plain in {f.name for f in fields(kind)}]
    near = nearest(plain, known)
    way_out = f"the fields are {', '.join(known)}" if known else "leave it out"
    if near:
        way_out = f"the nearest one is {near}"
    if owners:
        way_out = f"{', '.join(owners)} {'have' if len(owners) > 1 else 'has'} it"
    return InputError(f"{name}: {method} has no such field{where}; {way_out}.")


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Values above displace those below. Two ways of saying m never meet: one above displaces any below."""
    if any(above.get(name) is not None for name in MEMORY_FIELDS):
        below = {name: value for name, value in below.items() if name not in MEMORY_FIELDS}
    return {**below, **above}


def make_experiment(
    stream: str, method: str, given: Mapping[str, Any], protocol: Mapping[str, Any] | None = None
) -> Experiment:
    """Build an experiment from plain values; unknown fields and wrong types are named."""
    hints = field_hints(method)
    given = {name: value for name, value in given.items() if name not in ("stream", "method")}
    for name in given:
        if name not in hints:
            raise no_such_field(name, method, hints)
    table = {name: value for name, value in (protocol or {}).items() if name in hints}
    values = {name: read_value(name, value, hints[name]) for name, value in overlay(table, given).items()}
    own = {f.name for f in fields(METHODS[method])}
    built = METHODS[method](**{name: value for name, value in values.items() if name in own})
    return Experiment(stream, built, **{name: value for name, value in values.items() if name not in own})


def _plain_yaml(text: str) -> Any:
    """Plain values. A tag may ask for what a value is not, an anchor makes a page of text out of ten lines."""
    if len(text) > LARGEST_CONFIG:
        raise ValueError(f"it is longer than {LARGEST_CONFIG} characters")
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST_CONFIG:  # the parser's time grows with the square of the depth
            raise ValueError(f"lists within lists, more than {DEEPEST_CONFIG} deep")
        for what in ("tag", "anchor"):
            if (found := getattr(event, what, None)) is not None:
                raise yaml.MarkedYAMLError(problem=f"{what} {found!a:.60}", problem_mark=event.start_mark)
    return yaml.safe_load(text)


def read_config(path: Path) -> dict[str, Any]:
    """Fields from a YAML file. It never names code: only plain values are read."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST_CONFIG + 1)
        content = _plain_yaml(text)
    except FileNotFoundError:
        raise InputError(f"config: {path} does not exist; name a YAML file of fields.") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"config: {path} cannot be read ({why}); name a YAML file of fields.") from None
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        why = where + str(problem or str(error).partition("\n")[0])
        raise InputError(
            f"config: {path} is not plain YAML ({why}); write lines of `field: value`."
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(f"config: {path} holds no fields; write lines of `field: value`.")
    return {key.replace("-", "_"): value for key, value in content.items()}
