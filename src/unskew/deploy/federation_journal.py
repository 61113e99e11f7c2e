"""What happened to a federation beside its runs: tickets, admissions, revocations, and who was refused at the door.

It is a journal like a run's. Several commands write to it, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unskew.deploy.journal import FILE, Journal
from unskew.deploy.tickets import Coordinator
from unskew.disk import refuse_link
from unskew.locks import lock


def note(home: Coordinator, happenings: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Add a line for each of these: what happened, and its facts."""
    if not happenings:
        return
    with open(home.folder / "audit.lock", "a", opener=refuse_link) as one_at_a_time:
        lock(one_at_a_time, wait=True)
        journal = Journal(home.folder / FILE, home.key)
        try:
            for what, facts in happenings:
                journal.note(what, **facts)
        finally:
            journal.close()
