"""What a site has told its coordinator beside what the ledgers of runs hold: `said.jsonl` in its folder.

That is what it says of its data before a run begins, and every error. A coordinator may ask as often as it likes, so each
different thing is written down once, with the run that read it first, before it goes out; and there is an end to how many
different things are said.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.errors import Paused

FILE = "said.jsonl"
MOST = 10_000
"""How many different things a site says, ever."""
UNSAID = "the site says no more of it: what it says could not be written down there, in said.jsonl."


@dataclass
class Said:
    """folder: the site's."""

    folder: Path
    _known: set[str] | None = field(default=None, init=False)
    _whole: int | None = field(default=None, init=False)
    """Bytes to which the file is cut before a line is added, where a crash left a piece of one; else None."""

    def note(self, run: str, asked: str, what: Mapping[str, Any]) -> bool:
        """Whether this is on record, so that it may be said: it was said before, or could be written down now.

        asked: the kind of the request.
        """
        try:
            known = self._read()
            if (key := _key(run, asked, what)) in known:
                return True
            if len(known) >= MOST:
                return False
            book = disk.Appending(self.folder / FILE, self._whole)
            try:
                book.add(json.dumps({"at": time.time(), "run": run, "asked": asked, "said": what}) + "\n")
            finally:
                book.close()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, Paused):
            return False
        known.add(key)
        self._whole = None
        return True

    def _read(self) -> set[str]:
        """What was said so far. The last line may be half written. Raises ValueError, KeyError or TypeError for a damaged file."""
        if self._known is None:
            path = self.folder / FILE
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            whole = [line for line in lines if line.endswith(b"\n")]
            rows = [json.loads(line) for line in whole]
            self._known = {_key(row["run"], row["asked"], row["said"]) for row in rows}
            self._whole = sum(map(len, whole)) if whole != lines else None
        return self._known


def _key(run: str, asked: str, what: Mapping[str, Any]) -> str:
    """The same for an error of which every run reads alike."""
    if run and isinstance(what.get("text"), str):
        what = {**what, "text": what["text"].replace(run, "RUN")}
    return json.dumps([asked, what], sort_keys=True)
