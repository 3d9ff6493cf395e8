"""The code in the documents runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reprise.methods import METHODS

DOCS = Path(__file__).parent.parent / "docs"


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_adding_a_method(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All blocks of the guide, one after another, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    for name in ("l2_anchor",):
        monkeypatch.setitem(METHODS, name, METHODS["sgd"])  # taken out of the table again afterwards
    blocks = python_blocks(DOCS / "adding_a_method.md")
    assert len(blocks) == 4
    world: dict[str, object] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "adding_a_method.md", "exec", dont_inherit=True), world)
    said = capsys.readouterr().out
    assert "'anchor'" in said
    assert METHODS["l2_anchor"] is world["L2Anchor"]


def test_links_lead_somewhere() -> None:
    for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"
