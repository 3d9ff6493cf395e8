"""Pickles read as data: arrays and plain containers, never code, and never more memory than their size explains."""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import tokenize
from typing import IO, Any

import numpy as np

from reprise.errors import InputError
from reprise.streams.fetch import PathLike, open_file, shown

# What damaged bytes make a decoder raise; `Exception` would say the same and hide a defect of ours as well.
_WRONG = (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, SyntaxError)
_FAILED = (OSError, MemoryError, ArithmeticError, RuntimeError, SystemError, BufferError, tokenize.TokenError)
DAMAGE = (*_WRONG, *_FAILED)
COPIES = 4
"""Sizes of a file that may be copied while its arrays are rebuilt. A sound one needs three at most; one that hands
the same megabytes to a million arrays would fill any memory."""

LEAST = 1 << 20
"""Bytes that any file may copy."""


def text_of(value: Any) -> Any:
    """Python 2 strings arrive as bytes; what is not text at all is left for the caller to refuse."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


# A pickle is a program, so it only gets stand-ins of ours. numpy's own dtype is not among them: its __setstate__
# believes any field offsets, and printing such an array then reads foreign memory.


class _Dtype:
    """Stands in for numpy.dtype: plain numbers and text only, no objects and no fields."""

    def __init__(self, code: str | bytes, *_flags: object) -> None:
        if not re.fullmatch(r"[<>|=]?([biuf]\d{1,2}|[SU]\d{1,6})", text_of(code)):
            raise ValueError(f"array of dtype {text_of(code)!a:.20}")
        self.dtype = np.dtype(text_of(code))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(text_of(state[1]))


class _Array(np.ndarray):
    """An array under reconstruction; `_Makers.frombuffer` checks its state before numpy believes it."""

    makers: _Makers

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, raw = state
        array = self.makers.frombuffer(raw, dtype, shape, "F" if fortran else "C")
        self.makers.spend(array.nbytes)
        state = (1, array.shape, array.dtype, bool(fortran), array.tobytes("A"))
        super().__setstate__(state)  # type: ignore[arg-type]


class _Makers:
    """What one pickle may call, and the bytes it may still copy."""

    def __init__(self, left: int) -> None:
        self._left = left
        self.admitted: dict[str, Any] = {  # lists and the like need no name
            "builtins.set": self.set,
            "__builtin__.set": self.set,
            "numpy.ndarray": object,  # which pickles only pass on to _reconstruct
            "numpy.dtype": _Dtype,
            "_codecs.encode": self.encode,
        }
        for core in ("numpy.core", "numpy._core"):
            self.admitted[f"{core}.multiarray._reconstruct"] = self.reconstruct
            self.admitted[f"{core}.multiarray.scalar"] = self.scalar
            self.admitted[f"{core}.numeric._frombuffer"] = self.frombuffer

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError("it copies the same bytes over and over")

    def set(self, items: Any) -> set[Any]:
        self.spend(8 * len(items))
        return set(items)

    def encode(self, text: str, _latin1: object) -> bytes:
        """pickle writes no other codec"""
        self.spend(len(text))
        return text.encode("latin1")

    def reconstruct(self, _type: object, _shape: object, _code: object) -> _Array:
        array = _Array((0,), np.uint8)
        array.makers = self
        return array

    def frombuffer(self, raw: Any, dtype: _Dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
        self.spend(len(raw))
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        return np.frombuffer(raw, dtype.dtype).reshape(shape, order=text_of(order))

    def scalar(self, dtype: _Dtype, raw: Any) -> Any:
        return self.frombuffer(raw, dtype, (1,), "C")[0]


class RestrictedUnpickler(pickle.Unpickler):
    """Rebuilds arrays and plain containers; any other global is refused without importing its module."""

    def __init__(self, file: IO[bytes], size: int, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self._admitted = _Makers(LEAST + COPIES * size).admitted

    def find_class(self, module: str, name: str) -> Any:
        if (wanted := f"{module}.{name}") not in self._admitted:
            raise InputError(f"asks for {wanted!a}, which no data file needs; get another copy.")
        return self._admitted[wanted]


def _require_small_numbers(file: IO[bytes]) -> None:
    """Refuses to note a value under a number greater than what was noted before: Python makes room for all below."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument is not None and argument > count:
            raise ValueError(f"it notes a value under number {argument}")
    file.seek(0)


def load_pickle(path: PathLike, encoding: str = "bytes") -> Any:
    """The arrays and plain containers of a pickle written by Python 2 or 3; never runs code from it."""
    with open_file(path) as file:
        try:
            _require_small_numbers(file)
            return RestrictedUnpickler(file, os.fstat(file.fileno()).st_size, encoding).load()
        except InputError as error:
            raise InputError(f"{shown(path)} {error}") from None
        except DAMAGE as error:
            why = ascii(f"{type(error).__name__}: {error}")[1:-1]
            raise InputError(
                f"{shown(path)} is not a readable pickle ({why:.99}); get another copy."
            ) from error
