"""A run as reports see it: its settings, its series of scores over rounds, and the bytes its clients moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from unskew import many
from unskew.engine.disk import findings, privacy
from unskew.engine.resolve import is_reference
from unskew.engine.server.scored import Scored, fewer
from unskew.engine.server.used import FIRST_STAGE, MANY_DROPPED, Replies, cut_short, left_out, rescored
from unskew.report.files import Record
from unskew.scores import MAIN

Series = tuple[np.ndarray, np.ndarray]
"""(rounds, values), both [T], rounds rising."""
EVALUATED = ("global", "global@client", "personal@client")
"""The scopes in which models are scored."""
EMPTY: Series = (np.array([], dtype=int), np.array([], dtype=float))


@dataclass(frozen=True)
class Traffic:
    """What all clients moved of one share in one direction.

    way: "up" (sent by clients) or "down". reads: whether the server needs each client's tensor ("each") or only their
    sum ("sum"). rounds, bytes: [T] rounds and bytes of all clients in them. most: the largest number of bytes that one
    client moved in one round. shape: of a share that is a single tensor, as "3×4". kind, samples: what a share that is
    sent up discloses and how many samples stand behind its numbers, as the Share says; "" in runs from before they did.
    encoded: the Part by which weights were encoded, "" where they travelled as they are.
    sum_of: with secure aggregation the fewest clients of a sum, which was all that the server saw; else 0.
    hands_on: of what is sent down, what of single other clients is in it; "" where it is made of all.
    """

    way: str
    share: str
    reads: str
    guarantee: str
    rounds: np.ndarray
    bytes: np.ndarray
    most: int
    shape: str = ""
    kind: str = ""
    samples: int | str = ""
    sum_of: int = 0
    encoded: str = ""
    hands_on: str = ""

    @property
    def name(self) -> str:
        """What it is, in words."""
        name = "weights" if self.share == "w" else self.share
        return f"{name}, encoded by {self.encoded}" if self.encoded else name

    @property
    def total(self) -> int:
        """Bytes in the whole run."""
        return int(self.bytes.sum())


@dataclass(frozen=True)
class Attendance:
    """The clients that a round asked, and those whose replies were used. received: replies that came, None for no others."""

    t: int
    asked: Sequence[int]
    answered: Sequence[int]
    received: int | None = None

    @property
    def came(self) -> int:
        """How many replies came, those that were dropped among them."""
        return len(self.answered) if self.received is None else self.received


@dataclass(frozen=True)
class RunData:
    """One run, read from its folder.

    config, federation, env: config.yaml, federation.json and env.json. metrics: the series of each (scope, metric).
    clients: by (scope, metric), each client's value in the last round that has them. events: events.jsonl. label: what
    reports call the run instead of its method, where two runs of one method differ in a setting. altered: names of its
    records that are missing or are not as the run wrote them.
    """

    path: Path
    config: dict[str, Any]
    federation: dict[str, Any]
    env: dict[str, Any]
    metrics: dict[tuple[str, str], Series] = field(repr=False)
    clients: dict[tuple[str, str], dict[int, float]] = field(repr=False)
    traffic: tuple[Traffic, ...] = field(repr=False)
    events: list[Record] = field(repr=False)
    label: str = ""
    altered: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def method(self) -> str:
        """The name under which reports group runs: the same for all seeds of a method."""
        return self.label or str(self.config["method"])

    @property
    def is_reference(self) -> bool:
        """Whether this is a reference, which does not compete, rather than a federated method."""
        return is_reference(str(self.config.get("method")))

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def rounds(self) -> int:
        """The last round that was evaluated or in which anything was sent."""
        last = [int(t[-1]) for t, _ in self.metrics.values()] + [int(s.rounds[-1]) for s in self.traffic]
        return max(last, default=0)

    @property
    def asked(self) -> int:
        """The number of rounds that the settings ask for."""
        return int(self.config.get("rounds", self.rounds))

    @property
    def evaluated(self) -> bool:
        """Whether any round that was trained was evaluated, in any scope."""
        return any(t[-1] > 0 for (scope, _), (t, _) in self.metrics.items() if scope in EVALUATED and len(t))

    @property
    def planned(self) -> int:
        """The number of rounds that the settings ask for, or that a budget or a callback has left of them."""
        left = [int(event["last"]) for event in self.events if "last" in event]
        return min([self.asked, *left])

    @property
    def finished(self) -> bool:
        return self.rounds >= self.planned

    @property
    def metric(self) -> str:
        """The task's main score: that of the task which federation.json names; else "dice" where every pixel has a label, and
        "accuracy"."""
        return MAIN[self.task]

    @property
    def task(self) -> str:
        """The name of the task."""
        by_unit = {"pixels": "segmentation", "tokens": "tokens"}
        return str(self.federation.get("task") or by_unit.get(str(self.federation.get("unit")), "classification"))

    def series(self, scope: str, metric: str) -> Series:
        """(rounds, values) of a metric over all clients; empty if it was never written."""
        return self.metrics.get((scope, metric), EMPTY)

    def per_client(self, scope: str = "global@client", metric: str = "") -> dict[int, float]:
        """Each client's value in the last round that has them; of the main score unless `metric` names another."""
        return self.clients.get((scope, metric or self.metric), {})

    @property
    def scored_at(self) -> Scored | None:
        """At how many clients the last scores were taken, where that was not all that have test samples."""
        tests = self.federation.get("sizes", {}).get("test", ())
        if len(tests) < self.K:  # of very many clients federation.json lists the first alone
            return None
        there: dict[str, set[int]] = {}
        for (scope, _), scores in self.clients.items():
            there.setdefault(scope, set()).update(scores)
        return fewer({scope: len(clients) for scope, clients in there.items()}, sum(n > 0 for n in tests))

    def bytes_by_round(self, way: str | None = None, share: str | None = None) -> Series:
        """(rounds, bytes of all clients up to and including that round), in both directions and of all shares unless
        `way` or `share` names one."""
        parts = [s for s in self.traffic if way in (None, s.way) and share in (None, s.share)]
        if not parts:
            return EMPTY
        rounds = np.unique(np.concatenate([s.rounds for s in parts]))
        total = np.zeros(len(rounds))
        for s in parts:
            total[np.searchsorted(rounds, s.rounds)] += s.bytes
        return rounds, np.cumsum(total)

    @cached_property
    def bytes_up(self) -> Series:
        return self.bytes_by_round("up")

    @cached_property
    def bytes_down(self) -> Series:
        return self.bytes_by_round("down")

    @property
    def K(self) -> int:
        """How many clients it has, as federation.json says; more than any run has where that does not say."""
        return clients_of(self.federation)

    @cached_property
    def attendance(self) -> list[Attendance]:
        """Who was asked and who answered, by round."""
        rounds = (e for e in self.events if e.get("code") == "round")
        whose = (([many.clients_in(e[k], self.K) for k in ("asked", "answered")], e) for e in rounds)
        return [Attendance(e["t"], asked, answered, e.get("received")) for (asked, answered), e in whose]

    @cached_property
    def replies(self) -> Replies:
        """How many replies came and how many were used."""
        return Replies.of(self.events, self.K)

    @property
    def doubt(self) -> str:
        """Why the run's scores say little: many replies were dropped (E317), an exchange was left out, numbers were cut (E322), a metric was changed (E327),
        or the run ended in the first stage of its method (E139)."""
        said = {e.get("code"): str(e.get("text", "")) for e in self.events if e["t"]}
        other = left_out(self.replies) or cut_short(self.replies) or rescored(self.replies)
        return said.get(MANY_DROPPED) or other or said.get(FIRST_STAGE, "")

    @property
    def histograms(self) -> dict[str, Any]:
        """Class histograms, if they were measured: {"buffer": [C], "local": [[C]...], "mixed": [[C]...]}."""
        return self.measures.get("histograms", {})

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """By part, what its noisy release amounts to as differential privacy; {} if nothing is noisy."""
        return {part: account for part, account in privacy.read(self.path).items() if part != privacy.ATTACKS}

    @cached_property
    def attacks(self) -> dict[str, Any]:
        """By name, what attacks on this run have measured; {} if nobody has attacked it."""
        return privacy.read(self.path).get(privacy.ATTACKS, {})

    @cached_property
    def measures(self) -> dict[str, Any]:
        """Matrices and pictures of the last round, by measure; {} if nothing was measured."""
        path = self.path / "measures.json"
        return findings.measures(path, path.read_bytes()) if path.is_file() else {}


def clients_of(federation: Mapping[str, Any]) -> int:
    """How many clients federation.json speaks of; more than any run has where it does not say."""
    clients = federation.get("clients")
    return min(clients, many.MOST) if isinstance(clients, int) and clients > 0 else many.MOST


def by_method(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """The runs of each method, one per seed, in the order given."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    return groups
