"""From data to a diagnosis: sites' numbers, their measures, which methods can run, and what to expect of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from unskew.data.federation import Federation
from unskew.data.intake.lopsided import lopsided
from unskew.diagnosis import advice, evidence, numbers, skews
from unskew.diagnosis.diagnosis import Diagnosis
from unskew.diagnosis.evidence import Goal
from unskew.engine import resolve
from unskew.errors import DataError, UnskewError

METHODS = (
    "unskew",
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "fedlc",
    "rbsm",
    "rebafl",
    "fedrdn",
    "fedbn",
)  # fmt: skip
"""The methods among which a diagnosis chooses."""
FAR = 3.0
"""Distance of the closest setting beyond which expected gains are guesses."""
WITH_FEATURES = ("flea(lambda2=0)",)
"""Methods that it considers beside them where sites may share activations of single samples."""


SUMMED = ("unskew(statistics=False)",)
"""Methods that it considers beside them where sites demand secure aggregation: the default without what no sum can give."""


def diagnose_run(run: resolve.Run, features: bool = False) -> Diagnosis:
    """The diagnosis of the federation of a run, whose own method does not count.

    features: whether sites may share activations of single samples. With secure aggregation among the settings, only methods
    are considered whose server can do with sums. Raises DataError (E410) for fewer than two sites with samples, and where no
    evidence is of the task.
    """
    federation, settings = run.federation, run.settings
    check_sites(federation)
    check_classes(federation)
    sites = numbers.numbers_of(federation)
    measured = skews.skews_of(sites, settings.availability, settings.seed)
    ordered = advice.nearest(measured, evidence.settings())
    beside = (*(WITH_FEATURES if features else ()), *(SUMMED if run.secure else ()))
    refused = refusals(run, (*METHODS, *beside))
    able = [method for method, reason in refused.items() if not reason]
    return Diagnosis(
        federation.name,
        federation.skew,
        measured,
        numbers.leaving(sites),
        {goal: tuple(advice.ranking(goal, able, ordered)) for goal in get_args(Goal)},
        tuple(ordered),
        {method: reason for method, reason in refused.items() if reason},
        tuple(_cautions(federation, ordered[0])),
    )


def _cautions(federation: Federation, closest: advice.Near) -> Iterator[str]:
    """Why the evidence may not carry over to a federation."""
    if (federation.label_counts.sum(0) > 0).sum() < 2:
        yield "all labels are of one class, so there is nothing to learn from them."
    if text := lopsided(federation):
        yield f"{text}; the evidence is of classes that are about equally common, and of accuracy."
    if federation.masks:
        yield "every setting of the evidence has one label a sample, and these samples have masks: take the order of methods as a guess."
    if federation.layout:
        yield "every setting of the evidence has one input a sample, and these samples have several: take the order of methods as a guess."
    if closest.distance > FAR:
        yield f"no setting of the evidence is like this one (the closest lies at {closest.distance:.1f}): take the gains as a guess."


def check_classes(federation: Federation) -> None:
    """Raises DataError (E410) where samples have a number, several labels or labelled tokens: gains of accuracy say nothing of them."""
    if federation.target or federation.several or federation.tokens:
        have = (
            "a number to predict"
            if federation.target
            else "several labels"
            if federation.several
            else "labelled tokens"
        )
        text = f"a diagnosis recommends by measured gains of accuracy, and these samples have {have}, of which nothing was measured"
        raise DataError(
            "E410", f"{federation.name}: {text}; compare methods on your data: unskew compare fedavg fedprox scaffold."
        )


def check_sites(federation: Federation) -> None:
    """Raises DataError (E410) for fewer than two sites with samples."""
    holding = int((federation.sizes > 0).sum())
    if holding < 2:
        raise DataError(
            "E410",
            f"{federation.name}: one site holds all samples, so there is nothing to federate; name the column that says "
            "where a row is from (--site NAME), or give a skew that divides the data, such as dirichlet:0.3.",
        )


def refusals(run: resolve.Run, methods: Sequence[str]) -> Mapping[str, str]:
    """By method, why it cannot run on these data with this model, or not by sums alone where sites demand those; else ""."""
    return {method: _refusal(run, method) for method in methods}


def _refusal(run: resolve.Run, text: str) -> str:
    method = resolve.parts_of(text)
    try:
        method.check_task(run.task.name)
        method.check(run.fed)
        resolve.check_secure(run.settings, method, run.fed)
    except UnskewError as error:
        return error.text
    return ""
