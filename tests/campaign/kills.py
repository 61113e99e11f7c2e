"""Kills: any process of the coordinator or of a site, at any moment of a run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

from tests.campaign.cases import Case, check, until
from tests.campaign.ground import SUPERVISED, Ground, alive
from tests.campaign.ongoing import Ongoing, runs
from tests.federation.loopback import SITES, below

FAMILY = "kills"
MOST_ROUNDS, ROUNDS_A_KILL = 40, 4
"""Rounds of a run: as many as its kills need, at most so many; then comes another run."""
RESTARTED_S = 10.0
"""How soon a program is there again."""
ROUND_S = 1.5
"""About how long a round takes: kills fall anywhere in it."""
HASTY = 0.25
"""How often the next kill does not wait until all sites answer again."""
EVERYTHING = (
    "serve",
    "front",
    "superlink",
    "run",
    *(f"{kind} {s}" for s in SITES for kind in ("site", "worker")),
)
"""What processes a run has that nobody disturbs. Any other is killed, too, when it is there."""

Made = Callable[[Ongoing], Case]


def cases(ground: Ground, count: int, rng: random.Random) -> Iterator[Case]:
    """So many kills, spread evenly over the processes, in runs of some rounds each."""
    rounds = min(MOST_ROUNDS, 5 + ROUNDS_A_KILL * count)
    return runs(ground, FAMILY, rounds, chosen(count, rng))


def chosen(count: int, rng: random.Random) -> Iterator[Made]:
    """Which process is killed, and when: every process once before any of them a second time."""
    waiting: list[str] = []
    for _ in range(count):
        if not waiting:
            waiting = rng.sample(EVERYTHING, len(EVERYTHING))
        delay_s, hasty = rng.random() * ROUND_S, rng.random() < HASTY
        yield partial(_case, waiting.pop(), delay_s, hasty)


def _case(label: str, delay_s: float, hasty: bool, run: Ongoing) -> Case:
    return Case(FAMILY, f"{label} in {run.name}", partial(kill, run, label, delay_s, hasty), 240)


def kill(run: Ongoing, label: str, delay_s: float, hasty: bool) -> str:
    """Kill -9 a process; whatever started it, or the machine's supervisor, brings it back, and the run goes
    on."""
    ground, name = run.ground, run.command if label == "run" else label
    run.wait(lambda: run.ended or name in ground.programs().pids, 90, f"a process '{name}'")
    run.goes_on()
    time.sleep(delay_s)
    programs = ground.programs()
    strange = sorted(set(programs.pids) - set(EVERYTHING) - {run.command})
    if strange:
        label = name = strange[0]
    if run.ended or name not in programs.pids:
        return "the run was over, or the process had just ended by itself"
    pid, owner, t = programs.pids[name], programs.owners[name], run.round
    started = below(pid)
    os.kill(pid, signal.SIGKILL)
    if name.startswith(SUPERVISED):
        took_s = back(run, name, pid, owner)
    else:
        took_s = replaced(run, owner, started)
    run.goes_on(90)
    if not hasty:
        run.complete(120)
    return f"after round {t}; there again after {took_s:.1f} s, at round {run.round} now"


def back(run: Ongoing, label: str, pid: int, owner: str) -> float:
    """Wait until unskew has started a program again, and has said so."""
    ground = run.ground

    def there() -> bool:
        return run.ended or ground.programs().pids.get(label, pid) != pid

    took_s = run.wait(there, RESTARTED_S, f"another '{label}'")
    said = [
        line for line in ground.log(owner).splitlines() if "ended with code -9 and will be restarted" in line
    ]
    check(run.ended or bool(said), f"{owner} does not say that '{label}' was killed")
    return took_s


def replaced(run: Ongoing, owner: str, orphans: list[int]) -> float:
    """Wait until nothing that a killed process had started is left, then start it once more."""
    ground = run.ground
    ground.running[owner].wait()
    took_s = until(
        lambda: not any(map(alive, orphans)), RESTARTED_S, "what it had started goes on without it"
    )
    if owner == run.command:
        ground.running.pop(owner)
        ground.start(owner, "resume", f"runs/{run.name}", "--json")
    else:
        ground.again(owner)
    return took_s
