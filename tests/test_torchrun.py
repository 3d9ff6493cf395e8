"""Ranks as people start them: by torchrun, on the command line. Killed, stopped, and gone on with another number."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

WORDS = ("split-shapes", "--method", "car", "--tasks", "2", "--precision", "float64", "--batch", "8")
LAUNCH = ("-m", "torch.distributed.run", "--nproc-per-node")

pytestmark = pytest.mark.slow


def start(ranks: int, out: Path, steps: int = 60, *more: str) -> subprocess.Popen[str]:
    launch = [sys.executable, *LAUNCH, str(ranks)] if ranks > 1 else [sys.executable]
    port = ["--master-port", str(29000 + os.getpid() % 1000)] if ranks > 1 else []
    words = ["-m", "reprise", "run", *WORDS, "--steps", str(steps), "--out", str(out), *more]
    return subprocess.Popen(
        [*launch, *port, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )


def finish(ranks: int, out: Path) -> dict[str, Any]:
    process = start(ranks, out)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return json.loads((out / "seed-0" / "record.json").read_text())


def begin(ranks: int, out: Path) -> subprocess.Popen[str]:
    """A run that has saved something and is not at its end."""
    process = start(ranks, out, 60, "--save_steps", "3")
    limit = time.monotonic() + 120
    while not [*out.glob("seed-0/checkpoints/step-*.json")]:
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < limit
        time.sleep(0.05)
    return process


def children(process: subprocess.Popen[str]) -> list[int]:
    """The ranks' processes, in the order of their ranks."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    by_rank = {}
    for pid in map(int, found):
        names = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ranks = [int(name.removeprefix(b"RANK=")) for name in names if name.startswith(b"RANK=")]
        if ranks:
            by_rank[ranks[0]] = pid
    return [by_rank[rank] for rank in sorted(by_rank)]


def assert_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    for row, twin in zip(one["matrix"]["loss"], other["matrix"]["loss"], strict=True):
        assert row == pytest.approx(twin, abs=1e-9)
    assert one["matrix"]["accuracy"] == other["matrix"]["accuracy"]
    assert one["bytes"] == other["bytes"]


def test_a_killed_rank_ends_the_run_and_another_number_goes_on(tmp_path: Path) -> None:
    straight = finish(1, tmp_path / "straight")
    process = begin(2, tmp_path / "run")
    os.kill(children(process)[1], signal.SIGKILL)
    began = time.monotonic()
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert time.monotonic() - began < 60
    assert "rank      : 1" in said, said
    assert "SIGKILL" in said, said
    assert_alike(finish(3, tmp_path / "run"), straight)


def test_a_stopped_run_goes_on_alone(tmp_path: Path) -> None:
    straight = finish(1, tmp_path / "straight")
    process = begin(2, tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said.count("stopped where it can go on") == 1, said
    assert not (tmp_path / "run/seed-0/record.json").exists()
    assert_alike(finish(1, tmp_path / "run"), straight)


def test_bad_input_is_said_once(tmp_path: Path) -> None:
    process = start(2, tmp_path / "run", 60, "--lr", "-1")
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said.count("lr: -1.0 is not positive") == 1, said
