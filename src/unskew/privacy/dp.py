"""Client-level differential privacy (DP-FedAvg: McMahan et al., ICLR 2018; adaptive clip: Andrew et al.,
NeurIPS 2021).

Cohort: each round asks each client independently, with probability q (`availability=poisson:q`)
Client: x_k = (w_k - w, a u_k)      its update and what it shares, u_k, as one vector
Server: y = (sum_k x_k min(1, C / |x_k|) + N(0, (s C)^2)) / m,   m = q K, rounded
        w <- w + y_w,   sum_k u_k: m y_u / a
With `adaptive` the clip follows a quantile of the norms; r is `clip_budget`:
        C <- C exp(-rate (b - quantile)),   b = 1/2 + (sum_k ([|x_k| <= C] - 1/2) + N(0, s_b^2)) / m
        s = z / sqrt(1 - r),   s_b = z / (2 sqrt(r)),   which together cost as much as noise z
z is `noise_multiplier` if that is set, and otherwise the least noise with which all rounds cost `epsilon` at
`delta`. Clients have equal weights. The server's merges and hooks read y alone, as m equal replies, even in a
round that asked no client.
Guarantee: the model and everything else that the server broadcasts, in all rounds, are private for the
addition or removal of one client, against any reader who does not know the cohorts. The server itself reads
every update and is trusted; scores and losses in the run's files carry no noise, and its events list cohorts.
Differs from the paper: McMahan et al. weigh clients by min(n_k / n', 1), ours equally. m is rounded to a
whole number of clients. The clip's budget is a share of 1 / z^2 instead of s_b = m / 20, which leaves no
budget at some noise levels, and b is clamped to [0, 1] before the clip moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt

from unskew.core import Fed, Normal, Part, Reply, Share, Tensor, Tree, Ups, Weights, add_noise
from unskew.core.method import Method
from unskew.core.privacy_account import Account, epsilon_caution, epsilon_text
from unskew.core.trees import flat_tree, nested_tree
from unskew.errors import UsageError
from unskew.formats.arguments import With
from unskew.privacy.accounting import LEAST_NOISE, epsilon_after, most_releases, noise_for, round_up


@dataclass(frozen=True)
class DP(Part):
    """Clips every client's update and adds noise to their sum, so that the models reveal little about any
    one client."""

    epsilon: Annotated[
        float,
        Ge(0),
        Le(1000),
        "budget: noise is solved for it, or the run stops before it is exceeded; 0: none",
    ] = 8.0
    delta: Annotated[
        float, Gt(0), Lt(1), "chance with which more may leak; well below one in the number of clients"
    ] = 1e-5
    noise_multiplier: Annotated[
        float,
        Ge(0),
        Le(1_000_000),
        "z, the deviation of the noise in units of the clip; 0: solved for from `epsilon`",
    ] = 0.0
    clip: Annotated[
        float,
        Ge(1e-6),
        Le(1_000_000),
        "C, the largest L2 norm of a client's update; where it begins with `adaptive`",
    ] = 1.0
    scale: Annotated[
        float,
        Ge(1e-9),
        Le(1_000_000),
        "a, what a unit of a Share counts beside a unit of the weights in the norm",
    ] = 1.0
    adaptive: Annotated[bool, "let the clip follow a quantile of the updates' norms"] = False
    quantile: Annotated[
        float, Gt(0), Lt(1), With("adaptive"), "part of the updates that the clip leaves whole"
    ] = 0.5
    rate: Annotated[float, Gt(0), Le(10), With("adaptive"), "how fast the clip follows"] = 0.2
    clip_budget: Annotated[
        float, Gt(0), Le(0.5), With("adaptive"), "r, part of the budget for finding the clip"
    ] = 0.05
    name = "dp"
    family = "privacy"
    use_when = (
        "Nobody who sees the model may learn whether a client took part; hundreds of clients are needed for"
        " use."
    )
    protects = True
    weights_read = "each"
    weighting = "equal"
    keeps_at_server = ("clip",)
    clashes = {"local": "nothing is shared that noise could protect"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon and not self.noise_multiplier:
            text = (
                "DP: give epsilon, noise_multiplier or both; without either nothing says how much noise to"
                " add."
            )
            raise UsageError("E102", text)
        if 0 < self.noise_multiplier < LEAST_NOISE:
            text = f"DP: noise_multiplier must be 0 or at least {LEAST_NOISE:g}; less protects nobody."
            raise UsageError("E102", text)

    def refuse(self, fed: Fed) -> str | None:
        if fed.sampled is None:
            how = "set availability=poisson:0.1 (any probability), or full"
            return f"its accounting holds where clients are drawn independently of each other; {how}"
        if self.delta >= 1 / fed.clients:
            return (
                f"delta={self.delta:g} is no less than one in {fed.clients} clients, so one could leak whole;"
                " lower it"
            )
        if not self.rounds_within(fed):
            cost = epsilon_after(1, fed.sampled, self.multiplier(fed), self.delta)
            return (
                f"its first round would cost epsilon {epsilon_text(cost)}, above"
                f" {epsilon_text(self.epsilon)}; raise noise_multiplier"
            )
        return None

    def multiplier(self, fed: Fed) -> float:
        """z, from the setting or solved for `epsilon`."""
        return self.noise_multiplier or noise_for(self.epsilon, fed.rounds, _sampled(fed), self.delta)

    def has_schedule(self) -> bool:
        return not self.noise_multiplier

    def rounds_within(self, fed: Fed) -> int:
        if not self.epsilon or not self.noise_multiplier:
            return fed.rounds
        return most_releases(self.epsilon, _sampled(fed), self.noise_multiplier, self.delta, fed.rounds)

    def spent(self, fed: Fed, t: int) -> float:
        return round_up(epsilon_after(t, _sampled(fed), self.multiplier(fed), self.delta))

    def server_init(self, w: Weights, fed: Fed) -> Tree:
        return {"clip": torch.tensor(self.clip, dtype=torch.float64)} if self.adaptive else {}

    def protect(self, w: Weights, s: Tree, ups: Ups, fed: Fed, normal: Normal) -> tuple[list[Reply], Tree]:
        z, r = self.multiplier(fed), self.clip_budget if self.adaptive else 0.0
        clip = float(s["clip"]) if self.adaptive else self.clip
        total = {path: torch.zeros_like(t, dtype=torch.float64) for path, t in self._vector(w, {}, ups, fed)}
        inside = 0.0
        for reply in ups.replies:
            x = dict(self._vector(w, reply.weights, ups, fed, reply.shares))
            norm = norm_of(x)
            keep = min(1.0, clip / norm) if norm else 1.0
            inside += 0.5 if norm <= clip else -0.5
            for path, t in x.items():
                total[path] += keep * t
        deviation = z / math.sqrt(1 - r) * clip
        sums = {path: add_noise(t, deviation, normal(tuple(t.shape), path)) for path, t in total.items()}
        m = expected_clients(fed)
        replies = [self._alike(w, sums, ups, m)] * m
        if not self.adaptive:
            return replies, s
        below = 0.5 + float(add_noise(torch.tensor(inside), z / (2 * math.sqrt(r)), normal((), "clip"))) / m
        return replies, {
            "clip": s["clip"] * math.exp(-self.rate * (min(1.0, max(0.0, below)) - self.quantile))
        }

    def _vector(
        self, w: Weights, sent: Weights, ups: Ups, fed: Fed, shares: Mapping[str, Tree] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """x of a client with these weights and shares, by path; zeros for parts that it did not send."""
        for n in fed.shared:
            yield f"w/{n}", (sent[n] - w[n]).double() if sent else torch.zeros_like(w[n])
        for part, declared in ups.declared.items():
            leaves = flat_tree(shares[part]) if shares else {}
            for leaf, share in declared.items():
                blank = torch.zeros(share.shape)  # type: ignore[arg-type]  # a shape with rows is refused
                yield f"{part}/{leaf}", self.scale * leaves[leaf].double() if leaves else blank

    def _alike(self, w: Weights, sums: Mapping[str, Tensor], ups: Ups, m: int) -> Reply:
        """The reply of each of m clients whose replies add up to the noisy sums."""
        mean = {path: t / m for path, t in sums.items()}
        weights = {n: (w[n].double() + mean[f"w/{n}"]).to(w[n].dtype) for n in w if f"w/{n}" in mean}
        shares = {
            part: nested_tree(
                {leaf: self._shared(mean[f"{part}/{leaf}"], share) for leaf, share in declared.items()}
            )
            for part, declared in ups.declared.items()
        }
        return Reply(NO_CLIENTS, 1.0, weights, shares)

    def _shared(self, mean: Tensor, share: Share) -> Tensor:
        """A noisy share in its own unit. Shares with no negative values are clamped at 0."""
        unscaled = mean / self.scale
        return (unscaled.clamp(min=0) if share.low >= 0 else unscaled).to(share.dtype)

    def account(self, counts_KC: np.ndarray[Any, Any], fed: Fed) -> Account:
        rounds, z = self.rounds_within(fed), self.multiplier(fed)
        epsilon = self.spent(fed, rounds)
        initially = " to begin with" if self.adaptive else ""
        few = f"; the budget of {epsilon_text(self.epsilon)} allows no more" if rounds < fed.rounds else ""
        return Account(
            f"noise {z:.4g} x clip {self.clip:g}{initially}, q = {_sampled(fed):g},"
            f" {rounds} of {fed.rounds} rounds{few}, {expected_clients(fed)} clients expected in each",
            (
                (
                    epsilon,
                    (
                        "of every model and broadcast, one client more or less, against whoever reads"
                        f" them{epsilon_caution(epsilon)}"
                    ),
                ),
                (
                    math.inf,
                    (
                        "against the server, which reads every update, and of the scores, losses and"
                        " cohorts in the run's files"
                    ),
                ),
            ),
            delta=self.delta,
        )


def remarks(method: Method, fed: Fed) -> tuple[tuple[str, str], ...]:
    """Remark E128, for a method whose Parts share sums that `dp` clips without a scale; else ().

    Shares in the unit of weights, such as SCAFFOLD's, need no scale where learning rate times steps is near
    one.
    """
    part = method.protector
    if not isinstance(part, DP) or part.scale != UNSCALED:
        return ()
    sums = dict.fromkeys(
        f"'{name}/{leaf.partition('/')[0]}'"
        for name, shares in method.shares(fed).items()
        for leaf, share in shares.items()
        if share.discloses != "weights"
    )
    if not sums:
        return ()
    text = (
        f"'{part.name}' clips the weights and {', '.join(sums)} as one vector, and with scale=1 a unit of"
        " either counts alike; such sums are often 100 times as long as an update and leave next to nothing"
        " of it: try scale=0.001."
    )
    return (("E128", text),)


UNSCALED = 1.0
"""The `scale` that is the default."""

NO_CLIENTS = -1
"""The client number of a reply that stands for no single client."""


def expected_clients(fed: Fed) -> int:
    """m, the expected number of clients in a round, at least one. It does not depend on the actual cohort."""
    return max(1, round(_sampled(fed) * fed.clients))


def norm_of(x: Mapping[str, Tensor]) -> float:
    """The L2 norm of all tensors together."""
    return math.sqrt(sum(float(t.pow(2).sum()) for t in x.values()))


def _sampled(fed: Fed) -> float:
    return 1.0 if fed.sampled is None else fed.sampled
