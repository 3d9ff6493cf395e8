"""The paper as code: every printed number has a place, every place an experiment, shared cells run once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from reprise.cli import main
from reprise.errors import InputError
from reprise.experiments import SCALES, SHEETS, Place, find_scale, scaled_m
from reprise.experiments.places import paper
from reprise.experiments.reproduce import find_sheets, plan_batches
from reprise.report.read import read_sources
from reprise.report.sheets import fill_sheet
from reprise.results import read_store
from reprise.streams import STREAMS

TABLES = [name for name in paper()["tables"] if not name.startswith("exp_details")]


def numbers(content: Any) -> list[float]:
    """Every number of a table of the file, deviations left out; memory as text ("1.3 G") in MB."""
    if isinstance(content, dict):
        return [
            n for key, value in content.items() if key not in ("kind", "footnotes") for n in numbers(value)
        ]
    if isinstance(content, list):
        return numbers(content[0])
    if isinstance(content, str):
        size = re.fullmatch(r"([\d.]+) ?([MG])", content)
        return [float(size[1]) * (1000 if size[2] == "G" else 1)] if size else []
    return [] if content is None else [float(content)]


def test_the_names_are_those_of_the_file_and_two_figures() -> None:
    assert set(SHEETS) == {*TABLES, "tsne", "predictions"}
    assert all(SHEETS[name]().name == name for name in SHEETS)


@pytest.mark.parametrize("name", TABLES)
def test_every_printed_number_has_a_place(name: str) -> None:
    places = SHEETS[name]().places
    found = [printed.mean for place in places for printed in place.printed.values() if printed is not None]
    assert sorted(found) == pytest.approx(sorted(numbers(paper()["tables"][name])))
    assert len({(place.part, place.row, place.column) for place in places}) == len(places)


@pytest.mark.parametrize("name", SHEETS)
def test_the_docstring_has_command_and_expectation(name: str) -> None:
    text = SHEETS[name].__doc__ or ""
    assert f"Command: `reprise reproduce {name} --scale paper" in text
    assert "Expected: " in text


@pytest.mark.parametrize("scale", SCALES)
def test_every_place_has_an_experiment(scale: str) -> None:
    for sheet in find_sheets("all"):
        for place in sheet.places:
            if SCALES[scale].streams[place.benchmark] not in STREAMS:
                continue
            experiment = SCALES[scale].experiment(place)
            assert experiment.method_name == place.method
            if "lam_fm" in place.fields:
                assert experiment.to_dict()["lam_fm"] == place.fields["lam_fm"]


def test_memory_at_each_scale() -> None:
    split = Place("split_cifar", "ER", "m425", "split_cifar", "er", {"m": 425})
    dense = Place("sequence_1", "ER", "m64", "taskonomy", "er", {"m": 64})
    assert [scaled_m(scale, split) for scale in SCALES.values()] == [250, 425, 425]
    assert [scaled_m(scale, dense) for scale in SCALES.values()] == [4, 4, 64]


def test_cells_that_tables_share_are_run_once() -> None:
    """CAR with l2 and λ_fm = 5 stands in three tables and the t-SNE figure, which asks for its features."""
    names = ("split_cifar", "split_cls_distribution_matching", "split_cifar_sensitivity", "tsne")
    batches = plan_batches([SHEETS[name]() for name in names], SCALES["paper"])
    experiments = [e for batch in batches for e in batch.experiments]
    assert len(experiments) == len(set(experiments))
    usual = [
        (e.m, batch.artifacts)
        for batch in batches
        for e in batch.experiments
        if e.stream == "split-cifar"
        and e.method_name == "car"
        and e.to_dict()["lam_fm"] == 5.0
        and e.to_dict()["distance"] == "l2"
    ]
    assert sorted(usual) == [(85, ("features", "memory")), (425, ())]
    assert {batch.seeds for batch in batches} == {(0, 1, 2, 3, 4)}


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="name: 'table9' is not known; choose one of taskonomy_1"):
        find_sheets("table9")
    with pytest.raises(InputError, match="scale: 'huge' is not known; choose one of smoke, sample, paper"):
        find_scale("huge")
    assert main(["reproduce"]) == 2
    assert "no table or figure was named" in capsys.readouterr().err
    assert main(["reproduce", "tsne", "--scale", "paper"]) == 2
    assert "data: split-cifar needs a folder" in capsys.readouterr().err


def test_a_figure_is_reproduced_and_the_second_time_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "tsne", "--out", str(tmp_path)]
    assert main(command) == 0
    capsys.readouterr()
    records = list(read_store(tmp_path / "store"))
    assert sorted((r["method"], r["m"]) for r in records) == [("car", 50), ("er", 50)]
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count('class="panel"') == 6
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == files


SPLIT = [name for name in SHEETS if name.startswith("split")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *SPLIT,
        pytest.param(
            "all",
            marks=pytest.mark.skipif("rooms" not in STREAMS, reason="the stream `rooms` is not there yet"),
        ),
    ],
)
def test_smoke_fills_every_cell(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One folder for all: tables share cells. The multi-task model has nothing to forget, nor to fall behind."""
    folder = tmp_path_factory.getbasetemp() / "smoke"
    assert main(["reproduce", name, "--out", str(folder)]) == 0
    groups = read_sources([folder / "store"]).groups
    for sheet in find_sheets(name):
        empty = [
            (e.place.part, e.place.row, e.place.column, e.metric.title)
            for e in fill_sheet(sheet, groups).entries
            if e.summary["n"] == 0 and e.place.method != "multitask"
        ]
        assert empty == []
    assert (folder / "report" / "index.html").exists()
