"""Conformance: checks that every method must pass, built-in or third-party, as scikit-learn's check_estimator has them.

They train for a few rounds on a small seeded federation; a check that fails says in one sentence what is wrong.
"""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from unskew import own
from unskew.core import gate
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.trees import flat, size_in_bytes
from unskew.engine.assemble import loop_of
from unskew.engine.disk.folder import Folder
from unskew.engine.disk.state import State, digest
from unskew.engine.resolve import resolve
from unskew.engine.server.loop import Loop, Round
from unskew.engine.testbed import SIZES, federation, settings_for
from unskew.engine.testbed import settings as settings
from unskew.errors import UnskewError, UsageError
from unskew.methods import registry

DROPPED = {f"E30{i}" for i in range(1, 9)}
"""The codes of the gate for replies that are not as declared, in training and in trips."""
COMPANIONS = ("fedprox", "fedbn", "scaffold", "flea", "rebafl", "fedrdn")
"""Methods with which every Part must combine, or refuse to in a sentence."""


@dataclass(frozen=True)
class CheckResult:
    """How a method did in one check. detail: what is wrong, or a remark on a check that passed."""

    name: str
    ok: bool
    detail: str = ""


Check = Callable[[Part], str | None]
"""Raises CheckFailed unless the Part passes, and may return a remark."""


class CheckFailed(AssertionError):
    """A check that failed; the text is for the method's author."""


def check_method(part: Part, checks: Sequence[Check] | None = None) -> Iterator[CheckResult]:
    """Run these checks (default: all) on the method made of this Part. A check that raises any error has failed."""
    errors: set[str] = set()
    for check in CHECKS if checks is None else checks:
        name = check.__name__.replace("_", " ")
        try:
            yield CheckResult(name, True, check(part) or "")
        except CheckFailed as failure:
            yield CheckResult(name, False, str(failure))
        except Exception as error:  # whatever a method raises is a result of the check, not a crash of it
            text = _described(part, error)
            yield CheckResult(name, False, "could not run, for the same reason" if text in errors else text)
            errors.add(text)


def _described(part: Part, error: Exception) -> str:
    """An error of the method's own code, and its line in the file."""
    if isinstance(error, UnskewError):
        return str(error)
    file = inspect.getsourcefile(type(part)) or ""
    return f"{own.in_one_line(error)}{own.line(file, error)}"


def loop(method: Method, **changes: object) -> Loop:
    """A run of the test federation that is ready to begin; its trainer must be closed."""
    return loop_of(resolve(settings_for(method, **changes), federation(), method))


def train(method: Method, **changes: object) -> tuple[str, Loop]:
    """(digest of the final weights, the loop), after all rounds.

    Raises CheckFailed if weights are not finite or the gate drops a reply.
    """
    run = loop(method, **changes)
    try:
        state = run.begin()
        for t in range(1, run.settings.rounds + 1):
            state, _ = run.round(state, t)
            if not all(bool(torch.isfinite(v).all()) for v in state.weights.values()):
                raise CheckFailed(f"weights are not finite after round {t}")
        if dropped := [e["text"] for e in run.record.rows["events"] if e["code"] in DROPPED]:
            raise CheckFailed(f"the gate refused an honest reply: {dropped[0]}")
        return digest(state.weights), run
    finally:
        run.trainer.close()


def is_deterministic(part: Part) -> None:
    if train(Method(part))[0] != train(Method(part))[0]:
        raise CheckFailed("two equal runs ended with different bits; draw random numbers through noise()")


def gives_the_same_bits_for_any_number_of_workers(part: Part) -> None:
    if train(Method(part), lanes="8", workers=1)[0] != train(Method(part), lanes="8", workers=2)[0]:
        raise CheckFailed("the number of workers changed the bits; hooks must not share state")


def gives_the_same_bits_for_two_workers_with_one_lane(part: Part) -> None:
    if train(Method(part), lanes="1", workers=1)[0] != train(Method(part), lanes="1", workers=2)[0]:
        raise CheckFailed("with one lane, two workers changed the bits; hooks must not share state")


def agrees_for_three_and_eight_lanes(part: Part) -> str:
    worst = _difference(_weights(Method(part), "8"), _weights(Method(part), "3"))
    if worst > 1e-5:
        raise CheckFailed(f"three lanes and eight differ by {worst:.2g} after a round; hooks must not mix clients")
    return f"largest difference {worst:.1e}" if worst else ""


def agrees_for_one_lane_and_many(part: Part) -> str:
    worst = _difference(_weights(Method(part), "8"), _weights(Method(part), "1"))
    if worst > 1e-3:
        raise CheckFailed(f"one lane and many differ by {worst:.2g} after a round; does a hook average over padding?")
    return f"largest difference {worst:.1e}"


def ignores_padding(part: Part) -> None:
    """Short batches are padded with row 0: other values there must not change the bits of clients that do not own it."""
    if any(trip.everyone for trip in part.trips):
        return  # row 0 is client 0's, and what it shared before round 1 reaches everybody
    digests = []
    for value in (0.1, 0.9):
        fed = federation()
        x = np.array(fed.x)
        x[0] = value
        method = Method(part)
        run = loop_of(resolve(settings_for(method, rounds=1), dataclasses.replace(fed, x=x), method))
        try:
            start = run.down(run.begin(), 1)
            replies = run.trainer.train(start, range(1, len(SIZES)), {})
            digests.append({r.client: digest(r.weights) for r in replies})
        finally:
            run.trainer.close()
    if digests[0] != digests[1]:
        raise CheckFailed("the padding of short batches reached the result; average with batch.mean")


def resumes_to_the_same_bits(part: Part) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uninterrupted = _train_in_folder(part, Path(folder) / "uninterrupted", stop=None)
        _train_in_folder(part, Path(folder) / "resumed", stop=2)
        if uninterrupted != _train_in_folder(part, Path(folder) / "resumed", stop=None):
            raise CheckFailed("a resumed run ended with other bits; keep state in slices, not on the Part")


def shares_only_what_it_declares(part: Part) -> str:
    run = loop(Method(part))
    try:
        replies = run.trainer.train(run.down(run.begin(), 1), range(len(SIZES)), {})
    finally:
        run.trainer.close()
    declared = part.shares(run.fed)
    for reply in replies:
        shares = flat(reply.shares.get(part.name, {}))
        if differing := sorted(set(shares) ^ set(declared)):
            raise CheckFailed(f"shares {differing} are not both declared and sent")
        for leaf, share in declared.items():
            if None not in share.shape and size_in_bytes({leaf: shares[leaf]}) != share.max_bytes:
                raise CheckFailed(f"'{leaf}' is {list(shares[leaf].shape)}; declared {list(share.shape)}")
    _, refusals = gate.check(replies, run.spec, run.fed.sizes.tolist())
    if refusals:
        raise CheckFailed(f"the gate refused an honest reply: client {refusals[0].client}: {refusals[0].text}")
    undeclared = [leaf for leaf, share in declared.items() if share.kind is None]
    return f"{', '.join(undeclared)}: no kind is declared, so real sites count it as inputs" if undeclared else ""


def copes_with_absent_clients_and_empty_rounds(part: Part) -> None:
    train(Method(part), availability="drop:0.4", rounds=5)
    train(Method(part), availability="drop:1.0", rounds=2)


def changes_nothing_with_neutral_settings(part: Part) -> str:
    if not part.neutral:
        return "declares no neutral settings"
    neutral = dataclasses.replace(part, **part.neutral)  # type: ignore[type-var]
    worst = _difference(_weights(Method(), "8"), _weights(Method(neutral), "8"))
    if worst > 1e-6:
        raise CheckFailed(f"{neutral} and FedAvg differ by {worst:.2g} after a round")
    return ""


def combines_with_other_methods(part: Part) -> str:
    refusals = []
    for name in COMPANIONS:
        if name == part.name:
            continue
        try:
            train(Method(part, *registry.parse(name).parts), rounds=2)
        except UsageError as refusal:
            refusals.append(f"{name}: {refusal.text}")
    return "refused " + "; ".join(refusals) if refusals else ""


def has_scores_in_every_scope(part: Part) -> None:
    run = loop(Method(part), rounds=2)
    try:
        state = run.begin()
        for t in (1, 2):
            state, summary = run.round(state, t)
            run.evaluate(state, summary)
    finally:
        run.trainer.close()
    scopes = {"personal@client": "mean"}
    if run.trainer.sent:
        scopes |= {"global": "accuracy", "global@client": "worst"}
    for scope, metric in scopes.items():
        _, values = run.record.series(scope, metric)
        if not values or not all(0 <= v <= 1 for v in values):
            raise CheckFailed(f"there is no score in scope {scope}")


CHECKS: tuple[Check, ...] = (
    is_deterministic,
    gives_the_same_bits_for_any_number_of_workers,
    gives_the_same_bits_for_two_workers_with_one_lane,
    agrees_for_three_and_eight_lanes,
    agrees_for_one_lane_and_many,
    ignores_padding,
    resumes_to_the_same_bits,
    shares_only_what_it_declares,
    copes_with_absent_clients_and_empty_rounds,
    changes_nothing_with_neutral_settings,
    combines_with_other_methods,
    has_scores_in_every_scope,
)
"""All checks, by what they say of a method that passes. They return a remark, and raise CheckFailed."""


def _weights(method: Method, lanes: str) -> dict[str, torch.Tensor]:
    """The weights after one round."""
    run = loop(method, lanes=lanes)
    try:
        return dict(run.round(run.begin(), 1)[0].weights)
    finally:
        run.trainer.close()


def _difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of any of the first's weights."""
    return max(float((t - other[n]).abs().max()) for n, t in one.items())


class _Stop(Exception):
    pass


def _train_in_folder(part: Part, path: Path, stop: int | None) -> str:
    """The digest of the final weights; empty if the run was stopped after the round `stop`."""

    def stop_after(state: State, summary: Round | None) -> None:
        if stop and summary and summary.t == stop:
            raise _Stop

    try:
        method = Method(part)
        run = resolve(settings_for(method, rounds=4, method=part.name), federation(), method)
        _, state = Folder(path, run).go(lambda _: None, stop_after)
        return digest(state.weights)
    except _Stop:
        return ""
