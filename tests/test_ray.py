"""Runs handed to a Ray cluster of this machine: the same bytes, the same locks, the same ways of going on."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_cli import refused, timeless
from test_first_weights import save, some_weights
from test_interrupt import LINE, command, experiment, record_of, require_shared, wait_for

from reprise import ray_pool
from reprise.errors import InputError, WorkersLost
from reprise.first_weights import read_weights
from reprise.groups import Job
from reprise.keeping import Saving
from reprise.progress import Outlook, Report
from reprise.runner import run_experiments

__all__ = ["command"]  # a fixture

SAVING = Saving(steps=1, tasks=True)
RAY = pytest.mark.skipif(not ray_pool.installed(), reason="Ray is not installed")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Whatever a test started ends with it."""
    import ray

    yield ray
    ray.shutdown()


def left(folder: Path) -> dict[str, Any]:
    """All that runs leave, but for times."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if path.name == "record.json":
            found[name] = timeless(json.loads(path.read_text()))
        elif path.name.startswith(("task-", "step-")):
            found[name] = json.loads(path.read_text())["body"]
            found[name]["values"].pop("seconds")
        else:
            found[name] = path.read_bytes()
    return found


def holder(lock: Path, seconds: float = 100) -> int:
    """The process that holds a run's lock."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for number in filter(str.isdecimal, os.listdir("/proc")):
            try:
                if any(
                    os.path.realpath(f"/proc/{number}/fd/{fd}") == str(lock)
                    for fd in os.listdir(f"/proc/{number}/fd")
                ):
                    return int(number)
            except OSError:
                continue
        time.sleep(0.02)
    raise AssertionError(f"nobody holds {lock}")


class KillFirst:
    """Watches, and kills the first worker that trains this seed."""

    def __init__(self, seed: int, root: Path) -> None:
        self.name, self.lock = f"er seed {seed}", root / "run" / f"seed-{seed}" / "lock"
        self.killed: int | None = None

    def __call__(self, said: Any) -> None:
        if self.killed is None and isinstance(said, Report) and said.name == self.name and said.done > 20:
            self.killed = holder(self.lock)
            os.kill(self.killed, signal.SIGKILL)


# ---- what is refused


def test_without_ray_the_extra_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = refused(capsys, [*LINE, "--ray", "local", "--out", str(tmp_path / "run")])
    assert "ray: Ray is not installed; install the extra with `pip install 'reprise-cl[ray]'`" in said


@RAY
@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "ray: nobody answers at 127.0.0.1:1 \\(Connection refused\\); start a cluster"),
        ("127.0.0.1:99999", "ray: nobody answers at 127.0.0.1:99999"),
        ("ray://somewhere:10001", "ray: 'ray://somewhere:10001' is no address; give local, auto"),
        ("nonsense", "ray: 'nonsense' is no address"),
    ],
)
def test_an_address_where_nobody_is_gets_a_sentence(address: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        [*run_experiments([experiment()], [0], out=tmp_path / "run", ray=address)]


def test_ranks_and_ray_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError, match="ray: ranks of one run train together"):
        [*run_experiments([experiment()], [0], ray="local")]


# ---- what is trained


@RAY
@pytest.mark.slow
def test_ray_leaves_the_bytes_that_local_processes_leave(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four runs of two methods, and two lanes; relative folders, which workers would look for elsewhere."""
    monkeypatch.chdir(tmp_path)
    said: list[Any] = []
    both = [experiment("er"), experiment("car")]
    for store, more in (("here", {}), ("ray", {"ray": "local", "watch": said.append})):
        how = {"saving": SAVING, "artifacts": ("features", "memory")} | more
        records = [*run_experiments(both, [0, 1], store=Path(store), **how)]
        assert len(records) == 4
        lanes = [
            *run_experiments(
                [experiment("agem")], [0, 1], out=Path(store) / "lanes", lanes=2, saving=SAVING, **more
            )
        ]
        assert len(lanes) == 2
    here = left(tmp_path / "here")
    assert here == left(tmp_path / "ray")
    assert sum(name.endswith("record.json") for name in here) == 6
    assert not any(name.endswith(("lock", ".part")) for name in here)
    assert sum(isinstance(one, Outlook) for one in said) == 2
    over = [one for one in said if isinstance(one, Report) and one.over]
    assert {one.name for one in over} == {
        "er seed 0",
        "er seed 1",
        "car seed 0",
        "car seed 1",
        "2 lanes · agem",
    }
    assert any(isinstance(one, Report) and not one.over for one in said)
    assert cluster.cluster_resources()["object_store_memory"] <= ray_pool.OBJECT_STORE_BYTES


@RAY
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_workers_find_the_first_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a relative path, which they would look for elsewhere."""
    monkeypatch.chdir(tmp_path)
    save(Path("a.pt"), some_weights())
    asked = replace(experiment(), first_weights=read_weights(Path("a.pt"), experiment().encoder))
    here, there = ([*run_experiments([asked], [0], ray=ray)] for ray in (None, "local"))
    assert [*map(timeless, here)] == [*map(timeless, there)]
    (random,) = run_experiments([experiment()], [0])
    assert here[0]["matrix"] != random["matrix"]


@RAY
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_run_whose_worker_is_killed_is_taken_up_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = experiment(steps=400, tasks=1)
    (straight,) = run_experiments([long], [0], out=tmp_path / "straight")
    watch = KillFirst(0, tmp_path)
    (record,) = run_experiments([long], [0], out=tmp_path / "run", ray="local", watch=watch, saving=SAVING)
    assert watch.killed
    assert timeless(record) == timeless(straight)
    log = [(tmp_path / name / "seed-0" / "log.jsonl").read_bytes() for name in ("run", "straight")]
    assert log[0] == log[1]
    monkeypatch.setattr(ray_pool, "RETRIES", 0)
    runs = run_experiments(
        [long], [1, 2], out=tmp_path / "run", ray="local", watch=KillFirst(1, tmp_path), saving=SAVING
    )
    seeds = []
    with pytest.raises(WorkersLost, match=r"ray: the workers of er seed 1 \(WorkerCrashedError\) died"):
        seeds.extend(one["seed"] for one in runs)
    assert seeds == [2]
    assert (tmp_path / "run" / "seed-2" / "record.json").exists()
    assert [one["seed"] for one in run_experiments([long], [1], out=tmp_path / "run")] == [1]


@RAY
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_on_the_cluster_and_processes_go_on(
    tmp_path: Path, command: Any, number: int, code: int
) -> None:
    """More runs than workers: those under way are saved, those that wait never begin; then without Ray."""
    words = [*LINE, "--steps", "1000", "--tasks", "1", "--out", str(tmp_path / "run")]
    process = command([*words, "--seeds", "0,1,2,3", "--ray", "local"])
    wait_for(tmp_path, "run/seed-*/log.jsonl")
    process.send_signal(number)
    _, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    assert err.endswith("reprise: stopped where it can go on; the same command does.\n")
    assert [*tmp_path.rglob("step-*.json")]
    assert len([*tmp_path.glob("run/seed-*/log.jsonl")]) <= (os.cpu_count() or 1)
    assert not [*tmp_path.rglob("record.json"), *tmp_path.rglob("lock")]
    assert command(words).wait(timeout=400) == 0
    (straight,) = run_experiments([experiment(steps=1000, tasks=1)], [0], out=tmp_path / "straight")
    assert record_of(tmp_path / "run") == timeless(straight)


@RAY
@pytest.mark.slow
def test_two_commands_one_of_them_on_ray_share_a_store(tmp_path: Path, command: Any) -> None:
    """Each cell is trained by one worker, of whichever command; both end with all records."""
    words = [*LINE, "--steps", "300", "--seeds", "0,1,2,3", "--json", "--out", str(tmp_path / "run")]
    processes = [command(words), command([*words, "--ray", "local"])]
    require_shared(processes, tmp_path)


def refuse(watch: Any, asked: Any) -> None:
    raise InputError("data: this is no data; give other.")


refuse.__module__ = "__main__"  # which Ray sends along, since workers cannot import the tests


@RAY
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_what_a_worker_refuses_is_the_sentence_itself(tmp_path: Path) -> None:
    """Without Ray's account of where it happened."""
    work = [([Job(experiment(), 0)], ())]
    with pytest.raises(InputError) as caught:
        [*ray_pool.in_ray("local", refuse, work, lambda said: None, lambda *_: Report("", 0, 0, 0, ""))]
    assert str(caught.value) == "data: this is no data; give other."
    with pytest.raises(InputError, match="ray: the cluster at local has no GPU to offer"):
        [*run_experiments([experiment()], [0], out=tmp_path / "run", ray="local", device="cuda")]
