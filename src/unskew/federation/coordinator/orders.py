"""Runs over a network as files: the order that starts one, the log by which another command follows it to its
ending, and counts over all runs for Prometheus.

`unskew run --on` leaves an order for the process that conducts the run. It is a file of the federation's
folder, with a name that nobody can guess. Over Flower goes that name alone, so that a stranger who reaches
the SuperLink cannot order anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unskew.errors import PAGES, Paused, StateError, UsageError
from unskew.federation.prometheus import Metric, counter, gauge
from unskew.records import client_lists
from unskew.records.rows import Tail
from unskew.records.run_lock import RunLock
from unskew.system import disk

ORDER_FILE = "deploy.json"
"""Where a run's folder holds its order."""
ENDING = "ending.json"
"""Where a run's folder says how the run ended."""


@dataclass(frozen=True)
class Terms:
    """How a run deals with its sites.

    min_sites: a round with fewer replies changes nothing. deadline_s: how long an exchange waits for answers.
    wait_s: how long the run waits for missing sites before round 1. test: a test set at the server, an .npz
    or a folder.
    without: sites that are not asked.
    """

    min_sites: int = 1
    deadline_s: float = 600.0
    wait_s: float = 600.0
    test: str | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """path: the run's folder; federation: the coordinator's folder; settings: those of the study, as a
    dictionary."""

    path: Path
    federation: Path
    settings: Mapping[str, Any]
    terms: Terms

    def as_json(self) -> dict[str, Any]:
        places = {"path": str(self.path), "federation": str(self.federation)}
        return {**places, "settings": dict(self.settings), **asdict(self.terms)}

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Order:
        """From `as_json`. Raises KeyError if something is missing."""
        without = tuple(facts["without"])
        terms = Terms(facts["min_sites"], facts["deadline_s"], facts["wait_s"], facts["test"], without)
        return Order(Path(facts["path"]), Path(facts["federation"]), facts["settings"], terms)


def hand_in(order: Order) -> str:
    """Leave an order in the federation's folder. Returns its name."""
    name = secrets.token_hex(16)
    path = _path(order.federation, name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    disk.replace(path, json.dumps(order.as_json()))
    return name


def exists(federation: Path, name: str) -> bool:
    """Whether this is the name of an order that was handed in here and has not been withdrawn."""
    return re.fullmatch("[0-9a-f]{32}", name) is not None and _path(federation, name).exists()


def waiting_orders(federation: Path) -> set[str]:
    """The names of all orders that were handed in here and have not been withdrawn."""
    return {path.stem for path in _path(federation, "").parent.glob("*.json")}


def read_order(federation: Path, name: str) -> Order:
    return Order.read(json.loads(_path(federation, name).read_text()))


def read_current_order(federation: Path, name: str) -> Order:
    """An order with what is left of its wait: a process that was killed and started again does not begin to
    wait anew."""
    order, age_s = read_order(federation, name), time.time() - _path(federation, name).stat().st_mtime
    left_s = order.terms.wait_s - max(0.0, age_s)
    return replace(order, terms=replace(order.terms, wait_s=max(0.0, left_s)))


def withdraw(federation: Path, name: str) -> None:
    _path(federation, name).unlink(missing_ok=True)


def _path(federation: Path, name: str) -> Path:
    return federation / "flower" / "orders" / f"{name}.json"


STATUS_S = 20.0
"""How often Flower is asked whether the run is still alive."""
LOOK_S = 0.3
MOST_SILENCES = 2
"""How often in a row Flower does not answer until that is said: `unskew serve` restarts what was killed
within seconds."""
LEAST_FREE = 1 << 20
"""Bytes. With fewer a run cannot go on."""
LOG = "server.log"
STARTED_FILE = "started.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class RunStart:
    """number: Flower's for the run; log_at: how long the run's log was before."""

    number: int
    log_at: int

    def write(self, run: Path) -> None:
        disk.replace(run / STARTED_FILE, json.dumps(asdict(self)))

    @staticmethod
    def read(run: Path) -> RunStart:
        """Raises UsageError (E117) if this is no run over a network that was started, StateError (E208) for
        damage."""
        try:
            return RunStart(**json.loads((run / STARTED_FILE).read_text()))
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError("E117", f"{run} is no run over a network that was started.") from None
        except (ValueError, TypeError) as error:
            raise StateError(
                "E208", f"{run / STARTED_FILE} is damaged; continue the run with: unskew resume {run}"
            ) from error


def follow(run: Path, started: RunStart, status: Callable[[], str], say: Say) -> dict[str, Any]:
    """Repeat a run's log from where it was started until it ends. Returns its ending.json.

    status: Flower's word for the state of the run, "" if it does not answer. Raises UsageError (E507) if its
    process has ended without a word, Paused (E203) if it has because the disk is full, StateError (E110) if
    another process conducts the run.
    """
    log, asked, unanswered = _Log(run / LOG, started.log_at), time.monotonic(), 0
    while True:
        ended = (run / ENDING).exists()
        for line in log.fresh():
            say(line)
        if ended:
            return json.loads((run / ENDING).read_text())
        if time.monotonic() - asked > STATUS_S:
            asked = time.monotonic()
            word = status()
            if word and unanswered >= MOST_SILENCES:
                say("the server answers again")
            unanswered = 0 if word else unanswered + 1
            if unanswered == MOST_SILENCES:
                text = "the server does not answer; is `unskew serve` running? Every finished round is saved"
                say(f"E507 {text}, and once it answers, this run goes on or says how to resume it.")
            if word.startswith("finished") and not (run / ENDING).exists():
                _check_space(run)
                check_alone(run)
                text = "the run's process ended before it could say why; what it saved is safe."
                raise UsageError("E507", f"{text} Continue it with: unskew resume {run}")
        time.sleep(LOOK_S)


def check_alone(run: Path) -> None:
    """Raises StateError (E110) if a process conducts this run, and says how to follow it."""
    try:
        with RunLock(run):
            pass
    except StateError as error:
        raise StateError(error.code, f"{error.text} To follow it: unskew attach {run}") from None


def _check_space(run: Path) -> None:
    """Raises Paused (E203) if the disk is so full that a run could not say how it ended."""
    free = os.statvfs(run)
    left = free.f_bavail * free.f_frsize
    if left < LEAST_FREE:
        text = (
            f"disk full: the run in {run} cannot write ({left:,} bytes free). The last checkpoint is safe;"
            " free space"
        )
        raise Paused("E203", f"{text}, then: unskew resume {run}")


@dataclass
class _Log:
    """Lines of a file as they are added, from a place on."""

    path: Path
    read: int

    def fresh(self) -> list[str]:
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(self.read)
            whole, end, _ = file.read().rpartition(b"\n")
        self.read += len(whole) + len(end)
        return (whole + end).decode(errors="replace").splitlines()


COUNT_S = 1.0
ENDINGS = ("done", "stopped", "failed")
OTHER = "other"
"""Stands for a code or an ending that is none, so that nobody can add labels without end."""


class _RunTails:
    """What a run writes while it goes on, from now on."""

    def __init__(self, path: Path):
        self.path, self.sites = path, list[str]()
        self.events, self.metrics, self.ledger = (
            Tail(path / f"{name}.jsonl", from_now=True) for name in ("events", "metrics", "ledger")
        )

    def site(self, k: int) -> str:
        """The name of the site that is client k."""
        if not self.sites:
            self.sites = [
                hello["site"] for hello in json.loads((self.path / "sites.json").read_text())["sites"]
            ]
        return self.sites[k]


@dataclass
class RunMetrics:
    """Counts over all runs since the server started. last: when the last round ended, in seconds since 1970;
    0 for never."""

    rounds: int = 0
    seconds: float = 0.0
    last: float = 0.0
    bytes: Counter[str] = field(default_factory=lambda: Counter({"in": 0, "out": 0}))
    absences: Counter[str] = field(default_factory=Counter[str])
    events: Counter[str] = field(default_factory=Counter[str])
    ended: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(ENDINGS, 0)))
    _files: dict[Path, _RunTails] = field(default_factory=dict)
    _next: float = 0.0

    def tend(self, active: Iterable[Path]) -> None:
        """Read what is new, once a second. active: the folders of the runs that go on."""
        going = set(active)
        if time.monotonic() < self._next and going == self._files.keys():
            return
        self._next = time.monotonic() + COUNT_S
        for path in going - self._files.keys():
            self._files[path] = _RunTails(path)
        for path, files in list(self._files.items()):
            with contextlib.suppress(
                OSError, ValueError, KeyError, IndexError, TypeError, StateError
            ):  # a damaged record is not ours
                self._read(files)
            if path not in going:
                self.ended[_ending(path)] += 1
                del self._files[path]

    def metrics(self) -> list[Metric]:
        sent, codes = (
            "Bytes of payloads by the runs' ledgers: in from sites, out to sites.",
            "Events of runs by code.",
        )
        absent = "Rounds in which a site was asked and no answer of it was used."
        return [
            gauge("runs_active", "Runs that go on.", len(self._files)),
            counter("runs_ended", "Runs that have ended, by how.", self.ended, "state"),
            counter("rounds", "Rounds that have ended.", self.rounds),
            counter("round_seconds", "Seconds that these rounds took.", self.seconds),
            gauge(
                "last_round_timestamp_seconds", "When the last round ended; 0 before the first.", self.last
            ),
            counter("payload_bytes", sent, self.bytes, "direction"),
            counter("absences", absent, self.absences, "site"),
            counter("events", codes, self.events, "code"),
        ]

    def _read(self, files: _RunTails) -> None:
        for row in files.metrics.read():
            if (row["scope"], row["metric"]) == ("train", "seconds"):
                self.rounds, self.seconds, self.last = (
                    self.rounds + 1,
                    self.seconds + row["value"],
                    time.time(),
                )
        for row in files.ledger.read():
            self.bytes["in" if row["way"] == "up" else "out"] += client_lists.total_bytes(row)
        for event in files.events.read():
            if event["code"] != "round":
                self.events[event["code"] if event["code"] in PAGES else OTHER] += 1
                continue
            there = set(client_lists.clients_in(event["answered"]))
            self.absences.update(
                files.site(k) for k in client_lists.clients_in(event["asked"]) if k not in there
            )


def _ending(path: Path) -> str:
    try:
        state = json.loads((path / ENDING).read_text())["state"]
        return state if state in ENDINGS else OTHER
    except (OSError, ValueError, KeyError, TypeError):
        return OTHER
