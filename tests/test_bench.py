"""`reprise bench`: what is timed, what the file holds, and that a row that fails costs no other row."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny import CPU

from reprise import bench, peers
from reprise.bench import Bench, Row, Stopwatch, make_bench, make_cases, measure, new_file, slug
from reprise.build import Cell
from reprise.cli import main
from reprise.config import make_experiment
from reprise.ledger import settle
from reprise.streams import STREAMS, stream_of
from reprise.terminal import bench_table, measuring_bar
from reprise.train import Trainer

TINY = ["bench", "--device", "cpu", "--encoder", "convnet-small", "--steps", "5", "--warmup", "5"]
ROW = (
    *("mode", "K", "precision", "method", "ms_per_step", "ms_per_lane_step"),
    *("peak_memory_bytes", "warm_up_seconds", "steps", "spread"),
)


def run(capsys: pytest.CaptureFixture[str], out: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """The file a command writes, with what was printed under `printed` and `told`."""
    before = set(out.glob("*.json"))
    found = main([*TINY, "--out", str(out), *words])
    printed, told = capsys.readouterr()
    assert found == code, told
    (path,) = set(out.glob("*")) - before
    assert f"File: {path}\n" in printed
    return json.loads(path.read_text()) | {"printed": printed, "told": told}


@pytest.fixture
def fake_peers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Two peers that take no steps worth the name, the second one slower; what they were called with."""
    calls: list[dict[str, Any]] = []

    def peer(pause: float) -> Callable[..., peers.StepTimes]:
        def step_times(device: object, encoder: object, steps: int, warmup: int, **more: Any) -> Any:
            calls.append({"device": device, "steps": steps, "warmup": warmup, **more})
            for _ in range(warmup + steps):
                time.sleep(pause)
                more["between"]()
            return peers.StepTimes([], [])

        return step_times

    monkeypatch.setattr(peers, "available", lambda: None)
    monkeypatch.setattr(peers, "version", lambda: "9.9")
    monkeypatch.setattr(
        peers, "PEERS", {"other-slow": ("agem", peer(0.02)), "other-fast": ("er", peer(0.001))}
    )
    return calls


# ---- the file


def test_the_file_holds_every_row_and_where_it_comes_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    content = run(capsys, tmp_path / "new" / "folder", "--peers", "false")
    assert {"about", "rows", "environment", "peers", "date", "command_options"} <= set(content)
    assert [(row["mode"], row["K"]) for row in content["rows"]] == [("eager", 1), ("lanes", 1), ("lanes", 5)]
    for row in content["rows"]:
        assert tuple(row) == ROW
        assert (row["precision"], row["method"], row["steps"]) == ("tf32", "er", 5)
        assert row["peak_memory_bytes"] is None
        assert row["ms_per_step"] == pytest.approx(row["K"] * row["ms_per_lane_step"])
        assert row["spread"]["min"] <= row["spread"]["median"] == row["ms_per_lane_step"]
        assert 0 < row["spread"]["median"] <= row["spread"]["max"]
        assert row["warm_up_seconds"] > 0
    assert content["environment"]["torch"] == torch.__version__
    assert content["command_options"] == {
        **{"device": "cpu", "lanes": [1, 5], "precision": ["tf32"], "method": "er"},
        **{"encoder": "convnet-small", "steps": 5, "warmup": 5, "peers": False},
    }
    assert content["told"] == "eager, tf32: done\nlanes of 1, tf32: done\nlanes of 5, tf32: done\n"
    assert "eager ×" in content["printed"]


@pytest.mark.parametrize("method", ["sgd", "multitask", "car"])
def test_other_methods_have_steps_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str
) -> None:
    words = ["--method", method, "--lanes", "2", "--precision", "float64,float32", "--peers", "false"]
    rows = run(capsys, tmp_path, *words)["rows"]
    found = [(row["mode"], row["K"], row["precision"], row["method"]) for row in rows]
    expected = [("eager", 1), ("lanes", 2)]
    assert found == [(*drive, p, method) for p in ("float64", "float32") for drive in expected]
    assert all(row["ms_per_step"] > 0 for row in rows)


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--lanes", "1", "--peers", "false"]
    date = run(capsys, tmp_path, *words)["date"]
    run(capsys, tmp_path, *words)
    name = f"bench-cpu-torch{bench.slug(torch.__version__)}-{date}"
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.json", f"{name}-2.json"}


def test_file_names(tmp_path: Path) -> None:
    assert slug("NVIDIA H200") == "nvidia-h200"
    assert slug("NVIDIA GeForce RTX 4090 (24 GB)") == "nvidia-geforce-rtx-4090-24-gb"
    names = [new_file(tmp_path / "a", "bench").name for _ in range(3)]
    assert names == ["bench.json", "bench-2.json", "bench-3.json"]


# ---- what is timed


def test_the_timed_steps_replay() -> None:
    pool = bench.random_pool()
    assert pool.source.columns["x"].float().std() > 50
    experiment = make_experiment(bench.STREAM, "er", {"steps": 7}, STREAMS[bench.STREAM].protocol)
    stream = stream_of(experiment, 0, pool)
    assert (len(stream.tasks), stream.input_shape) == (17, (3, 32, 32))
    feed = Trainer([Cell(settle(experiment, stream), 0, stream)], CPU).skip_to(1)
    assert feed.uniform
    assert feed.steps == 7
    for step in range(7):
        current, replayed = feed.batches(step)
        assert (len(current.x), len(replayed.x)) == (10, 5)
        assert set(current.task.tolist()) == {1}
        assert set(replayed.task.tolist()) == {0}


def test_the_time_between_blocks_is_in_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [100.0], []
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def tell(done: int) -> None:
        told.append(done)
        now[0] += 50.0

    watch = Stopwatch(CPU, 3, 12, tell)
    for step in range(15):
        now[0] += 2.0 if step < 9 else 3.0
        watch()
    assert told == [3, 6, 9, 11, 13, 15]
    assert watch.blocks() == [2.0, 2.0, 3.0, 3.0, 3.0]
    assert watch.warm_up == 6.0


def test_a_measurement_leaves_the_arithmetic_as_it_was() -> None:
    case = make_cases(make_bench({"device": "cpu", "encoder": "convnet-small", "lanes": "1"}))[0]
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    seen: list[bool] = []

    def look(watch: Stopwatch) -> None:
        seen.append(torch.backends.cudnn.deterministic)
        raise RuntimeError("enough.\nmore")

    looking = bench.Case("eager", 1, "tf32", "er", look)
    row = measure(looking, Bench(device="cpu"), lambda *_: None)
    assert row["error"] == "eager, tf32: enough."
    assert seen == [True]
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic) == before
    assert case.name == "eager, tf32"


# ---- peers


def test_peers_are_measured_in_the_same_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fake_peers: list[dict[str, Any]]
) -> None:
    content = run(capsys, tmp_path, "--lanes", "1", "--precision", "float64,tf32")
    own = [(row["mode"], row["precision"], row["method"]) for row in content["rows"]][4:]
    assert own == [("other-slow", "tf32", "agem"), ("other-fast", "tf32", "er")]
    assert content["peers"] == {"avalanche": "9.9"}
    slow, fast = (row["ms_per_step"] for row in content["rows"][4:])
    assert slow > max(20, fast)
    assert all((call["steps"], call["warmup"], call["synchronise"]) == (5, 5, False) for call in fake_peers)


def test_peers_may_be_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fake_peers: list[dict[str, Any]]
) -> None:
    content = run(capsys, tmp_path, "--lanes", "1", "--peers", "false")
    assert (fake_peers, content["peers"], len(content["rows"])) == ([], {}, 2)


def test_an_absent_peer_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    content = run(capsys, tmp_path, "--lanes", "1")
    assert "Avalanche is not installed; src/reprise/peers.py says how" in content["printed"]
    assert content["peers"]["avalanche"].startswith("Avalanche is not installed")


@pytest.mark.skipif(peers.available() is not None, reason="Avalanche is not installed")
@pytest.mark.parametrize("mode", list(peers.PEERS))
def test_avalanche_takes_the_steps_it_is_timed_for(mode: str) -> None:
    """The clock itself refuses a step of another number of images."""
    calls: list[None] = []
    timed = peers.PEERS[mode][1](
        CPU, peers.encoder_like("convnet-small"), 4, 2, between=lambda: calls.append(None)
    )
    assert (len(timed.loop), len(timed.compute), len(calls)) == (4, 4, 6)
    assert all(0 < own <= whole for own, whole in zip(timed.compute, timed.loop, strict=True))


# ---- rows that fail


def test_a_row_out_of_memory_costs_no_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(Trainer):
        def __init__(self, cells: list[Cell], *more: Any, **named: Any) -> None:
            if len(cells) == 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
            super().__init__(cells, *more, **named)

    monkeypatch.setattr(bench, "Trainer", Small)
    content = run(capsys, tmp_path, "--lanes", "1,3,2", "--peers", "false")
    assert [(row["K"], "error" in row) for row in content["rows"]] == [
        (1, False),
        (1, False),
        (3, True),
        (2, False),
    ]
    failed = content["rows"][2]
    said = "lanes of 3, tf32: the memory of the device was not enough; ask for fewer lanes."
    assert tuple(failed) == (*ROW, "error")
    assert (failed["error"], failed["ms_per_step"], failed["spread"]) == (said, None, None)
    assert f"{said}\n" in content["printed"]
    assert "failed" in content["printed"]


def test_a_peer_may_raise_anything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fake_peers: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("targets")

    monkeypatch.setattr(peers, "PEERS", {"broken": ("er", broken)} | peers.PEERS)
    rows = run(capsys, tmp_path, "--lanes", "1")["rows"]
    assert [row.get("error") for row in rows[2:]] == ["broken, tf32: KeyError: 'targets'.", None, None]


def test_where_all_rows_fail_the_command_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(bench, "Trainer", fail)
    rows = run(capsys, tmp_path, "--lanes", "1", "--peers", "false", code=1)["rows"]
    assert [row["error"] for row in rows] == [
        "eager, tf32: no such kernel.",
        "lanes of 1, tf32: no such kernel.",
    ]


def test_what_was_measured_before_an_interrupt_is_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Trainer):
        def __init__(self, cells: list[Cell], *more: Any, **named: Any) -> None:
            if len(cells) == 2:
                raise KeyboardInterrupt
            super().__init__(cells, *more, **named)

    monkeypatch.setattr(bench, "Trainer", Interrupted)
    assert main([*TINY, "--out", str(tmp_path), "--lanes", "1,2", "--peers", "false"]) == 130
    (path,) = tmp_path.iterdir()
    assert [row["mode"] for row in json.loads(path.read_text())["rows"]] == ["eager", "lanes"]
    capsys.readouterr()


def test_a_graph_of_unlike_steps_is_refused() -> None:
    """On a CPU no step is captured; a GPU's case says so where a method's steps are not alike."""
    experiment = make_experiment(
        bench.STREAM, "er", {"steps": 10, "encoder": "convnet-small"}, STREAMS[bench.STREAM].protocol
    )
    pool = bench.random_pool()
    settled = settle(experiment, stream_of(experiment, 0, pool))
    watch = Stopwatch(CPU, 5, 5, lambda done: None)
    with pytest.raises(ValueError, match="the steps of er are not all alike and cannot be one graph"):
        bench._take_our_steps("graph", 1, settled, pool, CPU, watch)


# ---- the table and the bar


def shown(rows: list[Row]) -> list[list[str]]:
    """The cells of the rendered table, a row a list; no cell is cut at 80 columns."""
    console = Console(file=io.StringIO(), width=80)
    console.print(bench_table(rows, "title"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    return [line.split() for line in text.splitlines()]


def row_of(mode: str, lanes: int, ms: float, precision: str = "tf32", memory: int | None = None) -> Row:
    spread = {"min": ms, "median": ms, "max": ms}
    values = [mode, lanes, precision, "er", lanes * ms, ms, memory, 1.0, 200, spread]
    return dict(zip(ROW, values, strict=True))


def test_the_table_compares_with_each_peer_the_slowest_last() -> None:
    rows = [
        row_of("eager", 1, 10.0, memory=123_400_000),
        row_of("lanes", 120, 0.25, "float32", 98_700_000_000),
        row_of("avalanche-agem", 1, 40.0),
        row_of("avalanche-er", 1, 20.0),
        row_of("lanes", 60, 1.0) | {"error": "lanes of 60, tf32: no."},
    ]
    lines = shown(rows)
    assert lines[1] == ["avalanche", "avalanche"]
    assert lines[2] == ["mode", "K", "prec", "ms/step", "ms/lane", "memory", "er", "×", "agem", "×"]
    assert lines[4] == ["eager", "1", "tf32", "10", "10", "123.4", "MB", "2.00", "4.00"]
    assert lines[5] == ["lanes", "120", "float32", "30", "0.25", "98.7", "GB", "80.00", "160.00"]
    assert lines[6] == ["avalanche-agem", "1", "tf32", "40", "40", "–", "0.50", "1.00"]
    assert lines[8] == ["lanes", "60", "tf32", "failed"]


def test_without_peers_the_table_compares_with_eager() -> None:
    lines = shown([row_of("eager", 1, 1500.0), row_of("graph", 1, 3.0), row_of("eager", 1, 9.0, "float64")])
    assert lines[1][-2:] == ["eager", "×"]
    assert [line[-1] for line in lines[3:]] == ["1.00", "500.00", "166.67"]
    assert lines[3][3:5] == ["1500", "1500"]


def test_a_bar_is_drawn_where_someone_looks() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with measuring_bar(console, 2) as tell:
        for name in ("one", "two"):
            tell(name, 0, 10)
            tell(name, 5, 10)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "one" in text
    assert "75%" in text


# ---- bad input


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--lanes 0", "lanes: 0 are not different numbers from 1 up; write for example 1,5,25"),
        ("--lanes 5,5", "lanes: 5,5 are not different numbers"),
        ("--lanes a", "lanes: 'a' is not a list of whole numbers"),
        ("--precision fp8", "precision: 'fp8' is not known; choose one or more of float32, tf32"),
        ("--precision tf32,", "precision: '' is not known"),
        ("--precision tf32,tf32", "precision: tf32,tf32 names one twice; name each once"),
        ("--method zzz", "method: 'zzz' is not known; choose one of sgd"),
        ("--encoder vit", "encoder: 'vit' is not known; choose one of resnet18-reduced"),
        ("--device tpu", "device: 'tpu' is not known; choose one of cpu, cuda"),
        ("--steps 4", "steps: 4 is too few to measure; give 5 or more"),
        ("--warmup 1", "warmup: 1 is too few to measure; give 5 or more"),
        ("--steps x", "steps: 'x' is not a whole number"),
        ("--peers perhaps", "peers: 'perhaps' is not true or false"),
        ("--out /proc/here", "out: /proc/here cannot be written"),
        ("--lane 3", "--lane: `reprise bench` has no such field; the nearest one is lanes"),
        ("more", "'more' is one word too many; `reprise bench --help`"),
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
    code = main(["bench", "--device", "cpu", "--encoder", "convnet-small", *line.split()])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert err.endswith(".\n")
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "--device", "cuda"]) == 2
    assert "device: cuda was asked for, but this machine shows no GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    assert main([*TINY, "--out", str(path)]) == 2
    assert f"out: {path} cannot be written (" in capsys.readouterr().err
    assert path.read_text() == "mine"


def test_a_gpu_has_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU would be asked for; nothing is measured."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "PRECISIONS", ("float32", "tf32", "bf16"))
    wanted = make_bench({"peers": "false"})
    assert wanted.options() == {
        **{"device": "cuda", "lanes": [1, 5, 25, 60, 120], "precision": ["tf32", "bf16"], "method": "er"},
        **{"encoder": "resnet18-reduced", "steps": 200, "warmup": 20, "peers": False},
    }
    cases = make_cases(make_bench({"peers": "false", "precision": "tf32", "lanes": "1,120"}))
    drives = [
        ("eager", 1),
        ("graph", 1),
        ("lanes", 1),
        ("lanes", 120),
        ("lanes-plain", 1),
        ("lanes-plain", 120),
    ]
    assert [(case.mode, case.lanes) for case in cases] == drives


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    plain = " ".join(capsys.readouterr().out.split())
    for name in bench.HINTS:
        assert f"--{name} " in plain
    assert "(default: 1,5,25,60,120 on a GPU, 1,5 on a CPU)" in plain
