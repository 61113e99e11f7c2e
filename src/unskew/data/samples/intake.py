"""Notes on how a user's data were read, which a run prints before it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

Topic: TypeAlias = Literal["warning", "scaled", "labels", "sites", "left out", "note"]
Note: TypeAlias = tuple[Topic, str]
"""(what a remark is about, the remark)."""


@dataclass(frozen=True)
class Intake:
    """dtype: of the samples as they came. notes: what was changed, left out or looks odd, in the order it was
    noticed.

    divided: the column by which the samples came divided among clients, "" if they did not. form: how files
    or the columns of a table became samples (unskew.data.prediction_inputs reads it, to do the same again);
    {} for arrays. unnamed: whether the classes are the numbers that labels were, which nobody has named.
    """

    dtype: str = ""
    notes: tuple[Note, ...] = ()
    divided: str = ""
    form: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unnamed: bool = False

    def noted(self, *notes: Note) -> Intake:
        """The same with further notes; one that is there already is not repeated."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))


def prefix_notes(name: str, notes: Iterable[Note]) -> list[Note]:
    """Remarks on one of several inputs or columns, each with its name in front."""
    return [(topic, f"{name}: {text}") for topic, text in notes]


def quantity(n: int, noun: str) -> str:
    """`1 file`, `1,200 files`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def abbreviate(names: list[str], most: int = 3) -> str:
    """The first of these names, and how many more there are: `a, b, c and 7 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")
