"""The figures of `unskew site run`."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from unskew.deploy import approvals
from unskew.deploy.metrics.exposition import Metric, counter, gauge
from unskew.deploy.sealed import Sealed
from unskew.deploy.spent import Spent
from unskew.deploy.supervise import Program
from unskew.errors import PAGES, UnskewError
from unskew.version import __version__

if TYPE_CHECKING:
    from unskew.deploy.answering import Answering  # which needs Flower

KINDS = ("hello", "setup", "train", "visit", "score", "share", "mask", "agree", "open")
OTHER = "other"
"""Stands for a kind or a code that is none: the coordinator adds no labels to a site's figures."""
Answer = Callable[[Sealed, float], Sealed]


@dataclass
class OfSite:
    """What a site has done since it started. folder: the site's. last: when its last round ended; 0 for never."""

    folder: Path
    last: float = 0.0
    requests: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float, dict.fromkeys(KINDS, 0.0)))
    bytes: Counter[str] = field(default_factory=lambda: Counter({"in": 0, "out": 0}))
    refusals: Counter[str] = field(default_factory=Counter[str])
    failures: int = 0
    answering: Answering | None = None
    worker: Program | None = None

    def counted(self, answer: Answer) -> Answer:
        """The same, and everything that goes through it is counted."""

        def counting(request: Sealed, budget_s: float) -> Sealed:
            began = time.monotonic()
            self.bytes["in"] += request.size
            try:
                reply = answer(request, budget_s)
            except OSError:
                self.failures += 1
                raise
            self.bytes["out"] += reply.size
            self._count(json.loads(reply.text), time.monotonic() - began)
            return reply

        return counting

    def metrics(self) -> list[Metric]:
        waiting = sum(request.state == "waiting" for request in approvals.everything(self.folder))
        return [
            gauge("build_info", "The version of unskew.", {__version__: 1}, "version"),
            gauge("connected", "Whether the server is connected.", bool(self.answering and self.answering.connected)),
            counter("connection_losses", "Connections that were lost.", self.answering.losses if self.answering else 0),
            counter("requests", "Requests that were answered, by kind.", self.requests, "kind"),
            counter("request_seconds", "Seconds that these requests took.", self.seconds, "kind"),
            counter("refusals", "Answers that refuse, or say that something failed, by code.", self.refusals, "code"),
            counter("failures", "Requests without an answer: the worker was killed or too slow.", self.failures),
            counter("rounds", "Rounds in which this site has trained.", self.requests["train"]),
            gauge("last_round_timestamp_seconds", "When it last trained; 0 before the first time.", self.last),
            counter("message_bytes", "Bytes of requests (in) and answers (out).", self.bytes, "direction"),
            counter("restarts", "Programs that were started again.", {"worker": self._restarts}, "program"),
            gauge("studies_waiting", "Studies that wait for the operator.", waiting),
            *self._ever(),
        ]

    def _ever(self) -> list[Metric]:
        """What is on record; nothing where the record cannot be read, which the count of refusals then shows (E521)."""
        try:
            spent = Spent.read(self.folder)
        except UnskewError:
            return []
        return [
            gauge("runs_begun", "Runs that have begun at this site, ever.", len(spent.runs)),
            gauge("epsilon_spent", "Differential privacy spent in all runs, ever.", spent.epsilon),
            gauge("delta_spent", "The sum of the deltas at which that holds.", spent.delta),
        ]

    def problem(self) -> str:
        """What does not run; "" if all does. A server that cannot be reached is no problem of this program."""
        return "" if self.worker is None or self.worker.is_running else "not running: the worker"

    @property
    def _restarts(self) -> int:
        return self.worker.restarts if self.worker else 0

    def _count(self, header: dict[str, object], seconds: float) -> None:
        """header: of this site's own answer."""
        kind, code = (str(header.get(name, "")) for name in ("kind", "code"))
        if code:
            self.refusals[code if code in PAGES else OTHER] += 1
            return
        kind = kind if kind in KINDS else OTHER
        self.requests[kind] += 1
        self.seconds[kind] += seconds
        if kind == "train":
            self.last = time.time()
