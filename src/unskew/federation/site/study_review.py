"""What a study would take from one site, and whether the site's policy allows it, before anything is computed
for it.

What a study takes: bytes, who reads them, guarantees, epsilon by the site's own samples, and what it
discloses. The coordinator reads the refusals, so no sentence says more of the site's data than that a bound
is not kept.
Letters: K sites, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unskew import config, models
from unskew.attacks.coverage import HEAD, what_it_tells
from unskew.config import Settings
from unskew.core import encoding
from unskew.core.account import Account, epsilon_text
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.shares import Share
from unskew.core.trees import bytes_text
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.data.samples.dataset import Dataset
from unskew.data.standardisation import why_standardise
from unskew.errors import UsageError
from unskew.federation.protocol import hello, study_rules
from unskew.federation.protocol.study_rules import scales_images, scaling_remedy, score_names
from unskew.federation.site.approvals import digest_of
from unskew.federation.site.policy import ALL, Policy
from unskew.federation.site.site_ledger import RunLedger, policy_refusal
from unskew.federation.site_data import load
from unskew.methods import registry
from unskew.methods.shared import sample_images
from unskew.models import count, hf_folder
from unskew.privacy.secure_aggregation import LEAST_SITES, SecureAggregation
from unskew.round.ledger import wire_bytes
from unskew.round.trainer import Trainer
from unskew.runs import disclosure
from unskew.runs.assemble import trainer_of
from unskew.runs.disclosure import accounts
from unskew.runs.hardware import check_memory
from unskew.runs.resolve import run_on
from unskew.system.machine import usable_memory
from unskew.tasks.task import task_of

WEIGHTS, SCORE = "the weights", "the score"
AT_THE_SERVER = {"refuse", "server_init", "merge", "caution", "server", "refine", "decode"} | {
    "protect",
    "rounds_within",
    "spent",
    "account",
}
"""Hooks that only look at what has left anyway. A Part with no others asks nothing of a site."""


@dataclass(frozen=True)
class Study:
    """A study as one site would take part in it. sent: names of the weights that leave.

    counts_KC: training samples by client and class, of masks pixels; only this site's are known. trains,
    tests: how many training and test samples it holds.
    """

    method: Method
    settings: Settings
    fed: Fed
    sent: tuple[str, ...]
    counts_KC: np.ndarray[Any, Any]
    trains: int
    tests: int

    def shares(self) -> Iterator[tuple[str, Share, int]]:
        """Everything that leaves, as (what, its declaration, how often in the whole study)."""
        rounds, beside = self.settings.rounds, encoding.declared_shares(self.method, self.fed)
        if encoding.plain_weights(self.method, self.fed, self.sent):
            yield WEIGHTS, Share((), kind="weights", samples="client"), rounds
        for part in self.method.parts:
            for leaf, share in beside.get(part.name, {}).items():
                yield f"{part.name}/{leaf}", share, rounds
            for trip in part.trips:
                for leaf, share in trip.shares(self.fed).items():
                    yield f"{part.name}/{leaf}", share, trip.often(rounds)
        if self.tests:
            yield SCORE, Share((), kind="statistics"), rounds

    @property
    def kinds(self) -> dict[str, str]:
        """What leaves, by the name under which it is counted: `weights` or `part/leaf`."""
        return {
            "weights" if what == WEIGHTS else "/".join(what.split("/")[:2]): share.discloses
            for what, share, _ in self.shares()
            if what != SCORE
        }

    @property
    def title(self) -> str:
        """The method by name, with `fedavg` before Parts that only change what the server does."""
        text = str(self.method)
        return text if text == "fedavg" or any(map(_asks_sites, self.method.parts)) else f"fedavg+{text}"

    @property
    def draws(self) -> bool:
        """Whether something leaves of single samples, or of groups of them, which the study's seed draws."""
        return any(isinstance(share.samples, int) for what, share, _ in self.shares() if what != SCORE)

    @property
    def summed(self) -> bool:
        """Whether the coordinator sees sums over sites alone."""
        return self.settings.secure is not None

    @property
    def digest(self) -> str:
        """What runs of one study have in common."""
        return digest_of(self.settings, self.draws)

    @property
    def bytes(self) -> int:
        """What leaves at most in the whole study, scores apart."""
        w, summed = self.fed.net.weights(), self.settings.secure
        plain = encoding.plain_weights(self.method, self.fed, self.sent)
        weights = wire_bytes(summed, {n: w[n] for n in plain}) * self.settings.rounds
        wider = summed.bits // 32 if summed else 1  # what is summed is of float32 numbers
        return weights + sum(
            share.max_bytes * wider * often for _, share, often in self.shares() if share.shape
        )

    @property
    def epsilon(self) -> float:
        """The largest finite figure that the method accounts for with this site's samples; 0 without an
        account.

        Infinite if the method accounts for nothing finite.
        """
        figures = [[epsilon for epsilon, _ in account.epsilons] for account in self._accounts]
        return sum(max((e for e in one if math.isfinite(e)), default=math.inf) for one in figures)

    @property
    def delta(self) -> float:
        """At which that figure holds: (epsilon, delta) of everything that the method accounts for add up."""
        return sum(account.delta for account in self._accounts)

    @property
    def _accounts(self) -> list[Account]:
        return list(accounts(self.method, self.fed, self.counts_KC).values()) if self.trains else []

    @property
    def fewest_of_all(self) -> int:
        """The fewest samples that stand behind any number that leaves; 0 where nothing does."""
        return min((n for what, share, _ in self.shares() if (n := int(self.fewest(what, share)))), default=0)

    def fewest(self, what: str, share: Share) -> int:
        """The fewest samples that stand behind a number of a Share; 0 where this site sends none."""
        return self.tests if what == SCORE else share.fewest(self.trains, self.counts_KC.sum(0))


def check_settings(policy: Policy, method: Method, batch: int, rounds: int, summed: bool) -> None:
    """Hold what a study says of itself against the policy. summed: whether it aggregates securely.

    Raises UsageError (E520).
    """
    if policy.secure_aggregation == "required" and not summed:
        raise _refusal("secure_aggregation", "the coordinator would read this site's own replies")
    if not _names_method(policy, method):
        text = "the study is plain fedavg, in which a site's weights leave as they are"
        raise _refusal("methods", f"{text}, and fedavg is not among {', '.join(policy.methods)}")
    for part in method.parts:
        if ALL not in policy.methods and part.name not in policy.methods and _asks_sites(part):
            raise _refusal(
                "methods", f"the study uses '{part.name}', which is not among {', '.join(policy.methods)}"
            )
        if part.handed_on and policy.handing_on == "refused":
            raise _refusal(
                "handing_on", f"'{part.name}' has the coordinator send other sites {part.handed_on}"
            )
    if batch < policy.least_batch:
        raise _refusal("least_batch", f"the study trains with batches of {batch}")
    if rounds > policy.most_rounds:
        raise _refusal("most_rounds", f"the study takes {rounds} rounds")


def check_study(policy: Policy, study: Study) -> None:
    """Hold everything that would leave in a study against the policy, whatever samples there are. Raises
    UsageError (E520)."""
    check_settings(policy, study.method, study.settings.batch, study.settings.rounds, study.summed)
    for what, share, _ in study.shares():
        if share.discloses not in policy.shares:
            silent = "" if share.kind else " (its Part does not say what it is, so it counts as that)"
            raise _refusal("shares", f"'{what}' is of the kind {share.discloses}{silent}")
    if study.bytes > policy.most_megabytes * 1e6:
        text = f"the study would send {study.bytes / 1e6:,.0f} MB, more than {policy.most_megabytes:,g}"
        raise _refusal("most_megabytes", text)


def check_samples(policy: Policy, study: Study) -> None:
    """Hold the samples that would stand behind each number against the policy. Raises UsageError (E520)."""
    for what, share, _ in study.shares():
        if 0 < study.fewest(what, share) < policy.least_samples:
            text = f"fewer than {policy.least_samples} samples would stand behind a number of '{what}'"
            raise _refusal("least_samples", text)


def _names_method(policy: Policy, method: Method) -> bool:
    """Whether a policy names something of a method: one without Parts, or with the server's alone, is fedavg
    to a site."""
    named = {"fedavg", *(part.name for part in method.parts)} & {*policy.methods}
    return ALL in policy.methods or bool(named) or any(map(_asks_sites, method.parts))


def _asks_sites(part: Part) -> bool:
    own = {hook for hook in HOOKS if overrides(part, hook)}
    return bool(own - AT_THE_SERVER or part.trips)


def _refusal(key: str, text: str) -> UsageError:
    return policy_refusal(f"{text} ({key})")


def check_run(policy: Policy, run: RunLedger) -> None:
    """Hold a run that goes on against the policy as it is now. Raises UsageError (E520)."""
    check_settings(policy, registry.parse(run.method), run.batch, run.rounds, run.summed)
    for name, kind in run.kinds.items():
        if kind not in policy.shares:
            raise policy_refusal(f"'{name}' is of the kind {kind} (shares)")
    if 0 < run.fewest < policy.least_samples:
        raise policy_refusal(
            f"fewer than {policy.least_samples} samples stand behind a number (least_samples)"
        )


COPIES = 8
"""How often training holds a model's weights, roughly: as they came, per lane, gradients, optimiser, the
reply."""


def disclosure_lines(
    method: Method, trainer: Trainer, data: Dataset, summed: SecureAggregation | None = None
) -> list[str]:
    """What a study takes from this site, by its own data. What its noise amounts to protects against others
    only.

    summed: how replies are summed, if the coordinator sees sums alone.
    """
    counts_KC = trainer.samples.counts_KC
    protector = method.protector.name if method.protector else None
    lines = disclosure.payload_lines(method, trainer.fed, trainer.sent, counts_KC, secure=summed)
    protector = method.samples_apart.name if method.samples_apart else protector
    if any(name != protector for name in disclosure.accounts(method, trainer.fed, counts_KC)):
        reading = "against the coordinator: it knows the study's seed, from which the noise is drawn"
        lines.append(f"{'':<20}  epsilon {epsilon_text(math.inf):>9}  {reading}")
    lines += [f"{'':<20}{line}" for line in _common_lines(method, trainer, data, summed)]
    if summed:
        text = (
            "of sums nothing is measured; a simulation of this study without secure aggregation bounds it"
            " from above"
        )
        return [*lines, f"{HEAD}{text}"]
    return [
        *lines,
        *what_it_tells(method, trainer.fed, "RUN"),
        f"{'':<20}RUN: a simulation of this study on data like these",
    ]


def _common_lines(
    method: Method, trainer: Trainer, data: Dataset, summed: SecureAggregation | None
) -> list[str]:
    """What every study takes, whatever its method; where each sample is protected no training loss is
    told."""
    lines = [
        f"number of training samples, a round (read: each{', and by the other sites' if summed else ''})"
    ]
    if not method.samples_apart:
        lines += [f"mean training loss, a round (read: {'only in the sum' if summed else 'each'})"]
    if len(data.y_test):
        names = ", ".join((*score_names(trainer.fed), *(metric.key for metric in trainer.fed.metrics)))
        lines.append(f"scores on this site's own test samples: {names}, a round that is scored (read: each)")
    shape = "names, shapes and types of inputs" if trainer.net.layout else "shape"
    columns = hello.form_disclosure(hello.form_of(data))
    shape += f", {columns}" if columns else ""
    shape += ", center and scale of the target" if data.target else ", class names"
    what = f"numbers of training and test samples, {shape}, whether samples look unscaled, versions"
    return [*lines, f"{what}, once (read: each)"]


def forecast(
    study: Path, data: str, classes: Sequence[str], sites: int, model: str | None = None
) -> tuple[Study, list[str]]:
    """What this site would send in a study, by the data and model that its operator names; the same as lines
    to read.

    The coordinator's `unskew run --on` adds a rule that reads each site's weights, unless told otherwise; so
    it is here, too.
    sites: how many take part. Raises UsageError for a study that cannot run over a network, DataError for bad
    data.
    """
    asked = study_rules.study_settings(config.load(study))
    settings = study_rules.with_clipping(asked)
    sites = max(sites, LEAST_SITES) if settings.secure else sites
    of_study, lines = forecast_settings(
        load(data, classes), study_rules.site_settings(settings, model).replace(clients=sites)
    )
    if settings != asked:
        lines = [
            (
                f"method {settings.method}: unskew run --on adds {study_rules.CLIP}, unless it is given"
                " --no-clip"
            ),
            *lines,
        ]
    return of_study, lines


def forecast_settings(data: Dataset, settings: Settings) -> tuple[Study, list[str]]:
    """What a site that holds these data would send; `settings.clients` sites take part.

    Raises UsageError, E108 for a model that has no room here, before any memory is taken for it.
    """
    dataset, sites = study_rules.prepare(data, settings), settings.clients
    check_model(settings, dataset)
    nobody = np.arange(0)
    rows = [np.arange(len(dataset.y)), *[nobody] * (sites - 1)]
    tests = [np.arange(len(dataset.y_test)), *[nobody] * (sites - 1)]
    inputs = (dataset.x, dataset.y, dataset.x_test, dataset.y_test)
    dealt = Index.of(rows), Index.of(tests), "site"
    federation = Federation(
        "site", *inputs, dataset.classes, *dealt, target=dataset.target, layout=dataset.layout
    )
    method = registry.parse(settings.method)
    run = run_on(federation, settings, method)
    check_memory(run.method, run.fed)
    trainer = trainer_of(run)
    trainer.close()
    return study_of(settings, method, trainer, dataset), disclosure_lines(
        method, trainer, dataset, run.secure
    )


def check_model(settings: Settings, data: Dataset, has: int | None = None) -> None:
    """Raises UsageError (E108) for a named model whose training would not fit this machine's memory.

    has: bytes of memory; by default what this process may use.
    """
    if hf_folder.is_on_disk(settings.model):
        return  # the site's own file or folder, which its operator named
    has = has or usable_memory()
    shape = tuple(data.x.shape[1:])
    with torch.device("meta"):  # shapes alone
        pixels = task_of(data.y, settings.loss, data.target, shape).pixels(shape)
        module = models.build(settings.model, shape, len(data.classes), pixels, data.layout)
    weights = 4 * count.parameters(module)
    if COPIES * weights > has:
        raise UsageError(
            "E108",
            f"the study's model '{settings.model}' has {bytes_text(weights)} of weights, of which training"
            f" holds about {COPIES} copies, and this site has {bytes_text(has)} of memory.",
        )


def study_of(settings: Settings, method: Method, trainer: Trainer, data: Dataset) -> Study:
    """What the site's policy judges. data: the site's own."""
    counts_KC, sent = trainer.samples.counts_KC, tuple(trainer.sent)
    return Study(method, settings, trainer.fed, sent, counts_KC, len(data.y), len(data.y_test))


def looks_unscaled(data: Dataset, study: Study) -> str:
    """Why a site's samples, as the study takes them, need scaling; "" if they do not. A named set's are taken
    as they are."""
    itself, embeds = study.method.normalises, study.fed.net.embeds
    by_images = scales_images(study.method)
    if data.intake is None or (embeds and not data.layout) or itself == "all":
        return ""
    if not data.layout and (itself or (by_images and sample_images.image_shapes(study.fed))):
        return ""
    return why_standardise(data, but_images=by_images)


def warn_unscaled(data: Dataset, study: Study, say: Callable[[str], None]) -> bool:
    """Whether a site's samples need scaling for a study, which its operator is told."""
    if why := looks_unscaled(data, study):
        say(
            f"E527 this study takes samples as they are: {why};"
            f" {scaling_remedy(study.method, data.layout, study.summed)}"
        )
    return bool(why)
