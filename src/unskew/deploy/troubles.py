"""The last requests that a site refused or could not answer, for its operator: `troubles.json` in its folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from unskew import disk

FILE = "troubles.json"
MOST = 50


def note(folder: Path, run: str, kind: str, code: str, text: str) -> None:
    """Add one, and drop those before the last fifty. The same as the last is counted, not repeated."""
    rows = latest(folder)
    row: dict[str, Any] = {"run": run, "kind": kind, "code": code, "text": text[:500]}
    if rows and row.items() <= rows[-1].items():
        rows[-1] |= {"at": time.time(), "times": rows[-1].get("times", 1) + 1}
    else:
        rows.append(row | {"at": time.time(), "times": 1})
    disk.replace_private(folder / FILE, json.dumps(rows[-MOST:], indent=1))


def latest(folder: Path) -> list[dict[str, Any]]:
    """The oldest first; none if the file is missing or damaged."""
    try:
        rows = json.loads((folder / FILE).read_text())
        return [row for row in rows if isinstance(row, dict)]
    except (OSError, ValueError, TypeError):
        return []
