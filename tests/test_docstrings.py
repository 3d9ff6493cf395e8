"""Texts under fields: found in the class and its parents, for every field a user can set."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from reprise.config import Experiment, Setting
from reprise.docstrings import field_docs
from reprise.methods import METHODS


@dataclass
class Parent:
    a: int = 1
    """the first"""
    b: int = 2
    c: str = "x"
    """a text
    of two lines"""


@dataclass
class Child(Parent):
    d: float = 0.5
    """its own"""
    a: int = 3
    """told anew"""


def test_own_and_inherited_texts() -> None:
    assert field_docs(Parent) == {"a": "the first", "c": "a text\nof two lines"}
    assert field_docs(Child) == {"a": "told anew", "c": "a text\nof two lines", "d": "its own"}


def test_a_class_without_source_has_none() -> None:
    space: dict[str, type] = {}
    exec("class Typed:\n    a: int = 1\n    'never found'", {"__name__": "__main__"}, space)
    assert field_docs(space["Typed"]) == {}


@pytest.mark.parametrize("kind", [Experiment, Setting, *METHODS.values()])
def test_every_flag_is_explained(kind: type) -> None:
    docs = field_docs(kind)
    assert {f.name for f in fields(kind)} - {"stream", "method"} <= set(docs)
