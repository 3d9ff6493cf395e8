"""What a report is made of: the records of folders and of .jsonl files, grouped by all that decides a result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reprise.config import hash_of
from reprise.errors import InputError
from reprise.results import Record, read_json

NEEDED = ("method", "stream", "seed", "matrix", "configuration")


@dataclass(frozen=True)
class Run:
    """A record, where it was found, and the folder of what the run left besides."""

    record: Record
    source: str
    folder: Path | None = None

    @property
    def artifacts(self) -> Path | None:
        """Where it left features and what its memory holds (artifacts.py)."""
        return None if self.folder is None else self.folder / "artifacts"


@dataclass
class Group:
    """The runs of one configuration, one a seed. `name` is set when it is known what tells it from the others."""

    hash: str
    runs: list[Run]
    name: str = ""
    differing: dict[str, Any] = field(default_factory=dict)
    """The fields that tell it from other groups of its method and stream."""

    @property
    def records(self) -> list[Record]:
        return [run.record for run in self.runs]

    @property
    def configuration(self) -> dict[str, Any]:
        return self.runs[0].record["configuration"]

    @property
    def method(self) -> str:
        return str(self.runs[0].record["method"])

    @property
    def stream(self) -> str:
        return str(self.runs[0].record["stream"])

    @property
    def m(self) -> int | None:
        return self.runs[0].record.get("m")

    @property
    def seeds(self) -> list[int]:
        return [run.record["seed"] for run in self.runs]


@dataclass(frozen=True)
class Found:
    """Everything below the sources, in the order of reading."""

    groups: list[Group]
    repeated: int
    """Runs left out because the same configuration and seed was there already."""

    @property
    def runs(self) -> int:
        return sum(len(group.runs) for group in self.groups)


def read_sources(sources: Sequence[Path]) -> Found:
    """Every run of the sources: folders (stores, experiments, .jsonl files below them) and .jsonl files."""
    groups: dict[str, Group] = {}
    repeated = 0
    for run in (run for source in sources for run in _runs(source)):
        key = hash_of(run.record["configuration"])
        group = groups.setdefault(key, Group(key, []))
        if run.record["seed"] in group.seeds:
            repeated += 1
            continue
        group.runs.append(run)
    if not groups:
        where = ", ".join(map(str, sources))
        raise InputError(
            f"store: {where} holds no record; name a folder that `reprise run` wrote, or a .jsonl file."
        )
    for group in groups.values():
        group.runs.sort(key=lambda run: run.record["seed"])
    return Found(list(groups.values()), repeated)


def _runs(source: Path) -> Iterator[Run]:
    if source.is_file():
        yield from _lines(source, source.name)
        return
    if not source.is_dir():
        raise InputError(f"store: {source} does not exist; name a folder of records or a .jsonl file.")
    for path in sorted(source.glob("**/seed-*/record.json")):
        yield Run(_checked(read_json(path), path), path.parent.parent.name, path.parent)
    for path in sorted(source.glob("**/*.jsonl"), key=lambda path: path.with_suffix("")):
        if path.name != "log.jsonl":
            yield from _lines(path, str(path.relative_to(source)))


def _lines(path: Path, name: str) -> Iterator[Run]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"store: {path} cannot be read ({why}); name a .jsonl file of records.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"store: {where} is not JSON ({error}); remove the line.") from None
        yield Run(_checked(record, where), name)


def _checked(record: Any, where: object) -> Record:
    lacking = [key for key in NEEDED if not isinstance(record, dict) or key not in record]
    if lacking:
        raise InputError(f"store: {where} is no record, it has no {lacking[0]!r}; remove it.")
    return record
