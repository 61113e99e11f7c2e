"""Unexpected errors as one sentence with a code; the traceback goes into a log file."""

from __future__ import annotations

import errno
import os
import tempfile
import traceback

from unskew.errors import MissingPackage, Paused, StateError, UnskewError, excerpt
from unskew.system.disk import is_full

NETWORK_PACKAGES = ("cryptography", "flwr", "httpx", "uvicorn")
"""Packages that only the extra `flower` installs."""


class UnexpectedError(UnskewError):
    """A defect of unskew or of a user's code."""

    exit_code = 1


def explain(error: Exception) -> UnskewError:
    """The error to show for an exception: the exception if it is an UnskewError, else one with the code E203,
    E111, E142, E133 or E143."""
    if isinstance(error, UnskewError):
        return error
    if isinstance(error, RecursionError):
        return StateError(
            "E111",
            f"a document is nested too deeply, or a function of yours calls itself.{_write_log(error)}",
        )
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in NETWORK_PACKAGES:
        return MissingPackage("a federation", "Flower and cryptography", "flower")
    if isinstance(error, OSError) and is_full(error):
        return Paused("E203", f"disk full: cannot write {_file_of(error)}.")
    if _out_of_memory(error):
        return StateError("E142", f"there is not enough memory ({_one_line(error)}).{_write_log(error)}")
    if isinstance(error, OSError) and error.errno:
        return StateError("E111", f"{_file_of(error)}: {os.strerror(error.errno)}.{_write_log(error)}")
    return UnexpectedError(
        "E143", f"an unexpected error: {type(error).__name__}: {_one_line(error)}.{_write_log(error)}"
    )


def _out_of_memory(error: Exception) -> bool:
    """Whether this is an out-of-memory error of Python, NumPy or torch."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def _file_of(error: OSError) -> str:
    return excerpt(os.fspath(error.filename), 200) if error.filename is not None else "a file"


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return excerpt(text[0], 200)[1:-1].rstrip(".") if text else "it says nothing"


def _write_log(error: Exception) -> str:
    """Write the traceback to a log. Returns a sentence with its path; "" if it cannot be written."""
    try:
        handle, name = tempfile.mkstemp(prefix="unskew-error-", suffix=".log")
        with os.fdopen(handle, "w") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return ""
    return f" The details are in {name}."
