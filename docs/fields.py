"""For the reference: docstrings list things in columns (`name  what it is`), which Markdown would run together."""

import re
from typing import Any

import griffe

LINE = re.compile(r"^(\w[\w.]*(?:, \w+)*) {2,}(\S.*)$")


def as_list(text: str) -> str:
    """The same text with such columns as list items; lines that go on are indented under their name."""
    found: list[str] = []
    listing = False
    for line in text.splitlines():
        if match := LINE.match(line):
            if not listing and found and found[-1]:
                found.append("")
            listing = True
            found.append(f"- `{match[1]}`: {match[2]}")
        elif listing and line.startswith("    "):
            found.append("  " + line.strip())
        else:
            listing = listing and not line
            found.append(line)
    return "\n".join(found)


class Fields(griffe.Extension):
    """Rewrites every docstring before it is shown."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_list(obj.docstring.value)
