"""The string that says how a set is dealt out: `kind:value,option=value,flag+shift:strength`.

kind is a partition (unskew.data.partitions), a shift a change of the features (unskew.data.transforms).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from unskew.errors import UsageError, suggestion

KINDS = ("iid", "dirichlet", "classes", "pathological", "clustered", "domain", "column")
EXAMPLES = {
    "dirichlet": "dirichlet:0.1",
    "classes": "classes:2",
    "pathological": "pathological:2x500",
    "clustered": "clustered:2-2-3-3-5",
    "column": "column:site",
}
OPTIONS = {"dirichlet": ("min", "groups", "contiguous")}


def refusal(kind: str, wants: str, got: str) -> UsageError:
    return UsageError("E103", f"skew '{kind}' needs {wants}, like {EXAMPLES[kind]}; got '{got}'.")


@dataclass(frozen=True)
class Skew:
    kind: str
    value: str = ""
    options: dict[str, str] = field(default_factory=dict)
    shifts: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> Skew:
        """Raises UsageError (E103) for a kind or an option that does not exist."""
        dealt, *shifts = [piece.strip() for piece in text.split("+")]
        head, *rest = [piece.strip() for piece in dealt.split(",")]
        kind, _, value = head.partition(":")
        if kind not in KINDS:
            raise UsageError("E103", f"unknown skew '{text}'.{suggestion(kind, KINDS)} Known: {', '.join(KINDS)}.")
        if value and kind in ("iid", "domain"):
            raise UsageError("E103", f"skew '{kind}' takes no value; got '{head}'.")
        if not value and kind == "column":
            raise refusal(kind, "the name of a column", "")
        options = dict(piece.partition("=")[::2] for piece in rest)
        allowed: Iterable[str] = OPTIONS.get(kind, ())
        for option in options:
            if option not in allowed:
                raise UsageError("E103", f"skew '{kind}' has no option '{option}'.{suggestion(option, allowed)}")
        return Skew(kind, value, options, tuple(shifts))

    def number(self) -> float:
        """The value, above 0."""
        try:
            found = float(self.value)
            if not (math.isfinite(found) and found > 0):
                raise ValueError
        except ValueError:
            raise refusal(self.kind, "a number above 0", self.value) from None
        return found

    def whole(self, text: str | None = None) -> int:
        """The value, or the piece of it in `text`, as a whole number of at least 1."""
        text = self.value if text is None else text
        if not (text.isascii() and text.isdigit() and int(text)):
            raise refusal(self.kind, "a whole number above 0", self.value)
        return int(text)

    def option(self, name: str) -> int | None:
        """An option that counts something, or None if it is not given."""
        if name not in self.options:
            return None
        text = self.options[name]
        if not (text.isascii() and text.isdigit() and int(text)):
            raise UsageError("E103", f"skew '{self.kind}' needs {name}= a whole number above 0, got '{text}'.")
        return int(text)
