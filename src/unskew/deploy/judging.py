"""What a site's policy says of a study, before anything is computed for it.

No sentence tells more of the site's data than that a bound is not kept: the coordinator reads it.
Letters: K sites, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.config import Settings
from unskew.core import encoding
from unskew.core.account import Account
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.values import Share
from unskew.deploy.approvals import digest_of
from unskew.deploy.policy import ALL, Policy
from unskew.deploy.refusing import refusal
from unskew.deploy.spent import OfRun
from unskew.engine.leaves import accounts
from unskew.engine.server.ledger import masked
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.privacy import secure

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

    counts_KC: training samples by client and class, of masks pixels; only this site's are known. trains, tests: how many
    training and test samples it holds.
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
        rounds, beside = self.settings.rounds, encoding.declared(self.method, self.fed)
        if encoding.in_clear(self.method, self.fed, self.sent):
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
        return secure.parse(self.settings.secure_aggregation) is not None

    @property
    def digest(self) -> str:
        """What runs of one study have in common."""
        return digest_of(self.settings, self.draws)

    @property
    def bytes(self) -> int:
        """What leaves at most in the whole study, scores apart."""
        w, summed = self.fed.net.weights(), secure.parse(self.settings.secure_aggregation)
        plain = encoding.in_clear(self.method, self.fed, self.sent)
        weights = masked(summed, {n: w[n] for n in plain}) * self.settings.rounds
        wider = summed.bits // 32 if summed else 1  # what is summed is of float32 numbers
        return weights + sum(share.max_bytes * wider * often for _, share, often in self.shares() if share.shape)

    @property
    def epsilon(self) -> float:
        """The largest finite figure that the method accounts for with this site's samples; 0 without an account.

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


def score_names(fed: Fed) -> tuple[str, ...]:
    """The names of what a task says about every single client, in order; without the metrics that a study names."""
    one = np.zeros((1, *fed.task.pixels(fed.shape)), np.int64)
    return tuple(fed.task.client_scores(one, one, fed.classes))


def named(scope: str, metric: str) -> str:
    """What a metric that a study names is called among a site's scores."""
    return f"{scope}.{metric}"


def check_settings(policy: Policy, method: Method, batch: int, rounds: int, summed: bool) -> None:
    """Hold what a study says of itself against the policy. summed: whether it aggregates securely.

    Raises UsageError (E520).
    """
    if policy.secure_aggregation == "required" and not summed:
        raise _refusal("secure_aggregation", "the coordinator would read this site's own replies")
    if not _names(policy, method):
        text = "the study is plain fedavg, in which a site's weights leave as they are"
        raise _refusal("methods", f"{text}, and fedavg is not among {', '.join(policy.methods)}")
    for part in method.parts:
        if ALL not in policy.methods and part.name not in policy.methods and _asks_sites(part):
            raise _refusal("methods", f"the study uses '{part.name}', which is not among {', '.join(policy.methods)}")
        if part.handed_on and policy.handing_on == "refused":
            raise _refusal("handing_on", f"'{part.name}' has the coordinator send other sites {part.handed_on}")
    if batch < policy.least_batch:
        raise _refusal("least_batch", f"the study trains with batches of {batch}")
    if rounds > policy.most_rounds:
        raise _refusal("most_rounds", f"the study takes {rounds} rounds")


def check_study(policy: Policy, study: Study) -> None:
    """Hold everything that would leave in a study against the policy, whatever samples there are. Raises UsageError (E520)."""
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


def _names(policy: Policy, method: Method) -> bool:
    """Whether a policy names something of a method: one without Parts, or with the server's alone, is fedavg to a site."""
    named = {"fedavg", *(part.name for part in method.parts)} & {*policy.methods}
    return ALL in policy.methods or bool(named) or any(map(_asks_sites, method.parts))


def _asks_sites(part: Part) -> bool:
    own = {hook for hook in HOOKS if overrides(part, hook)}
    return bool(own - AT_THE_SERVER or part.trips)


def _refusal(key: str, text: str) -> UsageError:
    return refusal(f"{text} ({key})")


def check_run(policy: Policy, run: OfRun) -> None:
    """Hold a run that goes on against the policy as it is now. Raises UsageError (E520)."""
    check_settings(policy, registry.parse(run.method), run.batch, run.rounds, run.summed)
    for name, kind in run.kinds.items():
        if kind not in policy.shares:
            raise refusal(f"'{name}' is of the kind {kind} (shares)")
    if 0 < run.fewest < policy.least_samples:
        raise refusal(f"fewer than {policy.least_samples} samples stand behind a number (least_samples)")
