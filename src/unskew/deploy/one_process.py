"""That one process alone runs a site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from unskew.engine.disk.lock import Lock
from unskew.errors import StateError


@contextmanager
def only_one(folder: Path, site: str) -> Iterator[None]:
    """Within it no other process runs this site: two would share its key, its private state and its record of what left.

    Raises StateError (E110), naming who does.
    """
    with ExitStack() as held:
        try:
            held.enter_context(Lock(folder))
        except StateError as error:
            who = error.text.removeprefix(f"run {folder} is in use by ").rstrip(".")
            raise StateError("E110", f"site {site} is run already, by {who}; one process runs a site.") from None
        yield
