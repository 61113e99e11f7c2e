"""What a study would take from one site, and whether the site's policy allows it, before anything is computed
for it.

A review covers bytes, readers, guarantees, epsilon for the site's own samples, and the kinds of disclosure.
The coordinator reads the refusals, so they reveal no more about the site's data than that a limit is not
met.

Letters: K sites, C classes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn.modules.module import register_module_module_registration_hook

from unskew import config, models
from unskew.attacks.registry import HEAD, readers_lines
from unskew.config import Settings
from unskew.core import encoding
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.privacy_account import Account, epsilon_text
from unskew.core.shares import Share
from unskew.core.trees import bytes_text
from unskew.data.samples.dataset import Dataset
from unskew.data.standardisation import why_standardise
from unskew.errors import UsageError, excerpt
from unskew.federation.protocol import hello, study_rules
from unskew.federation.protocol.study_rules import scales_images, score_names
from unskew.federation.site.approvals import digest_of
from unskew.federation.site.policy import ALL, Policy
from unskew.federation.site.site_ledger import RunLedger, policy_refusal
from unskew.federation.site_data import load
from unskew.methods import registry
from unskew.methods.shared import sample_images
from unskew.models import hf_folder
from unskew.privacy.secure_aggregation import LEAST_SITES, SecureAggregation
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
"""Hooks that only process data already sent. A Part without other hooks needs nothing from a site."""


@dataclass(frozen=True)
class Study:
    """A study as one site would take part in it.

    sent: names of the weights that leave. counts_KC: training samples (pixels for masks) by client and
    class; only this site's row is known. trains, tests: this site's numbers of training and test samples.
    """

    method: Method
    settings: Settings
    fed: Fed
    sent: tuple[str, ...]
    counts_KC: np.ndarray[Any, Any]
    trains: int
    tests: int

    def shares(self) -> Iterator[tuple[str, Share, int]]:
        """Everything that leaves, as (name, declaration, number of times in the whole study)."""
        rounds, declared = self.settings.rounds, encoding.declared_shares(self.method, self.fed)
        if encoding.plain_weights(self.method, self.fed, self.sent):
            yield WEIGHTS, Share((), kind="weights", samples="client"), rounds
        for part in self.method.parts:
            for leaf, share in declared.get(part.name, {}).items():
                yield f"{part.name}/{leaf}", share, rounds
            for trip in part.trips:
                for leaf, share in trip.shares(self.fed).items():
                    yield f"{part.name}/{leaf}", share, trip.often(rounds)
        if self.tests:
            yield SCORE, Share((), kind="statistics"), rounds

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each thing that leaves, by the name in the ledger: `weights` or `part/leaf`."""
        return {
            "weights" if what == WEIGHTS else "/".join(what.split("/")[:2]): share.discloses
            for what, share, _ in self.shares()
            if what != SCORE
        }

    @property
    def title(self) -> str:
        """The method's name, with `fedavg` in front if all its Parts only change the server."""
        text = str(self.method)
        return text if text == "fedavg" or any(map(_asks_sites, self.method.parts)) else f"fedavg+{text}"

    @property
    def draws(self) -> bool:
        """True if data of single samples or groups leave, selected by the study's seed."""
        return any(isinstance(share.samples, int) for what, share, _ in self.shares() if what != SCORE)

    @property
    def summed(self) -> bool:
        """Whether the study uses secure aggregation."""
        return self.settings.secure is not None

    @property
    def digest(self) -> str:
        """The digest that the runs of one study have in common."""
        return digest_of(self.settings, self.draws)

    @property
    def epsilon(self) -> float:
        """The largest finite epsilon of the method's accounts for this site's samples; 0 without an account.

        Infinite if no epsilon is finite.
        """
        figures = [[epsilon for epsilon, _ in account.epsilons] for account in self._accounts]
        return sum(max(filter(math.isfinite, one), default=math.inf) for one in figures)

    @property
    def delta(self) -> float:
        """The delta of `epsilon`: the (epsilon, delta) of all accounts add up."""
        return sum(account.delta for account in self._accounts)

    @property
    def _accounts(self) -> list[Account]:
        return list(accounts(self.method, self.fed, self.counts_KC).values()) if self.trains else []

    @property
    def fewest_of_all(self) -> int:
        """The fewest samples behind any number that leaves; 0 if nothing leaves."""
        return min((n for what, share, _ in self.shares() if (n := int(self.fewest(what, share)))), default=0)

    def fewest(self, what: str, share: Share) -> int:
        """The fewest samples behind a number of a Share; 0 if this site sends none."""
        return self.tests if what == SCORE else share.fewest(self.trains, self.counts_KC.sum(0))


def check_settings(policy: Policy, method: Method, batch: int, rounds: int, summed: bool) -> None:
    """Check a study's settings against the policy. summed: the study uses secure aggregation.

    Raises UsageError (E520).
    """
    named = ", ".join(policy.methods)
    asking = [part for part in method.parts if _asks_sites(part)]
    if policy.secure_aggregation == "required" and not summed:
        raise _refusal("secure_aggregation", "the coordinator would read this site's own replies")
    if ALL not in policy.methods:
        # a method without Parts, or with the server's only, counts as fedavg
        if not asking and not {"fedavg", *(part.name for part in method.parts)} & {*policy.methods}:
            text = "the study is plain fedavg, in which a site's weights leave as they are"
            raise _refusal("methods", f"{text}, and fedavg is not among {named}")
        for part in asking:
            if part.name not in policy.methods:
                raise _refusal("methods", f"the study uses '{part.name}', which is not among {named}")
    for part in method.parts:
        if part.handed_on and policy.handing_on == "refused":
            text = f"'{part.name}' has the coordinator send other sites {part.handed_on}"
            raise _refusal("handing_on", text)
    if batch < policy.least_batch:
        raise _refusal("least_batch", f"the study trains with batches of {batch}")
    if rounds > policy.most_rounds:
        raise _refusal("most_rounds", f"the study takes {rounds} rounds")


def check_study(policy: Policy, study: Study) -> None:
    """Check everything that would leave in a study against the policy. Raises UsageError (E520)."""
    check_settings(policy, study.method, study.settings.batch, study.settings.rounds, study.summed)
    for what, share, _ in study.shares():
        if share.discloses not in policy.shares:
            silent = "" if share.kind else " (its Part does not say what it is, so it counts as that)"
            raise _refusal("shares", f"'{what}' is of the kind {share.discloses}{silent}")
        if 0 < study.fewest(what, share) < policy.least_samples:
            text = f"fewer than {policy.least_samples} samples would stand behind a number of '{what}'"
            raise _refusal("least_samples", text)


def _asks_sites(part: Part) -> bool:
    hooks = {hook for hook in HOOKS if overrides(part, hook)}
    return bool(hooks - AT_THE_SERVER or part.trips)


def _refusal(key: str, text: str) -> UsageError:
    return policy_refusal(f"{text} ({key})")


def check_run(policy: Policy, run: RunLedger) -> None:
    """Check a run in progress against the current policy. Raises UsageError (E520)."""
    check_settings(policy, registry.parse(run.method), run.batch, run.rounds, run.summed)
    for name, kind in run.kinds.items():
        if kind not in policy.shares:
            raise _refusal("shares", f"'{name}' is of the kind {kind}")
    if 0 < run.fewest < policy.least_samples:
        text = f"fewer than {policy.least_samples} samples stand behind a number"
        raise _refusal("least_samples", text)


COPIES = 8
"""Approximate copies of a model's weights in training: received, per lane, gradients, optimiser, the
reply."""


def disclosure_lines(
    method: Method, trainer: Trainer, data: Dataset, summed: SecureAggregation | None = None
) -> list[str]:
    """What a study takes from this site, computed from its data. Its noise protects against other readers
    only. The training loss stays at the site if each sample is protected.

    summed: the secure aggregation of replies, if the coordinator sees only sums.
    """
    counts_KC, fed, indent = trainer.samples.counts_KC, trainer.fed, " " * 20
    protector = method.samples_apart or method.protector
    lines = disclosure.payload_lines(method, fed, trainer.sent, counts_KC, secure=summed)
    if any(name != (protector and protector.name) for name in accounts(method, fed, counts_KC)):
        warning = "against the coordinator: it knows the study's seed, from which the noise is drawn"
        lines.append(f"{indent}  epsilon {epsilon_text(math.inf):>9}  {warning}")
    others = ", and by the other sites" if summed else ""
    lines.append(f"{indent}number of training samples, a round (read: each{others})")
    if not method.samples_apart:
        readers = "only in the sum" if summed else "each"
        lines.append(f"{indent}mean training loss, a round (read: {readers})")
    if len(data.y_test):
        names = ", ".join((*score_names(fed), *(metric.key for metric in fed.metrics)))
        text = f"scores on this site's own test samples: {names}"
        lines.append(f"{indent}{text}, a round that is scored (read: each)")
    shape = "names, shapes and types of inputs" if trainer.net.layout else "shape"
    shape += f", {hello.FORM_LEAVES}" if hello.form_of(data) else ""
    shape += ", center and scale of the target" if data.target else ", class names"
    what = f"numbers of training and test samples, {shape}, whether samples look unscaled, versions"
    lines.append(f"{indent}{what}, once (read: each)")
    if summed:
        text = "of sums nothing is measured; a simulation of this study without secure aggregation bounds it"
        return [*lines, f"{HEAD}{text} from above"]
    run = f"{indent}RUN: a simulation of this study on data like these"
    return [*lines, *readers_lines(method, fed, "RUN"), run]


def forecast(
    study: Path, data: str, classes: Sequence[str], sites: int, model: str | None = None
) -> tuple[Study, list[str]]:
    """What this site would send in a study with the operator's data and model, as a study and as lines of
    text.

    The coordinator's `unskew run --on` adds by default a rule that reads each site's weights; the forecast
    includes it. sites: number of participants. Raises UsageError for a study that cannot run over a
    network, DataError for bad data.
    """
    plain_settings = study_rules.study_settings(config.load(study))
    settings = study_rules.with_clipping(plain_settings)
    sites = max(sites, LEAST_SITES) if settings.secure else sites
    here = study_rules.site_settings(settings, model).replace(clients=sites)
    review, lines = forecast_settings(load(data, classes), here)
    if settings != plain_settings:
        text = f"unskew run --on adds {study_rules.CLIP}, unless it is given --set clip=false"
        lines = [f"method {settings.method}: {text}", *lines]
    return review, lines


def forecast_settings(data: Dataset, settings: Settings) -> tuple[Study, list[str]]:
    """What a site with these data would send if `settings.clients` sites take part.

    Raises UsageError; E108 for a model, or weights that a Part adds, that do not fit into memory, before any
    of the memory is allocated.
    """
    dataset, sites = study_rules.prepare(data, settings), settings.clients
    check_model(settings, dataset)
    method = registry.parse(settings.method)
    view = study_rules.SiteView.of(dataset, 0, sites, 0)

    def admit(size: int) -> None:
        _check_size(f"method {excerpt(settings.method)} adds", size, usable_memory())

    run = run_on(view, settings, method, admit=admit)
    check_memory(run.method, run.fed)
    trainer = trainer_of(run)
    trainer.close()
    lines = disclosure_lines(method, trainer, dataset, run.secure)
    return study_of(settings, method, trainer, dataset), lines


MOST_LAYERS = 2000
"""Layers of a model that a coordinator may name, each of which takes a few milliseconds to build."""


def check_model(settings: Settings, data: Dataset, memory_bytes: int | None = None) -> None:
    """Raises UsageError (E108) for a named model with more than MOST_LAYERS layers, or with training that
    would not fit into this machine's memory.

    memory_bytes: bytes of memory; default: the memory that this process may use.
    """
    if hf_folder.is_on_disk(settings.model):
        return  # the site's own file or folder, which its operator named
    memory_bytes = memory_bytes or usable_memory()
    shape = tuple(data.x.shape[1:])
    pixels = task_of(data.y, settings.loss, data.target, shape).pixels(shape)
    with _limited_layers(settings.model):
        weights = models.weight_bytes(settings.model, shape, len(data.classes), pixels, data.layout)
    _check_size(f"model '{settings.model}' has", weights, memory_bytes)


def _check_size(what: str, weights: int, memory_bytes: int) -> None:
    """Raises UsageError (E108) for bytes of weights whose training does not fit into memory."""
    if COPIES * weights > memory_bytes:
        text = f"the study's {what} {bytes_text(weights)} of weights, of which training"
        memory = bytes_text(memory_bytes)
        raise UsageError("E108", f"{text} holds about {COPIES} copies, and this site has {memory} of memory.")


@contextlib.contextmanager
def _limited_layers(model: str) -> Iterator[None]:
    """Raise UsageError (E108) when a model that is built has more than MOST_LAYERS layers."""
    count = itertools.count(1)

    def add(*_: Any) -> None:
        if next(count) > MOST_LAYERS:
            text = f"the study's model '{excerpt(model)}' has more than {MOST_LAYERS:,} layers"
            raise UsageError("E108", f"{text}, which a site builds for no study; name a smaller one.")

    handle = register_module_module_registration_hook(add)
    try:
        yield
    finally:
        handle.remove()


def study_of(settings: Settings, method: Method, trainer: Trainer, data: Dataset) -> Study:
    """The study for a check against the site's policy. data: the site's data."""
    counts_KC, sent = trainer.samples.counts_KC, tuple(trainer.sent)
    return Study(method, settings, trainer.fed, sent, counts_KC, len(data.y), len(data.y_test))


def looks_unscaled(data: Dataset, study: Study) -> str:
    """Why a site's samples need scaling for the study; "" if they do not. A named set's need none."""
    normalises, embeds = study.method.normalises, study.fed.net.embeds
    by_images = scales_images(study.method)
    if data.intake is None or (embeds and not data.layout) or normalises == "all":
        return ""
    if not data.layout and (normalises or (by_images and sample_images.image_shapes(study.fed))):
        return ""
    return why_standardise(data, but_images=by_images)
