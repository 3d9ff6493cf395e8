"""A learner's report: every task as it was learned, as it is now, and what is remembered of it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from reprise.errors import InputError
from reprise.files import write_text
from reprise.values import show_bytes

if TYPE_CHECKING:
    from reprise.learner import Learner


def report_table(learner: Learner) -> str:
    """The table as text. An accuracy is lost by so many points; of a loss, so many percent are gained."""
    table = Table(
        title=f"{learner.settings['method']['name']}, {len(learner.tasks)} task{'s' * (len(learner.tasks) != 1)}",
        title_justify="left",
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
            score_text(then, judged),
            score_text(now, judged),
            forgotten_text(lost, judged),
            "–" if share is None else str(min(share, learner.book.pages[j].train)),
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
    """The learner's offline page, and the line that names it, or says how to get one; nothing where the folder goes
    when the learner does."""
    if learner.temporary or not learner.tasks:
        return ""
    try:
        from reprise.report.learner_page import make_learner_page
    except ImportError:
        return "For a page with curves and pictures: pip install 'reprise-cl[report]'\n"
    page = learner.out / "report" / "index.html"
    try:
        page.parent.mkdir(exist_ok=True)
        write_text(page, make_learner_page(learner))
    except OSError as error:
        raise InputError(f"out: {page} cannot be written ({error.strerror}); make room for it.") from None
    return f"Page: {page}\n"


def forgotten_text(lost: float | None, judged: bool) -> str:
    if lost is None:
        return "–"
    return f"{100 * lost:+.1f} points" if judged else f"{lost:+.0f} % loss"


def score_text(value: float | None, judged: bool) -> str:
    if value is None:
        return "not measured"
    return f"{100 * value:.1f} %" if judged else f"{value:.4g}"
