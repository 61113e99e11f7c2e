"""Over which sites a site's numbers were summed: `opened.json` in its folder, and one in the folder of every run.

Two sums of the same numbers over different sites differ by what one site sent. So a round of a run is opened over one set of
sites only, and so are the same numbers in any other: they are recognised by the study, client, round and received weights
that they were computed from, and by what they are made of, which another setting need not change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.deploy.summing.roster import refusal
from unskew.errors import UsageError

FILE = "opened.json"
MOST_ROUNDS, MOST_NUMBERS = 20, 20_000
"""How many rounds of a run, and how many digests of numbers of all runs, two a round, are remembered."""


@dataclass(frozen=True)
class SumsOpened:
    """folder: the site's; run: a run's number."""

    folder: Path
    run: str

    def check(self, t: int, numbers: Sequence[str], came: Sequence[str]) -> None:
        """Raises UsageError (E525) if round t of the run, or the same numbers, were summed over others. numbers: digests."""
        sites, known = sorted(came), _read(self._of_run).get(str(t))
        if known not in (None, sites):
            raise refusal(f"round {t} was summed over {', '.join(known or [])}, and what differs would be one site's")
        summed = _read(self.folder / FILE)
        for known in [summed[each] for each in numbers if summed.get(each, sites) != sites]:
            text = f"these numbers were summed before, over {', '.join(known)}, and what differs would be one site's"
            raise refusal(f"{text}; a run over other sites needs another seed")

    def note(self, t: int, numbers: Sequence[str], came: Sequence[str]) -> None:
        """Keep over whom a sum is opened. This comes before the answer goes out."""
        for path, keys, most in ((self._of_run, [str(t)], MOST_ROUNDS), (self.folder / FILE, numbers, MOST_NUMBERS)):
            known = [(key, sites) for key, sites in _read(path).items() if key not in keys]
            recent = [*known, *((key, sorted(came)) for key in keys)][-most:]
            disk.replace_private(path, json.dumps(dict(recent)))

    @property
    def _of_run(self) -> Path:
        return self.folder / "runs" / disk.check_name(self.run) / FILE


def digest_of(*facts: Any) -> str:
    """Of all that decides about a site's numbers."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _read(path: Path) -> dict[str, list[str]]:
    """Raises UsageError (E521) for a file that cannot be read: what was opened is then not known."""
    try:
        known = json.loads(path.read_text()) if path.exists() else {}
        return {str(key): [str(site) for site in sites] for key, sites in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        text = f"over whom sums were opened cannot be read from {path}, so the site takes part in none"
        raise UsageError("E521", f"{text}; put the file back as it was.") from None
