"""Write the report of some records into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reprise.errors import InputError
from reprise.report.costs import cost_table
from reprise.report.figures import write_figures
from reprise.report.leftovers import drift_panels, prediction_grids
from reprise.report.page import make_page
from reprise.report.read import read_sources
from reprise.report.sections import make_sections
from reprise.report.sheets import fill_sheets
from reprise.report.text import latex, markdown, records_csv, section_table, sheet_table
from reprise.results import write_text


def write_report(sources: Sequence[Path], out: Path, embed_images: bool = False) -> Path:
    """`index.html`, `tables.md`, `tables.tex`, `runs.csv` and `figures/`; the page's path.

    The sources are only read. Pictures that are not our own (Taskonomy, ImageNet, CIFAR) are left out unless
    `embed_images` says otherwise: their licences allow no copies.
    """
    found = read_sources(sources)
    sections = make_sections(found.groups)
    filled = fill_sheets(found.groups)
    tables = [section_table(section) for section in sections] + [sheet_table(one) for one in filled]
    tables += [table for section in sections if (table := cost_table(section))]
    panels = drift_panels(sections)
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        write_text(out / "tables.md", "# Tables\n\n" + "\n".join(map(markdown, tables)))
        write_text(out / "tables.tex", "\n".join(map(latex, tables)))
        write_text(out / "runs.csv", records_csv(sections))
        write_figures(out / "figures", sections, panels, prediction_grids(sections, embed_images))
        write_text(out / "index.html", make_page(found, sections, filled, panels, embed_images))
    except OSError as error:
        raise InputError(f"out: {out} cannot be written ({error.strerror}); name another folder.") from None
    return out / "index.html"
