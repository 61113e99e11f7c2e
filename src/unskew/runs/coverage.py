"""What a run's figures rest on: the replies that were used, and the clients that were scored.

A run of which too few replies were used is no result, and where many were dropped the likeliest cause is
named. A client that never took part has none of the weights that stay at clients, and a site that did not
answer sent no score; means over the others stand next to other methods' means over all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from unskew.core.method import first_stage_doubt
from unskew.core.part import overrides
from unskew.core.user_parts import is_own
from unskew.errors import NothingUsed
from unskew.records import client_lists
from unskew.records.record import Record
from unskew.round.run import Run
from unskew.scores import kind

LEAST_SHARE = 0.1
"""A run in which a smaller share of the replies was used says nothing about its method."""
MOST_DROPPED = 1 / 3
"""Where a larger share of the replies was dropped, the run's scores say more of what went wrong than of its
method."""
LARGE_INPUTS = 100.0
"""Inputs of this size were not scaled: standardised ones are about 1, and pixels at most 1."""
LARGE_RATE = 1.0
MANY_DROPPED = "E317"
"""The code of the event that says so."""
CLIPPED = "E322"
"""The code of the events of rounds in which numbers were cut."""
FIRST_STAGE = "E139"
"""The code of a remark before round 1, and of the event after the last one of a run for which it came
true."""
METRICS_CHANGED = "E327"
"""The code of the events which say that a file of metrics was changed."""
TRAINING_HOOKS = (
    "batch",
    "tap",
    "logits",
    "loss",
    "perturb",
    "grad",
    "carry",
    "starts",
    "finish",
    "sends",
    "encode",
)
"""Hooks in which values that are no numbers can arise before a reply is sent."""
SERVER_HOOKS = ("server_init", "protect", "merge", "server", "refine", "trips")
"""Hooks in which they can arise at the server."""
_ROUND_CODE = "round"
_NOT_FINITE_CODES = ("E301", "E314")
_DROP_CODES = ("E302", "E303", "E304", "E306", "E308", "E310", "E313", "E318", "E321", "E324")
"""The codes of the other events which say that replies were not used."""


@dataclass(frozen=True)
class UsedReplies:
    """The replies of a whole run.

    rounds: those that took place. received: replies that came. used: those that were merged. reasons: how
    many events
    of each code there were. used_first: those of the first round in which any came that were merged.
    """

    rounds: int
    received: int
    used: int
    reasons: Counter[str] = field(default_factory=Counter)
    used_first: int = 0

    @staticmethod
    def of(events: Iterable[Mapping[str, Any]], clients: int = client_lists.MOST_CLIENTS) -> UsedReplies:
        """Counted from the rows of events.jsonl. clients: of the run. Raises StateError (E111) where they
        name more."""
        rounds = received = used = used_first = 0
        reasons: Counter[str] = Counter()
        for event in events:
            if event["code"] == _ROUND_CODE:
                rounds += 1
                merged = client_lists.count(event["answered"], clients)
                used_first = used_first if received else merged
                used += merged
                received += event.get("received", merged)
            else:
                reasons[event["code"]] += 1
        return UsedReplies(rounds, received, used, reasons, used_first)

    @property
    def dropped(self) -> int:
        """Replies that came and were not used."""
        return self.received - self.used

    @property
    def enough(self) -> bool:
        """Whether the share of replies that were used lets the run stand as a result. A run of no rounds
        stands."""
        return self.rounds == 0 or self.used > LEAST_SHARE * self.received

    def __str__(self) -> str:
        if not self.received:
            return f"no client answered in any of {self.rounds} rounds"
        return f"{self.used or 'none'} of {self.received} replies {'was' if self.used < 2 else 'were'} used"


def check_used(run: Run, record: Record) -> None:
    """Look at a run that has come to its end; adds an event to its record where many replies were dropped
    (E317), or where it ended in the first stage of its method (E139).

    Raises NothingUsed (E316) with the likeliest cause where clients did not train the run.
    """
    replies = UsedReplies.of(record.rows["events"], run.fed.clients)
    if not replies.enough:
        text = f"{replies}, so the weights are not a result of {run.method}: {likely_cause(run, replies)}"
        raise NothingUsed("E316", text)
    last = record.last_round
    for t, code, text in (
        (run.settings.rounds, MANY_DROPPED, _dropped_doubt(run, replies)),
        (last, FIRST_STAGE, first_stage_doubt(run.method, run.settings.rounds, last)),
    ):
        if text:
            record.add("events", [{"t": t, "code": code, "text": text}])


def doubt(run: Run, replies: UsedReplies, t: int) -> str:
    """Why the scores of a run whose last round is t say little, as a sentence with the likeliest cause; else
    "".

    More than a third of the replies was dropped, an exchange was left out, numbers were cut before they were
    summed, a metric was changed, or the run ended in the first stage of its method.
    """
    said = (
        _dropped_doubt(run, replies)
        or exchange_doubt(replies)
        or clipping_doubt(replies)
        or metric_doubt(replies)
    )
    return said or first_stage_doubt(run.method, run.settings.rounds, t)


def exchange_doubt(replies: UsedReplies) -> str:
    """A sentence on exchanges beside the training that brought no numbers, where all replies of training were
    used; else ""."""
    times = sum(replies.reasons[code] for code in _NOT_FINITE_CODES)
    if replies.dropped or not times:
        return ""
    text = (
        "in an exchange beside the training, answers or what the server made of them held values that are no"
        " numbers"
    )
    return f"{text} and were left out, {times:,} times in all; events.jsonl names each (E301, E314)"


def metric_doubt(replies: UsedReplies) -> str:
    """A sentence on metrics whose file was changed while the run was under way; "" without any."""
    if not replies.reasons[METRICS_CHANGED]:
        return ""
    text = (
        f"a file of metrics was changed while the run was under way ({METRICS_CHANGED}), so their scores are"
        " of two versions"
    )
    return f"{text}, and runs that had ended keep the older one's; events.jsonl says since which round"


def clipping_doubt(replies: UsedReplies) -> str:
    """A sentence on the rounds whose sums are not those of what clients computed (secure aggregation); ""
    without any."""
    rounds = replies.reasons[CLIPPED]
    if not rounds:
        return ""
    text = (
        f"in {rounds} of {replies.rounds} rounds numbers were larger than secure_aggregation's clip and were"
        f" cut ({CLIPPED})"
    )
    return f"{text}; events.jsonl says how many, and a larger clip or a smaller lr avoids it"


def _dropped_doubt(run: Run, replies: UsedReplies) -> str:
    """A sentence with the likeliest cause where more than a third of the replies was dropped; else ""."""
    if replies.dropped <= MOST_DROPPED * replies.received:
        return ""
    counts = f"{replies.dropped:,} of {replies.received:,} replies were dropped"
    return f"{counts}, so the scores say little about {run.method}: {likely_cause(run, replies)}"


def lost_replies(name: str, received: int, used: int, untrained: int, runs: int) -> str:
    """A sentence on the replies that a method was trained without; "" if all were used.

    untrained: how many of its runs used too few to have a score.
    """
    replies = (
        f"{received - used:,} of {received:,} replies were dropped" if received else "no client answered"
    )
    scores = f"; {untrained} of {runs} runs used too few to have a score (E316)" if untrained else ""
    return f"{name}: {replies}{scores}." if used < received or untrained else ""


def likely_cause(run: Run, replies: UsedReplies) -> str:
    """Why so few replies were used and what to change, as the end of a sentence."""
    if not replies.received:
        if run.settings.availability == "full":  # they were asked, so they failed or were away
            return "every client failed or was away; events.jsonl says why."
        return f"availability={run.settings.availability} leaves nobody to train; choose another."
    code = max(_DROP_CODES, key=lambda c: replies.reasons[c])
    if replies.reasons[code] > sum(replies.reasons[c] for c in _NOT_FINITE_CODES):
        return (
            f"most were dropped with {code}; events.jsonl names each, and `unskew list errors` explains the"
            " code."
        )
    if (largest := _largest_input(run)) > LARGE_INPUTS:
        return (
            f"inputs as large as {largest:.3g} make training diverge; scale them, for example with"
            " normalise=dataset."
        )
    rate = f"lr={run.settings.lr:g}"
    at_server = replies.reasons["E314"] > replies.reasons["E301"]
    if own := _own_hooks(run, SERVER_HOOKS if at_server else TRAINING_HOOKS):
        text = (
            f"a hook of {own} returns no number (the logarithm or the root of 0, say), or {rate} is too high"
        )
        when = "replies" if replies.used_first else "the very first replies"
        where = "what the server makes of them holds" if at_server else f"{when} hold"
        return f"{where} values that are no numbers: either {text}."
    if run.settings.lr > LARGE_RATE:
        return f"training diverges, most likely because {rate} is too high; try lr=0.01."
    high = f"{rate} or a setting in {run.method}" if "(" in str(run.method) else rate
    return (
        f"training diverges, most likely because {high} is too high for this model and these data; try a"
        " tenth of it."
    )


def _own_hooks(run: Run, hooks: Sequence[str]) -> str:
    """The users' own Parts that define one of these hooks, as words; "" without any."""
    own = [p for p in run.method.parts if is_own(p) and any(overrides(p, hook) for hook in hooks)]
    return " or ".join(f"'{p.name}'" for p in own)


def _largest_input(run: Run) -> float:
    """The largest absolute value among a few hundred inputs, spread over the training samples."""
    x = run.federation.x
    rows = np.unique(np.linspace(0, len(x) - 1, min(256, len(x)), dtype=np.int64))
    values = np.asarray(x[rows])
    return float(np.abs(values).max()) if values.size and np.issubdtype(values.dtype, np.floating) else 0.0


MISSING_REASON = "the others never took part, or did not answer"


class Coverage(NamedTuple):
    """there: clients with a score. of: those with test samples. own: whether only the clients' own models
    lack scores."""

    there: int
    of: int
    own: bool


def incomplete_coverage(by_scope: Mapping[str, int], tested: int) -> Coverage | None:
    """None where every client with test samples has scores, or none has.

    by_scope: by scope of clients, how many have a score in the last round. tested: how many clients have test
    samples.
    """
    own = by_scope.get("personal@client", 0)
    common = by_scope.get("global@client", own)
    there = min(own, common) if own else common
    return Coverage(there, tested, own=common >= tested) if 0 < there < tested else None


SCOPES = ("global", "global@client", "personal@client")


def metric_lines(record: Record, metrics: list[str]) -> list[str]:
    """A line a metric, with its last value in each scope; of clients the mean, and over how many it is.

    metrics: as `recorded_metrics` has them.
    """
    counts = _clients_by_metric(record) if metrics else {}
    return [f"{kind(metric).title}: {', '.join(_scope_texts(record, metric, counts))}" for metric in metrics]


def recorded_metrics(record: Record) -> list[str]:
    """Every score over all clients that the record has in any scope."""
    return list(dict.fromkeys(metric for scope in SCOPES for metric in record.metrics(scope)))


def clients_with_scores(record: Record) -> dict[str, int]:
    """By scope, how many clients have a score in the last round with scores."""
    counts: dict[str, int] = {}
    for (scope, _), n in _clients_by_metric(record).items():
        counts[scope] = max(n, counts.get(scope, 0))
    return counts


def _scope_texts(record: Record, metric: str, counts: dict[tuple[str, str], int]) -> list[str]:
    texts: list[str] = []
    for scope in SCOPES:
        (rounds, values), n = record.series(scope, metric), counts.get((scope, metric), 0)
        value = (
            values[-1] if rounds and rounds[-1] == _last_evaluated(record) else None
        )  # an earlier round's is not its result
        of = max((count for (where, _), count in counts.items() if where == scope), default=0)
        if value is None and of:
            texts.append(f"{scope} undefined at every client")
        elif value is not None:
            over = f" (mean over {n:,} of {of:,} clients)" if of else ""
            texts.append(f"{scope} {kind(metric).written(value)}{over}")
    return texts


def _clients_by_metric(record: Record) -> dict[tuple[str, str], int]:
    """By scope and metric, how many clients have a value in the last round with scores."""
    counts: dict[tuple[str, str], int] = {}
    last = _last_evaluated(record)
    for row in record.rows["metrics"]:
        if row["client"] is not None and row["t"] == last and row["scope"] in SCOPES:
            at = row["scope"], row["metric"]
            counts[at] = counts.get(at, 0) + 1
    return counts


def _last_evaluated(record: Record) -> int:
    """The last round with scores of test rows; 0 without any."""
    rounds = [record.series(scope, metric)[0] for scope in SCOPES for metric in record.metrics(scope)]
    return max((each[-1] for each in rounds), default=0)
