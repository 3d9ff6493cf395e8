"""Documentation of dataclass fields: the string that stands under each, read from the class's source."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap


def field_docs(kind: type) -> dict[str, str]:
    """Field name to the text under it, own fields and inherited ones."""
    docs: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except (OSError, TypeError):  # a class without source, typed at a prompt
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                docs[field.target.id] = inspect.cleandoc(str(text.value.value))
    return docs
