"""What has left a site so far: `spent.json` in its folder, and a ledger in the folder of every run.

It is written before an answer goes out, so that a crash can only make it say too much.
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

from unskew import disk
from unskew.deploy.refusing import refusal
from unskew.errors import UsageError
from unskew.privacy.secure import SUM

if TYPE_CHECKING:
    from torch import Tensor  # whoever only reads what has left does not wait until torch is loaded

FILE = "spent.json"
LEDGER = "ledger.jsonl"
SAID = "said"
"""Stands in the ledger for what an answer says beside its tensors: how many samples, the loss, keys of a sum."""
MOST_SAID = 200
"""Bytes of one thing said that the ledger repeats."""
MOST_ORDERS = 3
"""How many different orders may bring the same Share in one round. Only a server that has crashed needs more than one."""
KEPT_ROUNDS = 5
"""For how many rounds orders are remembered. A server goes back by one or two at most, so older rounds are over."""


@dataclass(frozen=True)
class Asked:
    """A request that a site has answered. order: the digest of everything in it that decides about the answer."""

    kind: str
    t: int
    order: str = ""

    @staticmethod
    def of(header: Mapping[str, Any]) -> Asked:
        """From a request's header, which holds the digest of its tensors, too."""
        decides = {name: value for name, value in header.items() if name not in ("serial", "site")}
        text = json.dumps(decides, sort_keys=True)
        return Asked(header["kind"], header["t"], hashlib.sha256(text.encode()).hexdigest()[:16])


@dataclass
class OfRun:
    """What one run has taken.

    study: the digest of its settings. t: the last round that asked, last: when. answers: how many, by what was asked for.
    kinds: what is disclosed, by name. metrics: the names of scores, in order. place: k, clients and largest, as the server
    set them: a run that was set up otherwise would draw other samples. batch: of training. fewest: the fewest samples that
    stand behind a number that leaves. summed: whether the coordinator sees sums alone. draws: whether something leaves of samples
    that the study's seed and the client's number draw. orders: by round and Share, the digests of the orders that it was sent for.
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
        """Refuse a round that is long over: what it was sent for is not known any more. Raises UsageError (E520)."""
        if t <= self.t - KEPT_ROUNDS:
            raise refusal(f"the run has come to round {self.t} here, and round {t} is over")

    def order(self, t: int, shares: Iterable[str], order: str) -> None:
        """Note what an order brings. The same order again brings the same numbers, and is not counted.

        With other weights it would bring others: from enough of them samples could be computed that no single answer
        shows. Raises UsageError (E520) for the fourth order of a Share in a round.
        """
        self.orders = {at: known for at, known in self.orders.items() if int(at) > max(self.t, t) - KEPT_ROUNDS}
        known = self.orders.setdefault(str(t), {})
        for share in shares:
            orders = known.setdefault(share, [])
            if order not in orders and len(orders) >= MOST_ORDERS:
                text = f"'{share}' of round {t} was sent for {MOST_ORDERS} different orders already"
                raise refusal(f"{text}, and a round needs one")
            if order not in orders:
                orders.append(order)


@dataclass
class Spent:
    """All runs that have begun at a site, by number."""

    folder: Path
    runs: dict[str, OfRun]

    @staticmethod
    def read(folder: Path) -> Spent:
        """Raises UsageError (E521) if it cannot be read: what has left is then unknown, so nothing more may."""
        path = folder / FILE
        try:
            facts = json.loads(path.read_text()) if path.exists() else {}
            return Spent(folder, {str(n): OfRun(**_infinite(run)) for n, run in facts.items()})
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

    def begin(self, number: str, run: OfRun) -> None:
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
            raise refusal(f"run {number} was set up as another client, or among others; start a new run")

    def _check_same_draws(self, run: OfRun) -> None:
        """Refuse another client's place where samples are drawn by it. Raises UsageError (E520)."""
        earlier = [other.place.get("k") for other in self.runs.values() if run.draws and other.study == run.study]
        if any(k != run.place.get("k") for k in earlier):
            text = f"this site was client {earlier[0]} in an earlier run of the study, and as another one it draws other samples"
            raise refusal(f"{text}; give the study another seed, which the site's operator approves anew")

    def check_same(self, number: str, study: str) -> None:
        """Refuse a study under the number of a run that began with another one. Raises UsageError (E520)."""
        if number in self.runs and self.runs[number].study != study:
            raise refusal(f"run {number} began with another study; start a new run for this one")

    def check_declared(self, number: str, paths: Iterable[str]) -> None:
        """Refuse an answer with anything that the study of the run has not declared. Raises UsageError (E520)."""
        for path in paths:
            name = share_of(path)
            if path.split("/")[0] not in ("score", SUM) and name not in self.runs[number].kinds:
                raise refusal(f"'{name}' is not among what the study of run {number} said would leave")

    def add(self, number: str, request: Asked, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        """Count an answer and what it holds, by path, and what its header says beside that.

        Raises UsageError (E520) if too many orders have brought the same.
        """
        run, at = self.runs[number], time.time()
        kind, t = request.kind, request.t
        sizes: dict[str, int] = {}
        values: dict[str, list[float]] = {}
        for path, tensor in tensors.items():
            name = share_of(path)
            sizes[name] = sizes.get(name, 0) + tensor.numel() * tensor.element_size()
            if name.startswith("score/"):
                values[name] = [round(v, 6) for v in tensor.flatten().tolist()]
        run.answers[kind] = run.answers.get(kind, 0) + 1
        try:
            run.order(t, sizes, request.order)
            run.bytes, run.t, run.last = run.bytes + sum(sizes.values()), max(run.t, t), at
        finally:
            self._write()
        rows = [{"at": at, "t": t, "asked": kind, "share": name, "bytes": size} for name, size in sizes.items()]
        rows = [row | ({"values": values[row["share"]]} if row["share"] in values else {}) for row in rows]
        if header:
            words = {name: _short(value) for name, value in header.items()}
            rows.append({"at": at, "t": t, "asked": kind, "share": SAID, "bytes": _length(header), "said": words})
        ledger = disk.Appending(self.folder / "runs" / number / LEDGER)
        try:
            ledger.add("".join(json.dumps(row) + "\n" for row in rows))
        finally:
            ledger.close()

    def _write(self) -> None:
        facts = {n: {k: _finite(v) for k, v in asdict(run).items()} for n, run in self.runs.items()}
        disk.replace_private(self.folder / FILE, json.dumps(facts, indent=1))


def share_of(path: str) -> str:
    """The name of what a tensor of an answer belongs to: "weights", "score/whose", or `part/leaf`."""
    first, *rest = path.split("/")
    if first in ("shares", "early"):
        return "/".join(rest[:2])
    return "weights" if first == "w" else path


def _length(value: Any) -> int:
    """Bytes of what a header says."""
    return len(json.dumps(value).encode())


def _short(value: Any) -> Any:
    """What a header says, as the ledger holds it: of keys and sealed shares of secrets only how many bytes."""
    return (
        value if isinstance(value, int | float | str) and _length(value) <= MOST_SAID else f"{_length(value):,} bytes"
    )


def _finite(value: Any) -> Any:
    return "infinite" if value == math.inf else value


def _infinite(run: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.inf if value == "infinite" else value for name, value in run.items()}
