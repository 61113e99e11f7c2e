"""Cells of tables: which are missing, which are numbers, and which only look like numbers.

    12, -0.5, 1e3               numbers
    1,5                         a number in files separated by semicolons, which usually have decimal commas
    1,234.50  45.1%  EUR 3      look like numbers; they are refused, because their meaning would be a guess
    4.235 next to 900           may be 4235; refused unless the format is named, or is clear from other cells
    NA, null, ?, empty          missing

Letters: N rows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from unskew.errors import DataError

MISSING = frozenset(("", "na", "nan", "n/a", "null", "none", "?", "<na>", "nat", "#n/a"))
"""Usual marks for a missing value, in small letters."""
PLAIN_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity)", re.I)
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+(\.0*)?")
CURRENCY = "([€$£¥]|EUR|USD|GBP|CHF)?"
NUMBER_LIKE = re.compile(
    CURRENCY
    + r"\s*[+-]?([0-9]{1,3}([,.'\s][0-9]{3})+([.,][0-9]+)?|[0-9]+[.,]?[0-9]*|[0-9]+(_[0-9]+)+)\s*[%‰]?"
    + CURRENCY
)
DECIMAL_COMMA = re.compile(r"[+-]?([0-9]+|[1-9][0-9]{0,2}(\.[0-9]{3})+),[0-9]+([eE][+-]?[0-9]+)?")
THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}([.,][0-9]{3})+")
"""Numbers in which a dot or comma may separate thousands or decimals."""
LEAST_HUNDREDS = 100
"""Whole numbers from here on, without a separator, may stand next to numbers with separated thousands."""
DecimalSetting: TypeAlias = Annotated[
    Literal["", ".", ","], "the sign before decimals, if it does not follow from the file"
]
ThousandsSetting: TypeAlias = Annotated[Literal["", ".", ",", " ", "'"], "the sign between thousands"]
DATE = re.compile(r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}([T ].*)?")


@dataclass(frozen=True)
class NumberFormat:
    """How a file writes numbers: the sign before decimals, and the sign between thousands or ""."""

    decimal: str
    thousands: str

    @staticmethod
    def from_settings(decimal: str, thousands: str) -> NumberFormat | None:
        """The format that is named; None for two empty texts. Raises DataError (E403) for one sign in both
        places."""
        if decimal and decimal == thousands:
            raise DataError(
                "E403", f"decimal='{decimal}' and thousands='{thousands}' are one sign; give two."
            )
        if not decimal and not thousands:
            return None
        return NumberFormat(decimal or ("," if thousands == "." else "."), thousands)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        groups = f"|[0-9]{{1,3}}({re.escape(self.thousands)}[0-9]{{3}})+" if self.thousands else ""
        point = re.escape(self.decimal)
        return re.compile(f"[+-]?([0-9]+{groups}|(?={point}[0-9]))({point}[0-9]*)?([eE][+-]?[0-9]+)?")

    def plain(self, texts: Sequence[str]) -> list[str]:
        """Numbers as programs write them, "" for numbers that do not follow this format, and other words."""
        return [self._plain(text) for text in texts]

    def _plain(self, text: str) -> str:
        if self._pattern.fullmatch(text):
            return (text.replace(self.thousands, "") if self.thousands else text).replace(self.decimal, ".")
        return "" if PLAIN_NUMBER.fullmatch(text) else text


def word(text: Any) -> str:
    """A value as a word: without surrounding spaces, and in one Unicode form."""
    return unicodedata.normalize("NFC", str(text).strip())


def words(values: np.ndarray) -> np.ndarray:
    """The values as words, [N]."""
    plain = values.astype(str) if values.dtype.kind == "S" else values
    return np.array([word(v) for v in plain.tolist()], dtype=str).reshape(values.shape)


def missing(values: np.ndarray) -> np.ndarray:
    """Which values are missing, bool [N]."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "OUS":
        return np.array([w.lower() in MISSING for w in words(values).tolist()], dtype=bool)
    return np.zeros(len(values), dtype=bool)


def are_plain(texts: Sequence[str]) -> np.ndarray:
    """Which texts are plain numbers, as programs write them, bool [N]."""
    return np.array([bool(PLAIN_NUMBER.fullmatch(t)) for t in texts], dtype=bool)


def look_like_numbers(texts: Sequence[str]) -> np.ndarray:
    """Which texts are numbers or resemble them, with separators of thousands, percent signs or currencies,
    bool [N]."""
    return np.array([bool(PLAIN_NUMBER.fullmatch(t) or NUMBER_LIKE.fullmatch(t)) for t in texts], dtype=bool)


def is_date(text: str) -> bool:
    """Whether a text is a date such as 2021-01-31, 31.1.2021 or 2021-01-31T12:00."""
    return bool(DATE.fullmatch(text))


def has_decimal_commas(texts: Sequence[str]) -> bool:
    """Whether some number among the texts has a comma that can only separate decimals."""
    return any("," in t and DECIMAL_COMMA.fullmatch(t) and not THOUSANDS.fullmatch(t) for t in texts)


def with_decimal_points(texts: Sequence[str]) -> list[str]:
    """A column with decimal commas rewritten with decimal points; points between thousands are removed."""
    commas = [bool(DECIMAL_COMMA.fullmatch(t)) for t in texts]
    if not any(commas):
        return list(texts)
    return [
        t.replace(".", "").replace(",", ".") if comma or THOUSANDS.fullmatch(t) else t
        for t, comma in zip(texts, commas)
    ]


def has_decimal_points(texts: Sequence[str]) -> bool:
    """Whether some number among the texts has a point that can only separate decimals."""
    return any("." in t and PLAIN_NUMBER.fullmatch(t) and not THOUSANDS.fullmatch(t) for t in texts)


def thousands_or_decimals(texts: Sequence[str], local: bool) -> int | None:
    """The position of the first ambiguous number, such as 1.234, in a column; None if there is none.

    local: whether the file has decimal commas or semicolons, as where points separate thousands; in other
    files, only whole numbers without a point that may stand below the thousands leave a doubt.
    """
    dotted = [i for i, t in enumerate(texts) if "." in t and PLAIN_NUMBER.fullmatch(t)]
    if not dotted or any(DECIMAL_COMMA.fullmatch(t) for t in texts):
        return None
    if not all(THOUSANDS.fullmatch(texts[i]) for i in dotted):
        return None
    hundreds = any(t.isdecimal() and int(t) >= LEAST_HUNDREDS for t in texts)
    return dotted[0] if local or hundreds else None


def canonical(label: str) -> str:
    """A whole number in one spelling: `1` for `01`, `+1` and `1.0`; other words are unchanged."""
    return str(int(label.split(".")[0])) if WHOLE_NUMBER.fullmatch(label) else label
