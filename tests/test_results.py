"""Records and folders: the layout, repeatability, what is not run again, what is refused; the table at width 80."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_cli import timeless

from reprise import config
from reprise.config import make_experiment
from reprise.errors import Diverged, InputError, StorageError
from reprise.progress import Notice, Outlook, Report
from reprise.results import Folder, read_store, save_record, to_json, trouble
from reprise.runner import run_experiments
from reprise.terminal import _Bars, progress_bars, ranking_table, results_table
from reprise.train import Outcome, Trainer

FIELDS = {"tasks": 2, "steps": 3, "encoder": "convnet-small", "m": 50}


def experiment(method: str = "er", **fields: Any) -> Any:
    return make_experiment("split-shapes", method, FIELDS | fields)


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a run that is on disk was trained again")

    monkeypatch.setattr(Trainer, "run", refuse)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- folders


def test_layout_repetition_and_what_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (next(run_experiments([experiment()], [3], out=tmp_path / name)) for name in ("a", "b"))
    assert timeless(one) == timeless(other)
    assert sorted(tree(tmp_path / "a")) == ["experiment.json", "seed-3/log.jsonl", "seed-3/record.json"]
    described = json.loads((tmp_path / "a" / "experiment.json").read_text())
    assert (described["hash"], described["method"]) == (experiment().hash(described["data"]), "er")
    for line in (tmp_path / "a" / "seed-3" / "log.jsonl").read_text().splitlines():
        assert {"phase", "name", "step", "loss"} <= set(json.loads(line))
    before = tree(tmp_path / "a")
    monkeypatch.setattr(Trainer, "run", None)
    assert [*run_experiments([experiment()], [3], out=tmp_path / "a")] == [one]
    assert tree(tmp_path / "a") == before
    assert [*read_store(tmp_path)] == [one, other]


@pytest.mark.usefixtures("no_training")
def test_another_experiment_is_refused_and_the_field_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = config.RESULTS_VERSION
    Folder(tmp_path / "run", experiment(), "data").open()
    before = tree(tmp_path)
    for other, words in (
        (experiment(lr=0.5), "lr 0.03 there, 0.5 here"),
        (experiment("car"), "method 'er' there, 'car' here"),
    ):
        with pytest.raises(InputError, match="holds another experiment") as error:
            Folder(tmp_path / "run", other, "data").open()
        assert words in str(error.value)
    with pytest.raises(InputError, match="data 'data' there, 'other data' here"):
        Folder(tmp_path / "run", experiment(), "other data").open()
    Folder(tmp_path / "run", experiment(), "data").open()
    monkeypatch.setattr(config, "RESULTS_VERSION", 0)
    with pytest.raises(InputError, match=f"results_version {version} there, 0 here"):
        Folder(tmp_path / "run", experiment(), "data").open()
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("no_training")
def test_a_folder_with_something_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=f"^out: {tmp_path} is not empty and holds no experiment"):
        [*run_experiments([experiment()], [0], out=tmp_path)]
    assert tree(tmp_path) == {"thesis.tex": b"years of work"}
    with pytest.raises(InputError, match="thesis.tex cannot be written \\(Not a directory\\)"):
        [*run_experiments([experiment()], [0], out=tmp_path / "thesis.tex")]


@pytest.mark.usefixtures("no_training")
@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match="cannot be written \\(Permission denied\\); name another folder"):
        [*run_experiments([experiment()], [0], out=tmp_path / "run")]


def test_a_disk_that_refuses_to_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path / "run", experiment(), "data")
    folder.open()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="seed-0 cannot be written \\(No space left on device\\)"):
        save_record(folder.of_seed(0), {"seed": 0}, [])
    assert not (tmp_path / "run" / "seed-0" / "record.json").exists()


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not readable JSON"),
        ("[1]", "holds no JSON object"),
        ('{"seed": 1}', "is no record of seed 0"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, content: str, words: str) -> None:
    folder = Folder(tmp_path, experiment(), "data")
    folder.open()
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "record.json").write_text(content)
    with pytest.raises(InputError, match=words):
        folder.record(0)


@pytest.mark.usefixtures("no_training")
def test_a_store_is_no_experiments_folder(tmp_path: Path) -> None:
    Folder(tmp_path, experiment(), "data").open()
    with pytest.raises(InputError, match="holds one experiment, no store of several"):
        [*run_experiments([experiment()], [0], store=tmp_path)]


@pytest.mark.usefixtures("no_training")
def test_nothing_is_said_before_everything_is_accepted(tmp_path: Path) -> None:
    """A refusal comes before the first record: stdout stays empty."""
    runs = run_experiments([experiment(), experiment(encoder="vit")], [0], store=tmp_path)
    with pytest.raises(InputError, match="encoder: 'vit'"):
        next(runs)
    assert list(tmp_path.iterdir()) == []


# ---- runs


def test_seeds_in_processes_equal_seeds_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprise.workers.cores", lambda: 2)
    said: list[Any] = []
    runs = run_experiments([experiment("car")], [0, 1], watch=said.append)
    parallel = sorted(runs, key=lambda record: record["seed"])
    assert said[0] == Outlook(2, 2 * 2 * 3)
    for name in ("car seed 0", "car seed 1"):
        own = [report for report in said[1:] if report.name == name]
        assert [report.over for report in own] == [False] * (len(own) - 1) + [True]
        assert (own[-1].weight, own[-1].what) == (6, "done")
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    single = [*run_experiments([experiment("car")], [0, 1])]
    assert [*map(timeless, parallel)] == [*map(timeless, single)]
    assert parallel[0]["environment"]["threads"] == 1
    assert parallel[0]["matrix"] != parallel[1]["matrix"]


def test_every_other_task_is_followed_by_a_look() -> None:
    """A row nobody measured is null; metrics that need it are too, the others are those of a run with all rows."""
    every = next(run_experiments([experiment(tasks=3)], [0]))
    some = next(run_experiments([experiment(tasks=3, evaluate_every=2)], [0]))
    for kind in ("accuracy", "loss"):
        assert some["matrix"][kind] == [[None] * 3, *every["matrix"][kind][1:]]
    assert (some["accuracy"], some["next"]) == (every["accuracy"], every["next"])
    assert (some["learning_accuracy"], some["forgetting"]) == (None, None)
    assert some["configuration"]["evaluate_every"] == 2
    assert "evaluate_every" not in every["configuration"]  # hashes of older results stand


def test_the_same_point_twice_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    same = [experiment(), experiment(m=None, m_per_class=1), experiment(m=None, m_per_task=5)]
    assert len([*run_experiments(same, [0])]) == 1


def test_a_diverged_seed_does_not_cost_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    points = [experiment(lr=1e30), experiment()]
    runs = run_experiments(points, [0], store=tmp_path)
    assert next(runs)["configuration"]["lr"] == 0.03
    with pytest.raises(Diverged, match="seed 0: the loss was not finite"):
        next(runs)
    assert len([*tmp_path.glob("*/seed-0/record.json")]) == 1


# ---- JSON


def test_json_knows_no_nan() -> None:
    assert json.loads(to_json({"a": None})) == {"a": None}
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"a": float("nan")})


def test_trouble() -> None:
    assert trouble(0, Outcome(loss=[[1.0, None], [1.0, 2.0]])) is None
    assert trouble(0, Outcome(diverged="why")) == "why"
    for bad in (float("nan"), float("inf")):
        assert "seed 4: the test loss was not finite after task-1" in str(
            trouble(4, Outcome(loss=[[1.0, None], [bad, 2.0]]))
        )


# ---- the terminal


def wide_record(method: str, seed: int, m: int | None = 4250) -> dict[str, Any]:
    return {
        "method": method,
        "m": m,
        "seed": seed,
        "accuracy": 0.12345 + 0.3 * seed,
        "forgetting": None if method == "multitask" else 0.123 * seed,
        "learning_accuracy": 0.98765 - 0.3 * seed,
        "bytes": {"total": 38_500 + 10**8 * (m or 0) // 100},
        "seconds": {"total": 1234.5},
        "configuration": {"m": m, "method": method, "data": "d"},
    }


def rendered(table: Any, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(table)
    return console.export_text().splitlines()


def test_the_table_fits_80_columns() -> None:
    methods = ("sgd", "multitask", "side_tuning", "car")
    records = [wide_record(method, seed) for method in methods for seed in (0, 1)]
    lines = rendered(results_table(records, "split-mini-imagenet, class-incremental"))
    assert len(lines) == 3 + len(methods)  # title, headings, rule: no cell takes a second line
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert re.split("  +", lines[-1].strip()) == (
        ["car", "4250", "2", "27.3 ± 15.0", "0.061 ± 0.061", "83.8 ± 15.0", "4.25 GB", "2469"]
    )
    assert "–" in lines[4]


def test_one_seed_has_no_deviation() -> None:
    lines = rendered(results_table([wide_record("sgd", 0, None)], "title"))
    assert lines[-1].split() == ["sgd", "–", "1", "12.3", "0.000", "98.8", "38.5", "kB", "1234"]


def test_the_ranking_shows_values_as_flags_take_them() -> None:
    summary = {"mean": 0.5, "std": 0.01, "std1": None, "n": 2}
    none = {"mean": None, "std": None, "std1": None, "n": 0}
    row = {"setting": {"lr": 0.003, "m": None}, "seeds": 2, "accuracy": summary, "forgetting": none}
    lines = rendered(ranking_table([row], "title"))
    assert lines[1].split() == ["lr", "m", "seeds", "acc", "%", "forgetting"]
    assert lines[-1].split() == ["0.003", "none", "2", "50.0", "±", "1.0", "–"]


def screen(path: Path, said: list[Outlook | Report | Notice], terminal: bool) -> str:
    with (
        path.open("w") as file,
        progress_bars(Console(file=file, force_terminal=terminal, width=80)) as watch,
    ):
        for one in said:
            watch(one)
    return path.read_text()


def test_a_line_for_each_group_that_ends_where_no_one_looks(tmp_path: Path) -> None:
    said = [
        Outlook(3, 30),
        Report("er seed 0", 1, 5, 10, "task-0 (1/2)", 0.5),
        Report("er seed 0", 1, 10, 10, "done", 1.0, over=True),
        Report("4 lanes · car, er", 4, 0, 10, "out of memory", 1.0, over=True),
        Notice("Something to know."),
        Report("2 lanes · car, er", 2, 10, 10, "done", 12.34, over=True),
    ]
    expected = "er seed 0: done after 1.0 s\nSomething to know.\n2 lanes · car, er: done after 12.3 s\n"
    assert screen(tmp_path / "screen", said, terminal=False) == expected


def test_bars_count_steps_of_single_runs(tmp_path: Path) -> None:
    """40 lanes of 10 steps and 10 runs of 60 are 1000 steps; what did not fit is still to come."""
    with (tmp_path / "screen").open("w") as file:
        console = Console(file=file, force_terminal=True, width=80)
        with progress_bars(console) as watch:
            assert isinstance(watch, _Bars)
            shown: list[float] = []

            def whole(said: Outlook | Report | Notice, watch: _Bars = watch) -> None:
                watch(said)
                shown.append(watch._bars.tasks[0].percentage)

            whole(Outlook(50, 1000))
            whole(Report("80 lanes · er", 80, 5, 10, "task-0"))
            whole(Report("80 lanes · er", 80, 0, 10, "out of memory", over=True))
            whole(Report("40 lanes · er", 40, 5, 10, "task-0"))
            whole(Report("40 lanes · er", 40, 10, 10, "done", over=True))
            for name in ("5 lanes · car", "5 lanes · car"):  # two groups of one name
                whole(Report(name, 5, 30, 60, "task-0"))
                whole(Report(name, 5, 60, 60, "done", over=True))
            assert shown == pytest.approx([0, 40, 0, 20, 40, 55, 70, 85, 100])
            assert len(watch._bars.tasks) == 1
    assert "50 runs" in (tmp_path / "screen").read_text()


def test_the_bars_fit_80_columns_and_name_the_group(tmp_path: Path) -> None:
    said = [Outlook(240, 10**6), Report("120 lanes · car, er", 120, 5, 4250, "task-11 (12/17)")]
    text = screen(tmp_path / "screen", said, terminal=True)
    assert "120 lanes · car, er · task-11 (12/17) " in text
    assert "…" not in text
