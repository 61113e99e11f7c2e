"""What the runs of a server have done since it started, read from the files that their processes write."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from unskew import many
from unskew.deploy.metrics.exposition import Metric, counter, gauge
from unskew.deploy.orders import ENDING
from unskew.engine.disk.tail import Tail
from unskew.errors import PAGES, StateError

LOOK_S = 1.0
ENDINGS = ("done", "stopped", "failed")
OTHER = "other"
"""Stands for a code or an ending that is none, so that nobody can add labels without end."""


class _Files:
    """What a run writes while it goes on, from now on."""

    def __init__(self, path: Path):
        self.path, self.sites = path, list[str]()
        self.events, self.metrics, self.ledger = (
            Tail(path / f"{name}.jsonl", from_now=True) for name in ("events", "metrics", "ledger")
        )

    def site(self, k: int) -> str:
        """The name of the site that is client k."""
        if not self.sites:
            self.sites = [hello["site"] for hello in json.loads((self.path / "sites.json").read_text())["sites"]]
        return self.sites[k]


@dataclass
class Runs:
    """Counts over all runs since the server started. last: when the last round ended, in seconds since 1970; 0 for never."""

    rounds: int = 0
    seconds: float = 0.0
    last: float = 0.0
    bytes: Counter[str] = field(default_factory=lambda: Counter({"in": 0, "out": 0}))
    absences: Counter[str] = field(default_factory=Counter[str])
    events: Counter[str] = field(default_factory=Counter[str])
    ended: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(ENDINGS, 0)))
    _files: dict[Path, _Files] = field(default_factory=dict)
    _next: float = 0.0

    def tend(self, active: Iterable[Path]) -> None:
        """Read what is new, once a second. active: the folders of the runs that go on."""
        going = set(active)
        if time.monotonic() < self._next and going == self._files.keys():
            return
        self._next = time.monotonic() + LOOK_S
        for path in going - self._files.keys():
            self._files[path] = _Files(path)
        for path, files in list(self._files.items()):
            with contextlib.suppress(
                OSError, ValueError, KeyError, IndexError, TypeError, StateError
            ):  # a damaged record is not ours
                self._read(files)
            if path not in going:
                self.ended[_ending(path)] += 1
                del self._files[path]

    def metrics(self) -> list[Metric]:
        sent, codes = "Bytes of payloads by the runs' ledgers: in from sites, out to sites.", "Events of runs by code."
        absent = "Rounds in which a site was asked and no answer of it was used."
        return [
            gauge("runs_active", "Runs that go on.", len(self._files)),
            counter("runs_ended", "Runs that have ended, by how.", self.ended, "state"),
            counter("rounds", "Rounds that have ended.", self.rounds),
            counter("round_seconds", "Seconds that these rounds took.", self.seconds),
            gauge("last_round_timestamp_seconds", "When the last round ended; 0 before the first.", self.last),
            counter("payload_bytes", sent, self.bytes, "direction"),
            counter("absences", absent, self.absences, "site"),
            counter("events", codes, self.events, "code"),
        ]

    def _read(self, files: _Files) -> None:
        for row in files.metrics.read():
            if (row["scope"], row["metric"]) == ("train", "seconds"):
                self.rounds, self.seconds, self.last = self.rounds + 1, self.seconds + row["value"], time.time()
        for row in files.ledger.read():
            self.bytes["in" if row["way"] == "up" else "out"] += many.total_bytes(row)
        for event in files.events.read():
            if event["code"] != "round":
                self.events[event["code"] if event["code"] in PAGES else OTHER] += 1
                continue
            there = set(many.clients_in(event["answered"]))
            self.absences.update(files.site(k) for k in many.clients_in(event["asked"]) if k not in there)


def _ending(path: Path) -> str:
    try:
        state = json.loads((path / ENDING).read_text())["state"]
        return state if state in ENDINGS else OTHER
    except (OSError, ValueError, KeyError, TypeError):
        return OTHER
