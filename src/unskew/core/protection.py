"""What a Part that protects clients cannot cover, named before anything trains."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace

from unskew.core.client import Fed
from unskew.core.part import HOOKS, Part, overrides
from unskew.core.replies import Reply, WithoutLoss
from unskew.errors import UsageError

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
"""Hooks that see no sample of a client, or one sample at a time. What is encoded has its noise already."""

SAMPLE_HOOKS = ("batch", "tap", "logits", "loss")
"""Hooks that see one sample at a time where each trains by itself. A Part that mixes samples would then mix
none."""
TEST_HOOKS = ("evaluate_with", "scores", "received")
"""Hooks of which only scores come: the client that they see offers no training samples then."""


def protection_problem(part: Part, fed: Fed) -> str | None:
    """Why no sum with noise can stand for what this Part has clients send, as the end of a sentence; None if
    one can.

    Only sums over clients are released: of the weights, and of every Share that is declared to be read as
    one.
    """
    if part.weights_read == "each":
        return "it reads each client's weights, and only their noisy sum is there"
    if reason := _reserves(part):
        return reason
    if part.trips:
        return f"it exchanges more than training, and what it exchanges gets no noise{_without_trips(part)}"
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
        return (
            f"it exchanges {leaf} beside training, and only what comes with training is"
            f" summed{_without_trips(part)}"
        )
    return _no_sum(part, fed, "sums are there", "that could be summed")


def _no_sum(part: Part, fed: Fed, there: str, vector: str) -> str | None:
    """Why the sum over clients does not do for a Share of this Part. there, vector: the ends of the
    sentences."""
    for leaf, share in part.shares(fed).items():
        if share.reads == "each":
            return f"it reads '{part.name}/{leaf}' of each client, and only {there}"
        if not share.dtype.is_floating_point or None in share.shape:
            return f"'{part.name}/{leaf}' is no vector of fixed length {vector}"
    return None


def _without_trips(part: Part) -> str:
    """The switch without which a Part exchanges nothing beside training, as the end of a sentence; nothing if
    it has none."""
    for field in fields(part):  # type: ignore[arg-type]  # every Part is a dataclass
        if field.init and getattr(part, field.name) is True:
            with suppress(UsageError):  # it cannot be switched off alone
                if not replace(part, **{field.name: False}).trips:  # type: ignore[type-var]
                    return f"; {part.name}({field.name}=False) does without"
    return ""


def sample_problem(part: Part, by: Part) -> str | None:
    """Why no proof of `by` about single samples can hold beside this Part, as the end of a sentence; None if
    one can."""
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
    """How many sums over its samples a client that is always asked releases for these Parts in a run of so
    many rounds."""
    of_training = sum(often for part in parts for hook, often in part.totals.items() if overrides(part, hook))
    return rounds * of_training + sum(trip.sums * trip.often(rounds) for part in parts for trip in part.trips)


def _reserves(part: Part) -> str | None:
    return "it trains on samples that the server holds, which no noise protects" if part.reserve else None


def without_losses(replies: list[Reply], by: Part | None, summed: bool, trip: bool = False) -> list[Reply]:
    """The replies without the losses of single clients where nobody has these, or no noise covers them. by:
    the Part that protects clients or samples; summed: whether secure aggregation gives sums alone; trip:
    whether nothing was trained."""
    if trip:
        why = "in a trip nobody trains, so that there is none"
    elif summed:
        why = "with secure aggregation only the sum of all losses is there"
    elif by:
        why = f"no noise of '{by.name}' covers a loss"
    else:
        return replies
    return [WithoutLoss.of(r, why) for r in replies]
