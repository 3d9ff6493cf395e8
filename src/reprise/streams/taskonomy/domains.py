"""Taskonomy's tables: the file domains, the 11 tasks made of them, the paper's sequences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from reprise.errors import InputError
from reprise.tasks import Classify, Kind, Regress, Segment

MISSING_DEPTH = 64500  # 65535 is the code for no depth; whatever is not below this counts as that
LARGEST_SEGMENT = 17  # 0 is uncertain, 1 is background
SCENES = 365
# The 63 indoor classes among the 365 of Places that Zamir et al. keep.
_SCENES = (
    "3 23 25 26 28 37 43 45 51 52 56 61 63 88 89 93 95 100 102 106 121 124 126 129 131 133 135 156 165 176 177 179 "
    "182 203 208 215 217 228 240 241 244 246 248 253 255 264 269 280 281 282 285 298 303 311 317 318 328 332 343 "
    "346 352 358 363"
)
SCENE_CLASSES = tuple(int(index) for index in _SCENES.split())


@dataclass(frozen=True)
class Domain:
    """A kind of file: `<name>/[taskonomy/]<building>/point_P_view_V_domain_<suffix>.<png or npy>`."""

    name: str
    dtype: str
    channels: int
    """Channels that carry information, and are packed: 2 of curvature's 3, one of reshading's equal 3."""
    mode: Literal["RGB", "I;16", "L", "npy"]
    resize: Literal["area", "nearest"] | None = "area"
    missing: tuple[int, ...] | None = None
    """The colour that says there is no label here: left out of the mean when pixels are merged."""
    named: str | None = None
    length: int | None = None
    """Of the vector in an npy file."""

    @property
    def suffix(self) -> str:
        return self.named or self.name

    @property
    def extension(self) -> str:
        return "npy" if self.mode == "npy" else "png"

    def filename(self, point: int, view: int) -> str:
        return f"point_{point}_view_{view}_domain_{self.suffix}.{self.extension}"

    def shape(self, size: int) -> tuple[int, ...]:
        """Of one view's packed array."""
        return (self.channels, size, size) if self.length is None else (self.length,)


def _grey16(name: str) -> Domain:
    return Domain(name, "uint16", 1, "I;16")


_DOMAINS = (
    Domain("rgb", "uint8", 3, "RGB"),
    Domain("principal_curvature", "uint8", 2, "RGB", missing=(0, 0)),
    Domain("class_object", "float32", 1, "npy", None, length=1000),
    Domain("normal", "uint8", 3, "RGB", missing=(128, 128, 128)),
    Domain("segment_semantic", "uint8", 1, "L", "nearest", named="segmentsemantic"),
    # Nearest: a mean would mix the code for missing into its neighbours. It also makes the order of the logarithm
    # and the resizing irrelevant, so that depth can be packed as it is.
    Domain("depth_zbuffer", "uint16", 1, "I;16", "nearest"),
    Domain("reshading", "uint8", 1, "RGB"),
    _grey16("edge_texture"),
    Domain("class_scene", "float32", 1, "npy", None, named="class_places", length=SCENES),
    _grey16("keypoints2d"),
    _grey16("edge_occlusion"),
    _grey16("keypoints3d"),
)
DOMAINS: dict[str, Domain] = {domain.name: domain for domain in _DOMAINS}
DEPTH = "depth_zbuffer"


@dataclass(frozen=True)
class TaskonomyTask:
    """A task of the paper: the domain it predicts, its head and loss, and whether pixels without depth count.

    The norms are those the paper prints (l1 for curvature, l2 for the rest), the reverse of Zamir et al.'s.
    """

    name: str
    domain: str
    kind: Kind
    masked: bool = False
    """Pixels without depth are left out of the loss."""

    def under(self, norms: str | None) -> Kind:
        """Its kind under the paper's norms, or Zamir et al.'s."""
        if norms != "zamir" or not isinstance(self.kind, Regress):
            return self.kind
        return replace(self.kind, norm="l1" if self.kind.norm == "l2" else "l2")

    def needs(self, masks: bool = True) -> tuple[str, ...]:
        """The domains that a view must have to be used for this task."""
        return tuple(dict.fromkeys(("rgb", self.domain, *((DEPTH,) if self.masked and masks else ()))))


_TASKS = (
    TaskonomyTask("curvature", "principal_curvature", Regress(2, "l1"), masked=True),
    TaskonomyTask("class_object", "class_object", Classify(1000)),
    TaskonomyTask("normal", "normal", Regress(3), masked=True),
    TaskonomyTask("segment_semantic", "segment_semantic", Segment(LARGEST_SEGMENT)),
    TaskonomyTask("depth", DEPTH, Regress(1), masked=True),
    TaskonomyTask("reshading", "reshading", Regress(1), masked=True),
    TaskonomyTask("edge_texture", "edge_texture", Regress(1)),
    TaskonomyTask("class_scene", "class_scene", Classify(len(SCENE_CLASSES))),
    TaskonomyTask("keypoints2d", "keypoints2d", Regress(1)),
    TaskonomyTask("edge_occlusion", "edge_occlusion", Regress(1), masked=True),
    TaskonomyTask("keypoints3d", "keypoints3d", Regress(1), masked=True),
)
TASKS: dict[str, TaskonomyTask] = {task.name: task for task in _TASKS}

SEQUENCES: dict[str, tuple[str, ...]] = {
    "1": tuple(TASKS),
    "2": (
        *("depth", "keypoints2d", "segment_semantic", "normal", "class_object", "curvature"),
        *("edge_occlusion", "reshading", "class_scene", "keypoints3d", "edge_texture"),
    ),
}


def find_tasks(names: Iterable[str] | None = None) -> tuple[TaskonomyTask, ...]:
    """The named tasks in the order given; all of them, in the paper's first sequence, when none is named."""
    wanted = tuple(TASKS if names is None else names)
    if unknown := [name for name in wanted if name not in TASKS]:
        raise InputError(f"sequence: {unknown[0]!a} is no Taskonomy task; choose from {', '.join(TASKS)}.")
    if len(set(wanted)) < len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        raise InputError(f"sequence: {twice!r} is named twice; name each task once.")
    if not wanted:
        raise InputError(f"sequence: none is named; choose from {', '.join(TASKS)}.")
    return tuple(TASKS[name] for name in wanted)


def domains_of(tasks: Iterable[TaskonomyTask], masks: bool = True) -> tuple[Domain, ...]:
    """The domains the tasks need, each once, in the table's order."""
    needed = {name for task in tasks for name in task.needs(masks)}
    return tuple(domain for domain in _DOMAINS if domain.name in needed)
