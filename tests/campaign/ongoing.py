"""A run that goes on while things happen to it: followed, resumed whenever it asks for that, and judged at
its end."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import unskew
from tests.campaign.cases import PATIENCE, Case, Wrong, check, until
from tests.campaign.ground import Ground
from tests.federation.loopback import SITES, STUDY, samples
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.federation import journal
from unskew.records import client_lists

CALM = 3
"""Rounds at the end of a run in which nothing is begun any more."""
RESUME = "unskew resume"
DEADLINE_S = 10
"""Of an exchange."""


@dataclass
class Ongoing:
    """`rounds` rounds among at least two sites."""

    ground: Ground
    name: str
    rounds: int
    least: int = 2
    wait_s: int = 60
    """How long it waits for sites before round 1."""
    resumed: int = 0
    ended: bool = False
    pauses: list[str] = field(default_factory=list)
    """What its command said whenever it ended early."""

    @property
    def command(self) -> str:
        return f"run {self.name}"

    @property
    def path(self) -> Path:
        return self.ground.root / "runs" / self.name

    @property
    def round(self) -> int:
        """The last round that is over."""
        lines = self.ground.rounds(self.name)
        return int(lines[-1].split("round ")[1].split(":")[0]) if lines else 0

    @property
    def has_time(self) -> bool:
        """Whether something may still be begun."""
        return not self.ended and self.round < self.rounds - CALM

    def begin(self) -> str:
        terms = ["--on", "lung", "--name", self.name, "--json", "--min-sites", str(self.least)]
        times = [
            f"--deadline={DEADLINE_S * PATIENCE.factor:g}s",
            f"--wait={self.wait_s * PATIENCE.factor:g}s",
        ]
        self.ground.start(self.command, "run", "study.yaml", *terms, *times, "--rounds", str(self.rounds))
        self.wait(lambda: self.round >= 1, 90, "round 1")
        return f"{self.rounds} rounds"

    def tend(self) -> None:
        """Resume the run if its command has ended early. Raises Wrong if it did not say that this is the way
        to go on."""
        process = self.ground.running.get(self.command)
        if self.ended or process is None or process.poll() is None:
            return
        last = (self.ground.log(self.command).strip().splitlines() or [""])[-1]
        if process.returncode == 0:
            self.ended = True
            return
        self.pauses.append(last)
        # 130: Flower's client interrupts a run whose token is not accepted any more
        check(
            process.returncode in (2, 75, 130) and RESUME in last, f"exit code {process.returncode}: {last}"
        )
        check(self.resumed < 40, f"resumed 40 times: {last}")
        self.resumed += 1
        self.ground.running.pop(self.command)
        self.ground.start(self.command, "resume", f"runs/{self.name}", "--json")

    def wait(self, there: Any, seconds: float, what: str) -> float:
        """Wait, and resume the run meanwhile as often as needed."""

        def look() -> bool:
            self.tend()
            return there()

        return until(look, seconds, lambda: f"{what}; {self.last_words()}")

    def goes_on(self, seconds: float = 60) -> float:
        """Wait for a round after this one, unless the run is over."""
        now = self.round
        return self.wait(lambda: self.ended or self.round > now, seconds, f"a round after {now}")

    def complete(self, seconds: float = 120) -> float:
        """Wait for a round from now on in which all sites of the run answer."""
        now = len(self.ground.rounds(self.name))
        return self.wait(lambda: self.ended or self.has_all_since(now), seconds, "a round with all sites")

    def has_all_since(self, line: int) -> bool:
        counts = (re.search(r": (\d+)/(\d+) sites", text) for text in self.ground.rounds(self.name)[line:])
        return any(count and count[1] == count[2] for count in counts)

    def told(self, code: str, site: str = "", since: int = 0) -> list[str]:
        """What the run's events say with this code of this site, beginning with the given event."""
        texts = [e.get("text", "") for e in self.events()[since:] if e["code"] == code]
        return [text for text in texts if text.startswith(site)]

    def events(self) -> list[dict[str, Any]]:
        path = self.path / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def last_words(self) -> str:
        """The ends of what its command and its own log say."""
        own, said = self.ground.log(f"runs/{self.name}/server"), self.ground.log(self.command)
        return " | ".join([*own.splitlines()[-3:], *said.splitlines()[-1:]])

    def end(self) -> str:
        """Wait for the end, then hold it against the simulator and the journal. Returns what was seen."""
        self.wait(lambda: self.ended, 60 + 12 * max(1, self.rounds - self.round), "the end")
        result = json.loads(self.ground.log(self.command).splitlines()[-1])
        self.ground.running.pop(self.command, None)
        events = self.ground.events(self.name)
        answered = answers(events)
        check(len(answered) == self.rounds, f"{len(answered)} rounds in the record, not {self.rounds}")
        sites = [site["site"] for site in json.loads((self.path / "sites.json").read_text())["sites"]]
        check(
            len(answered[self.rounds]) == len(sites),
            f"in the last round only {answered[self.rounds]} answered",
        )
        expected = replayed(self.ground.root / f"{self.name}.csv", self.rounds, answered, sites)
        check(
            result["sha256"] == expected, f"SHA-256 {result['sha256'][:16]}, the simulator's {expected[:16]}"
        )
        lines = check_journal(self.path, self.ground)
        missing = sum(len(sites) - len(clients) for clients in answered.values())
        times = f", resumed {self.resumed} times" if self.resumed else ""
        return (
            f"the simulator's SHA-256 {expected[:12]}; {missing} of {len(sites) * self.rounds} answers"
            f" missing{times}; journal of {lines} lines holds"
        )


def runs(ground: Ground, family: str, rounds: int, cases: Iterator[Any]) -> Iterator[Case]:
    """Cases made from an ongoing run, one run after the other, until there are no more cases.

    cases: of functions from a run to a Case.
    """
    made, number = next(cases, None), 0
    while made is not None:
        number += 1
        run = Ongoing(ground, f"{family}{number}".replace(" ", "-"), rounds)
        yield Case(family, f"{run.name} begins", run.begin, 180, counts=False)
        if not run.round:
            return
        while made is not None and run.has_time:
            yield made(run)
            made = next(cases, None)
        yield Case(family, f"{run.name} ends", run.end, 120 + 15 * rounds, counts=False)
        if not run.ended:
            return


def answers(events: Iterable[Mapping[str, Any]]) -> dict[int, list[int]]:
    """By round, the clients whose answers were used."""
    return {e["t"]: client_lists.clients_in(e["answered"]) for e in events if e["code"] == "round"}


def replayed(file: Path, rounds: int, answered: Mapping[int, list[int]], sites: Sequence[str]) -> str:
    """The digest of the simulator's weights where exactly these clients answer. file: is written, and read by
    it.

    sites: those that take part, in the order of client ids.
    """
    with open(file, "w", newline="") as trace:
        rows = csv.writer(trace)
        rows.writerow(["round", "client"])
        rows.writerows([t, k] for t, clients in answered.items() for k in clients)
    study = {
        **STUDY,
        "method": "scaffold+clip_median",
        "rounds": rounds,
        "cap": 0.5,
        "availability": f"trace:{file}",
    }
    dealt, places = samples(), [SITES.index(site) for site in sites]
    train, test = (Index.of([rows[k] for k in places]) for rows in (dealt.train, dealt.test))
    inputs = (dealt.x, dealt.y, dealt.x_test, dealt.y_test)
    federation = Federation(dealt.name, *inputs, dealt.classes, train, test, dealt.skew)
    return unskew.run(**study, data=federation, lanes="1", clients=len(sites)).digest


def check_journal(run: Path, ground: Ground) -> int:
    """Raises Wrong unless the journals of a finished run and of the federation hold. Returns the run's number
    of lines."""
    key = ground.home.key.public
    verdict = journal.verify(run / journal.JOURNAL_FILE, key)
    check(not verdict.wrong, f"line {verdict.lines} of the run's journal {verdict.wrong}")
    if changed := journal.changed_files(run / journal.JOURNAL_FILE, run):
        raise Wrong(f"files that differ from the journal: {changed}")
    federations = ground.home.folder / journal.JOURNAL_FILE
    if federations.exists():
        own = journal.verify(federations, key)
        check(not own.wrong, f"line {own.lines} of the federation's journal {own.wrong}")
    return verdict.lines
