"""Cuts of the network between sites and the server, short and long, of one site or of all."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.campaign.cases import Case
from tests.campaign.ground import Ground
from tests.campaign.ongoing import Ongoing, runs
from tests.federation.loopback import SITES

FAMILY = "cuts"
MOST_ROUNDS, ROUNDS_A_CUT = 40, 6
SECONDS = (0.3, 2.0, 6.0, 14.0, 35.0)
"""How long the network is away: less than a round, a few rounds, more than the deadline of an exchange, and
more than a call of a site waits."""
BACK_S = 150.0
"""How long a site may take to take part again."""


def cases(ground: Ground, count: int, rng: random.Random) -> Iterator[Case]:
    """So many cuts; each duration as often as the others, half of them without a word (packets are held, not
    refused)."""
    return runs(ground, FAMILY, min(MOST_ROUNDS, 5 + ROUNDS_A_CUT * count), chosen(count, rng))


def chosen(count: int, rng: random.Random) -> Iterator[Callable[[Ongoing], Case]]:
    for number in range(count):
        sites = rng.sample(SITES, rng.choice((1, 1, 2, 3)))
        yield partial(_case, sorted(sites), SECONDS[number % len(SECONDS)], rng.random() < 0.5)


def _case(sites: list[str], seconds: float, silent: bool, run: Ongoing) -> Case:
    name = f"{'silence' if silent else 'no network'} at {', '.join(sites)} for {seconds:g} s in {run.name}"
    return Case(FAMILY, name, partial(cut, run, sites, seconds, silent), 300)


def cut(run: Ongoing, sites: list[str], seconds: float, silent: bool) -> str:
    """The run goes on with those who are left, or pauses; the sites come back by themselves, without a word
    from us."""
    cables, t = [run.ground.cables[site] for site in sites], run.round
    for cable in cables:
        cable.hold() if silent else cable.cut()
    try:
        end = time.monotonic() + seconds
        run.wait(lambda: time.monotonic() >= end, seconds + 5, "the end of the cut")
    finally:
        for cable in cables:
            cable.mend()
    during = run.round - t
    took_s = run.complete(BACK_S)
    return f"after round {t}; {during} rounds meanwhile; all sites answer again after {took_s:.0f} s"
