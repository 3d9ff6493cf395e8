"""Commands that are stopped, run twice at once, or go on from another run; as processes, as a user has them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_cli import refused, says, timeless

from reprise import runner
from reprise.archive import Archive
from reprise.config import make_experiment
from reprise.keeping import Saving
from reprise.locks import try_lock
from reprise.results import Folder
from reprise.runner import run_experiments
from reprise.stopping import Stopped
from reprise.train import Trainer

FIELDS = {"tasks": 3, "steps": 5, "encoder": "convnet-small", "m": 50}
LINE = ["run", "split-shapes", "--method", "er", *[f"--{k}={v}" for k, v in FIELDS.items()]]
LONG = [*LINE, "--steps", "600", "--tasks", "1"]


def experiment(method: str = "er", **fields: Any) -> Any:
    return make_experiment("split-shapes", method, FIELDS | fields)


def record_of(folder: Path, seed: int = 0) -> dict[str, Any]:
    return timeless(json.loads((folder / f"seed-{seed}" / "record.json").read_text()))


@pytest.fixture
def command() -> Iterator[Any]:
    """Starts `reprise` as a process; whatever still runs afterwards is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(words: list[str]) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "reprise", *words]
        started.append(subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(path: Path, pattern: str, seconds: float = 200) -> None:
    """Until there is such a file with something in it: an empty log is there before the first step."""
    until = time.monotonic() + seconds
    while not any(found.is_dir() or found.stat().st_size for found in path.glob(pattern)):
        assert time.monotonic() < until, f"no {pattern} in {path}"
        time.sleep(0.05)


def require_shared(processes: Sequence[subprocess.Popen[str]], folder: Path) -> None:
    """Two commands end with the same four records, and leave nothing half done."""
    told = []
    for process in processes:
        out, err = process.communicate(timeout=400)
        assert process.returncode == 0, err
        told.append(sorted(out.splitlines()))
    assert told[0] == told[1]  # to the last digit of the times: nothing was trained twice
    assert len(told[0]) == 4
    assert [*folder.rglob("lock"), *folder.rglob("*.part")] == []


# ---- signals


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("seeds", ["0", "0,1"])
def test_a_signal_saves_and_the_same_command_goes_on(
    tmp_path: Path, command: Any, number: int, code: int, seeds: str
) -> None:
    words = [*LONG, "--seeds", seeds, "--out", str(tmp_path / "run")]
    straight = [*LONG, "--seeds", seeds, "--out", str(tmp_path / "straight")]
    process = command(words)
    wait_for(tmp_path, "run/seed-0/log.jsonl")
    process.send_signal(number)
    _, err = process.communicate(timeout=200)
    assert process.returncode == code
    assert err.endswith("reprise: stopped where it can go on; the same command does.\n")
    (position,) = Archive(tmp_path / "run" / "seed-0" / "checkpoints").positions()
    assert 0 < position[1] < 600
    assert not [*tmp_path.rglob("record.json"), *tmp_path.rglob("lock")]
    for line in (words, straight):
        assert command(line).wait(timeout=400) == 0
    for seed in map(int, seeds.split(",")):
        assert record_of(tmp_path / "run", seed) == record_of(tmp_path / "straight", seed)
        logs = [(tmp_path / name / f"seed-{seed}" / "log.jsonl").read_bytes() for name in ("run", "straight")]
        assert logs[0] == logs[1]


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path: Path, command: Any) -> None:
    process = command([*LONG, "--seeds", "0,1", "--out", str(tmp_path / "run")])
    wait_for(tmp_path, "run/seed-*/log.jsonl")
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGINT)
    began = time.monotonic()
    process.wait(timeout=30)
    assert time.monotonic() - began < 20
    assert process.returncode in (130, 143)


@pytest.mark.slow
def test_workers_do_not_outlive_a_parent_that_was_killed(tmp_path: Path, command: Any) -> None:
    process = command([*LONG, "--seeds", "0,1", "--out", str(tmp_path / "run")])
    wait_for(tmp_path, "run/seed-1/log.jsonl")
    process.kill()
    process.wait()
    wait_for(tmp_path, "run/seed-0/checkpoints/step-*.json")
    until = time.monotonic() + 100
    for seed in (0, 1):
        while True:
            with try_lock(tmp_path / "run" / f"seed-{seed}") as free:
                if free:
                    break
            assert time.monotonic() < until
            time.sleep(0.1)


# ---- two workers on one store


def test_a_cell_that_another_process_trains_is_left_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 0 is locked: seed 1 is trained first; when the other process has written its record, it is read."""
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    monkeypatch.setattr(runner, "PATIENCE", 0.01)
    out = tmp_path / "run"
    (straight,) = run_experiments([experiment()], [0], out=tmp_path / "straight")
    lock = try_lock(out / "seed-0")
    Folder(out, experiment(), straight["configuration"]["data"]).open()
    assert lock.__enter__()
    trained: list[int] = []
    train = runner.train_group

    def noted(group: Any, *rest: Any, **more: Any) -> Any:
        trained.extend(job.seed for job in group)
        return train(group, *rest, **more)

    monkeypatch.setattr(runner, "train_group", noted)
    runs = run_experiments([experiment()], [0, 1], out=out)
    assert next(runs)["seed"] == 1
    (out / "seed-0" / "record.json").write_text(json.dumps(straight))
    lock.__exit__(None, None, None)
    assert next(runs) == straight
    assert [*runs] == []
    assert trained == [1]


def test_a_lock_is_one_processs(tmp_path: Path) -> None:
    with try_lock(tmp_path / "a") as first:
        assert first
        with try_lock(tmp_path / "a") as second, try_lock(tmp_path / "b") as other:
            assert not second
            assert other
    assert [*tmp_path.rglob("lock")] == []
    with try_lock(tmp_path / "a") as again:
        assert again


def test_a_group_killed_before_all_have_a_checkpoint_stays_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill came between the first checkpoints of two runs: apart, their sums would have another order."""
    out = tmp_path / "run"
    run, groups = Trainer.run, []

    def stop(trainer: Trainer, *rest: Any, **more: Any) -> Any:
        more["keeper"].asked = lambda: 15
        return run(trainer, *rest, **more)

    monkeypatch.setattr(Trainer, "run", stop)
    with pytest.raises(Stopped):
        [*run_experiments([experiment()], [0, 1], out=out, lanes=2)]
    shutil.rmtree(out / "seed-1" / "checkpoints")

    def noted(trainer: Trainer, *rest: Any, **more: Any) -> Any:
        groups.append((len(trainer.cells), trainer.cursor.step))
        return run(trainer, *rest, **more)

    monkeypatch.setattr(Trainer, "run", noted)
    assert len([*run_experiments([experiment()], [0, 1], out=out, lanes=2)]) == 2
    assert groups == [(2, 0)]


@pytest.mark.slow
def test_two_commands_on_one_store(tmp_path: Path, command: Any) -> None:
    """Each cell is trained by one of them; both end with all records."""
    words = [*LINE, "--steps", "300", "--seeds", "0,1,2,3", "--json", "--out", str(tmp_path / "run")]
    processes = [command(words) for _ in range(2)]
    require_shared(processes, tmp_path)


# ---- forks


def test_a_fork_with_the_same_settings_is_the_run_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("er", "ewc"):
        line = [*LINE, "--method", method]
        run, fork = tmp_path / method, tmp_path / f"{method}-fork"
        assert says(capsys, [*line, "--out", str(run)])[0] == 0
        code, _, err = says(capsys, [*line, "--out", str(fork), "--from", str(run), "--task", "2"])
        assert code == 0, err
        one, other = record_of(run), record_of(fork)
        there = one.pop("configuration")
        assert other.pop("configuration") == there | {"start": other_start(run)}
        assert one == other
        logs = [(folder / "seed-0" / "log.jsonl").read_bytes() for folder in (run, fork)]
        assert logs[0] == logs[1]
        last = [folder / "seed-0" / "checkpoints" / "task-0003.json" for folder in (run, fork)]
        parts = [json.loads(path.read_text())["body"]["parts"] for path in last]
        assert parts[0] == parts[1]


def other_start(run: Path) -> str:
    return json.loads((run / "experiment.json").read_text())["hash"] + ":2"


def test_a_fork_goes_on_with_other_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert says(capsys, [*LINE, "--out", str(run)])[0] == 0
    fork = [*LINE, "--lr", "0.001", "--lam", "0.5", "--from", str(run), "--task", "1"]
    assert says(capsys, [*fork, "--out", str(tmp_path / "fork")])[0] == 0
    one, other = record_of(run), record_of(tmp_path / "fork")
    assert one["matrix"]["loss"][0] == other["matrix"]["loss"][0]
    assert one["matrix"]["loss"][1] != other["matrix"]["loss"][1]
    assert other["configuration"]["lr"] == 0.001
    other_end = [*LINE, "--method", "sgd", "--from", str(run), "--task", "3", "--out", str(tmp_path / "sgd")]
    assert says(capsys, other_end)[0] == 0
    assert record_of(tmp_path / "sgd")["bytes"]["total"] == 0  # its own ledger


def test_what_cannot_be_forked_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert says(capsys, [*LINE, "--out", str(run)])[0] == 0
    out = ["--out", str(tmp_path / "fork")]
    for words, sentence in (
        (["--from", str(run)], "task: --from was given without it; say --from RUN --task K."),
        (["--task", "1"], "from: --task was given without it"),
        (["--from", str(run), "--task", "0"], "task: 0 is no number of tasks"),
        (["--from", str(run), "--task", "soon"], "task: 'soon' is not a whole number"),
        (["--from", str(run), "--task", "7"], "no checkpoint of the end of task 7; there are 1, 2, 3."),
        (["--from", str(tmp_path), "--task", "1"], "holds no experiment; name the folder of a run"),
        (["--from", str(run), "--task", "1", "--scenario", "class"], "scenario 'task' there, 'class' here"),
        (
            ["--from", str(run), "--task", "1", "--seeds", "5"],
            "there is none; run it with --save_tasks true.",
        ),
    ):
        assert sentence in refused(capsys, [*LINE, *words, *out])
    shape = [*LINE, "--m", "100", "--from", str(run), "--task", "1", *out]
    assert "from: memory.0.x is" in refused(capsys, shape)


# ---- what a folder says


def test_other_settings_are_refused_before_anything_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Trainer.run

    def stop(trainer: Trainer, *rest: Any, **more: Any) -> Any:
        more["keeper"].asked = lambda: 15
        return run(trainer, *rest, **more)

    monkeypatch.setattr(Trainer, "run", stop)
    out = ["--out", str(tmp_path / "run")]
    code, _, err = says(capsys, [*LINE, *out])
    assert (code, err) == (143, "reprise: stopped where it can go on; the same command does.\n")
    monkeypatch.undo()
    assert "(lr 0.03 there, 0.1 here)" in refused(capsys, [*LINE, "--lr", "0.1", *out])
    assert says(capsys, [*LINE, *out])[0] == 0
    (straight,) = run_experiments([experiment()], [0], out=tmp_path / "straight")
    assert record_of(tmp_path / "run") == timeless(straight)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_became_read_only_is_refused_before_training(tmp_path: Path) -> None:
    (record,) = run_experiments([experiment()], [0], out=tmp_path / "run")
    (tmp_path / "run").chmod(0o555)
    with pytest.raises(ValueError, match="seed-1 cannot be written \\(Permission denied\\)"):
        [*run_experiments([experiment()], [1], out=tmp_path / "run")]
    assert [*run_experiments([experiment()], [0], out=tmp_path / "run")] == [record]


def test_a_seed_folder_that_cannot_be_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [*run_experiments([experiment()], [0], out=tmp_path / "run")]
    (tmp_path / "run" / "seed-1").write_text("in the way")
    monkeypatch.setattr(Trainer, "run", None)
    with pytest.raises(ValueError, match="seed-1 cannot be written \\(File exists\\); name another folder"):
        [*run_experiments([experiment()], [1], out=tmp_path / "run")]


def test_divergence_names_the_last_good_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*LINE, "--lr", "1e30", "--steps", "50", "--save_steps", "1", "--out", str(tmp_path / "run")]
    said = refused(capsys, line, code=3)
    assert "seed 0: the loss was not finite in task-" in said
    named = said.partition("the last good checkpoint is ")[2].rstrip(".\n")
    assert Path(named).exists()


def test_checkpoints_of_a_finished_run_are_those_of_its_tasks(tmp_path: Path) -> None:
    [*run_experiments([experiment()], [0], out=tmp_path / "a", saving=Saving(steps=2, tasks=True))]
    assert list(Archive(tmp_path / "a" / "seed-0" / "checkpoints").positions()) == [(1, 0), (2, 0), (3, 0)]
    [*run_experiments([experiment()], [0], out=tmp_path / "b", saving=Saving(steps=2))]
    assert not (tmp_path / "b" / "seed-0" / "checkpoints").exists()


@pytest.mark.slow
def test_the_short_form_of_the_crash_test(tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "benchmarks" / "crash_test.py"
    line = [
        sys.executable,
        str(script),
        "--kills",
        "15",
        "--seed",
        "3",
        "--out",
        str(tmp_path / "counts.json"),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "counts.json").read_text())
    assert report["counts"]["kills"] >= 15
    assert report["differing files"] == []


@pytest.mark.slow
def test_the_short_form_of_the_long_stream(tmp_path: Path) -> None:
    """200 tasks: neither memory nor the calls of a step grow with the tasks seen."""
    script = Path(__file__).parent.parent / "benchmarks" / "long_stream.py"
    line = [sys.executable, str(script), "--tasks", "200", "--calls", "--out", str(tmp_path / "rows.json")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
