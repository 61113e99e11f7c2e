"""Conformance: what every method must stand, ours or a stranger's, as scikit-learn's check_estimator does for estimators.

Small seeded data, a few rounds; each check says what it found wrong in one sentence.
"""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from unskew import data, own
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trees import flat
from unskew.data.federation import Federation, Index
from unskew.engine import resolve
from unskew.engine.disk.folder import Folder
from unskew.engine.disk.state import digest
from unskew.engine.server.loop import Loop
from unskew.errors import UnskewError, UsageError
from unskew.methods import registry

SIZES = (40, 1, 0, 2, 33, 17, 3, 20)
"""Clients of the test federation: the first has one class, the third nothing, the second a single sample."""
DROPPED = {f"E30{i}" for i in range(1, 9)}
"""What the gate says of replies that are not as declared, in training and in trips."""
COMPANIONS = ("fedprox", "fedbn", "scaffold", "flea", "rebafl", "fedrdn")


@dataclass(frozen=True)
class Found:
    name: str
    ok: bool
    detail: str = ""


class Broken(AssertionError):
    """A check that did not hold; the text is for the method's author."""


def check_method(part: Part) -> Iterator[Found]:
    """Run every check on one Part; a check that raises anything has failed."""
    said: set[str] = set()
    for check in CHECKS:
        name = check.__name__.strip("_").replace("_", " ")
        try:
            yield Found(name, True, check(part) or "")
        except Broken as broken:
            yield Found(name, False, str(broken))
        except Exception as error:  # any error of a stranger's code is a finding, not a crash
            detail = _crashed(part, error)
            yield Found(name, False, "could not be looked at, for the same reason" if detail in said else detail)
            said.add(detail)


def _crashed(part: Part, error: Exception) -> str:
    """What a stranger's code ended in, and where."""
    if isinstance(error, UnskewError):
        return str(error)
    file = inspect.getsourcefile(type(part)) or ""
    return f"{own.in_one_line(error)}{own.line(file, error)}"


def federation(channels: int = 3) -> Federation:
    """Eight small clients of 8x8 images in three classes."""
    rng = np.random.default_rng(7)
    n = sum(SIZES)
    y = rng.integers(0, 3, n)
    y[: SIZES[0]] = 1
    x = (0.2 * rng.random((n, channels, 8, 8)) + 0.2 * y[:, None, None, None]).astype(np.float32)
    edges = np.cumsum([0, *SIZES])
    train = Index.of([np.arange(a, b) for a, b in pairwise(edges)])
    dataset = data.arrays(x, y, x[:60], y[:60], classes=("a", "b", "c"), name="check")
    made = data.build(dataset, "iid", len(SIZES), rng, np.random.default_rng(8))
    return dataclasses.replace(made, x=x, y=y.astype(np.int64), train=train)


def settings(**changes: object) -> Settings:
    return Settings(clients=len(SIZES), rounds=3, epochs=1, batch=16, workers=1, model="cnn_small").replace(**changes)


def loop(method: Method, **changes: object) -> Loop:
    return resolve.loop_of(settings(**changes), method, federation())


def train(method: Method, **changes: object) -> tuple[str, Loop]:
    """(digest of the final weights, the loop), after three rounds."""
    made = loop(method, **changes)
    try:
        state = made.begin()
        for t in range(1, made.settings.rounds + 1):
            state, _ = made.round(state, t)
            if not all(bool(torch.isfinite(v).all()) for v in state.weights.values()):
                raise Broken(f"weights are not finite after round {t}")
        dropped = [e["text"] for e in made.record.rows["events"] if e["code"] in DROPPED]
        if dropped:
            raise Broken(f"the gate refused an honest reply: {dropped[0]}")
        return digest(state.weights), made
    finally:
        made.trainer.close()


def _is_deterministic(part: Part) -> None:
    if train(Method(part))[0] != train(Method(part))[0]:
        raise Broken("two equal runs ended with different bits; draw random numbers through noise()")


def _same_bits_for_any_number_of_workers(part: Part) -> None:
    if train(Method(part), lanes="8", workers=1)[0] != train(Method(part), lanes="8", workers=2)[0]:
        raise Broken("the number of workers changed the bits; hooks must not share state")


def _lanes_agree(part: Part) -> str:
    eight, three = (_weights(Method(part), lanes) for lanes in ("8", "3"))
    worst = max(float((eight[n] - three[n]).abs().max()) for n in eight)
    if worst > 1e-5:
        raise Broken(f"eight lanes and three differ by {worst:.2g} after a round; hooks must treat clients apart")
    return f"largest difference {worst:.1e}" if worst else ""


def _one_lane_agrees(part: Part) -> str:
    many, one = (_weights(Method(part), lanes) for lanes in ("8", "1"))
    worst = max(float((many[n] - one[n]).abs().max()) for n in many)
    if worst > 1e-3:
        raise Broken(f"one lane and many differ by {worst:.2g} after a round; does a hook average over padding?")
    return f"largest difference {worst:.1e}"


def _padding_changes_nothing(part: Part) -> None:
    """The row that pads short batches is row 0; other values there must leave other clients' bits alone."""
    ends = []
    for value in (0.1, 0.9):
        fed = federation()
        x = np.array(fed.x)
        x[0] = value
        made = resolve.loop_of(settings(rounds=1), Method(part), dataclasses.replace(fed, x=x))
        try:
            start = made.down(made.begin(), 1)
            ends.append({r.client: digest(r.weights) for r in made.trainer.train(start, range(1, len(SIZES)), {})})
        finally:
            made.trainer.close()
    if part.trips and any(t.everyone for t in part.trips):
        return  # row 0 is client 0's, and what it shared before round 1 reaches everybody
    if ends[0] != ends[1]:
        raise Broken("the padding of short batches reached the result; average with batch.mean")


def _resumes_to_the_same_bits(part: Part) -> None:
    with tempfile.TemporaryDirectory() as folder:
        straight = _in_folder(part, Path(folder) / "straight", stop=None)
        _in_folder(part, Path(folder) / "halted", stop=2)
        if straight != _in_folder(part, Path(folder) / "halted", stop=None):
            raise Broken("a resumed run ended with other bits; keep state in slices, not on the Part")


def _leaves_nothing_undeclared(part: Part) -> None:
    made = loop(Method(part))
    try:
        start = made.down(made.begin(), 1)
        replies = made.trainer.train(start, range(len(SIZES)), {})
        declared = set(part.shares(made.fed))
        for reply in replies:
            sent = flat(reply.shares.get(part.name, {}))
            if set(sent) != declared:
                raise Broken(f"shares {sorted(set(sent) ^ declared)} are not both declared and sent")
            for leaf, share in part.shares(made.fed).items():
                if None not in share.shape and sent[leaf].numel() * sent[leaf].element_size() != share.max_bytes:
                    raise Broken(f"'{leaf}' is {list(sent[leaf].shape)}; declared {list(share.shape)}")
        refused = made._gate(1, replies, made.spec)
        if len(refused) != len(replies):
            raise Broken("the gate refused an honest reply: " + made.record.rows["events"][-1]["text"])
    finally:
        made.trainer.close()


def _stands_absence_and_an_empty_round(part: Part) -> None:
    train(Method(part), availability="drop:0.4", rounds=5)
    train(Method(part), availability="drop:1.0", rounds=2)


def _changes_nothing_when_neutral(part: Part) -> str:
    if not part.neutral:
        return "says no neutral settings"
    neutral = dataclasses.replace(part, **part.neutral)  # type: ignore[type-var]
    ends = [_weights(made, "8") for made in (Method(neutral), Method())]
    worst = max(float((ends[0][n] - ends[1][n]).abs().max()) for n in ends[1])
    if worst > 1e-6:
        raise Broken(f"{neutral} and FedAvg differ by {worst:.2g} after a round")
    return ""


def _composes(part: Part) -> str:
    told = []
    for name in COMPANIONS:
        if name == part.name:
            continue
        try:
            train(Method(part, *registry.parse(name).parts), rounds=2)
        except UsageError as refused:
            told.append(f"{name}: {refused.text}")
    return "refused " + "; ".join(told) if told else ""


def _evaluates(part: Part) -> None:
    made = loop(Method(part), rounds=2)
    try:
        state = made.begin()
        for t in (1, 2):
            state, told = made.round(state, t)
            made.evaluate(state, told)
    finally:
        made.trainer.close()
    wanted = [("personal@client", "mean")] + (
        [("global", "accuracy"), ("global@client", "worst")] if made.trainer.sent else []
    )
    for scope, metric in wanted:
        _, values = made.record.series(scope, metric)
        if not values or not all(0 <= v <= 1 for v in values):
            raise Broken(f"no score in scope {scope}")


CHECKS: tuple[Callable[[Part], str | None], ...] = (
    _is_deterministic,
    _same_bits_for_any_number_of_workers,
    _lanes_agree,
    _one_lane_agrees,
    _padding_changes_nothing,
    _resumes_to_the_same_bits,
    _leaves_nothing_undeclared,
    _stands_absence_and_an_empty_round,
    _changes_nothing_when_neutral,
    _composes,
    _evaluates,
)


def _weights(method: Method, lanes: str) -> dict[str, torch.Tensor]:
    made = loop(method, lanes=lanes)
    try:
        return dict(made.round(made.begin(), 1)[0].weights)
    finally:
        made.trainer.close()


class _Halt(Exception):
    pass


def _in_folder(part: Part, path: Path, stop: int | None) -> str:
    def shown(state: object, told: object) -> None:
        if stop and told.t == stop:  # type: ignore[attr-defined]
            raise _Halt

    try:
        _, state = Folder(path, settings(rounds=4, method=part.name), Method(part), federation()).go(
            lambda _: None, shown
        )
        return digest(state.weights)
    except _Halt:
        return ""
