"""What a report says of records: grouping, matching with the paper, escaping, what is left out."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from made_up import NASTY, Record, lines, make_record, store_with_pictures, study

from reprise.cli import main
from reprise.errors import InputError
from reprise.experiments import SHEETS
from reprise.report.costs import cost_table
from reprise.report.page import packed_plotly
from reprise.report.read import read_sources
from reprise.report.sections import baseline_of, make_sections
from reprise.report.sheets import fill_sheet, fill_sheets
from reprise.report.text import latex, markdown, section_table
from reprise.report.write import write_report

ROOT = Path(__file__).parents[2]

# ---- reading


def test_runs_are_grouped_by_configuration_and_repeated_ones_are_counted(tmp_path: Path) -> None:
    first, again = lines(tmp_path / "a.jsonl", study()), lines(tmp_path / "b.jsonl", study()[:3])
    found = read_sources([first, again])
    assert [len(group.runs) for group in found.groups] == [5, 5, 5, 5]
    assert (found.runs, found.repeated) == (20, 3)


def test_a_store_and_its_jsonl_files_are_read_and_logs_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "split-cifar-er-abc" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(study()[0]))
    (folder / "log.jsonl").write_text('{"step": 1}\n')
    lines(tmp_path / "store" / "more.jsonl", study()[1:3])
    (group,) = read_sources([tmp_path / "store"]).groups
    assert group.seeds == [0, 1, 2]
    assert [run.source for run in group.runs] == ["split-cifar-er-abc", "more.jsonl", "more.jsonl"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "line 1 is not JSON"),
        ('{"method": "er"}\n', "is no record, it has no 'stream'"),
        ("\n", "holds no record; name a folder that `reprise run` wrote"),
        ("[1]", "is no record"),
    ],
)
def test_what_is_no_record_is_named(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(InputError, match=words):
        read_sources([tmp_path / "x.jsonl"])
    with pytest.raises(InputError, match="does not exist"):
        read_sources([tmp_path / "nowhere"])


# ---- costs


def test_costs_are_shown_as_far_as_records_know_them(tmp_path: Path) -> None:
    full = {
        **{"macs_per_query": [8_434_000_000, 9_456_000_000], "seconds_per_query": [0.005, 0.006]},
        **{"flops_per_step": 3_215_000_000_000, "bytes_moved_per_step": 47_600_000_000},
        **{"bytes_held_by_step": 5_060_000_000, "peak_memory": None},
    }
    sided, older, without = (make_record(name, 0, 0.5) for name in ("side_tuning", "sgd", "ewc"))
    sided["cost"], older["cost"] = full, {"macs_per_query": [10, 10], "peak_memory": 5_420_000_000}
    (section,) = make_sections(read_sources([lines(tmp_path / "a.jsonl", [sided, older, without])]).groups)
    table = cost_table(section)
    assert table is not None
    start = list(table.headings).index("first query, MAC")
    assert "m" not in table.headings, "none of them remembers examples"
    rows = {row[0]: list(row[start:]) for row in table.rows}
    assert rows["Side-Tuning"] == [
        *("8.43 G", "9.46 G", "6.00", "3.21 T", "47.6 GB", "5.06 GB", "–"),
    ]
    assert rows["SGD"] == ["10", "10", "–", "–", "–", "–", "5.42 GB"]
    assert "EWC" not in rows
    page = write_report([tmp_path / "a.jsonl"], tmp_path / "report")
    assert "What it costs" in page.read_text()
    assert "9.46 G" in (tmp_path / "report" / "tables.md").read_text()


def test_records_without_costs_make_no_table_of_them(tmp_path: Path) -> None:
    (section,) = make_sections(read_sources([lines(tmp_path / "a.jsonl", study())]).groups)
    assert cost_table(section) is None


# ---- sections and the paper


def test_groups_are_named_by_what_is_not_the_default(tmp_path: Path) -> None:
    (section,) = make_sections(read_sources([lines(tmp_path / "a.jsonl", study())]).groups)
    assert [group.name for group in section.groups] == [
        *("SGD", "ER · m=85", "CAR · m=85", "CAR · m=85 · lam_fm=1"),
    ]
    sgd, er, car, _ = section.groups
    assert baseline_of(car, section) is er
    assert baseline_of(er, section) is sgd
    assert baseline_of(sgd, section) is None


def test_a_field_that_some_configurations_leave_out_tells_groups_apart(tmp_path: Path) -> None:
    """Runs from random weights say nothing of first weights; each is compared with one that begins alike."""
    records = [make_record(method, 0, 0.5, m=85) for method in ("er", "car", "er", "car")]
    for record in records:
        del record["configuration"]["first_weights"]
    for record in records[:2]:
        record["configuration"]["first_weights"] = "0123456789abcdef"
    for order in (records, records[::-1]):
        (section,) = make_sections(read_sources([lines(tmp_path / "a.jsonl", order)]).groups)
        named = {group.name: group for group in section.groups}
        tail = " · first_weights=0123456789abcdef"
        assert named.keys() == {"ER · m=85", f"ER · m=85{tail}", "CAR · m=85", f"CAR · m=85{tail}"}
        for end in ("", tail):
            assert baseline_of(named[f"CAR · m=85{end}"], section) is named[f"ER · m=85{end}"]


def test_a_cell_of_the_paper_finds_its_runs_and_gets_a_verdict(tmp_path: Path) -> None:
    groups = read_sources([lines(tmp_path / "a.jsonl", study())]).groups
    entries = {
        (e.place.row, e.place.part, e.place.column, e.metric.title): e
        for e in fill_sheet(SHEETS["split_cifar"](), groups).entries
    }
    er = entries["ER", "split_cifar", "m85", "accuracy %"]
    car = entries["CAR", "split_cifar", "m85", "accuracy %"]
    assert (er.printed_text, er.measured_text, er.verdict) == ("56.2 ± 1.9", "56.2 ± 1.4", "agrees")
    assert car.verdict == "worse than printed"
    assert car.difference_text == "-0.2 [-0.2, -0.2]"
    assert entries["CAR", "split_cifar", "m85", "forgetting"].verdict == "agrees"
    assert entries["HAL", "split_cifar", "m85", "accuracy %"].verdict == "not run"
    assert entries["CAR", "split_miniimagenet", "m85", "accuracy %"].group is None
    weights = fill_sheet(SHEETS["split_cifar_sensitivity"](), groups)
    found = {
        e.place.row: e.measured_text for e in weights.entries if e.group and e.metric.title == "accuracy %"
    }
    assert found == {"1.0": "50.0 ± 1.4", "5.0": "56.0 ± 1.4"}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"tasks": 3}, False),
        ({"split": "validation"}, False),
        ({"scenario": "class"}, False),
        ({"steps": 5}, True),
    ],
)
def test_runs_of_another_length_are_not_comparable(tmp_path: Path, fields: Record, found: bool) -> None:
    """A few tasks, the validation tasks or one head are other experiments; shorter tasks are the same, smaller."""
    records = [make_record("er", seed, 0.5, m=85, **fields) for seed in range(2)]
    groups = read_sources([lines(tmp_path / "a.jsonl", records)]).groups
    entries = [e for e in fill_sheet(SHEETS["split_cifar"](), groups).entries if e.group is not None]
    assert bool(entries) == found
    assert all(e.verdict == "not comparable (scale)" and e.settings_text == "steps=5" for e in entries)


def test_of_several_readings_the_one_nearest_to_the_table_is_shown(tmp_path: Path) -> None:
    records = [make_record("er", seed, 0.7, m=85, lr=0.01, bn="separate") for seed in range(5)]
    records += [make_record("er", 0, 0.6, m=85, precision="tf32")]
    records += [make_record("hal", seed, 0.6, m=85, lr=0.1) for seed in range(2)]
    filled = fill_sheet(SHEETS["split_cifar"](), read_sources([lines(tmp_path / "a.jsonl", records)]).groups)
    er, hal = (
        next(e for e in filled.entries if e.place.row == row and e.group and e.metric.title == "accuracy %")
        for row in ("ER", "HAL")
    )
    assert (er.measured_text, er.settings_text, er.verdict) == ("60.0", "", "one seed")
    assert hal.settings_text == "lr=0.1"


def test_a_table_reads_m_one_way() -> None:
    """m = 16 stands for the paper's 256 at the scale of one building; beside it m = 64 is not the paper's 64."""
    building = ROOT / "results" / "building.jsonl"
    filled = fill_sheet(SHEETS["taskonomy_1"](), read_sources([building]).groups)
    shown = {
        e.place.row: (e.group.m, e.settings_text)
        for e in filled.entries
        if e.group is not None and e.metric.title == "forgetting %"
    }
    assert shown["A-GEM"] == shown["ER-256"] == (16, "m=16")
    assert shown["SGD"] == (None, "")
    assert "ER-64" not in shown


def test_only_tables_with_a_measured_cell_are_shown(tmp_path: Path) -> None:
    groups = read_sources([lines(tmp_path / "a.jsonl", [make_record("mer", 0, 0.5, m=255)])]).groups
    assert [filled.sheet.name for filled in fill_sheets(groups)] == ["split_cifar_255"]


# ---- what is written


def test_a_report_has_all_its_parts_and_sources_stay_as_they_are(tmp_path: Path) -> None:
    source = lines(tmp_path / "a.jsonl", study())
    before = source.read_bytes()
    page = write_report([source], tmp_path / "out")
    assert source.read_bytes() == before
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("index.html", "tables.md", "tables.tex", "runs.csv", "figures"),
    }
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    names = ("sequence", "frontier", "tradeoff", "matrix")
    assert figures == {f"{name}-split-cifar.{ending}" for name in names for ending in ("png", "pdf")}
    rows = list(csv.DictReader((tmp_path / "out" / "runs.csv").read_text().splitlines()))
    assert len(rows) == 20
    assert rows[0]["accuracy"] == "0.35"
    text = page.read_text()
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text.replace(packed_plotly(), ""))
    for line in ("no run in this store left features", "Dense predictions: no run", "Memory: no run"):
        assert line in text
    assert page.stat().st_size < 3_000_000


def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    source = lines(tmp_path / "a.jsonl", study()[:8])
    one, other = (write_report([source], tmp_path / name).read_bytes() for name in ("one", "other"))
    assert one == other


def test_names_of_users_are_escaped_everywhere(tmp_path: Path) -> None:
    """A method, a stream and a field of somebody else's, all of them hostile."""
    records = [make_record("er", seed, 0.5, m=85) for seed in range(2)]
    for record in records:
        record |= {"method": NASTY, "stream": f"{NASTY}&$x_1$"}
        record["configuration"] |= {"method": NASTY, "stream": NASTY, f"{NASTY}": f"{NASTY}|`"}
    records += [
        record | {"configuration": record["configuration"] | {NASTY: seed}}
        for seed, record in enumerate(records)
    ]
    out = tmp_path / "out"
    page = write_report([lines(tmp_path / "a.jsonl", records)], out).read_text()
    assert NASTY not in page
    assert "alert(1)" in page
    assert NASTY not in (out / "tables.md").read_text()
    assert r"\textless{}script" in (out / "tables.tex").read_text()


def test_cells_are_escaped_for_markdown_and_latex(tmp_path: Path) -> None:
    (section,) = make_sections(read_sources([lines(tmp_path / "a.jsonl", study())]).groups)
    table = section_table(section)
    assert r"lam\_fm=1" in markdown(table)
    assert r"lam\_fm=1" in latex(table)
    assert r"$\pm$" in latex(table)
    assert all(line.count("|") == len(table.headings) + 1 for line in markdown(table).splitlines()[2:])


# ---- pictures and features


def test_pictures_of_others_are_embedded_only_when_asked(tmp_path: Path) -> None:
    store = store_with_pictures(tmp_path / "store", "split-mini-imagenet")
    page = write_report([store], tmp_path / "out").read_text()
    assert "data:image/png" not in page
    assert "pictures of split-mini-imagenet are embedded only with --embed-images" in page
    assert not list((tmp_path / "out" / "figures").glob("predictions*"))
    page = write_report([store], tmp_path / "out", embed_images=True).read_text()
    assert page.count("data:image/png") == 2 + 6  # the memory's, and 2 rows of input, truth, answer
    assert NASTY not in page


def test_drift_panels_and_their_numbers(tmp_path: Path) -> None:
    store = store_with_pictures(tmp_path / "store", "split-shapes")
    page = write_report([store], tmp_path / "out").read_text()
    assert page.count('class="panel"') == 3
    assert "drift 0.00 · CKA 1.00 · MMD 0.00" in page
    assert page.count("data:image/png") == 8
    assert (tmp_path / "out" / "figures" / "drift.png").exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = lines(tmp_path / "a.jsonl", study()[:2])
    assert main(["report", str(source), "--out", str(tmp_path / "out")]) == 0
    assert str(tmp_path / "out" / "index.html") in capsys.readouterr().out
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "does not exist; name a folder of records" in capsys.readouterr().err
