"""Tokens: words, codes or other whole numbers in a client's samples (Melis et al., S&P 2019).

With E_v row v of a lookup table in the broadcast and E'_v the row in the client's reply, a row that no sample
looks up has no gradient. An attacker ranks rows by one of
    change   |E'_v - s E_v|     s: the median over rows of E'_v . E_v / |E_v|^2, the effect of weight decay
    apart    |D_v - m|          D_v = E'_v - E_v,  m: the median of D over rows, number by number, which an
                                encoding (signs) or a table that is also the head adds to all rows alike
    unlike   |D_v - d_v|        d: what the encoding makes of no change with the random numbers of the round,
                                which follow from the study's seed
    variate  |c_v|              c: the sum of the changes of SCAFFOLD's control variate that the client sent
    frequent                    by the samples of the attacker's own that look it up, ties by `change`
If the widest gap in log10 of a measure is 1 or more, the rows above it are named, and else as many rows of
the largest values as the attacker's own samples hold. Of these attackers, the one with the largest mean AUC
over the clients counts. AUC, recall and precision refer to the rows of the client's samples. Without the
payload, rows are sorted by the frequency in the attacker's own samples, and as many are named. Tables from
which all samples take equal rows (such as positions in a sentence) and padding rows are left out.
Differs from the paper: it has neither weight decay, noise nor encodings, and names all rows with changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from unskew.attacks import success
from unskew.attacks.attack import Attack, Outcome, Score, mean_of
from unskew.attacks.auxiliary_samples import unseen
from unskew.attacks.payloads import control_variate
from unskew.attacks.target_run import TargetRun
from unskew.core import encoding
from unskew.core.module_inputs import TableExposure, embedding_tables, lookup_ids, table_exposure
from unskew.core.part import overrides
from unskew.core.replies import Reply
from unskew.core.trees import Weights
from unskew.errors import UsageError
from unskew.formats.setting_ranges import Count

PIECE = 256
"""The number of samples in one pass."""


class Lookups:
    """Records the looked-up rows of a target's model, as a context manager.

    names: the weights of the tables. counts: by table, a mask of the rows without padding.
    """

    def __init__(self, target: TargetRun, names: Collection[str]):
        self.target, self.net = target, target.trainer.net
        self.layers = {n: layer for n, layer in embedding_tables(self.net.module).items() if n in names}
        self.rows = {n: layer.num_embeddings for n, layer in self.layers.items()}
        self.counts = {n: _no_padding(layer) for n, layer in self.layers.items()}
        self._seen: dict[str, Tensor] = {}

    def __enter__(self) -> Lookups:
        self._hooks = [
            layer.register_forward_hook(self._noting(n), with_kwargs=True) for n, layer in self.layers.items()
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def present(self, x: Tensor, k: int = -1) -> dict[str, Tensor]:
        """By table, bool [V]: the rows without padding that stored samples look up at client k (-1: no
        client)."""
        self._seen = {n: torch.zeros(rows, dtype=torch.bool) for n, rows in self.rows.items()}
        with torch.no_grad(), self.target.trainer.evaluating():
            for piece in x.split(PIECE):
                self.net.run(self.target.final.weights, self.target.seen(piece, k))
        return {n: seen[self.counts[n]] for n, seen in self._seen.items()}

    def counted(self, x: Tensor) -> dict[str, Tensor]:
        """By table, [V]: the number of samples that look each row up."""
        by_sample = [self.present(sample) for sample in x.split(1)]
        return {n: torch.stack([seen[n] for seen in by_sample]).sum(0) for n in self.rows}

    def _noting(self, name: str) -> Any:
        def note(_layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
            self._seen[name][lookup_ids(args, kwargs).detach().round().long().flatten().cpu()] = True

        return note


def _no_padding(layer: nn.Embedding | nn.EmbeddingBag) -> Tensor:
    """bool [rows]: all rows but the padding row, which never has a gradient."""
    counts = torch.ones(layer.num_embeddings, dtype=torch.bool)
    if layer.padding_idx is not None:
        counts[layer.padding_idx] = False
    return counts


READS = ("w", "scaffold/delta")

TINY, ROUNDING = 1e-12, 1e-6
"""Changes below TINY of the largest change, or with weight decay below ROUNDING of a row's length, are
none."""
VARIATE_ROUNDING = 1e-4
"""Sums of SCAFFOLD's changes are differences of weights over a rate: below this part of the longest row they
are rounding."""


@dataclass(frozen=True)
class Tokens(Attack):
    """Names the table rows that a client's samples look up."""

    samples: Annotated[Count, "the most samples of its own by which the attacker guesses"] = 500
    clients: Annotated[
        int, Ge(1), Le(1000), "how many clients' updates are attacked, the first of the last round"
    ] = 10
    name: ClassVar[str] = "tokens"
    asks: ClassVar[str] = "which words or codes do its samples hold?"
    adversary: ClassVar[str] = "the server, which reads each update"
    quick: ClassVar[Mapping[str, object]] = {"samples": 100}
    one_input: ClassVar[bool] = False
    lookups: ClassVar[Collection[TableExposure]] = ("sent",)

    def refuse(self, target: TargetRun) -> str | None:
        match table_exposure(target.run.fed.net.module, target.run.fed.shared):
            case "":
                return "its model looks no whole numbers up"
            case "kept":
                return "its clients send no table of those that their model looks up"
            case "sent":
                pass
        if any(overrides(p, "starts") for p in target.run.method.parts):
            return (
                "its clients start from weights of their own, and what changed is told from those that they"
                " were sent"
            )
        if not target.answered(target.final.t):
            return "nobody answered in its last round"
        return None

    def attempt(self, target: TargetRun, seed: int) -> Outcome:
        recorded, federation = target.last_round, target.federation
        answered = set(target.answered(target.final.t))
        replies = [r for r in recorded.replies if r.client in answered][: self.clients]
        assert recorded.start is not None
        rows = [torch.as_tensor(np.asarray(federation.train[r.client])) for r in replies]
        every = target.stored(torch.unique(torch.cat(rows)))
        own = unseen(federation, every, seed, most=self.samples)
        with Lookups(target, target.run.fed.shared) as lookups:
            frequent = lookups.counted(own.x)
            # tables with a row that some samples take and others do not
            by_table = {
                name: Results()
                for name, counts_V in frequent.items()
                if bool(((counts_V > 0) & (counts_V < len(own))).any())
            }
            variates = dict[str, Results]()
            for reply, held in zip(replies, rows):
                before = recorded.start.to(reply.client).weights
                there = lookups.present(target.stored(held), reply.client)
                unmoved, variate = _unmoved(target, reply), control_variate(target, reply)
                for name, results in by_table.items():
                    counts, known = lookups.counts[name], frequent[name]
                    pair = before[name][counts], reply.weights[name][counts]
                    results.append(_attacked(_readings(*pair, unmoved[name][counts]), there[name], known))
                    if variate:
                        c = variate[name][counts]
                        one = {"variate": _lengths(c, VARIATE_ROUNDING * float(c.norm(dim=1).max()))}
                        variates.setdefault(name, []).append(_attacked(one, there[name], known))
        scores = [s for n, results in by_table.items() for s in _scores("w", n, "updates as sent", results)]
        for name, results in variates.items():
            scores += _scores("scaffold/delta", name, "the sum of what each client sent", results)
        if not scores:
            text = (
                "the clients' samples take the same rows from every table as all samples, or every row of it"
            )
            raise UsageError("E151", f"{text}: {target.path} has nothing that could be told from an update.")
        return Outcome(tuple(scores), f"{len(own)} {own.name}")


Results = list[dict[str, tuple[float, ...]]]
"""For each client, by attacker: AUC, recall and precision, each with and without the payload."""


def _unmoved(target: TargetRun, reply: Reply) -> Weights:
    """What the server would decode as the client's change if its weights had not changed."""
    run, w = target.run, target.run.fed.net.weights()
    none = {n: torch.zeros_like(w[n]) for n in run.fed.shared}
    if (encoder := run.method.encoder) is None:
        return none
    private = {encoder.name: encoder.client_init(w, run.fed)}
    start = target.last_round.start
    assert start is not None
    c = target.trainer.client(reply.client, start, encoder.name, w, private)
    keys = encoding.keys_of(encoder, run.fed, target.final.t, reply.client)
    return encoder.decode(encoder.encode(none, c, keys)[0], w, run.fed, keys)


def _readings(before: Tensor, after: Tensor, unmoved: Tensor) -> dict[str, Tensor]:
    """Measures of each row of a table, [V], by attacker. before, after, unmoved: [V, D]."""
    moved, least = after.double().cpu() - before.double().cpu(), ROUNDING * float(before.norm(dim=1).max())
    return {
        "change": change_of(before, after),
        "apart": _lengths(moved - moved.median(0).values, least),
        "unlike": _lengths(moved - unmoved.double().cpu(), least),
    }


def _lengths(rows: Tensor, least: float) -> Tensor:
    """[V]: the length of each row; 0 up to `least`, which is rounding."""
    length_V = rows.double().cpu().norm(dim=1)
    return torch.where(length_V > least, length_V, 0.0)


def change_of(before: Tensor, after: Tensor) -> Tensor:
    """[V]: the change of each row of a table [V, D], without the common shrinking of all rows."""
    first, last = before.double().cpu(), after.double().cpu()
    factor = ((last * first).sum(1) / first.pow(2).sum(1).clamp(min=1e-30)).median()
    change = (last - factor * first).norm(dim=1)
    return change if factor == 1 else torch.where(change > ROUNDING * first.norm(dim=1), change, 0.0)


def read_off(measure_V: Tensor, frequent_V: Tensor) -> tuple[Tensor, Tensor]:
    """([V] how sure the attacker is of each row, bool [V] the rows that it names).

    measure: such as what each row moved. frequent: how many of the attacker's own samples hold it, by which
    ties are sorted.
    """
    moved = (measure_V / measure_V.max().clamp(min=1e-30)).clamp(min=TINY)
    known = frequent_V / frequent_V.max().clamp(min=1)
    ordered = moved.log10().sort().values
    widest, sure = ordered.diff().max(0), moved + TINY * known
    if float(widest.values) < 1:
        return sure, _largest(sure, int((frequent_V > 0).sum()))
    return sure, moved.log10() > ordered[widest.indices]


def _largest(values_V: Tensor, n: int) -> Tensor:
    """bool [V]: the n largest values, of equal ones the first."""
    named = torch.zeros_like(values_V, dtype=torch.bool)
    named[values_V.argsort(descending=True, stable=True)[:n]] = True
    return named


def _attacked(
    measures: Mapping[str, Tensor], there_V: Tensor, frequent_V: Tensor
) -> dict[str, tuple[float, ...]]:
    """The result of each attacker; none where there are no rows to tell apart."""
    if bool(there_V.all()) or not bool(there_V.any()):
        return {}
    answers = {name: read_off(measure, frequent_V) for name, measure in measures.items()}
    first = next(iter(measures.values()))
    answers["frequent"] = frequent_V + first / (2 * first.max().clamp(min=1e-30)), frequent_V > 0
    return {name: _result(*answer, there_V, frequent_V) for name, answer in answers.items()}


def _result(sure_V: Tensor, named_V: Tensor, there_V: Tensor, frequent_V: Tensor) -> tuple[float, ...]:
    both: list[float] = []
    for values, names in ((sure_V, named_V), (frequent_V, _largest(frequent_V, int(named_V.sum())))):
        inside, outside = (values[part].double().numpy() for part in (there_V, ~there_V))
        hits = int((names & there_V).sum())
        both += [success.auc(inside, outside), hits / int(there_V.sum()), hits / max(1, int(names.sum()))]
    return tuple(both)


def _scores(payload: str, table: str, source: str, results: Results) -> list[Score]:
    """The scores of the attacker with the largest mean AUC."""
    results = [of_client for of_client in results if of_client]
    if not results:
        return []
    by_attacker = {name: np.array([of_client[name] for of_client in results]) for name in results[0]}
    values = max(by_attacker.values(), key=lambda values: values[:, 0].mean())
    of = f"rows of {table.removesuffix('.weight')}, {source}"
    floors, n = values[:, 3:].mean(0), len(values)
    return [
        Score(payload, of, metric, *mean_of(values[:, i]), float(floors[i]), 1.0, n, main=i == 0)
        for i, metric in enumerate(("AUC", "recall", "precision"))
    ]
