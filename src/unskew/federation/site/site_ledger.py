"""Records of a site: what has left it, and what it has stated to its coordinator."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unskew.errors import Paused, UsageError
from unskew.federation.protocol.signed_messages import share_name
from unskew.privacy.secure_aggregation import SUM
from unskew.system import disk

if TYPE_CHECKING:
    from torch import Tensor


def policy_refusal(text: str) -> UsageError:
    """The error (E520) for both ends if the policy does not allow something."""
    return UsageError("E520", f"the site's policy does not allow it: {text}.")


SPENT_FILE = "spent.json"
LEDGER_FILE = "ledger.jsonl"
HEADER_SHARE = "said"
"""The ledger's name for fields of a header: numbers of samples, the loss, keys of a sum."""
MOST_HEADER_VALUE = 200
MOST_ORDERS = 3
"""Different orders for one Share in a round. Only a server that has crashed needs more than one."""
KEPT_ROUNDS = 5
"""Rounds for which orders are recorded. A server goes back by two rounds at most."""


@dataclass(frozen=True)
class AnsweredRequest:
    """A request that a site has answered. order: digest of everything in it that determines the answer."""

    kind: str
    t: int
    order: str = ""

    @staticmethod
    def of(header: Mapping[str, Any]) -> AnsweredRequest:
        """From a request's header, which includes the digest of its tensors."""
        decides = {name: value for name, value in header.items() if name not in ("serial", "site")}
        text = json.dumps(decides, sort_keys=True)
        return AnsweredRequest(header["kind"], header["t"], hashlib.sha256(text.encode()).hexdigest()[:16])


@dataclass
class RunLedger:
    """The data that left the site for one run, and the terms of the run.

    study: digest of its settings. began, last: time of its begin and of its last request. epsilon, delta:
    its privacy budget. bytes: bytes sent. t: the last requested round. kinds: kind of disclosure by name.
    metrics: names of scores, in order. place: k, clients and largest, as the server set them; with other
    values a run would draw other samples. batch: training batch size. fewest: the fewest samples behind a
    number that leaves. summed: the coordinator sees only sums. draws: samples leave that the study's seed and
    the client's number select. orders: digests of the orders for each Share, by round.
    """

    study: str
    method: str
    rounds: int
    began: float
    epsilon: float = 0.0
    bytes: int = 0
    t: int = 0
    last: float = 0.0
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    metrics: list[str] = field(default_factory=list[str])
    place: dict[str, int] = field(default_factory=dict[str, int])
    batch: int = 0
    fewest: int = 0
    summed: bool = False
    draws: bool = False
    orders: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])
    delta: float = 0.0

    def order(self, t: int, shares: Iterable[str], order: str) -> None:
        """Record an order for Shares of round t. A repeated order brings equal numbers and is not counted.

        Orders with other weights bring other numbers; from enough of them samples could be computed that no
        single answer reveals. Raises UsageError (E520) for the fourth order of a Share in a round.
        """
        oldest = max(self.t, t) - KEPT_ROUNDS
        self.orders = {at: known for at, known in self.orders.items() if int(at) > oldest}
        known = self.orders.setdefault(str(t), {})
        for share in shares:
            orders = known.setdefault(share, [])
            if order not in orders and len(orders) >= MOST_ORDERS:
                text = f"'{share}' of round {t} was sent for {MOST_ORDERS} different orders already"
                raise policy_refusal(f"{text}, and a round needs one")
            if order not in orders:
                orders.append(order)


@dataclass
class SiteLedger:
    """All runs that have begun at a site, by number.

    `spent.json` in the site's folder has it, and a ledger in the folder of every run. Both are written before
    an answer is sent, so that a crash can only make them overstate it.
    """

    folder: Path
    runs: dict[str, RunLedger]

    @staticmethod
    def read(folder: Path) -> SiteLedger:
        """The ledger of a site's folder. Raises UsageError (E521) if it is unreadable: nothing may leave."""
        path = folder / SPENT_FILE
        try:
            facts = json.loads(path.read_text()) if path.exists() else {}
            return SiteLedger(folder, {str(n): RunLedger(**run) for n, run in facts.items()})
        except (OSError, ValueError, TypeError, AttributeError):
            text = f"what has left so far cannot be read from {path}, so the site refuses everything"
            raise UsageError("E521", f"{text}; put the file back as it was.") from None

    @property
    def epsilon(self) -> float:
        """The sum of epsilon over all runs."""
        return sum(run.epsilon for run in self.runs.values())

    @property
    def delta(self) -> float:
        """The sum of delta over all runs, at which the sum of epsilon holds."""
        return sum(run.delta for run in self.runs.values())

    def begin(self, number: str, run: RunLedger) -> None:
        """Count a run; setting it up again changes nothing.

        Raises UsageError (E520) if it began with another study or in another place among the sites.
        """
        if number in self.runs:
            self.check_same(number, run.study)
            if self.runs[number].place != run.place:
                text = f"run {number} was set up as another client, or among others; start a new run"
                raise policy_refusal(text)
            return
        k = run.place.get("k")
        for past in self.runs.values():  # another client draws other samples
            if run.draws and past.study == run.study and past.place.get("k") != k:
                text = f"this site was client {past.place.get('k')} in an earlier run of the study, and as"
                remedy = "another seed, which the site's operator approves anew"
                raise policy_refusal(f"{text} another one it draws other samples; give the study {remedy}")
        self.runs[number] = run
        self._write()

    def check_same(self, number: str, study: str) -> None:
        """Raises UsageError (E520) if the run with this number began with another study."""
        if number in self.runs and self.runs[number].study != study:
            raise policy_refusal(f"run {number} began with another study; start a new run for this one")

    def check_declared(self, number: str, paths: Iterable[str]) -> None:
        """Raises UsageError (E520) for an answer with anything that the run's study has not declared."""
        for path in paths:
            name = share_name(path)
            if path.split("/")[0] not in ("score", SUM) and name not in self.runs[number].kinds:
                raise policy_refusal(f"'{name}' is not among what the study of run {number} said would leave")

    def add(
        self, number: str, request: AnsweredRequest, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
    ) -> None:
        """Count an answer: its tensors by path, and its header.

        Raises UsageError (E520) if there were too many orders for one Share.
        """
        run, at, kind, t = self.runs[number], time.time(), request.kind, request.t
        rows: dict[str, dict[str, Any]] = {}
        for path, tensor in tensors.items():
            name = share_name(path)
            row = rows.setdefault(name, {"at": at, "t": t, "asked": kind, "share": name, "bytes": 0})
            row["bytes"] += tensor.numel() * tensor.element_size()
            if name.startswith("score/"):
                row["values"] = [round(v, 6) for v in tensor.flatten().tolist()]
        try:
            run.order(t, rows, request.order)
            run.bytes += sum(row["bytes"] for row in rows.values())
            run.t, run.last = max(run.t, t), at
        finally:
            self._write()
        if header:
            row = {"at": at, "t": t, "asked": kind, "share": HEADER_SHARE, "bytes": _length(header)}
            rows[""] = row | {"said": {name: _summary(value) for name, value in header.items()}}
        with contextlib.closing(disk.AppendFile(self.folder / "runs" / number / LEDGER_FILE)) as ledger:
            ledger.add("".join(json.dumps(row) + "\n" for row in rows.values()))

    def _write(self) -> None:
        facts = {number: asdict(run) for number, run in self.runs.items()}
        disk.replace_private(self.folder / SPENT_FILE, json.dumps(facts, indent=1))


def run_rows(folder: Path, number: str) -> list[dict[str, Any]]:
    """The complete lines of a run's ledger; the last one may be incomplete. folder: the site's."""
    path = folder / "runs" / number / LEDGER_FILE
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def named_scores(rows: Iterable[Mapping[str, Any]], run: RunLedger) -> Iterator[tuple[str, str, float]]:
    """The last scores among rows of a run's ledger, as (scope of the weights, metric, value)."""
    last = {row["share"]: row["values"] for row in rows if "values" in row}
    for share, values in sorted(last.items()):
        scope, _, metric = share.partition("/")[2].partition(".")
        for name, value in zip([metric] if metric else run.metrics, values):
            yield scope, name, float(value)


def _length(value: Any) -> int:
    return len(json.dumps(value).encode())


def _summary(value: Any) -> Any:
    """A header's value for the ledger; of keys and sealed shares of secrets only the number of bytes."""
    is_short = isinstance(value, int | float | str) and _length(value) <= MOST_HEADER_VALUE
    return value if is_short else f"{_length(value):,} bytes"


SAID_FILE = "said.jsonl"
MOST_STATEMENTS = 10_000
NOT_WRITTEN_TEXT = "the site says no more of it: what it says could not be written down there, in said.jsonl."


def note_statement(folder: Path, run: str, asked: str, what: Mapping[str, Any]) -> bool:
    """Record a statement to a coordinator before it is made. False if that is impossible, and it must then
    not be made.

    `said.jsonl` has the site's statements about its data before a run begins, and every error. A coordinator
    may ask any number of times, so each different statement is written once, with the first run that read it.
    The number of different statements is limited.

    folder: the site's folder. asked: the kind of the request.
    """
    path = folder / SAID_FILE
    try:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]  # a crash may leave a piece of the last one
        rows = [json.loads(line) for line in whole]
        known = {_statement_key(row["run"], row["asked"], row["said"]) for row in rows}
        if _statement_key(run, asked, what) in known:
            return True
        if len(known) >= MOST_STATEMENTS:
            return False
        with contextlib.closing(disk.AppendFile(path, sum(map(len, whole)))) as book:
            book.add(json.dumps({"at": time.time(), "run": run, "asked": asked, "said": what}) + "\n")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Paused):
        return False
    return True


def _statement_key(run: str, asked: str, what: Mapping[str, Any]) -> str:
    """The key of a statement; equal for errors that differ only in the run's number."""
    if run and isinstance(what.get("text"), str):
        what = {**what, "text": what["text"].replace(run, "RUN")}
    return json.dumps([asked, what], sort_keys=True)


def latest_errors(folder: Path, most: int) -> list[dict[str, Any]]:
    """The last errors among the statements, oldest first; none if the file is missing or damaged."""
    try:
        lines = (folder / SAID_FILE).read_text().splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [row for row in rows if "code" in row["said"] and "text" in row["said"]][-most:]
    except (OSError, ValueError, KeyError, TypeError):
        return []
