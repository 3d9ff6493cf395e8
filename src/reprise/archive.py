"""Checkpoints of one run on disk: tensors in safetensors, the rest in JSON, every byte under a checksum.

A checkpoint is a manifest (`step-0002-00000120.json`, or `task-0002.json` after two tasks) that names its parts:
files called after their own sha256, so that a part which has not changed, the memory above all, is written once. The
manifest comes last and carries its own checksum: what it names was on disk before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from reprise.errors import InputError
from reprise.files import remove_partial, write_bytes
from reprise.types import Tree

FORMAT = 1
NAMES = re.compile(r"(?:step-(\d{4,})-(\d{8,})|task-(\d{4,}))\.json")

Position = tuple[int, int]
"""Phases done, and steps of the next one."""

Part = dict[str, str]
"""A file of tensors and its sha256."""


class Damaged(Exception):
    """A file of a checkpoint is not what was written."""


@dataclass(frozen=True)
class Entry:
    """A checkpoint as it lies there: plain values, and tensors by part ('weights', 'state', 'memory.0', ...)."""

    values: dict[str, Any]
    parts: dict[str, Tree] = field(default_factory=dict)


class Archive:
    """The folder `checkpoints` of one run. Only one process writes it: the one that holds the run's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: set[str] = set()
        """Parts this object has written: whatever else lies there is not relied on."""

    def positions(self) -> dict[Position, Path]:
        """The manifests there are, the furthest last; of two at one position the one kept for good."""
        found: dict[Position, Path] = {}
        for path in sorted(self.folder.glob("*.json")):
            if match := NAMES.fullmatch(path.name):
                phase, step, task = match.groups()
                found[(int(task), 0) if task else (int(phase), int(step))] = path
        return dict(sorted(found.items()))

    # ---- writing
    def save(
        self,
        position: Position,
        values: Mapping[str, Any],
        parts: Mapping[str, Tree],
        last: bool = False,
        known: Mapping[str, Part] | None = None,
    ) -> dict[str, Part]:
        """Write a checkpoint and tell its parts; `last` makes it one of a task's end, which is kept for good.

        known  parts as an earlier checkpoint told them: they are there already
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        named = {part: self._write_part(part, tensors) for part, tensors in parts.items()} | dict(known or {})
        body = {"format": FORMAT, "position": list(position), "parts": named, "values": values}
        phase, step = position
        name = f"task-{phase:04d}.json" if last else f"step-{phase:04d}-{step:08d}.json"
        write_bytes(self.folder / name, _encode({"sha256": _sum_of(body), "body": body}))
        return named

    def _write_part(self, part: str, tensors: Tree) -> Part:
        # Safetensors refuses channels-last tensors: they are saved contiguous, and copied into tensors that are not.
        content = safetensors.torch.save({name: t.contiguous() for name, t in tensors.items()})
        digest = hashlib.sha256(content).hexdigest()
        name = f"{part.partition('.')[0]}-{digest[:24]}.safetensors"
        if name not in self._whole:
            write_bytes(self.folder / name, content)
            self._whole.add(name)
        return {"file": name, "sha256": digest}

    def prune(self, keep: int, finished: bool = False) -> None:
        """Leave the newest checkpoints, the newest good one, those of task ends, and no file that none of them needs.

        Of a finished run only those of task ends stay.
        """
        manifests = self.positions()
        passing = [path for path in manifests.values() if path.name.startswith("step-")]
        kept = [] if finished else passing[-keep:]
        if not finished and (good := self.last_good()) is not None:
            kept.append(good)
        for path in set(passing) - set(kept):
            path.unlink()
        used = set()
        for path in self.positions().values():
            try:
                used |= {part["file"] for part in _read(path)["parts"].values()}
            except Damaged:  # nothing can be read of it: it is of no use, and its parts of none but others'
                path.unlink()
        for path in self.folder.glob("*.safetensors"):
            if path.name not in used:
                path.unlink()
                self._whole.discard(path.name)
        remove_partial(self.folder)
        if finished and not any(self.folder.iterdir()):
            self.folder.rmdir()

    # ---- reading
    def values(self, position: Position) -> dict[str, Any]:
        """The plain values of a checkpoint, its parts unread."""
        return _read(self.positions()[position])["values"]

    def load(self, position: Position) -> Entry:
        """A whole checkpoint; `Damaged` where a single bit of it is not what was written."""
        body = _read(self.positions()[position])
        return Entry(body["values"], {name: self._read_part(part) for name, part in body["parts"].items()})

    def _read_part(self, part: Part) -> Tree:
        path = self.folder / part["file"]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Damaged(f"{path.name} cannot be read ({error.strerror})") from None
        if hashlib.sha256(content).hexdigest() != part["sha256"]:
            raise Damaged(f"{path.name} has another checksum")
        return safetensors.torch.load(content)

    def company(self) -> tuple[str, ...] | None:
        """The runs that were trained together when the newest readable checkpoint was written."""
        for path in reversed(self.positions().values()):
            try:
                return tuple(_read(path)["values"]["company"])
            except Damaged:
                continue
        return None

    def last_good(self) -> Path | None:
        """The newest readable checkpoint of a run that had not diverged by then."""
        for path in reversed(self.positions().values()):
            try:
                if not _read(path)["values"].get("diverged"):
                    return path
            except Damaged:
                continue
        return None

    def task_end(self, task: int) -> Position:
        """Where a run stood after so many tasks, or a sentence that says which ones there are."""
        ends = [place[0] for place, path in self.positions().items() if path.name.startswith("task-")]
        if task not in ends:
            there = (
                f"there are {', '.join(map(str, ends))}"
                if ends
                else "there is none; run it with --save_tasks true"
            )
            raise InputError(f"task: {self.folder} has no checkpoint of the end of task {task}; {there}.")
        return task, 0


def _read(path: Path) -> dict[str, Any]:
    """The body of a manifest: every byte of the file must be the one that was written."""
    try:
        content = path.read_bytes()
        document = json.loads(content)
        body, digest = document["body"], document["sha256"]
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Damaged(f"{path.name} is no manifest") from None
    if _encode(document) != content or _sum_of(body) != digest:
        raise Damaged(f"{path.name} has another checksum")
    if body.get("format") != FORMAT:
        raise Damaged(f"{path.name} has format {body.get('format')!r}, not {FORMAT}")
    return body


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode()


def _sum_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encode(body)).hexdigest()


def tree_of(parts: Mapping[str, Tree]) -> dict[str, Tensor]:
    """All tensors of a checkpoint by name: parts never share one."""
    return {name: tensor for tree in parts.values() for name, tensor in tree.items()}
