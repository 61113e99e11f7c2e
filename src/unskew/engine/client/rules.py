"""The rules that let one hook train many clients side by side, in plain words where torch's refusal is in its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from unskew.core.guarded import GUIDE, RULES, line_of
from unskew.errors import UsageError


@contextmanager
def rules_of_hooks() -> Iterator[None]:
    """Raises UsageError (E127), with the file and the line, for a hook that breaks a rule."""
    try:
        yield
    except RuntimeError as error:
        rule = next((rule for words, rule in RULES.items() if words in str(error)), None)
        if rule is None or isinstance(error, UsageError):
            raise
        raise UsageError("E127", f"{line_of(error)} {rule}. {GUIDE}") from error
