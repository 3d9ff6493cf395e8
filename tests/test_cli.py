"""The command line: what it prints, where, and with which exit code. Bad input is one sentence on stderr."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from reprise.cli import main
from reprise.config import Experiment, field_hints
from reprise.methods import METHODS
from reprise.results import TIMES
from reprise.train import Trainer

RUN = ["run", "split-shapes", "--method"]
SHORT = ["--tasks", "2", "--steps", "3", "--encoder", "convnet-small"]
KEYS = (
    *("method", "stream", "scenario", "m", "m_per_task", "seed", "accuracy", "forgetting", "forgetting_agem"),
    *(
        "learning_accuracy",
        "forgetting_percent",
        "performance_drop_percent",
        "matrix",
        "initial",
        "next",
        "curve",
    ),
    *("reference", "bytes", "cost", "seconds", "configuration", "environment", "version"),
)
"""The contract's: a record has these and no others."""


def says(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys: pytest.CaptureFixture[str], words: list[str], code: int = 2) -> str:
    """The one sentence a refused command prints."""
    found, out, err = says(capsys, words)
    assert (found, out) == (code, ""), err
    assert err.startswith("reprise: ")
    assert err.endswith(".\n")
    assert err.count("\n") == 1
    return err


def records_of(capsys: pytest.CaptureFixture[str], words: list[str]) -> list[dict[str, Any]]:
    code, out, err = says(capsys, [*words, "--json"])
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMES}


# ---- bad input


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "command: none was named; choose one of run, tune, demo, list, data"),
        ("train", "command: 'train' is not known; choose one of run"),
        ("run", "method: none was named; add --method with one of sgd"),
        ("run split-shapes", "method: none was named"),
        ("run split-shapes --method", "method: none was named"),
        ("run split-shapes --method zzz", "method: 'zzz' is not known; choose one of sgd"),
        ("run split-shapes --method zzz --help", "method: 'zzz' is not known"),
        ("run --method er", "stream: none was named; say `reprise run STREAM` with one of split-cifar"),
        ("run nowhere --method er", "stream: 'nowhere' is not known; choose one of split-cifar"),
        (
            "run split-shapes more --method er",
            "'more' is one word too many; `reprise run --method er --help`",
        ),
        ("run split-shapes --method er --lam", "--lam: expected one argument"),
        ("run split-shapes --method er --json=1", "--json: ignored explicit argument '1'"),
        ("run split-shapes --method er --meth er", "--meth: er has no such field; the nearest one is method"),
        ("run split-shapes --method er --step 3", "--step: er has no such field; the nearest one is steps"),
        (
            "run split-shapes --method car --lam-fn 3",
            "--lam-fn: car has no such field; the nearest one is lam_fm",
        ),
        ("run split-shapes --method er --lam_fm 3", "--lam_fm: er has no such field; car has it"),
        (
            "run split-shapes --method er --bogus=3",
            "--bogus: er has no such field; the fields are artifacts, batch, bn,",
        ),
        ("run split-shapes --method er --lam x", "lam: 'x' is not a number; write for example 0.5"),
        ("run split-shapes --method er --lam nan", "lam: nan is not a finite number"),
        ("run split-shapes --method er --lam=-1", "lam: -1.0 is not a weight; give 0 or more"),
        ("run split-shapes --method er --lr 0", "lr: 0.0 is not positive; give a number above 0"),
        (
            "run split-shapes --method er --batch 2.5",
            "batch: '2.5' is not a whole number; write for example 10",
        ),
        (
            "run split-shapes --method er --scope all",
            "scope: 'all' is not known; choose one of union, one_task",
        ),
        ("run split-shapes --method er --tasks 99", "tasks: 99 was asked for, but split-shapes has 10"),
        ("run split-shapes --method er --encoder vit", "encoder: 'vit' is not known; choose one of"),
        ("run split-shapes --method er --optimizer adam", "optimizer: adam would move the heads"),
        ("run split-shapes --method er --seeds 1,1", "seeds: 1,1 are not different numbers"),
        ("run split-shapes --method er --seeds one", "seeds: 'one' is not a list of whole numbers"),
        ("run split-shapes --method er --lanes 0", "lanes: 0 is not positive"),
        ("run split-shapes --method er --device tpu", "device: 'tpu' is not known; choose one of cpu, cuda"),
        ("run split-shapes --method er --m 7", "m: 7 cannot be divided evenly over 50 classes; use 0 or 50"),
        (
            "run split-shapes --method er --m 99950",
            "m: 99950 is more than there are examples to remember; use 10000",
        ),
        (
            "run split-shapes --method er --m 50 --memory 1MB",
            "m and memory say the same thing twice; give one",
        ),
        ("run split-shapes --method er --memory 2XB", "memory: '2XB' is not a size; write for example 2MB"),
        ("run split-shapes --method sgd --memory 2XB", "memory: '2XB' is not a size"),
        (
            "run split-shapes --method er --memory 10B",
            "memory: 10 bytes are less than the 38,500 that the smallest",
        ),
        ("run split-shapes --method er --config none.yaml", "config: none.yaml does not exist"),
        ("run split-cifar --method er", "data: split-cifar needs a folder with cifar-100-python"),
        ("run split-cifar --method er --data /nowhere", "/nowhere does not exist; get it with"),
        ("run split-shapes --method er --out=", "out: '' is not a path"),
        ("run split-shapes --method er --out /proc/here", "out: /proc/here cannot be written"),
        (
            "tune split-shapes --method er --grid lam",
            "grid: 'lam' is not a list of values; write for example",
        ),
        ("tune split-shapes --method er --grid lam=1,x", "lam: 'x' is not a number"),
        ("tune split-shapes --method er --grid lam_fm=1", "lam_fm: er has no such field to search"),
        ("tune split-shapes --method er --split report", "split: a search sees the validation tasks only"),
        ("demo --steps x", "steps: 'x' is not a whole number"),
        ("demo --step 3", "--step: `reprise demo` has no such field; the nearest one is steps"),
        ("list everything", "'everything' is one word too many; `reprise list --help`"),
        ("list --json", "--json: `reprise list` has no such field; leave it out"),
        ("data", "data: nothing was asked for; say `data fetch cifar100`, `data check STREAM`"),
        ("data burn", "data: 'burn' was asked for; say"),
        ("data fetch", "data: nothing to fetch was named; say `reprise data fetch cifar100`"),
        ("data fetch cifar100", "data: no folder was given; name one with --data DIR"),
        ("data fetch mini-imagenet --data .", "data: 'mini-imagenet' cannot be fetched; only cifar100 can"),
        ("data check split-shapes --data .", "stream: 'split-shapes' has no data files to check"),
        ("data pack split-cifar --data .", "data: 'split-cifar' cannot be packed; only taskonomy can"),
        ("data pack taskonomy --data .", "out: no folder for the pack was given; name one with --out DIR"),
        ("data pack taskonomy --data . --out x --size 0", "size: 0 is not positive; give 1 or more"),
        ("data pack taskonomy --data . --out x --size a", "size: 'a' is not a whole number"),
        ("data rooms", "data: nothing to rooms was named; say `reprise data rooms DIR`"),
        ("data rooms x --buildings 1,2", "buildings: '1,2' are not three numbers of worlds"),
        ("run taskonomy --method er", "data: taskonomy needs a folder with the official layout or a pack"),
        ("run taskonomy --method er --data /nowhere", "/nowhere does not exist; put <domain>/taskonomy"),
        ("run rooms --method er --sequence depth,nomral", "sequence: 'nomral' is no Taskonomy task"),
        ("run rooms --method er --buildings 3", "buildings: '3' are not three numbers of worlds"),
        ("run split-shapes --method er --size 32", "size: split-shapes has no such choice; leave it out"),
        ("run rooms --method sgd --workers 0", "workers: 0 is not positive"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, line.split())
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "device: cuda was asked for, but this machine shows no GPU" in refused(
        capsys, [*RUN, "er", "--device", "cuda"]
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("lam_fm: 3", "lam_fm: er has no such field (named in fields.yaml); car has it"),
        ("lamm: 3", "the nearest one is lam."),
        ("json: true", "json: er has no such field (named in fields.yaml)"),
        ("lr: [1, 2]", "lr: [1, 2] is not a number"),
        ("seeds: [0, 0]", "seeds: 0,0 are not different"),
        ("method: [er]", ""),  # the flag names another
        (
            "x: !!python/object/apply:os.system ['touch ran']",
            "config: fields.yaml is not plain YAML (line 1: tag 'tag:",
        ),
        ("m: 50\nmemory: 1MB", "m and memory say the same thing twice"),
    ],
)
def test_bad_files(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fields.yaml").write_text(content)
    line = [*RUN, "er", "--config", "fields.yaml", "--tasks", "99"]
    assert (words or "tasks: 99 was asked for") in refused(capsys, line)
    assert [path.name for path in tmp_path.iterdir()] == ["fields.yaml"]


@pytest.mark.parametrize("content", ["method: [er]\nstream: split-shapes", "method: 5\nstream: split-shapes"])
def test_a_file_with_a_strange_method(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str
) -> None:
    path = tmp_path / "fields.yaml"
    path.write_text(content)
    assert "is not known; choose one of sgd" in refused(capsys, ["run", "--config", str(path)])


@pytest.mark.parametrize(
    "line", ["run split-shapes --method er --lam x", "train", "data fetch mini-imagenet --data ."]
)
def test_the_module_is_the_command(tmp_path: Path, line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reprise", *line.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("reprise: ")


# ---- help


@pytest.mark.parametrize("command", ["run", "tune"])
@pytest.mark.parametrize("method", [None, *METHODS])
def test_help_names_every_field(capsys: pytest.CaptureFixture[str], command: str, method: str | None) -> None:
    code, out, err = says(capsys, [command, "--help", *(["--method", method] if method else [])])
    assert (code, err) == (0, "")
    for name in METHODS if method is None else [method]:
        assert all(f"--{field} " in out for field in field_hints(name))
    plain = " ".join(out.split())
    assert "learning rate (default: 0.03)" in plain
    assert "YAML file of fields; flags outweigh it" in plain
    assert "seeds to run, for example 0,1,2" in plain
    assert ("--grid FIELD=X,Y" in plain) == (command == "tune")
    assert ("λ_fm, weight of the feature matching loss" in plain) == (method in (None, "car"))


@pytest.mark.parametrize(
    ("stream", "method", "defaults"),
    [
        (
            "taskonomy",
            "car",
            ["batch (default: 64)", "learning rate (default: 0.0001)", "loss (default: 50)"],
        ),
        ("rooms", "ewc", ["batch (default: 16)", "the shared encoder (default: resnet-rooms)"]),
        ("split-cifar", "er", ["batch (default: 10)", "learning rate (default: 0.03)"]),
    ],
)
def test_help_shows_the_defaults_of_the_stream_that_is_named(
    capsys: pytest.CaptureFixture[str], stream: str, method: str, defaults: list[str]
) -> None:
    code, out, _ = says(capsys, ["run", stream, "--method", method, "--help"])
    assert code == 0
    plain = " ".join(out.split())
    assert [words for words in defaults if words not in plain] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--help", "usage: reprise COMMAND"),
        ("cost --help", "counted from shapes: no data is"),
        ("-h", "usage: reprise COMMAND"),
        ("demo --help", "steps of each task"),
        ("list --help", "The streams and methods there are."),
        ("data --help", "fetch cifar100 --data DIR"),
        ("data pack --help", "Pack official folders at one resolution"),
        ("data rooms --help", "views of each world"),
        ("data fetch --help", "Get a data set."),
        ("data check --help", "Look whether data is whole."),
        ("--version", "reprise "),
    ],
)
def test_help(capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    code, out, err = says(capsys, line.split())
    assert (code, err) == (0, "")
    assert words in out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = says(capsys, ["list"])
    assert (code, err) == (0, "")
    for name in ("split-cifar", "split-mini-imagenet", "split-shapes", *METHODS):
        assert f"  {name} " in out


def test_data_check_lists_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = says(capsys, ["data", "check", "split-cifar", "--data", str(tmp_path)])
    assert (code, err) == (2, "")
    assert "cifar-100-python/train: missing" in out


# ---- what it costs


def test_cost_puts_all_methods_side_by_side_and_says_whom_it_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = says(capsys, ["cost", "rooms", "--size", "32", "--sequence", "depth,class_scene"])
    assert (code, err) == (0, "")
    assert "rooms: 2 tasks, 32x32, resnet-rooms, batch 16, float32" in out
    first = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert [name for name in METHODS if name not in first] == ["icarl", "mer"]
    assert out.count("Left out: method: ") == 2


def test_cost_of_one_method_in_detail(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["cost", "taskonomy", "--method", "car", "--m", "64", "--compress", "none", "--tasks", "3"]
    code, out, err = says(capsys, line)
    assert (code, err) == (0, "")
    kept = dict(row.split(maxsplit=1) for row in out.splitlines() if row.startswith(("activation", "inputs")))
    # 64 examples of 3 tasks: 2048 x 8 x 8 numbers of 4 bytes, 3 x 256 x 256 of one.
    assert {name: size.split() for name, size in kept.items()} == {
        "activation": ["100.7", "MB"],
        "inputs": ["37.7", "MB"],
    }
    assert all(words in out for words in ("class_object", "replaying", "To train: "))


def test_cost_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = says(capsys, ["cost", "split-shapes", "--method", "er", "--json"])
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["configuration"]["method"] == "er"
    assert found["kept"]["total"] == sum(size for kind, size in found["kept"].items() if kind != "total")
    assert found["steps"]["mean"]["flops"] > 0


def test_cost_refuses_what_a_run_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert "stream: none was named; say `reprise cost STREAM`" in refused(capsys, ["cost"])
    assert "use er, car or derpp" in refused(capsys, ["cost", "rooms", "--method", "icarl"])
    assert "5 doublings do not lead back" in refused(capsys, ["cost", "taskonomy", "--size", "100"])
    assert "--lamm: er has no such field" in refused(
        capsys, ["cost", "rooms", "--method", "er", "--lamm", "1"]
    )


# ---- runs


def test_json_carries_one_record_a_run_and_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = [*RUN, "er", *SHORT, "--out", str(tmp_path / "run")]
    (record,) = records_of(capsys, line)
    assert tuple(record) == KEYS
    assert (record["method"], record["stream"], record["seed"]) == ("er", "split-shapes", 0)
    assert (record["m"], record["m_per_task"]) == (50, 5.0)
    assert record["matrix"]["accuracy"][0][1] is None
    assert record["configuration"]["encoder"] == "convnet-small"
    assert record["bytes"]["total"] == 10 * (3 * 16 * 16 + 1 + 1)


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = says(capsys, [*RUN, "sgd", *SHORT, "--out", str(tmp_path / "run")])
    assert code == 0
    assert re.fullmatch(r"sgd seed 0: done after \d+\.\d s\n", err)
    assert "acc %" in out
    assert f"Records: {tmp_path / 'run'}\n" in out


def test_a_run_without_out_goes_to_the_store(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = says(capsys, [*RUN, "sgd", *SHORT])
    assert code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    described = json.loads((folder / "experiment.json").read_text())
    assert folder.name == f"split-shapes-sgd-{described['hash']}"
    assert f"Records: runs/{folder.name}" in out


def test_sgd_remembers_nothing_whatever_m_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (record,) = records_of(capsys, [*RUN, "sgd", *SHORT, "--m", "100", "--out", str(tmp_path / "run")])
    assert (record["m"], record["m_per_task"], record["configuration"]["m"]) == (None, None, None)
    assert record["bytes"]["total"] == 0


def test_flag_over_file_over_protocol_over_default(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "fields.yaml"
    path.write_text(
        "stream: split-shapes\nmethod: car\ntasks: 1\nsteps: 2\nlr: 1e-3\nlam-fm: 2\nm: 100\nseeds: [1, 2]\n"
        f"encoder: convnet-small\nout: {tmp_path / 'run'}\n"
    )
    line = ["run", "--config", str(path), "--lam-fm", "3", "--seeds", "0", "--memory", "50kB"]
    (record,) = records_of(capsys, line)
    found = record["configuration"]
    assert (record["method"], record["seed"]) == (
        "car",
        0,
    )  # --seeds outweighs the file, though 0 is its default
    assert (found["lam_fm"], found["lr"], found["steps"], found["lam"]) == (3.0, 0.001, 2, 1.0)
    assert record["bytes"]["total"] <= 50_000
    assert (tmp_path / "run" / "seed-0" / "record.json").exists()
    with_protocol = records_of(capsys, [*RUN, "er", *SHORT, "--out", str(tmp_path / "other")])[0]
    assert with_protocol["configuration"]["m"] == 50  # the stream's table
    assert with_protocol["configuration"]["lr"] == Experiment("split-shapes", METHODS["er"]()).lr


def test_dashes_and_underscores_are_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = [[flag, "7", "--out", str(tmp_path / flag)] for flag in ("--lam_fm", "--lam-fm")]
    one, other = (records_of(capsys, [*RUN, "car", *SHORT, *line])[0] for line in lines)
    assert one["configuration"]["lam_fm"] == 7.0
    assert timeless(one) == timeless(other)


# ---- ends


def test_divergence_is_exit_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = [*RUN, "sgd", *SHORT, "--lr", "1e30", "--out", str(tmp_path / "run")]
    said = refused(capsys, line, code=3)
    assert "seed 0: the loss was not finite in task-0 at step" in said
    assert said.endswith("or set clip; no checkpoint had been written yet.\n")
    assert not (tmp_path / "run" / "seed-0" / "record.json").exists()


def test_divergence_in_the_last_step_shows_on_the_test_set(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = [
        *RUN,
        "sgd",
        *SHORT,
        *["--tasks", "1", "--steps", "1", "--lr", "1e30", "--out"],
        str(tmp_path / "run"),
    ]
    code, out, err = says(capsys, line)
    assert (code, out) == (3, "")
    assert "reprise: seed 0: the test loss was not finite after task-0; lower lr or set clip; " in err
    assert not (tmp_path / "run" / "seed-0" / "record.json").exists()


def test_an_interrupt_is_exit_130(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", stop)
    assert "interrupted" in refused(capsys, [*RUN, "sgd", "--out", str(tmp_path / "run")], code=130)


SMALL_DEMO = (
    *(
        "--steps",
        "1",
        "--size",
        "32",
        "--buildings",
        "2,1,1",
        "--views",
        "16",
        "--sequence",
        "depth,class_scene",
    ),
)


def test_the_demo_compares_the_four_methods(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reprise.workers.cores", lambda: 1)
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "cache"))
    code, out, _ = says(capsys, ["demo", *SMALL_DEMO, "--out", str(tmp_path / "demo")])
    assert code == 0
    rows = [
        line.split()[0] for line in out.splitlines() if line.startswith(("sgd", "er", "car", "multitask"))
    ]
    assert rows == ["sgd", "er", "car", "multitask"]
    records = [json.loads(p.read_text()) for p in (tmp_path / "demo").glob("*/seed-0/record.json")]
    drops = {r["method"]: r["performance_drop_percent"] for r in records}
    assert set(drops) == {"sgd", "er", "car", "multitask"}
    assert [name for name, drop in drops.items() if drop is None] == ["multitask"]
    pictures = sorted((tmp_path / "demo").glob("predictions-seed0-view*.png"))
    assert len(pictures) == 3
    with Image.open(pictures[0]) as picture:
        assert picture.height > 2 * 96, "a row for each of the two tasks"


def test_rooms_as_files_are_checked_packed_and_trained_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way of a user with a folder of files: render, check, pack, check the pack, run."""
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    few = ["--size", "32", "--buildings", "2,1,1", "--views", "8", "--workers", "1"]
    code, out, _ = says(capsys, ["data", "rooms", "files", *few])
    assert code == 0
    assert "reprise run taskonomy --method er --data files --size 32" in out
    code, out, _ = says(capsys, ["data", "check", "taskonomy", "--data", "files"])
    assert code == 0
    assert "train-0001: 8 views of 2 points, 32 x 32 pixels" in out
    assert "depth: all 32 views usable" in out
    pack = ["data", "pack", "taskonomy", "--data", "files", "--out", "pack", "--size", "16", "--workers", "1"]
    code, out, _ = says(capsys, pack)
    assert code == 0
    assert "4 buildings packed: 32 views" in out
    _, out, _ = says(capsys, pack)
    assert "0 buildings packed, 4 were there already" in out
    code, out, _ = says(capsys, ["data", "check", "taskonomy", "--data", "pack"])
    assert code == 0
    assert "a pack of 32 views, 16 x 16: every checksum is right" in out
    run = ["run", "taskonomy", "--method", "er", "--data", "pack", "--size", "16", "--steps", "1", "--json"]
    run += ["--buildings", "files/train_val_test_rooms.csv", "--encoder", "convnet-small", "--m", "4"]
    code, out, _ = says(capsys, [*run, "--batch", "4", "--sequence", "normal,class_object"])
    assert code == 0
    record = json.loads(out)
    assert record["stream"] == "taskonomy"
    assert record["configuration"]["p_replay"] == 0.5
    (tmp_path / "pack" / "test-0000" / "rgb.npy").write_bytes(b"broken")
    code, out, err = says(capsys, ["data", "check", "taskonomy", "--data", "pack"])
    assert code == 2
    assert "pack again" in out + err
