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
from unskew.core.protection import unsummed
from unskew.core.trees import flat, size_in_bytes
from unskew.engine.assemble import loop_of
from unskew.engine.checked import CheckFailed, Subject, Trained, fedavg, loop, train
from unskew.engine.disk.folder import Folder
from unskew.engine.disk.state import State, digest
from unskew.engine.server.summary import Round
from unskew.engine.testbed import SIZES, federation, run_for
from unskew.engine.testbed import settings as settings
from unskew.engine.testbed import settings_for as settings_for
from unskew.errors import UnskewError, UsageError
from unskew.methods import registry

COMPANIONS = ("fedprox", "fedbn", "scaffold", "flea", "rebafl", "fedrdn")
"""Methods with which every Part must combine, or refuse to in a sentence."""


@dataclass(frozen=True)
class CheckResult:
    """How a method did in one check. detail: what is wrong, or a remark on a check that passed."""

    name: str
    ok: bool
    detail: str = ""


Check = Callable[[Subject], str | None]
"""Raises CheckFailed unless the Part passes, and may return a remark."""


def check_method(part: Part, checks: Sequence[Check] | None = None) -> Iterator[CheckResult]:
    """Run these checks (default: all) on the method made of this Part. A check that raises any error has failed."""
    errors: set[str] = set()
    subject = Subject(part)
    for check in CHECKS if checks is None else checks:
        name = check.__name__.replace("_", " ")
        try:
            yield CheckResult(name, True, check(subject) or "")
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


def _differ(one: Trained, other: Trained) -> str:
    """Where two runs ended with different bits: " of the weights", or of what the server keeps beside them; "" nowhere."""
    if one.digest != other.digest:
        return " of the weights"
    return " of the server's slice" if one.of_slices != other.of_slices else ""


def is_deterministic(subject: Subject) -> None:
    """The second run is scored after each round, which must not change it either."""
    if place := _differ(subject.run(scored=True), subject.run()):
        text = f"two equal runs, one of them scored, ended with different bits{place}"
        raise CheckFailed(f"{text}; draw random numbers through noise(), and keep nothing on the Part")


def gives_the_same_bits_for_any_number_of_workers(subject: Subject) -> None:
    if place := _differ(subject.run(workers=2), subject.run()):
        raise CheckFailed(f"the number of workers changed the bits{place}; hooks must not share state")


def gives_the_same_bits_for_two_workers_with_one_lane(subject: Subject) -> None:
    if subject.run("1", workers=2).digest != subject.run("1").digest:
        raise CheckFailed("with one lane, two workers changed the bits; hooks must not share state")


def agrees_for_three_and_eight_lanes(subject: Subject) -> str:
    worst = _difference(subject.run().first, train(subject.method, lanes="3", until=1).first)
    if worst > 1e-5:
        raise CheckFailed(f"three lanes and eight differ by {worst:.2g} after a round; hooks must not mix clients")
    return f"largest difference {worst:.1e}" if worst else ""


def agrees_for_one_lane_and_many(subject: Subject) -> str:
    worst = _difference(subject.run().first, subject.run("1").first)
    if worst > 1e-3:
        raise CheckFailed(f"one lane and many differ by {worst:.2g} after a round; does a hook average over padding?")
    return f"largest difference {worst:.1e}"


def ignores_padding(subject: Subject) -> None:
    """Short batches are padded with row 0: other values there must not change the bits of clients that do not own it."""
    if any(trip.everyone or trip.when(0, 1) for trip in subject.part.trips):
        return  # row 0 is client 0's, and what it shared before round 1 reaches everybody
    digests = []
    for value in (0.1, 0.9):
        fed = federation()
        x = np.array(fed.x)
        x[0] = value
        run = loop_of(run_for(subject.method, dataclasses.replace(fed, x=x), rounds=1))
        try:
            start = run.down(run.begin(), 1)
            replies = run.trainer.train(start, range(1, len(SIZES)), {})
            digests.append({r.client: digest(r.weights) for r in replies})
        finally:
            run.trainer.close()
    if digests[0] != digests[1]:
        raise CheckFailed("the padding of short batches reached the result; average with batch.mean")


def resumes_to_the_same_bits(subject: Subject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _train_in_folder(subject.part, Path(folder), stop=2)
        if _train_in_folder(subject.part, Path(folder), stop=None) != subject.run().digest:
            raise CheckFailed("a resumed run ended with other bits; keep state in slices, not on the Part")


def shares_only_what_it_declares(subject: Subject) -> str:
    part, run = subject.part, loop(subject.method)
    try:
        replies = run.trainer.train(run.down(run.begin(), 1), range(len(SIZES)), {})
    finally:
        run.trainer.close()
    declared = run.spec.shares.get(part.name, {})
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


def copes_with_absent_clients_and_empty_rounds(subject: Subject) -> None:
    train(subject.method, availability="drop:0.4", rounds=5)
    train(subject.method, availability="drop:1.0", rounds=2)


def reads_sums_where_it_says_so(subject: Subject) -> str:
    """What a Part declares to be read as a sum, the server must read as one: sums alone bring it to the same state."""
    plain = subject.run()
    if reason := unsummed(subject.part, plain.loop.fed):
        return f"no secure aggregation: {reason}"
    summed = train(subject.method, lanes="8", until=1, secure_aggregation="on")
    worst = max(_difference(plain.first, summed.first), _difference(flat(plain.slices), flat(summed.slices)))
    if worst > 1e-4:
        text = f"with sums alone the server's state differs by {worst:.2g}; declare what is read apart as reads='each'"
        raise CheckFailed(text)
    return f"largest difference {worst:.1e}"


def changes_nothing_with_neutral_settings(subject: Subject) -> str:
    part = subject.part
    same = "; with its own settings it ends with FedAvg's bits, too: does what it changes count?"
    remark = same * (subject.run().digest == fedavg().digest)
    if not part.neutral:
        return f"declares no neutral settings{remark}"
    neutral = dataclasses.replace(part, **part.neutral)  # type: ignore[type-var]
    worst = _difference(fedavg().first, train(Method(neutral), lanes="8", until=1).first)
    if worst > 1e-6:
        raise CheckFailed(f"{neutral} and FedAvg differ by {worst:.2g} after a round")
    return remark.removeprefix("; ")


def combines_with_other_methods(subject: Subject) -> str:
    part, refusals = subject.part, []
    for name in COMPANIONS:
        if name == part.name:
            continue
        try:
            train(Method(part, *registry.parse(name).parts), rounds=2)
        except UsageError as refusal:
            if refusal.code == "E127":  # a hook of the Part that failed in training refuses nothing
                subject.run()  # raises where it fails by itself, which another rule tells
                raise CheckFailed(f"with {name}, {refusal.text}") from refusal
            refusals.append(f"{name}: {refusal.text}")
    return "refused " + "; ".join(refusals) if refusals else ""


def has_scores_in_every_scope(subject: Subject) -> None:
    run = subject.run(scored=True).loop
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
    reads_sums_where_it_says_so,
    changes_nothing_with_neutral_settings,
    combines_with_other_methods,
    has_scores_in_every_scope,
)
"""All checks, by what they say of a method that passes. They return a remark, and raise CheckFailed."""


def _difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of any of the first's weights."""
    return max((float((t - other[n]).abs().max()) for n, t in one.items() if t.numel()), default=0.0)


class _Stop(Exception):
    pass


def _train_in_folder(part: Part, path: Path, stop: int | None) -> str:
    """The digest of the final weights; empty if the run was stopped after the round `stop`."""

    def stop_after(state: State, summary: Round | None) -> None:
        if stop and summary and summary.t == stop:
            raise _Stop

    try:
        run = run_for(Method(part), lanes="8", method=part.name)
        _, state = Folder(path, run).go(lambda _: None, stop_after)
        return digest(state.weights)
    except _Stop:
        return ""
