"""Which Parts can be combined with one that protects clients or samples, or with secure aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unskew.core.client import Fed
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.replies import Reply
from unskew.core.trees import hidden_tensor

UNSEEN_HOOKS = (
    *(
        "refuse",
        "model",
        "weights",
        "keeps",
        "freezes",
        "server_init",
        "client_init",
        "sample_grad",
        "sample_sum",
        "noise",
        "grad",
        "sends",
        "encoded",
        "encode",
        "decode",
        "holds",
        "shares",
    ),
    *("merge", "caution", "server", "refine", "protect", "rounds_within", "spent", "account"),
)
"""Hooks that see no sample of a client, or one sample at a time. Encoded weights already have noise."""

SAMPLE_HOOKS = ("batch", "tap", "logits", "loss")
"""Hooks that see a batch of one sample if samples are protected, so a Part that mixes samples would mix
none."""
TEST_HOOKS = ("evaluate_with", "scores", "received")
"""Hooks for scores, which have no access to training samples if samples are protected."""


def protection_problem(part: Part, fed: Fed) -> str | None:
    """Why noisy sums over clients are not enough for this Part, as the end of a sentence; None if they are.

    Only the sum of the weights and of every Share with reads="sum" is released.
    """
    if part.weights_read == "each":
        return "it reads each client's weights, and only their noisy sum is there"
    if reason := _reserves(part):
        return reason
    if part.trips:
        return "it exchanges more than training, and what it exchanges gets no noise"
    return _no_sum(part, fed, "noisy sums are there", "to which noise could be added")


def sum_problem(part: Part, fed: Fed) -> str | None:
    """Why the sums that secure aggregation gives are not enough for this Part, as the end of a sentence; None
    if they are."""
    if overrides(part, "encode"):
        return "it encodes the weights that clients send, and encoded weights cannot be added up"
    if part.weights_read != "sum":
        return "it reads each client's weights, and only their sum is there"
    if exchanged := [trip.shares(fed) for trip in part.trips]:
        leaf = next((f"'{part.name}/{leaf}'" for shares in exchanged for leaf in shares), "messages")
        return f"it exchanges {leaf} beside training, and only what comes with training is summed"
    return _no_sum(part, fed, "sums are there", "that could be summed")


def _no_sum(part: Part, fed: Fed, there: str, vector: str) -> str | None:
    """Why the sum over clients is not enough for a Share of this Part. there, vector: the ends of the
    sentences."""
    for leaf, share in part.shares(fed).items():
        if share.reads == "each":
            return f"it reads '{part.name}/{leaf}' of each client, and only {there}"
        if not share.dtype.is_floating_point or None in share.shape:
            return f"'{part.name}/{leaf}' is no vector of fixed length {vector}"
    return None


def sample_problem(part: Part, by: Part) -> str | None:
    """Why the proof of `by` about single samples does not hold with this Part, as the end of a sentence; None
    if it does."""
    summed = part.totals if overrides(by, "sample_sum") else {}
    allowed = {
        *UNSEEN_HOOKS,
        *TEST_HOOKS,
        *(SAMPLE_HOOKS if part.alone else ()),
        *({"finish"} & summed.keys()),
    }
    own = next((hook for hook in HOOKS if hook not in allowed and overrides(part, hook)), None)
    if reason := _reserves(part):
        return reason
    if own in SAMPLE_HOOKS:
        return (
            f"its hook {own} may mix the samples of a batch, and here each trains by itself (alone = True"
            " says it does not)"
        )
    if own or any(not trip.sums or not overrides(by, "sample_sum") for trip in part.trips):
        return f"its {f'hook {own}' if own else 'own exchange'} could read samples that no noise covers"
    return None


def sums_released(parts: Sequence[Part], rounds: int) -> int:
    """The number of sums over its samples that a client releases for these Parts if it takes part in every
    round."""
    of_training = sum(often for part in parts for hook, often in part.totals.items() if overrides(part, hook))
    return rounds * of_training + sum(trip.sums * trip.often(rounds) for part in parts for trip in part.trips)


def _reserves(part: Part) -> str | None:
    return "it trains on samples that the server holds, which no noise protects" if part.reserve else None


def without_losses(replies: list[Reply], by: Part | None, summed: bool, trip: bool = False) -> list[Reply]:
    """The replies without the losses of single clients if these are not known, or have no noise: a hook that
    reads one is refused (E108), instead of taking a default value for it.

    by: the Part that protects clients or samples. summed: secure aggregation only gives sums. trip: the
    replies are to a trip, in which nothing trains.
    """
    if trip:
        why = "in a trip nobody trains, so that there is none"
    elif summed:
        why = "with secure aggregation only the sum of all losses is there"
    elif by:
        why = f"no noise of '{by.name}' covers a loss"
    else:
        return replies
    text = f"a hook reads the loss of single clients, and {why}"
    loss = hidden_tensor(f"{text}; take the Part out, or have it share what it needs of the loss.")
    return [replace(r, loss=loss) for r in replies]
