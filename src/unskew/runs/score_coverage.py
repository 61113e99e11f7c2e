"""The basis of a run's scores: the replies that were used, and the clients that were scored.

A run with too few used replies is not a result, and if many were dropped, a sentence names the likeliest
cause. A client that never took part has no weights of its own, and a site that did not answer sent no score;
means over the others then appear next to other methods' means over all clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from unskew.core.user_parts import is_own
from unskew.errors import NothingUsed
from unskew.records import client_lists
from unskew.records.record import Record
from unskew.round.run import Run
from unskew.scores import kind

LEAST_SHARE = 0.1
"""A run with a smaller share of used replies is not a result of its method."""
MOST_DROPPED = 1 / 3
"""If a larger share of the replies was dropped, the run's scores say little about its method."""
LARGE_INPUTS = 100.0
"""Larger inputs were not scaled: standardised ones are about 1, and pixels at most 1."""
MANY_DROPPED = "E316"
"""The code of the event of a run with many dropped replies."""
CLIPPED = "E322"
"""The code of the events of rounds in which numbers were clipped."""
FIRST_STAGE = "E139"
"""The code of the remark before round 1 that a run may end in its first stage."""
_ROUND_CODE = "round"
_NOT_FINITE_CODES = ("E301", "E314")
_DROP_CODES = ("E303", "E310", "E309", "E318")
"""The codes of other events on dropped replies."""


@dataclass(frozen=True)
class UsedReplies:
    """The replies of a whole run.

    rounds: the number of finished rounds. received, used: the numbers of replies that arrived, and that were
    merged. unused_rounds: the number of last rounds whose replies were all dropped. reasons: the number of
    events of each code.
    """

    rounds: int
    received: int
    used: int
    unused_rounds: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(events: Iterable[Mapping[str, Any]], clients: int = client_lists.MOST_CLIENTS) -> UsedReplies:
        """The counts from the rows of events.jsonl. clients: their number in the run. Raises StateError
        (E111) for rows with more."""
        rounds = received = used = unused = 0
        reasons: Counter[str] = Counter()
        for event in events:
            if event["code"] == _ROUND_CODE:
                rounds += 1
                merged = client_lists.count(event["answered"], clients)
                arrived = event.get("received", merged)
                used += merged
                received += arrived
                if merged:
                    unused = 0
                elif arrived:
                    unused += 1
            else:
                reasons[event["code"]] += 1
        return UsedReplies(rounds, received, used, unused, reasons)

    @property
    def dropped(self) -> int:
        """The number of replies that arrived and were not used."""
        return self.received - self.used

    @property
    def enough(self) -> bool:
        """Whether enough replies were used for the run to be a result; True for a run without rounds."""
        return self.rounds == 0 or self.used > LEAST_SHARE * self.received

    def __str__(self) -> str:
        if not self.received:
            return f"no client answered in any of {self.rounds} rounds"
        return f"{self.used or 'none'} of {self.received} replies {'was' if self.used < 2 else 'were'} used"


def check_used(run: Run, record: Record) -> None:
    """Add an event (E316) to the record of a finished run if many replies were dropped. Raises NothingUsed
    (E316) with the likeliest cause if too few were used."""
    replies = UsedReplies.of(record.rows["events"], run.fed.clients)
    if not replies.enough:
        text = f"{replies}, so the weights are not a result of {run.method}: {likely_cause(run, replies)}"
        raise NothingUsed("E316", text)
    if text := _dropped_doubt(run, replies):
        record.add("events", [{"t": run.settings.rounds, "code": MANY_DROPPED, "text": text}])


def doubt(run: Run, replies: UsedReplies) -> str:
    """Why the scores of a run say little, as a sentence with the likeliest cause; else "": more than a third
    of the replies, or all of the last round, was dropped, or as `events_doubt` says."""
    return _dropped_doubt(run, replies) or events_doubt(replies)


def events_doubt(replies: UsedReplies) -> str:
    """A sentence on the first of these if it happened in the run, else "": an exchange that is no training
    was left out, or numbers were clipped before they were summed."""
    not_finite = sum(replies.reasons[code] for code in _NOT_FINITE_CODES)
    if not_finite and not replies.dropped:
        return (
            "in an exchange beside the training, answers or what the server made of them held values that are"
            f" no numbers and were left out, {not_finite:,} times (E301, E314 in events.jsonl)"
        )
    if clipped := replies.reasons[CLIPPED]:
        return (
            f"in {clipped} of {replies.rounds} rounds numbers larger than secure_aggregation's clip were cut"
            f" ({CLIPPED}); a larger clip or a smaller lr avoids it"
        )
    return ""


def _dropped_doubt(run: Run, replies: UsedReplies) -> str:
    """A sentence with the likeliest cause if more than a third of the replies, or all of the last round, was
    dropped; else ""."""
    if replies.dropped > MOST_DROPPED * replies.received:
        counts = f"{replies.dropped:,} of {replies.received:,} replies were dropped"
    elif n := replies.unused_rounds:
        counts = f"every reply of the last {f'{n:,} rounds' if n > 1 else 'round'} was dropped"
    else:
        return ""
    return f"{counts}, so the scores say little about {run.method}: {likely_cause(run, replies)}"


def lost_replies(name: str, received: int, used: int, untrained: int, runs: int) -> str:
    """A sentence on the dropped replies of a method; "" if all were used.

    untrained: the number of its runs without a score because too few replies were used.
    """
    replies = (
        f"{received - used:,} of {received:,} replies were dropped" if received else "no client answered"
    )
    scores = f"; {untrained} of {runs} runs used too few to have a score (E316)" if untrained else ""
    return f"{name}: {replies}{scores}." if used < received or untrained else ""


def likely_cause(run: Run, replies: UsedReplies) -> str:
    """Why so few replies were used and what to change, as the end of a sentence."""
    if not replies.received:
        return f"no client answered (availability={run.settings.availability}); events.jsonl has the rounds."
    code = max(_DROP_CODES, key=lambda c: replies.reasons[c])
    if replies.reasons[code] > sum(replies.reasons[c] for c in _NOT_FINITE_CODES):
        return (
            f"most were dropped with {code}; events.jsonl names each, `unskew list errors` explains the code."
        )
    if (largest := _largest_input(run)) > LARGE_INPUTS:
        return f"inputs as large as {largest:.3g} make training diverge; scale them, with normalise=dataset."
    causes = [f"lr={run.settings.lr:g} is too high (try a tenth of it)"]
    if "(" in str(run.method):
        causes.append(f"a setting in {run.method} is")
    own = [f"'{p.name}'" for p in run.method.parts if is_own(p)]
    if own:
        causes.append(f"a hook of {' or '.join(own)} returns no number (the logarithm or the root of 0, say)")
    return f"training diverges, most likely because {', or '.join(causes)}."


def _largest_input(run: Run) -> float:
    """The largest absolute value among a few hundred inputs, spread over the clients' samples."""
    rows = run.federation.train.rows
    values = np.asarray(run.federation.x[rows[:: max(1, len(rows) // 256)]])
    return float(np.abs(values).max()) if values.size and np.issubdtype(values.dtype, np.floating) else 0.0


MISSING_REASON = "the others never took part, or did not answer"


class Coverage(NamedTuple):
    """The number of clients with scores (there) among those with test samples (of). own: whether only the
    clients' own models lack scores."""

    there: int
    of: int
    own: bool


def incomplete_coverage(by_scope: Mapping[str, int], tested: int) -> Coverage | None:
    """The coverage if some, but not all, clients with test samples have scores; else None.

    by_scope: by scope, the number of clients with a score in the last round. tested: the number of clients
    with test samples.
    """
    own = by_scope.get("personal@client", 0)
    common = by_scope.get("global@client", own)
    there = min(own, common) if own else common
    return Coverage(there, tested, own=common >= tested) if 0 < there < tested else None


SCOPES = ("global", "global@client", "personal@client")


def metric_lines(record: Record, metrics: list[str]) -> list[str]:
    """A line for each metric with its last value in each scope; for clients, the mean and their number.

    metrics: as returned by `recorded_metrics`.
    """
    counts = _clients_by_metric(record) if metrics else {}
    return [f"{kind(metric).title}: {', '.join(_scope_texts(record, metric, counts))}" for metric in metrics]


def recorded_metrics(record: Record) -> list[str]:
    """Every score over all clients in the record, in any scope."""
    return list(dict.fromkeys(metric for scope in SCOPES for metric in record.metrics(scope)))


def clients_with_scores(record: Record) -> dict[str, int]:
    """By scope, the number of clients with a score in the last evaluated round."""
    return _most_by_scope(_clients_by_metric(record))


def _most_by_scope(counts: Mapping[tuple[str, str], int]) -> dict[str, int]:
    most: dict[str, int] = {}
    for (scope, _), n in counts.items():
        most[scope] = max(n, most.get(scope, 0))
    return most


def _scope_texts(record: Record, metric: str, counts: dict[tuple[str, str], int]) -> list[str]:
    texts: list[str] = []
    for scope in SCOPES:
        (rounds, values), n = record.series(scope, metric), counts.get((scope, metric), 0)
        of = _most_by_scope(counts).get(scope, 0)
        if rounds and rounds[-1] == _last_evaluated(record):  # an earlier value is not a result of the run
            over = f" (mean over {n:,} of {of:,} clients)" if of else ""
            texts.append(f"{scope} {kind(metric).written(values[-1])}{over}")
        elif of:
            texts.append(f"{scope} undefined at every client")
    return texts


def _clients_by_metric(record: Record) -> dict[tuple[str, str], int]:
    """By scope and metric, the number of clients with a value in the last evaluated round."""
    last = _last_evaluated(record)
    return Counter(
        (row["scope"], row["metric"])
        for row in record.rows["metrics"]
        if row["client"] is not None and row["t"] == last and row["scope"] in SCOPES
    )


def _last_evaluated(record: Record) -> int:
    """The last round with scores on test rows; 0 without any."""
    rounds = [record.series(scope, metric)[0] for scope in SCOPES for metric in record.metrics(scope)]
    return max((each[-1] for each in rounds), default=0)
