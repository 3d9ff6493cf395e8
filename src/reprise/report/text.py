"""Tables as Markdown, LaTeX and CSV. A table is headings and rows of plain text; each writer escapes its own way."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from reprise.report.read import Group
from reprise.report.sections import (
    Section,
    against_baseline,
    method_name,
    show_difference,
    show_summary,
    summary_of,
)
from reprise.report.sheets import Filled
from reprise.values import show_bytes, show_value


@dataclass(frozen=True)
class Table:
    """Plain text, cell by cell; `sort` holds a number beside the cells that should be sorted by it."""

    name: str
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    sort: Sequence[Sequence[float | None]] = ()
    note: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Which columns are numbers."""
        return [any(row[i] is not None for row in self.sort) for i in range(len(self.headings))]


def section_table(section: Section) -> Table:
    """Every group of a section: its metrics over seeds, the paired difference in the first one, bytes and time."""
    metrics = section.metrics
    first = metrics[0] if metrics else None
    headings = ["method", "m", "seeds", *(metric.title for metric in metrics)]
    headings += [f"Δ {first.title}" if first else "Δ", "settings", "kept", "s / run", "Δ against"]
    rows, sort = [], []
    for group in section.groups:
        summaries = [summary_of(group, metric) for metric in metrics]
        against = against_baseline(group, section, first) if first else None
        kept = (group.records[0].get("bytes") or {}).get("total")
        seconds = _mean_seconds(group)
        rows.append(
            [
                *(method_name(group.method), "–" if group.m is None else str(group.m), str(len(group.runs))),
                *(show_summary(s, metric) for s, metric in zip(summaries, metrics, strict=True)),
                show_difference(against[1], first) if against and first else "–",
                ", ".join(f"{name}={show_value(value)}" for name, value in group.differing.items()),
                "–" if kept is None else show_bytes(kept),
                "–" if seconds is None else f"{seconds:.1f}",
                against[0].name if against else "–",
            ]
        )
        sort.append(
            [
                *(None, group.m, len(group.runs)),
                *(s["mean"] for s in summaries),
                *(against[1].mean if against else None, None, kept, seconds, None),
            ]
        )
    title = f"{section.title}: all runs"
    return Table(slug(f"runs {section.title}"), title, headings, rows, sort)


def _mean_seconds(group: Group) -> float | None:
    times = [(record.get("seconds") or {}).get("total") for record in group.records]
    known = [time for time in times if time is not None]
    return sum(known) / len(known) if known else None


def sheet_table(filled: Filled) -> Table:
    """A table of the paper, one line a cell and metric: printed, measured, difference, verdict."""
    sheet = filled.sheet
    baseline = f"Δ to {sheet.baseline}" if sheet.baseline else "Δ"
    headings = ["benchmark", "row", "memory", "metric", "printed", "measured", "seeds", baseline, "verdict"]
    headings += ["measured on", "other settings"]
    rows, sort = [], []
    for entry in filled.entries:
        place, summary = entry.place, entry.summary
        rows.append(
            [
                *(place.part, place.row, place.column, entry.metric.title),
                *(entry.printed_text, entry.measured_text, str(summary["n"]) if summary["n"] else "–"),
                *(entry.difference_text, entry.verdict or "–"),
                *("–" if entry.group is None else entry.group.stream, entry.settings_text),
            ]
        )
        printed = None if entry.printed is None else entry.printed.mean
        column = float(place.column[1:]) if place.column[1:].isdigit() else None
        difference = None if entry.difference is None else entry.difference.mean
        sort.append(
            [None, None, column, None, printed, summary["mean"], summary["n"], difference, None, None, None]
        )
    return Table(sheet.name, sheet.title, headings, rows, sort, sheet.note)


def slug(text: str) -> str:
    """A file name, or an identifier of the page."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


# ---- writers


def markdown(table: Table) -> str:
    lines = [f"## {_markdown_cell(table.title)}", ""]
    lines += [
        "| " + " | ".join(map(_markdown_cell, table.headings)) + " |",
        "|" + "---|" * len(table.headings),
    ]
    lines += ["| " + " | ".join(map(_markdown_cell, row)) + " |" for row in table.rows]
    if table.note:
        lines += ["", _markdown_cell(table.note)]
    return "\n".join(lines) + "\n"


def _markdown_cell(text: str) -> str:
    """Markdown passes HTML through, so that names must not be any."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", " ".join(escaped.split()))


_LATEX = {
    **{"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{"},
    **{"}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"},
    **{
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "Δ": r"$\Delta$",
        "λ": r"$\lambda$",
        "·": r"$\cdot$",
        "–": "--",
    },
    **{"−": "$-$", "θ": r"$\theta$", "ℓ": r"$\ell$"},
}


def latex(table: Table) -> str:
    """A booktabs table; it needs `\\usepackage{booktabs}` and nothing else."""
    lines = [r"\begin{table}", r"\centering", r"\small", rf"\caption{{{_latex_cell(table.title)}}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * len(table.headings)}}}", r"\toprule"]
    lines += [" & ".join(map(_latex_cell, table.headings)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(_latex_cell, row)) + r" \\" for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_cell(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def records_csv(sections: Sequence[Section]) -> str:
    """One line a run, for spreadsheets. Text that a spreadsheet would take for a formula is quoted."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    numbers = (
        *("accuracy", "forgetting", "forgetting_agem", "learning_accuracy"),
        *("forgetting_percent", "performance_drop_percent"),
    )
    writer.writerow(
        ["section", "group", "hash", "method", "stream", "m", "seed", *numbers, "bytes", "seconds", "commit"]
    )
    for section in sections:
        for group in section.groups:
            for record in group.records:
                writer.writerow(
                    [
                        *map(_csv_text, (section.title, group.name, group.hash, group.method, group.stream)),
                        *(group.m, record["seed"], *(record.get(name) for name in numbers)),
                        (record.get("bytes") or {}).get("total"),
                        (record.get("seconds") or {}).get("total"),
                        _csv_text(str((record.get("environment") or {}).get("commit") or "")),
                    ]
                )
    return buffer.getvalue()


def _csv_text(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
