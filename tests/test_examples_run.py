"""The scripts in examples/, in small form: each forgets less than plain fine-tuning does."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_there_are_three() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_forgets_less_than_fine_tuning(path: Path) -> None:
    forgotten = runpy.run_path(str(path))["main"](small=True)
    plain = forgotten.pop("fine-tuning")
    assert plain > 0
    assert all(value < 0.75 * plain for value in forgotten.values())
