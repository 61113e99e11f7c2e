"""Signed journals of hash-linked lines. A run's journal records requests and replies; a federation's records
tickets, admissions, revocations and refused connections.

One JSON object per line: n (from 0), time (UTC), what, the facts, before (SHA-256 of the previous line),
signature (the coordinator's, over the line without it). A journal contains no tensors, only digests of
messages. The owner of the coordinator's key can write another journal; without that key no line can be
altered, inserted or removed undetected. Lines missing at the end are only detected by comparison with an
earlier head, which `unskew federation audit` prints.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.federation.protocol.signed_messages import PrivateKey, PublicKey
from unskew.system import disk

JOURNAL_FILE = "audit.jsonl"
_FIRST = "0" * 64


class Journal:
    """Appends lines. It removes an incomplete last line after a crash, and records this."""

    def __init__(self, path: Path, key: PrivateKey):
        self.path, self.key = path, key
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        incomplete = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        self.count, self.head = len(lines), _digest(lines[-1].rstrip(b"\n")) if lines else _FIRST
        self._file = disk.AppendFile(path, sum(map(len, lines)))
        if incomplete:
            self.note("cut off by a crash", bytes=len(incomplete))

    def note(self, what: str, **facts: Any) -> None:
        """Add one line, which is safely on the disk on return."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = {"n": self.count, "time": now, "what": what, **facts, "before": self.head}
        signature = self.key.sign(_text(entry).encode()).hex()
        line = _text(entry | {"signature": signature}).encode()
        self._file.add(line + b"\n")
        self._file.sync()
        self.count, self.head = self.count + 1, _digest(line)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Verdict:
    """lines: number of valid lines; head: digest of the last one; wrong: the next line's defect."""

    lines: int
    head: str
    wrong: str = ""


def verify(path: Path, key: PublicKey) -> Verdict:
    """Check a journal up to the first invalid line."""
    head, count = _FIRST, 0
    for line in path.read_bytes().splitlines(keepends=True):
        if wrong := _defect(line, count, head, key):
            return Verdict(count, head, wrong)
        head, count = _digest(line.rstrip(b"\n")), count + 1
    return Verdict(count, head)


def changed_files(path: Path, run: Path) -> list[str]:
    """The files of a finished run that no longer have the digests in the last line of its journal."""
    lines = path.read_bytes().splitlines()
    last = json.loads(lines[-1]) if lines else {}
    files = last.get("files", {}).items()
    return [n for n, sha in files if not (run / n).exists() or disk.sha256(run / n) != sha]


def _defect(line: bytes, count: int, head: str, key: PublicKey) -> str:
    if not line.endswith(b"\n"):
        return "is cut off"
    try:
        entry = json.loads(line)
        as_written = _text(entry).encode() + b"\n" == line
        signature = bytes.fromhex(entry.pop("signature"))
        if entry["n"] != count or entry["before"] != head:
            return "does not follow the line before it: lines were removed, inserted or moved"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "is not a line of a journal"
    holds = as_written and key.signed(_text(entry).encode(), signature)
    return "" if holds else "was changed, or signed with another key"


def _text(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":"))


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
