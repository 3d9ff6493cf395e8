"""Every row of docs/bad_input.md, as the document says it; and clocks that go backwards."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from bad_input import DOCUMENT, ROWS, SHAPES, Row, quietly, sentence_of


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_sentence_is_the_documents(row: Row) -> None:
    said = sentence_of(row).replace("|", "\\|").replace("<", "&lt;")
    assert f"| {row.what} | {said} |" in DOCUMENT.read_text(encoding="utf-8").splitlines()


def test_the_document_has_no_other_rows() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) == len(ROWS) + 1


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str) -> dict[str, Any]:
        words = [*SHAPES, "--tasks", "2", "--steps", "3", "--save_steps", "1", "--out", str(tmp_path / name)]
        code, said = quietly(words)
        assert code == 0, said
        record = json.loads((tmp_path / name / "seed-0/record.json").read_text())
        return {key: value for key, value in record.items() if key not in ("seconds", "cost")}

    straight = run("straight")
    later = itertools.count(2_000_000_000, -1000)
    monkeypatch.setattr(time, "time", lambda: float(next(later)))
    assert run("backwards") == straight
