"""A coordinator that cannot be trusted: it holds the true key, and asks a site for what nobody has agreed
to."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from tests.campaign.attacks.liar import PICKLED
from tests.campaign.attacks.victim import NAME, PLACE, SITE, Victim, refused, settings
from tests.campaign.cases import CannotTry, Case, check, until
from tests.campaign.ground import Ground, alive
from unskew.federation.protocol.signed_messages import PrivateKey, SignedMessage
from unskew.federation.protocol.wire_format import seal
from unskew.federation.site.policy import Policy

FAMILY = "coordinator"
MOST_BYTES = 600 << 20
"""How much the worker may hold more after an attack."""


def cases(ground: Ground, rng: random.Random) -> Iterator[Case]:
    held: list[Victim] = []
    yield Case(FAMILY, "a site waits for its operator", lambda: _begin(ground, held), 120, counts=False)
    for name, attack in rng.sample(sorted(ATTACKS.items()), len(ATTACKS)):
        yield Case(FAMILY, name, partial(_guarded, held, attack), 90)
    yield Case(FAMILY, "the site stops", lambda: ground.stop(NAME) or "stopped", 60, counts=False)


def _begin(ground: Ground, held: list[Victim]) -> str:
    victim = Victim(ground)
    until(victim.socket.exists, 60, lambda: ground.log(NAME))
    held.append(victim)
    return "ready"


def _guarded(held: list[Victim], attack: Callable[[Victim], str]) -> str:
    """The worker lives, is of its size, has run nothing, and still serves an honest study."""
    if not held:
        raise CannotTry("the site has not started")
    (victim,) = held
    Policy().write(victim.folder)
    pid, memory = victim.pid, memory_of(victim.pid)
    seen = attack(victim)
    check(alive(pid) and pid == victim.pid, "the worker has ended")
    check(
        memory_of(pid) - memory < MOST_BYTES,
        f"the worker holds {(memory_of(pid) - memory) / 2**20:.0f} MB more",
    )
    check(not (victim.ground.root / "was-here").exists(), "code of a message was run")
    Policy().write(victim.folder)
    run, w = victim.begun(settings())
    answer = victim.ask("train", run, 1, {"w": w}, lr=0.05)
    check(answer.header.get("n", 0) > 0, f"an honest study is refused: {answer.header.get('text')}")
    return seen


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def unapproved(v: Victim) -> str:
    """Nothing of a study that waits is computed."""
    run, s = v.new_run(), settings("fedavg", seed=11, epochs=2)
    w = v.weights(s)
    first = refused(v.hello(run, s), "E522")
    v.refuses("E522", "setup", run, tree={"w": w}, settings=s.as_dict(), **PLACE)
    v.refuses("E205", "train", run, 1, {"w": w}, lr=0.05)
    v.refuses("E205", "score", run, 1, {"w": w}, lr=0.05)
    return first


def swapped(v: Victim) -> str:
    """Greets with one study, sets up another under the same number: the refused one is not kept warm."""
    v.allow(shares=("weights", "sums", "statistics", "inputs", "labels"), least_samples=1, least_batch=1)
    run, w = v.begun(settings())
    evil = settings("feddata(share=1.0)")
    text = refused(v.hello(run, evil), "E520")
    v.refuses("E520", "setup", run, tree={"w": w}, settings=evil.as_dict(), **PLACE)
    answer = v.ask("visit", run, part="feddata", trip=0, lr=0.05)
    check("code" in answer.header and not answer.tree, f"samples left: {list(answer.tree)}")
    check(
        v.ask("train", run, 1, {"w": w}, lr=0.05).header.get("n", 0) > 0,
        "the approved study is not trained any more",
    )
    return text


def averages(v: Victim) -> str:
    """Averages of inputs of another seed are other averages: two of them can be solved for samples."""
    v.allow(shares=("weights", "sums", "statistics", "inputs", "labels"), least_samples=1)
    run, _ = v.begun(settings("fedmix(group=8)", seed=1))
    again = settings("fedmix(group=8)", seed=2)
    v.refuses("E520", "hello", run, settings=again.as_dict())
    return refused(v.hello(v.new_run(), again), "E522")


def model_file(v: Victim) -> str:
    """A Python file as the model, and as the method."""
    trap = v.ground.root / "trap.py"
    trap.write_text(f"open({str(v.ground.root / 'was-here')!r}, 'w')\n")
    plain = settings().as_dict()
    texts = []
    for facts in (
        {"model": f"{trap}:make"},
        {"method": str(trap)},
        {"method": f"fedavg+{trap}:Part(x=1)"},
        {"method": f"fedprox + {trap}\n"},
    ):
        texts.append(v.refuses("E506", "hello", v.new_run(), settings=plain | facts))
        v.refuses(
            "E506", "setup", v.new_run(), tree={"w": {"a": torch.zeros(1)}}, settings=plain | facts, **PLACE
        )
    return texts[0]


def pickled(v: Victim) -> str:
    """A pickle in the place of tensors, with a digest and a signature that fit."""
    run, _ = v.begun(settings())
    head = {"run": run, "serial": next(v.serial), "site": SITE, "kind": "train", "t": 1, "lr": 0.05}
    text = json.dumps(head | {"sha256": hashlib.sha256(PICKLED).hexdigest()})
    answer = v.send(SignedMessage(text, v.key.sign(text.encode()), PICKLED))
    check(answer.header.get("code") in ("E303", "E310"), f"answered {answer.header}")
    return f"{answer.header['code']} {answer.header['text']}"


def forged(v: Victim) -> str:
    """Signed with another key."""
    run, w = v.begun(settings())
    head = {"run": run, "serial": next(v.serial), "site": SITE, "kind": "train", "t": 1, "lr": 0.05}
    return refused(v.send(seal(head, {"w": w}, PrivateKey.make())), "E310")


def replayed(v: Victim) -> str:
    """A request of its own, recorded and sent again; and one for another site."""
    run, w = v.begun(settings())
    head = {"run": run, "serial": next(v.serial), "site": SITE, "kind": "train", "t": 1, "lr": 0.05}
    request = seal(head, {"w": w}, v.key)
    answer = v.send(request).header
    check("n" in answer, f"the true request is refused: {answer.get('text')}")
    v.refuses("E310", "train", run, 1, {"w": w}, site="a", lr=0.05)
    return refused(v.send(request), "E307")


def longer(v: Victim) -> str:
    """More rounds than were approved, and the same round again and again."""
    run, w = v.begun(settings())
    texts = [v.refuses("E520", "train", run, 3, {"w": w}, lr=0.05)]
    answers = [v.ask("train", run, 1, {"w": w}, lr=0.05).header for _ in range(12)]
    check(
        answers[-1].get("code") == "E520",
        f"asked 12 times for round 1: {answers[-1].get('text', 'answered')}",
    )
    return " | ".join([*texts, answers[-1]["text"]])


def guarantee(v: Victim) -> str:
    """A guarantee by noise whose seed the coordinator knows, though the operator would let it begin."""
    v.allow(shares=("weights", "sums", "statistics", "features"), least_samples=1, least_batch=1)
    run, s = v.new_run(), settings("feddpms(alpha=5, width=8, mechanism=single)")
    refused(v.hello(run, s), "E522")
    v.approve(run)
    return v.refuses("E506", "setup", run, tree={"w": v.weights(s)}, settings=s.as_dict(), **PLACE)


ATTACKS: dict[str, Callable[[Victim], str]] = {
    "a study that nobody has approved": unapproved,
    "another study under an approved number": swapped,
    "other averages of inputs": averages,
    "Python files as model and method": model_file,
    "a pickle": pickled,
    "a forged signature": forged,
    "a request sent twice": replayed,
    "more rounds than were approved": longer,
    "a guarantee that would be false": guarantee,
}
