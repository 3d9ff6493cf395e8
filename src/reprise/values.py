"""Plain values as flags and files give them, read as a field's type; what does not fit is named in a sentence."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from reprise.errors import InputError

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def read_value(name: str, value: Any, hint: Any) -> Any:
    """A field's value, from text as a flag or YAML gives it (which takes 1e-3 for text), or from the value itself."""
    kind, optional = without_none(hint)
    if optional and (value is None or value == "none"):
        return None
    if isinstance(value, str):
        value = _from_text(value, kind)
    elif kind in (str, Path) and type(value) in (int, float):
        value = kind(str(value))
    elif typing.get_origin(kind) is tuple:
        value = tuple(value) if isinstance(value, list | tuple) else (value,)
    return check_type(name, value, kind)


def _from_text(text: str, kind: Any) -> Any:
    """What a text says, or the text itself where it says nothing of this kind."""
    try:
        if kind in (int, float):
            return kind(text)
        if kind is Path:
            return Path(text) if text else text
        if typing.get_origin(kind) is tuple:
            part_of = typing.get_args(kind)[0]
            return tuple(part_of(part) for part in text.split(","))
    except ValueError:
        return text
    return {"true": True, "false": False}.get(text.lower(), text) if kind is bool else text


def check_type(name: str, value: Any, hint: Any) -> Any:
    """The value as the field's type, or a sentence that names the field."""
    kind, optional = without_none(hint)
    if optional and value is None:
        return None
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise InputError(f"{name}: {value!r} is not known; choose one of {', '.join(choices)}.")
        return value
    if kind is float and type(value) in (int, float):
        if not abs(value) < float("inf"):
            raise InputError(f"{name}: {value} is not a finite number; write for example 0.5.")
        return float(value)
    if typing.get_origin(kind) is tuple:
        part_of = typing.get_args(kind)[0]
        if isinstance(value, tuple) and value and all(type(part) is part_of for part in value):
            return value
    elif type(value) is kind or (kind is Path and isinstance(value, Path)):
        return value
    what, example = _KINDS.get(kind, ("a list of whole numbers", "0,1,2"))
    raise InputError(f"{name}: {value!r} is not {what}; write for example {example}.")


_KINDS: dict[Any, tuple[str, str]] = {
    float: ("a number", "0.5"),
    int: ("a whole number", "10"),
    bool: ("true or false", "true"),
    str: ("a text", "a word"),
    Path: ("a path", "./folder"),
    tuple[str, ...]: ("a list of words", "one,two"),
}


def without_none(hint: Any) -> tuple[Any, bool]:
    """The type without `| None`, and whether it had it."""
    options = typing.get_args(hint)
    if NoneType not in options:
        return hint, False
    return next(option for option in options if option is not NoneType), True


def placeholder(hint: Any) -> str:
    """What stands for a field's value in a help text."""
    kind, _ = without_none(hint)
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(typing.get_args(kind)) + "}"
    names = {
        int: "N",
        float: "X",
        bool: "{true,false}",
        str: "TEXT",
        Path: "PATH",
        tuple[str, ...]: "TEXT,TEXT,...",
    }
    return names.get(kind, "N,N,...")


def show_value(value: object) -> str:
    """A field's value as its flag takes it."""
    if isinstance(value, tuple):
        return ",".join(map(show_value, value))
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def parse_bytes(text: str) -> int:
    """Bytes of `2MB` (MB = 1e6) or `512KiB` (KiB = 2^10)."""
    number = text.strip().rstrip("BKMGIbkmgi ")
    unit = text.strip()[len(number) :].strip().upper() or "B"
    try:
        amount = Decimal(number)
    except InvalidOperation:
        amount = Decimal(-1)
    if unit not in UNITS or not amount.is_finite() or not 0 < amount < 10**15:
        raise InputError(f"memory: {text!r} is not a size; write for example 2MB or 512KiB.")
    return int(amount * UNITS[unit])


def show_bytes(size: float) -> str:
    """`38.5 kB`, for people: three digits and a unit of 1000."""
    return show_count(size, "B")


def show_count(number: float, unit: str = "") -> str:
    """`8.43 G`, for people: three digits and a prefix of 1000."""
    for prefix, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= factor and (prefix != "T" or unit != "B"):
            return f"{number / factor:.{1 if number >= 10 * factor else 2}f} {prefix}{unit}"
    return f"{number:.0f} {unit}".rstrip()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like this one, if any does."""
    found = difflib.get_close_matches(name, list(known), 1)
    return found[0] if found else None
