"""What has left a site so far, what it has said to its coordinator, and which requests it has refused.

`spent.json` in the site's folder, and a ledger in the folder of every run: what has left. Both are written
before an answer goes out, so that a crash can only make them say too much.

`said.jsonl`: what the site says of its data before a run begins, and every error. A coordinator may ask as
often as it likes, so each different statement is written down once, with the run that read it first, before
it goes out; and the number of different statements is bounded.

`troubles.json`: the last requests that the site refused or could not answer, for its operator.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
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
    """What both ends read when the policy does not allow something (E520)."""
    return UsageError("E520", f"the site's policy does not allow it: {text}.")


SPENT_FILE = "spent.json"
LEDGER_FILE = "ledger.jsonl"
HEADER_SHARE = "said"
"""Stands in the ledger for what an answer says beside its tensors: how many samples, the loss, keys of a
sum."""
MOST_HEADER_VALUE = 200
"""Bytes of one thing said that the ledger repeats."""
MOST_ORDERS = 3
"""How many different orders may bring the same Share in one round. Only a server that has crashed needs more
than one."""
KEPT_ROUNDS = 5
"""For how many rounds orders are remembered. A server goes back by one or two at most, so older rounds are
over."""


@dataclass(frozen=True)
class AnsweredRequest:
    """A request that a site has answered. order: the digest of everything in it that decides about the
    answer."""

    kind: str
    t: int
    order: str = ""

    @staticmethod
    def of(header: Mapping[str, Any]) -> AnsweredRequest:
        """From a request's header, which holds the digest of its tensors, too."""
        decides = {name: value for name, value in header.items() if name not in ("serial", "site")}
        text = json.dumps(decides, sort_keys=True)
        return AnsweredRequest(header["kind"], header["t"], hashlib.sha256(text.encode()).hexdigest()[:16])


@dataclass
class RunLedger:
    """What one run has taken.

    study: the digest of its settings. t: the last round that asked, last: when. answers: how many, by what
    was asked for.
    kinds: what is disclosed, by name. metrics: the names of scores, in order. place: k, clients and largest,
    as the server
    set them: a run that was set up otherwise would draw other samples. batch: of training. fewest: the fewest
    samples that stand behind a number that leaves. summed: whether the coordinator sees sums alone. draws:
    whether something leaves of samples that the study's seed and the client's number draw. orders: by round
    and Share, the digests of the orders that it was sent for.
    delta: at which epsilon holds.
    """

    study: str
    method: str
    rounds: int
    began: float
    epsilon: float = 0.0
    bytes: int = 0
    t: int = 0
    last: float = 0.0
    answers: dict[str, int] = field(default_factory=dict[str, int])
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    metrics: list[str] = field(default_factory=list[str])
    place: dict[str, int] = field(default_factory=dict[str, int])
    batch: int = 0
    fewest: int = 0
    summed: bool = False
    draws: bool = False
    orders: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])
    delta: float = 0.0

    def check_round(self, t: int) -> None:
        """Refuse a round that is long over: what it was sent for is not known any more. Raises UsageError
        (E520)."""
        if t <= self.t - KEPT_ROUNDS:
            raise policy_refusal(f"the run has come to round {self.t} here, and round {t} is over")

    def order(self, t: int, shares: Iterable[str], order: str) -> None:
        """Note what an order brings. The same order again brings the same numbers, and is not counted.

        With other weights it would bring others: from enough of them samples could be computed that no single
        answer shows. Raises UsageError (E520) for the fourth order of a Share in a round.
        """
        self.orders = {
            at: known for at, known in self.orders.items() if int(at) > max(self.t, t) - KEPT_ROUNDS
        }
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
    """All runs that have begun at a site, by number."""

    folder: Path
    runs: dict[str, RunLedger]

    @staticmethod
    def read(folder: Path) -> SiteLedger:
        """Raises UsageError (E521) if it cannot be read: what has left is then unknown, so nothing more
        may."""
        path = folder / SPENT_FILE
        try:
            facts = json.loads(path.read_text()) if path.exists() else {}
            return SiteLedger(folder, {str(n): RunLedger(**_infinite(run)) for n, run in facts.items()})
        except (OSError, ValueError, TypeError, AttributeError):
            text = f"what has left so far cannot be read from {path}, so the site refuses everything"
            raise UsageError("E521", f"{text}; put the file back as it was.") from None

    @property
    def epsilon(self) -> float:
        """Of all runs together, by plain addition."""
        return sum(run.epsilon for run in self.runs.values())

    @property
    def delta(self) -> float:
        """Of all runs together: what holds at each one's delta holds for all of them at the sum."""
        return sum(run.delta for run in self.runs.values())

    def begin(self, number: str, run: RunLedger) -> None:
        """Count a run; the second time it is set up changes nothing.

        Raises UsageError (E520) if it was begun with another study, or in another place among the sites.
        """
        if number not in self.runs:
            self._check_same_draws(run)
            self.runs[number] = run
            self._write()
            return
        self.check_same(number, run.study)
        if self.runs[number].place != run.place:
            raise policy_refusal(
                f"run {number} was set up as another client, or among others; start a new run"
            )

    def _check_same_draws(self, run: RunLedger) -> None:
        """Refuse another client's place where samples are drawn by it. Raises UsageError (E520)."""
        earlier = [
            other.place.get("k") for other in self.runs.values() if run.draws and other.study == run.study
        ]
        if any(k != run.place.get("k") for k in earlier):
            text = (
                f"this site was client {earlier[0]} in an earlier run of the study, and as another one it"
                " draws other samples"
            )
            raise policy_refusal(
                f"{text}; give the study another seed, which the site's operator approves anew"
            )

    def check_same(self, number: str, study: str) -> None:
        """Refuse a study under the number of a run that began with another one. Raises UsageError (E520)."""
        if number in self.runs and self.runs[number].study != study:
            raise policy_refusal(f"run {number} began with another study; start a new run for this one")

    def check_declared(self, number: str, paths: Iterable[str]) -> None:
        """Refuse an answer with anything that the study of the run has not declared. Raises UsageError
        (E520)."""
        for path in paths:
            name = share_name(path)
            if path.split("/")[0] not in ("score", SUM) and name not in self.runs[number].kinds:
                raise policy_refusal(f"'{name}' is not among what the study of run {number} said would leave")

    def add(
        self, number: str, request: AnsweredRequest, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
    ) -> None:
        """Count an answer and what it holds, by path, and what its header says beside that.

        Raises UsageError (E520) if too many orders have brought the same.
        """
        run, at = self.runs[number], time.time()
        kind, t = request.kind, request.t
        sizes: dict[str, int] = {}
        values: dict[str, list[float]] = {}
        for path, tensor in tensors.items():
            name = share_name(path)
            sizes[name] = sizes.get(name, 0) + tensor.numel() * tensor.element_size()
            if name.startswith("score/"):
                values[name] = [round(v, 6) for v in tensor.flatten().tolist()]
        run.answers[kind] = run.answers.get(kind, 0) + 1
        try:
            run.order(t, sizes, request.order)
            run.bytes, run.t, run.last = run.bytes + sum(sizes.values()), max(run.t, t), at
        finally:
            self._write()
        rows = [
            {"at": at, "t": t, "asked": kind, "share": name, "bytes": size} for name, size in sizes.items()
        ]
        rows = [row | ({"values": values[row["share"]]} if row["share"] in values else {}) for row in rows]
        if header:
            words = {name: _summary(value) for name, value in header.items()}
            rows.append(
                {
                    "at": at,
                    "t": t,
                    "asked": kind,
                    "share": HEADER_SHARE,
                    "bytes": _length(header),
                    "said": words,
                }
            )
        ledger = disk.AppendFile(self.folder / "runs" / number / LEDGER_FILE)
        try:
            ledger.add("".join(json.dumps(row) + "\n" for row in rows))
        finally:
            ledger.close()

    def _write(self) -> None:
        facts = {n: {k: _finite(v) for k, v in asdict(run).items()} for n, run in self.runs.items()}
        disk.replace_private(self.folder / SPENT_FILE, json.dumps(facts, indent=1))


def _length(value: Any) -> int:
    """Bytes of what a header says."""
    return len(json.dumps(value).encode())


def _summary(value: Any) -> Any:
    """What a header says, as the ledger holds it: of keys and sealed shares of secrets only how many
    bytes."""
    return (
        value
        if isinstance(value, int | float | str) and _length(value) <= MOST_HEADER_VALUE
        else f"{_length(value):,} bytes"
    )


def _finite(value: Any) -> Any:
    return "infinite" if value == math.inf else value


def _infinite(run: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.inf if value == "infinite" else value for name, value in run.items()}


SAID_FILE = "said.jsonl"
MOST_STATEMENTS = 10_000
"""How many different things a site says, ever."""
NOT_WRITTEN_TEXT = "the site says no more of it: what it says could not be written down there, in said.jsonl."


@dataclass
class DisclosureLog:
    """folder: the site's."""

    folder: Path
    _known: set[str] | None = field(default=None, init=False)
    _whole: int | None = field(default=None, init=False)
    """Bytes to which the file is cut before a line is added, where a crash left a piece of one; else None."""

    def note(self, run: str, asked: str, what: Mapping[str, Any]) -> bool:
        """Whether this is on record, so that it may be said: it was said before, or could be written down
        now.

        asked: the kind of the request.
        """
        try:
            known = self._read()
            if (key := _statement_key(run, asked, what)) in known:
                return True
            if len(known) >= MOST_STATEMENTS:
                return False
            book = disk.AppendFile(self.folder / SAID_FILE, self._whole)
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
        """What was said so far. The last line may be half written. Raises ValueError, KeyError or TypeError
        for a damaged file."""
        if self._known is None:
            path = self.folder / SAID_FILE
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            whole = [line for line in lines if line.endswith(b"\n")]
            rows = [json.loads(line) for line in whole]
            self._known = {_statement_key(row["run"], row["asked"], row["said"]) for row in rows}
            self._whole = sum(map(len, whole)) if whole != lines else None
        return self._known


def _statement_key(run: str, asked: str, what: Mapping[str, Any]) -> str:
    """The same for an error of which every run reads alike."""
    if run and isinstance(what.get("text"), str):
        what = {**what, "text": what["text"].replace(run, "RUN")}
    return json.dumps([asked, what], sort_keys=True)


TROUBLES_FILE = "troubles.json"
MOST_TROUBLES = 50


def note_trouble(folder: Path, run: str, kind: str, code: str, text: str) -> None:
    """Add one, and drop those before the last fifty. The same as the last is counted, not repeated."""
    rows = latest_troubles(folder)
    row: dict[str, Any] = {"run": run, "kind": kind, "code": code, "text": text[:500]}
    if rows and row.items() <= rows[-1].items():
        rows[-1] |= {"at": time.time(), "times": rows[-1].get("times", 1) + 1}
    else:
        rows.append(row | {"at": time.time(), "times": 1})
    disk.replace_private(folder / TROUBLES_FILE, json.dumps(rows[-MOST_TROUBLES:], indent=1))


def latest_troubles(folder: Path) -> list[dict[str, Any]]:
    """The oldest first; none if the file is missing or damaged."""
    try:
        rows = json.loads((folder / TROUBLES_FILE).read_text())
        return [row for row in rows if isinstance(row, dict)]
    except (OSError, ValueError, TypeError):
        return []
