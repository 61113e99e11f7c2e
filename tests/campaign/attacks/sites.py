"""An admitted site that lies, through its own key and connection, among two honest ones."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import partial

from tests.campaign.attacks.liar import HELLO, TRAIN
from tests.campaign.cases import Case, check, until
from tests.campaign.ground import Ground, check_unharmed
from tests.campaign.ongoing import Ongoing, runs

FAMILY = "sites"
LIAR, LIE = "c", "lie"
MOST_ROUNDS, ROUNDS_A_LIE = 60, 4
MOST_BYTES = 300 << 20
"""How much more the run's process may hold after a lie."""
USED = ("a count of 1e15",)
"""Lies whose answers are used all the same, with what was known before in place of the lie."""
CODES = {
    "tensors of other sizes": "E303",
    "tensors of another type": "E303",
    "complex numbers": "E303 E303",
    "NaN": "E301",
    "weights times 1e12": "E318",
    "more than was declared": "E303 E303",
    "a count of 1e15": "E305",
    "a count of -5": "E305",
    "a count that is no number": "E305",
    "a loss of 1e299": "E301",
    "the answer to an earlier request": "E303 E307",
    "the answer to another run": "E307",
    "another site's name": "E307",
    "another's signature": "E310",
    "tensors changed after signing": "E310",
    "a body of 60 MB": "E303 E311",
    "100,000 tensors": "E303 E311",
    "names of 1,500 levels": "E310",
    "a pickle": "E303",
    "axes that do not fit": "E310",
    "JSON of 100,000 levels": "E310",
    "an error that moves the cursor": "E311",
    "nothing in time": "E311",
    "more samples than are plausible": "E305",
    "a count beyond all counts": "E310",
    "another site": "E310",
    "another site's name in hello": "E310",
    "data of another shape": "E504",
    "100,000 classes": "E310 E504",
    "classes that move the cursor": "E504",
    "a shape of 300,000 axes": "E310",
}
"""With which code the coordinator names the liar; one of them, where that depends on sizes or on how fast the
machine is."""


def cases(ground: Ground, rng: random.Random) -> Iterator[Case]:
    """Every lie in training, in an order of its own, in runs that go on; then every lie of who one is, each
    in its run."""
    yield Case(FAMILY, f"{LIAR} becomes a liar", partial(replace, ground), 120, counts=False)
    lies = [lie for lie in TRAIN if lie != "the answer to another run"]
    rng.shuffle(lies)
    rounds = min(MOST_ROUNDS, 5 + ROUNDS_A_LIE * len(lies))
    yield from runs(ground, FAMILY, rounds, (partial(_case, lie) for lie in lies))
    for number, lie in enumerate(["the answer to another run", *HELLO]):
        run = Ongoing(ground, f"introduced{number}", 3, wait_s=8)
        yield Case(FAMILY, lie, partial(introduced, run, lie), 200)
    yield Case(FAMILY, f"{LIAR} is honest again", partial(restore, ground), 120, counts=False)


def replace(ground: Ground) -> str:
    """Put a liar in the place of a site."""
    ground.stop(LIAR)
    tell(ground, "")
    arguments = [f"site-{LIAR}", f"{LIAR}.npz", LIE]
    ground.start_module(LIAR, "tests.campaign.attacks.liar", *arguments)
    return connected(ground)


def restore(ground: Ground) -> str:
    ground.stop(LIAR)
    ground.start_site(LIAR)
    return connected(ground)


def connected(ground: Ground) -> str:
    before = ground.log(LIAR).count("connected to the server")
    until(lambda: ground.log(LIAR).count("connected to the server") > before, 90, "a connection")
    return "connected"


def tell(ground: Ground, lie: str) -> None:
    """Let the liar say this from now on; "" for the truth."""
    part = ground.root / "lie.part"
    part.write_text(lie)
    part.replace(ground.root / LIE)


def _case(lie: str, run: Ongoing) -> Case:
    return Case(FAMILY, f"{lie} in {run.name}", partial(lied, run, lie), 150)


def lied(run: Ongoing, lie: str) -> str:
    """The liar alone is named, with the code of its lie; its answer is not used, and the truth is, right
    after."""
    ground, since, rounds = run.ground, len(run.events()), len(run.ground.rounds(run.name))
    programs, memory = ground.programs(), ground.memory((run.command,))
    tell(ground, lie)
    try:
        run.wait(lambda: named(run, since) != [], 60, f"a word on {LIAR}")
        run.wait(lambda: len(ground.rounds(run.name)) > rounds, 60, "the end of the round")
    finally:
        tell(ground, "")
    code, *others = named(run, since)
    check(
        code in CODES[lie] and not others,
        f"named with {[code, *others]}, not {CODES[lie]}: {run.events()[since:]}",
    )
    told = f"{code} {run.told(code, LIAR, since)[0]}"
    check_unharmed(ground, programs)
    grown = ground.memory((run.command,)) - memory
    check(grown < MOST_BYTES, f"the run's process holds {grown / 2**20:.0f} MB more")
    check_clean(run, since)
    if lie not in USED:
        check(run.goes_on() >= 0 and missing(run, since), f"the answer was used: {told}")
    run.complete(60)
    return told


def named(run: Ongoing, since: int) -> list[str]:
    """The codes with which events name the liar."""
    return [e["code"] for e in run.events()[since:] if e.get("text", "").startswith((f"{LIAR} ", f"{LIAR}:"))]


def missing(run: Ongoing, since: int) -> bool:
    """Whether there was a round without the liar."""
    return any(e["code"] == "round" and 2 not in e["answered"] for e in run.events()[since:])


def check_clean(run: Ongoing, since: int) -> None:
    """Nobody else is named, nothing was run, and nothing that moves a cursor has reached a screen or a
    file."""
    ground = run.ground
    others = [e["text"] for e in run.events()[since:] if re.match(r"[ab](:| (?!node))", e.get("text", ""))]
    check(not others, f"an honest site is named: {others}")
    check(not (ground.root / "was-here").exists(), "a pickle was opened")
    for name in ("serve", f"runs/{run.name}/server", run.command):
        check("\x1b" not in ground.log(name), f"{name}.log moves the cursor")


def introduced(run: Ongoing, lie: str) -> str:
    """A run that begins beside the liar is that of the two honest sites, or of three in which the third is
    never used."""
    ground = run.ground
    tell(ground, lie)
    try:
        run.begin()
        text = run.end() if lie in HELLO else _never_used(run)
    finally:
        tell(ground, "")
    log = ground.log(f"runs/{run.name}/server")
    told = [line for line in log.splitlines() if any(code in line for code in CODES[lie].split())]
    check(bool(told), f"nothing with {CODES[lie]} in {log}")
    check_clean(run, 0)
    return f"{told[0][9:]}; {text}"


def _never_used(run: Ongoing) -> str:
    run.wait(lambda: run.ended or missing(run, 0), 60, "a round without the liar")
    tell(run.ground, "")
    return run.end()
