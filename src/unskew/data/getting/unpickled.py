"""Pickles of CIFAR's Python version, of which nothing but plain values and arrays of bytes is made.

A pickle is a program. Here it finds three names, and behind each of them an object of this file that takes down what it is
given and refuses what is no array of numbers; nothing of NumPy or of any other module is handed to it or imported for it.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from unskew.errors import DataError, excerpt

ORDERS = (b"|", b"<", b"=", "|", "<", "=")
"""Of bytes, as a pickled type says it: there is none, or the usual one."""


def unpickled(content: bytes, place: str) -> dict[bytes, Any]:
    """The dictionary of a pickle, its keys bytes. place: for messages.

    Raises DataError: E411 for a pickle that asks for anything else, E401 for one that is damaged.
    """
    try:
        value = _Reader(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(error.code, f"{place}: {error.text}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError("E401", f"{place} is no whole pickle: {excerpt(str(error))}. Download it again.") from error
    if not isinstance(value, dict):
        raise DataError("E401", f"{place} holds a {type(value).__name__}, not a dictionary. Download it again.")
    return {key: v.values if isinstance(v, _Array) else v for key, v in value.items()}


class _Reader(pickle.Unpickler):
    """Finds three names, whichever module of NumPy they were written with."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in _NAMES:
            return _NAMES[name]
        raise _refused(f"it asks for {excerpt(f'{module}.{name}')}")


class _Name:
    """What a name stands for: something to call with plain values, which a pickle cannot change."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]):
        self._make = make

    def __call__(self, *values: Any) -> Any:
        return self._make(*values)

    def __setstate__(self, state: Any) -> None:
        raise _refused("it changes what it is given")


class _Type:
    """A type of plain numbers. code: as NumPy writes it, such as `u1`."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any, *_: Any):
        self.dtype = np.dtype(code.decode("ascii") if isinstance(code, bytes) else str(code))
        if self.dtype.kind not in "biuf":
            raise _refused(f"it asks for values of type {self.dtype}")

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ORDERS:
            raise _refused("it asks for numbers in an unusual form")


class _Array:
    """An array that a pickle fills with its own bytes; empty before."""

    __slots__ = ("values",)

    def __init__(self, *_: Any):
        self.values = np.zeros(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, columns_first, content = state
        counts = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
        if not counts or not isinstance(kind, _Type) or columns_first or not isinstance(content, bytes):
            raise _refused("it asks for an array of something else than numbers")
        if len(content) != math.prod(shape) * kind.dtype.itemsize:
            raise _refused(f"an array of {list(shape)} has {len(content):,} bytes")
        self.values = np.frombuffer(content, kind.dtype).reshape(shape)


def _kind(*_: Any) -> Any:
    raise _refused("it makes an array of something else than its own bytes")


_NAMES = {"_reconstruct": _Name(_Array), "ndarray": _Name(_kind), "dtype": _Name(_Type)}


def _refused(why: str) -> DataError:
    return DataError("E411", f"this pickle is refused: {why}; only arrays of numbers are read. Download it again.")
