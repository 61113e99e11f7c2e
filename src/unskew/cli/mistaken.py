"""Words of a command line that its parser would only call unknown, told with what is meant."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.errors import UsageError

COLUMN = "--site"


def check(words: Sequence[str]) -> None:
    """words: what follows `unskew`. Raises UsageError (E109)."""
    command, *rest = words or ("",)
    if command in ("run", "compare"):
        _check_site(command, rest)
    if command == "compare":
        _check_tune(rest)


def _check_site(command: str, words: Sequence[str]) -> None:
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == COLUMN:
            column = value if equals else next(iter(words[i + 1 : i + 2]), "COLUMN")
            text = f"unskew {command} has no --site: which column says whose a row is, stands with the table"
            raise UsageError(
                "E109", f'{text}, --data "FILE.csv(site={column})"; to train on real sites give --on FEDERATION.'
            )


def _check_tune(words: Sequence[str]) -> None:
    for word, following in zip(words, (*words[1:], "--")):
        if word == "--tune" and following.startswith("--"):
            text = "--tune needs how many settings of every method are tried"
            raise UsageError("E109", f"{text}: --tune 20")
