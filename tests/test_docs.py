"""The code in the documents runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

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


@pytest.mark.parametrize("name", ["your_own_tasks.md"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch.export's own
def test_the_blocks_of_a_guide_run_one_after_another(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for folder in (f"{a}/{b}/{c}" for a in ("pictures", "newer") for b in ("train", "test") for c in "xyz"):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(4):
            picture = Image.fromarray(draw.integers(0, 256, (20, 24, 3), dtype=np.uint8))
            picture.save(tmp_path / folder / f"{i}.png")
    world: dict[str, object] = {"__name__": "guide"}
    for block in python_blocks(DOCS / name):
        exec(compile(block, name, "exec", dont_inherit=True), world)
    assert (tmp_path / "depth.pt2").exists()
    assert len(world["learner"].tasks) == 3  # type: ignore[attr-defined]


def test_every_document_with_code_is_run_by_a_test() -> None:
    told = {path.name for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"] if python_blocks(path)}
    # coming_from.md: tests/test_avalanche_plugin.py
    assert told == {"adding_a_method.md", "your_own_tasks.md", "README.md", "coming_from.md"}


def test_the_blocks_of_the_readme_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the user's data in place of what the README leaves out."""
    monkeypatch.chdir(tmp_path)
    images, depth = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8), torch.rand(40, 16, 16)
    rooms = torch.arange(40) % 12
    encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.ReLU())
    world = {"encoder": encoder, "images": images, "train": (images, depth), "test": (images, depth)}
    world |= {"train2": (images, rooms), "test2": (images, rooms)}
    for block in python_blocks(DOCS.parent / "README.md"):
        exec(compile(block, "README.md", "exec", dont_inherit=True), world)
    assert (tmp_path / "runs" / "robot" / "learner.json").exists()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    root = DOCS.parent
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Learns one task after another" in (tmp_path / "site/api/learner/index.html").read_text()


def test_links_lead_somewhere() -> None:
    for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"
