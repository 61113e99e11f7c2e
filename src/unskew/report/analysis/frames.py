"""The rows of results as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unskew.errors import MissingPackage, UsageError, excerpt, suggestion
from unskew.records import client_lists

Rows = Sequence[Mapping[str, Any]]


def check_word(word: str, known: Sequence[str], what: str) -> None:
    """Raises UsageError (E109) for a word that is not known. what: it stands for, such as "scope"."""
    if word not in known:
        raise UsageError(
            "E109",
            f"there is no {what} {excerpt(word)}; there is {', '.join(known)}.{suggestion(str(word), known)}",
        )


def frame(kind: str, kinds: Mapping[str, Callable[[], Rows]], instead: str) -> Any:
    """A DataFrame with the rows of one kind; entries within entries are columns such as last.mean.

    instead: what to take without pandas. Raises UsageError: E109 for another kind, E133 without pandas.
    """
    check_word(kind, [*kinds], "kind of frame")
    try:
        import pandas  # pyright: ignore[reportMissingImports]  (optional)
    except ImportError:
        raise MissingPackage("to_frame()", "pandas", instead=instead) from None
    return pandas.DataFrame([flat(row) for row in kinds[kind]()])


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with entries within entries under names such as last.mean."""
    entries: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            entries |= {f"{name}.{key}": entry for key, entry in flat(value).items()}
        else:
            entries[name] = value
    return entries


def payload_rows(rows: Rows, clients: int) -> list[dict[str, Any]]:
    """The rows of a ledger with the number of their clients and the total of their bytes. clients: of the
    run."""
    return [
        {
            **row,
            "clients": client_lists.count(row["clients"], clients),
            "bytes": client_lists.total_bytes(row, clients),
        }
        for row in rows
    ]
