"""SGD (plain fine-tuning) and the multi-task reference, which is SGD on a merged stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reprise.method import Method


@dataclass(frozen=True)
class SGD(Method):
    """Minimise the current task's loss, remember nothing."""


@dataclass(frozen=True)
class MultiTask(Method):
    """Train on all tasks at once: what a performance drop is measured against."""

    merged: ClassVar[bool] = True
