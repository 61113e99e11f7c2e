"""Clocks that jump while a study runs: a site's, the server's, and all together."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial

from tests.campaign.cases import CannotTry, Case, check, until
from tests.campaign.ground import SERVER, Ground
from tests.campaign.ongoing import Ongoing, runs
from tests.federation.loopback import SITES

FAMILY = "clocks"
ROUNDS = 30
HOUR, DECADE = 3600.0, 10 * 365 * 86400.0
AWAY_S, BACK_S = 90.0, 150.0
"""How soon a site whose clock is off is missed, and how soon everybody is there again."""
OFF = "clocks differ"
"""What a site says whom the server lets in no more."""


def cases(ground: Ground, rng: random.Random) -> Iterator[Case]:
    """Steps of clocks, each set right again but for those of all together, to which nobody outside compares
    them."""
    if not ground.clocks:
        yield Case(FAMILY, "steps", _left_out)
        return
    one, two, three, four = rng.choices(SITES, k=4)
    made: list[tuple[str, Callable[[Ongoing], str]]] = [
        (f"{one} 30 s ahead", lambda run: alone(run, one, 30.0)),
        (f"{two} 400 s behind", lambda run: alone(run, two, -400.0)),
        (f"{three} 200 s behind", lambda run: unnoticed(run, three, -200.0)),
        ("the server an hour back", lambda run: server(run, -HOUR)),
        ("the server an hour ahead", lambda run: server(run, HOUR)),
        ("everybody an hour ahead", lambda run: together(run, HOUR)),
        ("everybody two hours back", lambda run: together(run, -HOUR)),
        ("everybody back in time, and the server is restarted", restarted),
        (f"{four} is restarted ten years ago", lambda run: long_ago(run, four)),
    ]
    yield from runs(ground, FAMILY, ROUNDS, (partial(_case, name, work) for name, work in made))


def _left_out() -> str:
    raise CannotTry("clocks cannot be moved here")


def _case(name: str, work: Callable[[Ongoing], str], run: Ongoing) -> Case:
    def tried() -> str:
        try:
            return work(run)
        finally:
            if not name.startswith("everybody"):
                move(run.ground, *run.ground.clocks, by=0.0)

    return Case(FAMILY, f"{name} in {run.name}", tried, 330)


def move(ground: Ground, *names: str, by: float) -> None:
    for name in names:
        ground.clocks[name].move(by)


def alone(run: Ongoing, site: str, by: float) -> str:
    """The run goes on without a site whose clock is off, which says so; once it is right, the site is
    back."""
    ground, before, t = run.ground, run.ground.log(site).count(OFF), run.round
    events = len(run.events())
    move(ground, site, by=by)
    took_s = run.wait(
        lambda: ground.log(site).count(OFF) > before, AWAY_S, f"{site} says that its clock is off"
    )
    run.goes_on()
    move(ground, site, by=0.0)
    back_s = run.complete(BACK_S)
    missed = len(run.told("E311", site, events))
    return (
        f"after round {t}; {site} says so after {took_s:.0f} s, misses {missed} rounds, and is back after"
        f" {back_s:.0f} s"
    )


def unnoticed(run: Ongoing, site: str, by: float) -> str:
    """What the server takes costs no answer."""
    events, t = len(run.events()), run.round
    move(run.ground, site, by=by)
    for _ in range(3):
        run.goes_on()
    named = run.told("E311", site, events)
    check(not named, f"{site} was missed: {named}")
    return f"rounds {t + 1} to {run.round} with all sites"


def server(run: Ongoing, by: float) -> str:
    """The server lets nobody in while its clock is off; once it is right, all are back, and the run goes
    on."""
    ground, t, before = run.ground, run.round, [run.ground.log(site).count(OFF) for site in SITES]
    move(ground, SERVER, by=by)
    run.wait(
        lambda: all(ground.log(s).count(OFF) > n for s, n in zip(SITES, before)), AWAY_S, "all sites say so"
    )
    move(ground, SERVER, by=0.0)
    return _complete(run, t)


def together(run: Ongoing, by: float) -> str:
    """As a whole that compares its clocks with nobody's, the federation goes on."""
    t = run.round
    move(run.ground, *run.ground.clocks, by=by)
    return _complete(run, t)


def _complete(run: Ongoing, t: int) -> str:
    """Wait until all sites answer again, after round t."""
    seconds = run.complete(BACK_S)
    return f"after round {t}; all sites answer again after {seconds:.0f} s; resumed {run.resumed} times"


def restarted(run: Ongoing) -> str:
    """No number that must grow depends on the clock, and no certificate is younger than the time."""
    ground, t = run.ground, run.round
    move(ground, *ground.clocks, by=-1.5 * HOUR)
    os.kill(ground.running["serve"].pid, signal.SIGKILL)
    ground.again("serve")
    return _complete(run, t)


def long_ago(run: Ongoing, site: str) -> str:
    """A machine whose clock has lost its battery: the site says what is wrong with its clock, and stops."""
    ground = run.ground
    move(ground, *ground.clocks, by=0.0)
    run.complete(BACK_S)
    move(ground, site, by=-DECADE)
    os.kill(ground.running[site].pid, signal.SIGTERM)
    ground.again(site)
    try:
        until(lambda: ground.running[site].poll() is not None, 90, "it goes on as if all were well")
        said, code = ground.log(site).strip().splitlines()[-1], ground.running[site].returncode
        check(code == 2 and said.startswith("E503"), f"exit code {code}: {said}")
        check("clock" in said, f"it does not name its clock: {said}")
    finally:
        move(ground, site, by=0.0)
        if ground.running[site].poll() is not None:
            ground.again(site)
    return f"{said}; back after {run.complete(BACK_S):.0f} s"
