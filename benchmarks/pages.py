"""Pages of docs/ whose numbers a script computes: the text stands in a template of the script's name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def write_page(page: Path, script: str, parts: Mapping[str, Callable[[], str]]) -> int:
    """Each `<!-- NAME -->` of the template becomes what its part makes; with `--check` the page is only compared.

    script  whose template, and whose name the sentence says
    """
    path = Path(script)
    made = path.with_suffix(".md").read_text()
    for name, make in parts.items():
        made = made.replace(f"<!-- {name} -->", make())
    if "--check" not in sys.argv[1:]:
        page.write_text(made)
        return 0
    if page.read_text() == made:
        return 0
    print(f"{page} is not what its script makes; run python benchmarks/{path.name}.")
    return 1
