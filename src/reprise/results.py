"""Record and Store: one JSON object a run, in a folder keyed by the configuration's hash and the seed."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import reprise
from reprise import metrics
from reprise.config import Experiment, hash_of
from reprise.errors import InputError, StorageError
from reprise.files import PART, write_text
from reprise.fill import Quota
from reprise.train import Outcome, Row

Record = dict[str, Any]
TIMES = ("seconds", "cost")
"""The entries of a record in which two runs of the same command may differ."""


def make_record(
    experiment: Experiment,
    seed: int,
    outcome: Outcome,
    quota: Quota | None,
    fingerprint: str,
    place: dict[str, Any],
) -> Record:
    """The record of a run (contracts: Record). Inapplicable values are null; `place` is its environment."""
    accuracy, loss = _full(outcome.accuracy), _full(outcome.loss)
    known = None not in accuracy[-1]
    return {
        "method": experiment.method_name,
        "stream": experiment.stream,
        "scenario": experiment.scenario,
        "m": experiment.m,
        "m_per_task": None if quota is None else float(quota.per_task),
        "seed": seed,
        "accuracy": metrics.average_accuracy(accuracy) if known else None,
        "forgetting": metrics.forgetting(accuracy) if known else None,
        "forgetting_agem": metrics.forgetting_agem(accuracy) if known else None,
        "learning_accuracy": metrics.learning_accuracy(accuracy) if known else None,
        "forgetting_percent": metrics.forgetting_percent(loss),
        "performance_drop_percent": None,
        "matrix": {"accuracy": accuracy if known else None, "loss": loss},
        "initial": outcome.initial,
        "next": outcome.next,
        "curve": outcome.curve or None,
        "reference": None,
        "bytes": outcome.bytes,
        "cost": outcome.cost,
        "seconds": outcome.seconds,
        "configuration": experiment.configuration(fingerprint),
        "environment": place,
        "version": reprise.__version__,
    }


def trouble(seed: int, outcome: Outcome) -> str | None:
    """Why a run has no record: a loss was not finite, in training or, after the last step, on a test set."""
    if outcome.diverged is not None:
        return outcome.diverged
    for i, row in enumerate(outcome.loss):
        if not all(loss is None or math.isfinite(loss) for loss in row or ()):
            return f"seed {seed}: the test loss was not finite after task-{i}; lower lr or set clip."
    return None


def _full(rows: list[Row]) -> list[list[float | None]]:
    """A square matrix: tasks that were trained together have only the last row, some are not followed by a look."""
    last = rows[-1]
    assert last is not None, "after the last task everything is measured"
    missing: list[Row] = [None] * (len(last) - len(rows))
    return [[None] * len(last) if row is None else row for row in missing + rows]


def environment(device: torch.device) -> dict[str, Any]:
    """Where a number comes from: versions, device, commit."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    return {
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of the source tree, with `+` where it has changes; `REPRISE_COMMIT` where there is no tree."""
    if "REPRISE_COMMIT" in os.environ:
        return os.environ["REPRISE_COMMIT"]
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if dirty else "")


class Folder:
    """One experiment on disk: `experiment.json`, `seed-S/{record.json, log.jsonl, checkpoints/}`."""

    def __init__(self, path: Path, experiment: Experiment, fingerprint: str) -> None:
        self.path = path
        self._content = {"hash": experiment.hash(fingerprint), **experiment.configuration(fingerprint)}

    def open(self) -> None:
        """Claim the folder, or refuse one that holds something else; nothing is overwritten."""
        described = self.path / "experiment.json"
        try:
            if described.exists():
                self._compare(read_json(described))
                return
            # Another process may be about to claim it for the same experiment.
            if self.path.exists() and any(not one.name.endswith(PART) for one in self.path.iterdir()):
                raise InputError(
                    f"out: {self.path} is not empty and holds no experiment; name a new folder, or empty this one."
                )
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(described, self._content)
        except OSError as error:
            raise InputError(
                f"out: {self.path} cannot be written ({error.strerror}); name another folder."
            ) from None

    def _compare(self, found: dict[str, Any]) -> None:
        if found.get("hash") == self._content["hash"]:
            return
        fields = [key for key in self._content | found if key != "hash"]
        differing = [key for key in fields if found.get(key) != self._content.get(key)]
        shown = ", ".join(
            f"{key} {found.get(key)!r} there, {self._content.get(key)!r} here" for key in differing[:3]
        )
        raise InputError(f"out: {self.path} holds another experiment ({shown}); name another folder.")

    def record(self, seed: int) -> Record | None:
        """The finished run of a seed, if there is one."""
        return read_record(self.of_seed(seed), seed)

    def of_seed(self, seed: int) -> Path:
        return self.path / f"seed-{seed}"

    def make_room(self, seed: int) -> Path:
        """The folder of a seed that is to be trained; whether it can be written shows now, not hours later."""
        folder = self.of_seed(seed)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "room", "")
            (folder / "room").unlink(missing_ok=True)
        except OSError as error:
            raise InputError(
                f"out: {folder} cannot be written ({error.strerror}); name another folder."
            ) from None
        return folder


def read_record(folder: Path, seed: int) -> Record | None:
    path = folder / "record.json"
    if not path.exists():
        return None
    record = read_json(path)
    if record.get("seed") != seed or "configuration" not in record:
        raise InputError(f"{path} is no record of seed {seed}; remove it or name another folder.")
    return record


def save_record(folder: Path, record: Record, log: list[dict[str, Any]]) -> None:
    """The record comes last: a folder that has one is complete."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "log.jsonl", "".join(to_json(line) + "\n" for line in log))
        write_json(folder / "record.json", record)
    except OSError as error:
        raise StorageError(
            f"out: {folder} cannot be written ({error.strerror}); make room and run the same command again."
        ) from None


def folder_of(configuration: Mapping[str, Any]) -> str:
    """An experiment's name in a store."""
    return f"{configuration['stream']}-{configuration['method']}-{hash_of(configuration)}"


def read_store(path: Path) -> Iterator[Record]:
    """Every record below a folder."""
    for found in sorted(path.glob("**/seed-*/record.json")):
        yield read_json(found)


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is not readable JSON ({error}); remove it or name another folder."
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object; remove it or name another folder.")
    return content


def to_json(content: dict[str, Any], indent: int | None = None) -> str:
    """JSON proper, which knows neither NaN nor infinity."""
    return json.dumps(content, indent=indent, allow_nan=False)


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, to_json(content, indent=1) + "\n")
