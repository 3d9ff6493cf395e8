"""A learner's report: every task as it was learned, as it is now, and what is remembered of it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from reprise.values import show_bytes

if TYPE_CHECKING:
    from reprise.learner import Learner


def report_table(learner: Learner) -> str:
    """The table as text. An accuracy is lost by so many points; of a loss, so many percent are gained."""
    table = Table(
        title=f"{learner.settings['method']['name']}, {len(learner.tasks)} tasks", title_justify="left"
    )
    for name in ("task", "when learned", "now", "forgotten", "examples kept"):
        table.add_column(name, justify="left" if name == "task" else "right")
    matrix, forgotten = learner.matrix, learner.forgetting
    for j, name in enumerate(learner.tasks):
        judged = matrix["accuracy"][j][j] is not None
        kind = "accuracy" if judged else "loss"
        then, now = matrix[kind][j][j], matrix[kind][-1][j]
        lost = forgotten.get(name)
        share = learner.ledger[-1]["m_per_task"]
        table.add_row(
            name,
            _shown(then, judged),
            _shown(now, judged),
            "–" if lost is None else f"{100 * lost:+.1f} points" if judged else f"{lost:+.0f} % loss",
            "–" if share is None else str(share),
        )
    text = io.StringIO()
    console = Console(file=text, width=100)
    console.print(table)
    if learner.tasks:
        console.print(
            f"Kept by the method: {show_bytes(learner.ledger[-1]['bytes']['total'])}", highlight=False
        )
    return text.getvalue()


def write_page(learner: Learner) -> str:
    """The offline page of the learner's record, and the line that names it; nothing without the extra, or where the
    folder goes when the learner does."""
    if learner.temporary:
        return ""
    try:
        from reprise.report.write import write_report
    except ImportError:
        return ""
    if not (learner.folder / "record.json").exists():
        return ""
    return f"Page: {write_report([learner.out], learner.out / 'report')}\n"


def _shown(value: float | None, judged: bool) -> str:
    if value is None:
        return "not measured"
    return f"{100 * value:.1f} %" if judged else f"{value:.4g}"
