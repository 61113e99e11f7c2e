"""`unskew.diagnose`: from data to measures of skew, the methods that can run, and their expected gains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from torch import nn

from unskew import config, models
from unskew.data import column_statistics
from unskew.data.clients.federation import Federation
from unskew.data.column_statistics import site_column
from unskew.data.data_overview import class_imbalance
from unskew.data.python_objects import settings_of
from unskew.data.registry import read
from unskew.data.samples.dataset import Dataset
from unskew.diagnosis import RELEVANT_SETTINGS, advice, skews
from unskew.diagnosis.advice import Goal
from unskew.diagnosis.diagnosis import Diagnosis, WorstColumn
from unskew.diagnosis.pooling import pooling_of
from unskew.errors import DataError, UnskewError, UsageError
from unskew.round.precision import torch_defaults
from unskew.round.run import Run
from unskew.runs import resolve
from unskew.system import python_files
from unskew.system.python_files import GIVEN_OBJECT

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
FAR_DISTANCE = 3.0
"""Distance of the closest setting beyond which expected gains are guesses."""
POOLING_DISCLOSURE = (
    " For the gain of pooled rows also sums of the features of two classifiers and of their products, added"
    " up, and how many of its rows each of the two gets right at a site."
)
WITH_FEATURES = ("flea(lambda2=0)",)
"""Further methods if sites may share activations of single samples."""
SUMS_ONLY = ("unskew(statistics=False)",)
"""Further methods with secure aggregation: the default without shares that need single replies."""


def diagnose_run(run: Run, features: bool = False) -> Diagnosis:
    """The diagnosis of the federation of a run; the method of the run does not matter.

    features: whether sites may share activations of single samples. With secure aggregation in the settings,
    only methods whose server needs no more than sums are considered. Raises DataError (E403) for fewer than
    two sites with samples, and for a task without evidence.
    """
    federation, settings = run.federation, run.settings
    check_sites(federation)
    check_classes(federation)
    sites = skews.numbers_of(federation)
    measured = skews.skews_of(sites, settings.availability, settings.seed)
    pooling = pooling_of(federation)
    ordered = advice.nearest(measured, advice.settings("tables" if pooling else "settings"))
    further = (*(WITH_FEATURES if features else ()), *(SUMS_ONLY if run.secure else ()))
    reasons = refusals(run, (*METHODS, *further))
    able = [method for method, reason in reasons.items() if not reason]
    return Diagnosis(
        federation.name,
        federation.skew,
        measured,
        skews.disclosure_sentences(sites) + (POOLING_DISCLOSURE if pooling else ""),
        {goal: tuple(advice.ranking(goal, able, ordered)) for goal in get_args(Goal)},
        tuple(ordered),
        {method: reason for method, reason in reasons.items() if reason},
        tuple(_cautions(federation, ordered[0])),
        worst_column(federation, sites),
        pooling,
    )


def worst_column(federation: Federation, sites: Sequence[skews.SiteNumbers]) -> WorstColumn | None:
    """The column of a table in which sites lie furthest apart; None for other samples."""
    columns = column_statistics.numbers_of_rows(federation)
    every = skews.feature_skews(sites) if columns else None
    if every is None:
        return None
    names = [name for name, _, start, end in columns for _ in range(end - start)]
    f = int(every.skew_F.argmax())
    return WorstColumn(names[skews.spread_over(len(names))[f]], every.furthest_F[f], float(every.skew_F[f]))


def _cautions(federation: Federation, closest: advice.Neighbour) -> Iterator[str]:
    """Reasons why the evidence may not carry over to a federation."""
    if (federation.label_counts.sum(0) > 0).sum() < 2:
        yield "all labels are of one class, so there is nothing to learn from them."
    if text := class_imbalance(federation):
        yield f"{text}; the evidence is of classes that are about equally common, and of accuracy."
    yield from column_statistics.unit_warnings(federation)
    if unlike := "masks" if federation.masks else "several inputs" if federation.layout else "":
        yield (
            "every setting of the evidence has one input and one label a sample, and these samples have"
            f" {unlike}: take the order of methods as a guess."
        )
    if closest.distance > FAR_DISTANCE:
        yield (
            f"no setting of the evidence is like this one (the closest lies at {closest.distance:.1f}): take"
            " the gains as a guess."
        )


def check_classes(federation: Federation) -> None:
    """Raises DataError (E403) for regression, several labels and tokens, of which no gains were measured."""
    if federation.target or federation.several or federation.tokens:
        if federation.target:
            have = "a number to predict"
        else:
            have = "several labels" if federation.several else "labelled tokens"
        text = (
            f"a diagnosis recommends by measured gains of accuracy, and these samples have {have}, of which"
            " nothing was measured"
        )
        raise DataError(
            "E403",
            f"{federation.name}: {text}; compare methods on your data: unskew compare fedavg fedprox"
            " scaffold.",
        )


def check_sites(federation: Federation) -> None:
    """Raises DataError (E403) for fewer than two sites with samples."""
    sites = int((federation.sizes > 0).sum())
    if sites < 2:
        raise DataError(
            "E403",
            f"{federation.name}: one site holds all samples, so there is nothing to federate; name the column"
            " that says where a row is from (--site NAME), or give a skew that divides the data, such as"
            " dirichlet:0.3.",
        )


def refusals(run: Run, methods: Sequence[str]) -> Mapping[str, str]:
    """By method, why it cannot run with the data, model and secure aggregation of a run; "" if it can."""
    reasons = dict.fromkeys(methods, "")
    for text in methods:
        method = resolve.parts_of(text)
        try:
            method.check_task(run.task.name)
            method.check(run.fed)
            resolve.check_secure(run.settings, method, run.fed)
        except UnskewError as error:
            reasons[text] = error.text
    return reasons


@python_files.restricted
@torch_defaults()
def diagnose(
    data: Any = "digits",
    *,
    label: str = "",
    site: str = "",
    target: str = "",
    group: Any = "",
    weight: str = "",
    model: nn.Module | str | Path = "auto",
    features: bool = False,
    **options: Any,
) -> Diagnosis:
    """Measure the skews of a federation and recommend a method, without training a network.

    data, label, site, target, group, weight, model: as for `unskew.run`. Your own data are divided by their
    column of sites unless you set a skew. Samples with several inputs need a model of your own.
    features: whether sites may share activations of single samples.
    options: the settings of RELEVANT_SETTINGS, such as skew, clients and availability; use
    secure_aggregation="on" if the server may see sums over sites only.

    Raises UsageError and DataError as `run` does, UsageError (E109) for another setting, UsageError (E108) if
    there are too few sites for secure aggregation, and DataError (E403) for own data without a division into
    sites and for fewer than two sites with samples.
    """
    if "method" in options:
        raise UsageError("E109", "a diagnosis takes no method, for it recommends one; leave method out.")
    if irrelevant := sorted(
        {f.name for f in fields(config.Settings)} & options.keys() - {*RELEVANT_SETTINGS}
    ):
        raise UsageError(
            "E109",
            f"{', '.join(irrelevant)} would change nothing in a diagnosis, which looks at"
            f" {', '.join(RELEVANT_SETTINGS)}.",
        )
    loaded, implied = settings_of(data, label, site, target=target, group=group, weight=weight)
    loaded = loaded or read(implied["data"])
    module = None if isinstance(model, str | Path) else models.model_object(model)
    settings = config.build(
        {**implied, **options, "method": "fedavg", "model": GIVEN_OBJECT if module else str(model)}
    )
    if "skew" not in options and "skew" not in implied:
        settings = settings.replace(skew=_division(loaded, settings.skew))
    return diagnose_run(resolve.resolve(settings, loaded, None, module), features)


def _division(data: Dataset | Federation, default: str) -> str:
    """The skew to use if none is set. Raises DataError (E403) for own data without a column of sites."""
    if isinstance(data, Federation) or not data.intake:
        return default
    if column := site_column(data):
        return f"column:{column}"
    raise DataError(
        "E403",
        f"{data.name}: nothing says which sample is from which site; name the column that does (--site NAME),"
        " or give a skew by which to divide them, such as dirichlet:0.3.",
    )
