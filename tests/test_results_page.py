"""docs/results.md says what the records say, docs/costs.md what is counted."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "results_page.py"
COSTS = SCRIPT.with_name("costs_page.py")


@pytest.mark.parametrize(
    "script", [SCRIPT, pytest.param(COSTS, marks=pytest.mark.slow)], ids=lambda s: s.stem
)
def test_a_page_is_what_its_script_makes(script: Path) -> None:
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("mine", "theirs", "side", "words"),
    [
        ((1.0, 2.0, 3.0), (11.0, 12.0, 13.1), "clearly for", "yes"),
        ((11.0, 12.0, 13.1), (1.0, 2.0, 3.0), "clearly against", "no"),
        ((1.0, 2.0), (11.0, 12.1), "weakly for", "yes, in every seed"),
        ((1.0, 2.0, 3.0), (1.1, 20.0, 3.2), "weakly for", "yes, in every seed"),
        ((1.0, 2.0, 3.0), (2.0, 1.0, 3.5), "open", "open"),
        ((1.0,), (2.0,), "missing", ""),
    ],
)
def test_what_a_comparison_says(
    mine: tuple[float, ...],
    theirs: tuple[float, ...],
    side: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Less is better; two seeds are never clear, however narrow their interval is."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    recorded = importlib.import_module("recorded")
    cells = [SimpleNamespace(values=lambda _, own=own: dict(enumerate(own))) for own in (mine, theirs)]
    answer = recorded.Comparison("", *cells, recorded.DROP).answer()
    assert (answer.side, answer.words) == (side, words)
