"""Conformance: checks that every method must pass, built-in or third-party, like scikit-learn's
check_estimator.

Methods train for a few rounds on a small seeded federation; a run is trained once for all checks that need
it. A check that fails describes the problem in one sentence.
"""

# pyright: reportPrivateUsage=false
# Only a tensor's private version number tells whether it was changed in place.

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unskew import data
from unskew.config import Settings
from unskew.core import gate
from unskew.core.client import Batch, Client, Out
from unskew.core.method import Method, more_rounds_problem, sum_problem
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.replies import Ups
from unskew.core.trees import Tree, flat_tree, leaves, size_in_bytes
from unskew.core.user_parts import below_vmap
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.errors import UnskewError, UsageError
from unskew.methods import registry
from unskew.records.checkpoints import State, digest
from unskew.round.loop import Loop, RoundSummary
from unskew.round.run import Run
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve
from unskew.runs.run_folder import RunFolder
from unskew.system import python_files

SIZES = (40, 1, 0, 2, 33, 17, 3, 20)
"""Samples of the test federation's clients: the first client has one class, the third has no samples."""


NORMALISED_MODEL = "cnn_small(batch_norm=True)"


def small_federation() -> Federation:
    """Eight small clients of 8x8 images in three classes."""
    rng = np.random.default_rng(7)
    n = sum(SIZES)
    y = rng.integers(0, 3, n)
    y[: SIZES[0]] = 1
    x = (0.2 * rng.random((n, 3, 8, 8)) + 0.2 * y[:, None, None, None]).astype(np.float32)
    edges = np.cumsum([0, *SIZES])
    train = Index.of([np.arange(a, b) for a, b in pairwise(edges)])
    dataset = data.arrays(x, y, x[:60], y[:60], classes=("a", "b", "c"), name="check")
    built = data.build(dataset, "iid", len(SIZES), rng, np.random.default_rng(8))
    return dataclasses.replace(built, x=x, y=y.astype(np.int64), train=train)


def short_settings(**changes: object) -> Settings:
    """Settings of a short run on the test federation."""
    return Settings(clients=len(SIZES), rounds=3, epochs=1, batch=16, workers=1, model="cnn_small").replace(
        **changes
    )


def run_for(method: Method, clients: Federation | None = None, /, **changes: object) -> Run:
    """A run of this method on the test federation, or on these clients.

    If the method refuses a model without batch normalisation, the model has it, unless `changes` name one.
    """
    plain, clients = short_settings(**changes), small_federation() if clients is None else clients
    try:
        return resolve(plain, clients, method)
    except UsageError as refusal:
        if refusal.code != "E108" or "model" in changes:
            raise
        return resolve(plain.replace(model=NORMALISED_MODEL), clients, method)


DROPPED_CODES = {f"E30{i}" for i in range(1, 9)}
"""The codes of the gate for invalid replies."""
NOT_FINITE = "E314"
"""The code for non-finite results of the server's hooks."""


class CheckFailed(AssertionError):
    """A check that failed; the text is for the method's author."""


class CheckRun(NamedTuple):
    """A finished run.

    digest, of_slices: SHA-256 of the weights and of the Parts' slices at the end. loop: the run, whose
    trainer is closed. first, slices: the weights and the slices after round 1.
    """

    digest: str
    loop: Loop
    first: dict[str, torch.Tensor]
    slices: dict[str, Tree]
    of_slices: str


def loop_for(method: Method, **changes: object) -> Loop:
    """The loop of a run on the test federation; close its trainer in the end."""
    return loop_of(run_for(method, **changes))


def train_run(method: Method, scored: bool = False, until: int | None = None, **changes: object) -> CheckRun:
    """Train a run on the test federation. scored: with scores after each round. until: the last round, by
    default that of the settings.

    Raises CheckFailed if the gate refuses a reply or the server's hooks return non-finite values.
    """
    run = loop_for(method, **changes)
    first: dict[str, torch.Tensor] = {}
    slices: dict[str, Tree] = {}
    try:
        state = run.begin()
        for t in range(1, (until or run.settings.rounds) + 1):
            state, summary = run.round(state, t)
            if t == 1:
                first, slices = dict(state.weights), dict(state.slices)
            if scored:
                run.evaluate(state, summary)
        for event in run.record.rows["events"]:
            if event["code"] in DROPPED_CODES:
                raise CheckFailed(f"the gate refused an honest reply: {event['text']}")
            if event["code"] == NOT_FINITE:
                raise CheckFailed(f"the server's hooks, from finite replies: {event['text']}")
        return CheckRun(digest(state.weights), run, first, slices, digest(flat_tree(state.slices)))
    finally:
        run.trainer.close()


@dataclass(eq=False)
class Subject:
    """The Part under check and its runs so far."""

    part: Part
    runs: dict[tuple[str, int, bool], CheckRun] = field(default_factory=dict)

    @property
    def method(self) -> Method:
        """The method made of this Part alone."""
        return Method(self.part)

    def run(self, lanes: str = "8", workers: int = 1, scored: bool = False) -> CheckRun:
        """The run with these lanes and workers, trained at the first call. Raises CheckFailed as `train_run`.

        With one lane, which takes longest, it ends with round 2, in which clients use what they kept.
        """
        key = (lanes, workers, scored)
        if key not in self.runs:
            until = 2 if lanes == "1" else None
            self.runs[key] = train_run(self.method, scored, until, lanes=lanes, workers=workers)
        return self.runs[key]


@cache
def fedavg_run() -> CheckRun:
    """FedAvg's run, with eight lanes."""
    return train_run(Method(), lanes="8")


COMPANIONS = ("fedprox", "fedbn", "scaffold", "flea", "rebafl", "fedrdn")
"""Methods with which every Part must combine, or refuse to with a sentence."""


@dataclass(frozen=True)
class CheckResult:
    """The result of a method in one check. detail: the problem, or a remark on a check that passed."""

    name: str
    ok: bool
    detail: str = ""


Check = Callable[[Subject], str | None]
"""Raises CheckFailed unless the Part passes, and may return a remark."""


def check_method(part: Part, checks: Sequence[Check] | None = None) -> Iterator[CheckResult]:
    """Run these checks (default: all) on the method of this Part. A check that raises an error has failed."""
    errors: set[str] = set()
    subject = Subject(part)
    for check in CHECKS if checks is None else checks:
        name = check.__name__.replace("_", " ")
        try:
            yield CheckResult(name, True, check(subject) or "")
        except CheckFailed as failure:
            yield CheckResult(name, False, str(failure))
        except Exception as error:  # any error of a method is a result of the check
            text = _error_text(part, error)
            yield CheckResult(name, False, "could not run, for the same reason" if text in errors else text)
            errors.add(text)


def _error_text(part: Part, error: Exception) -> str:
    """The text of an error of the method's code, with its line in the file."""
    if isinstance(error, UnskewError):
        return str(error)
    file = inspect.getsourcefile(type(part)) or ""
    return f"{python_files.one_line(error)}{python_files.line_note(file, error)}"


def _differ(one: CheckRun, other: CheckRun) -> str:
    """Where two runs ended with different bits: " of the weights" or " of the server's slice"; "" if
    nowhere."""
    if one.digest != other.digest:
        return " of the weights"
    return " of the server's slice" if one.of_slices != other.of_slices else ""


def is_deterministic(subject: Subject) -> None:
    """Compare two runs, one of which is scored after each round."""
    if place := _differ(subject.run(scored=True), subject.run()):
        text = f"two equal runs, one of them scored, ended with different bits{place}"
        raise CheckFailed(f"{text}; draw random numbers through noise(), and keep nothing on the Part")


def gives_the_same_bits_for_any_number_of_workers(subject: Subject) -> None:
    """Compare runs with one lane, whose clients the workers train one by one."""
    if place := _differ(subject.run("1", workers=2), subject.run("1")):
        raise CheckFailed(f"the number of workers changed the bits{place}; hooks must not share state")


def agrees_for_three_and_eight_lanes(subject: Subject) -> str:
    worst = _largest_difference(subject.run().first, train_run(subject.method, lanes="3", until=1).first)
    if worst > 1e-5:
        raise CheckFailed(
            f"three lanes and eight differ by {worst:.2g} after a round; hooks must not mix clients"
        )
    return f"largest difference {worst:.1e}" if worst else ""


def agrees_for_one_lane_and_many(subject: Subject) -> str:
    worst = _largest_difference(subject.run().first, subject.run("1").first)
    if worst > 1e-3:
        raise CheckFailed(
            f"one lane and many differ by {worst:.2g} after a round; does a hook average over padding?"
        )
    return f"largest difference {worst:.1e}"


def ignores_padding(subject: Subject) -> None:
    """Change row 0, which pads short batches and belongs to no client here, and compare all replies."""
    digests: set[str] = set()
    for value in (0, 1):
        fed = small_federation()
        x, y = np.array(fed.x), np.array(fed.y)
        x[0], y[0] = 0.1 + 0.8 * value, 2 * value
        first, *others = fed.train
        train = Index.of([first[1:], *others])
        run = loop_of(run_for(subject.method, dataclasses.replace(fed, x=x, y=y, train=train), rounds=1))
        try:
            replies = run.trainer.train(run.down(run.begin(), 1), range(len(SIZES)), {})
        finally:
            run.trainer.close()
        digests.add(
            digest(
                flat_tree(
                    {
                        str(r.client): {"w": r.weights, "shares": r.shares, "private": r.private}
                        for r in replies
                    }
                )
            )
        )
    if len(digests) > 1:
        raise CheckFailed("the padding of short batches reached the result; average with batch.mean")


def changes_no_argument_in_place(subject: Subject) -> None:
    """Train a round with a copy of the Part that compares the arguments of every hook, and score it."""
    train_run(Method(watched(subject.part)), scored=True, until=1, lanes="8")


def resumes_to_the_same_bits(subject: Subject) -> None:
    """A run of two rounds is continued to three; one with a schedule is interrupted after the second."""
    run = partial(_train_in_folder, subject.part)
    with tempfile.TemporaryDirectory() as folder:
        if more_rounds_problem(subject.method, 2, 3):
            run(Path(folder), stop=2)
        else:
            run(Path(folder), rounds=2)
        if run(Path(folder)) != subject.run().digest:
            raise CheckFailed(
                "a resumed run ended with other bits; keep state in slices, not on the Part, and let"
                " has_schedule return True if a hook reads Fed.rounds"
            )


def shares_only_what_it_declares(subject: Subject) -> str:
    part, run = subject.part, loop_for(subject.method)
    try:
        replies = run.trainer.train(run.down(run.begin(), 1), range(len(SIZES)), {})
    finally:
        run.trainer.close()
    declared = run.spec.shares.get(part.name, {})
    for reply in replies:
        shares = flat_tree(reply.shares.get(part.name, {}))
        if differing := sorted(set(shares) ^ set(declared)):
            raise CheckFailed(f"shares {differing} are not both declared and sent")
        for leaf, share in declared.items():
            if None not in share.shape and size_in_bytes({leaf: shares[leaf]}) != share.max_bytes:
                raise CheckFailed(f"'{leaf}' is {list(shares[leaf].shape)}; declared {list(share.shape)}")
    _, refusals = gate.check(replies, run.spec, run.fed.sizes.tolist())
    if refusals:
        raise CheckFailed(
            f"the gate refused an honest reply: client {refusals[0].client}: {refusals[0].text}"
        )
    undeclared = [leaf for leaf, share in declared.items() if share.kind is None]
    return (
        f"{', '.join(undeclared)}: no kind is declared, so real sites count it as inputs"
        if undeclared
        else ""
    )


def copes_with_absent_clients_and_empty_rounds(subject: Subject) -> None:
    train_run(subject.method, availability="drop:0.4", rounds=5)
    train_run(subject.method, availability="drop:1.0", rounds=2)


def reads_sums_where_it_says_so(subject: Subject) -> str:
    """Compare the server's state with one that secure aggregation, which only gives sums, leads to."""
    plain = subject.run()
    if reason := sum_problem(subject.part, plain.loop.fed):
        return f"no secure aggregation: {reason}"
    summed = train_run(subject.method, lanes="8", until=1, secure_aggregation="on")
    worst = max(
        _largest_difference(plain.first, summed.first),
        _largest_difference(flat_tree(plain.slices), flat_tree(summed.slices)),
    )
    if worst > 1e-4:
        text = (
            f"with sums alone the server's state differs by {worst:.2g}; declare what is read apart as"
            " reads='each'"
        )
        raise CheckFailed(text)
    return f"largest difference {worst:.1e}"


def changes_nothing_with_neutral_settings(subject: Subject) -> str:
    part = subject.part
    remark = ""
    if subject.run().digest == fedavg_run().digest:
        remark = "; with its own settings it ends with FedAvg's bits, too: does what it changes count?"
    if not part.neutral:
        return f"declares no neutral settings{remark}"
    neutral = dataclasses.replace(part, **part.neutral)  # type: ignore[type-var]
    worst = _largest_difference(fedavg_run().first, train_run(Method(neutral), lanes="8", until=1).first)
    if worst > 1e-6:
        raise CheckFailed(f"{neutral} and FedAvg differ by {worst:.2g} after a round")
    return remark.removeprefix("; ")


def combines_with_other_methods(subject: Subject) -> str:
    part, refusals = subject.part, []
    for name in COMPANIONS:
        if name == part.name:
            continue
        try:
            train_run(Method(part, *registry.parse(name).parts), rounds=2)
        except UsageError as refusal:
            if refusal.code == "E127":  # a hook failed in training, which is no refusal
                subject.run()  # raises if the Part also fails alone, which other checks report
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
    agrees_for_three_and_eight_lanes,
    agrees_for_one_lane_and_many,
    ignores_padding,
    changes_no_argument_in_place,
    resumes_to_the_same_bits,
    shares_only_what_it_declares,
    copes_with_absent_clients_and_empty_rounds,
    reads_sums_where_it_says_so,
    changes_nothing_with_neutral_settings,
    combines_with_other_methods,
    has_scores_in_every_scope,
)
"""All checks. They return a remark or None, and raise CheckFailed."""


def _largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference of any weight."""
    return max((float((t - other[n]).abs().max()) for n, t in one.items() if t.numel()), default=0.0)


class _Stop(Exception):
    """Ends a run after the round that a check looks at."""


def _train_in_folder(part: Part, path: Path, rounds: int = 3, stop: int | None = None) -> str:
    """The digest of the final weights; "" if the run was stopped after round `stop`."""

    def stop_after(state: State, summary: RoundSummary | None) -> None:
        if stop and summary and summary.t == stop:
            raise _Stop

    try:
        run = run_for(Method(part), lanes="8", method=part.name, rounds=rounds)
        _, state = RunFolder(path, run).go(lambda _: None, stop_after)
        return digest(state.weights)
    except _Stop:
        return ""


CLIENT_TREES = ("start", "down", "mine", "round")
GRADIENTS_FIRST = ("grad", "perturb", "sample_grad", "carry")
"""Hooks whose first argument are gradients, which are not compared, because no other hook reads those."""
SERVER_HOOKS = ("merge", "server", "refine", "dispatch", "server_init", "client_init")
"""Hooks that receive copies of dictionaries, whose entries they may replace."""


class _Leaf(NamedTuple):
    """A tensor among the arguments. place: its name in hooks. kept: whether replacing it in its dictionary is
    an error, too, because the replacement has no effect."""

    place: str
    tensor: Any
    kept: bool


def watched(part: Part) -> Part:
    """A copy of a Part; its hooks and trips raise UsageError (E127) if they change an argument."""
    kind = type(part)
    hooks = {
        h: _watch(h, f"hook `{h}` of '{part.name}'", getattr(kind, h)) for h in HOOKS if overrides(part, h)
    }
    trips = [
        dataclasses.replace(
            trip,
            client=_watch("", f"trip's `client` of '{part.name}'", trip.client),
            server=_watch("merge", f"trip's `server` of '{part.name}'", trip.server),
        )
        for trip in part.trips
    ]
    same = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    body = {**same, **hooks, **({"trips": tuple(trips)} if trips else {})}
    clone = copy.copy(part)
    object.__setattr__(clone, "__class__", type(kind.__name__, (kind,), body))
    return clone


def _watch(name: str, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a comparison of its arguments. name: the hook of this kind; "" for another
    one."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        before = {leaf.place: (leaf, _version(leaf.tensor)) for leaf in _leaves(name, args)}
        result = function(*args)
        after = {leaf.place: leaf for leaf in _leaves(name, args)}
        for place, (leaf, version) in before.items():
            if _version(leaf.tensor) != version:
                raise UsageError("E127", f"the {what} changes {place} in place; return new values.")
        for place in {**before, **after}:
            leaf = before[place][0] if place in before else after[place]
            if leaf.kept and (
                place not in before or place not in after or after[place].tensor is not leaf.tensor
            ):
                raise UsageError(
                    "E127", f"the {what} replaces {place}, which has no effect; return the new value."
                )
        return result

    return call


def _leaves(name: str, args: tuple[Any, ...]) -> Iterator[_Leaf]:
    """The tensors among a hook's arguments that the engine uses after the call."""
    for i, arg in enumerate(args):
        if isinstance(arg, Client):
            for place in CLIENT_TREES:
                kept = place != "mine" or name != "finish"
                yield from (_Leaf(f"c.{place}['{n}']", t, kept) for n, t in leaves(getattr(arg, place)))
        elif isinstance(arg, Ups):
            for reply in arg.replies:
                for tree in (reply.weights, reply.shares):
                    named = leaves(tree) if type(tree) is dict else ()
                    yield from (_Leaf(f"'{n}' of client {reply.client}'s reply", t, True) for n, t in named)
        elif isinstance(arg, Batch | Out):
            kind = "batch" if isinstance(arg, Batch) else "model's output"
            yield from (_Leaf(f"'{n}' of the {kind}", t, False) for n, t in vars(arg).items())
        elif isinstance(arg, Tensor):
            yield _Leaf(f"argument {i}", arg, False)
        elif type(arg) is dict and not (name in GRADIENTS_FIRST and i == 1):
            kept = name not in SERVER_HOOKS
            yield from (_Leaf(f"'{n}' of argument {i}", t, kept) for n, t in leaves(arg))


def _version(t: Any) -> int:
    if not isinstance(t, Tensor):
        return 0
    t = below_vmap(t)
    return 0 if t.is_inference() else t._version
