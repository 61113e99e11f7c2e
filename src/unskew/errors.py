"""Errors are sentences with a code: what is wrong, where, and how to mend it.

Codes: E1xx wrong use, E2xx state on disk, E3xx replies of clients, E4xx data. Each has a page in docs/errors/.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnskewError(Exception):
    """A refusal a user can act on. `exit_code` is what the command line ends with."""

    exit_code = 2

    def __init__(self, code: str, text: str):
        super().__init__(f"{code} {text}")
        self.code, self.text = code, text


class UsageError(UnskewError):
    """Wrong use: an unknown key, a value out of range, a combination that makes no sense."""

    exit_code = 2


class DataError(UnskewError):
    """Data that is missing, cut off, of another shape, or that nobody can train on."""

    exit_code = 3


class StateError(UnskewError):
    """A run folder that is in use, damaged, or of another configuration."""

    exit_code = 2


class Paused(UnskewError):
    """The run stopped and can be resumed, for example because the disk is full."""

    exit_code = 75


def suggestion(word: str, known: Iterable[str]) -> str:
    """' Did you mean 'x'?' for the nearest known word, else ''."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""
