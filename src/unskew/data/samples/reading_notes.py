"""Notes on how a user's data were read, which a run prints before it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from unskew.errors import printable

Topic: TypeAlias = Literal["warning", "scaled", "labels", "sites", "left out", "note"]
Note: TypeAlias = tuple[Topic, str]
"""(subject of a note, text of the note)."""


@dataclass(frozen=True)
class Intake:
    """How a user's data were read.

    dtype: type of the samples in the source. notes: changes, omissions and oddities, in the order in which
    they were noticed.
    divided: the column by which the source was divided among clients, "" without one.
    form: how files or the columns of a table became samples; {} for arrays. unskew.data.prediction_inputs
    repeats it for new samples.
    gaps: by column of a table and by site, the number of missing values that were filled; they are not kept.
    unnamed: whether the classes have no names but the numbers of the labels.
    """

    dtype: str = ""
    notes: tuple[Note, ...] = ()
    divided: str = ""
    form: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unnamed: bool = False
    gaps: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])

    def __post_init__(self) -> None:
        # Notes quote names from the data.
        object.__setattr__(self, "notes", tuple((topic, printable(text)) for topic, text in self.notes))

    def with_notes(self, *notes: Note) -> Intake:
        """This intake with further notes; a note that is there already is not repeated."""
        return replace(self, notes=tuple(dict.fromkeys((*self.notes, *notes))))


def quantity(n: int, noun: str) -> str:
    """A number with its noun: `1 file`, `1,200 files`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def abbreviate(names: Sequence[str], limit: int = 3) -> str:
    """The first of these names and the number of others: `a, b, c and 7 more`."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest:,} more" if rest > 0 else "")
