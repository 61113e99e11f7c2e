"""Whether the runs of one table can be compared: the same samples, dealt out alike, trained alike and scored alike.

A comparison sees to that itself. A page can be asked for of any folders, and then differences of scores may come from
anything in which their runs differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from unskew.config import FIELDS
from unskew.report.context import Context
from unskew.report.files import TUNED, read_json
from unskew.report.labels import NOT_A_CONFIGURATION
from unskew.report.runs import RunData

SAME_TASK = {
    "data": "data",
    "skew": "partitions",
    "clients": "numbers of clients",
    "samples": "numbers of samples",
    "partition_seed": "seeds of the partition",
    "validation": "shares of training samples held out to score them",
}
"""Settings without which two scores are of different things, and what they say."""
CHANGE_NO_SCORE = (*NOT_A_CONFIGURATION, "set", "track", "measure", "metrics", "keep_best")
"""Settings that methods may differ in; `set` is an argument of their own."""
MOST_NAMED = 4


def doubts(context: Context) -> list[str]:
    """Sentences on what, beside the method, may have made the scores differ."""
    runs = [r for r in context.runs if not r.is_reference]
    return [*_seeds(context), *_tasks(runs), *_training(runs), *_samples(context.runs), *_versions(context.runs)]


def _seeds(context: Context) -> list[str]:
    seeds = {method: sorted(r.seed for r in group) for method, group in context.methods.items()}
    counts = {method: len(own) for method, own in seeds.items()}
    if len(set(counts.values())) > 1:
        return [f"Methods have different numbers of seeds: {', '.join(f'{m} {n}' for m, n in counts.items())}."]
    if len(set(map(tuple, seeds.values()))) > 1:
        named = "; ".join(f"{method} {', '.join(map(str, own))}" for method, own in seeds.items())
        return [f"Methods have different seeds ({named}), and only those that two methods share are paired."]
    return []


def _tasks(runs: Sequence[RunData]) -> list[str]:
    return [
        f"These runs have different {what} ({', '.join(values)}), so their scores cannot be compared."
        for key, what in SAME_TASK.items()
        if len(values := _values(runs, key)) > 1
    ]


def _training(runs: Sequence[RunData]) -> list[str]:
    """Of runs of several methods; where the method is the same, its settings are what is compared, and name it."""
    if len({r.config.get("method") for r in runs}) < 2:
        return []
    differing = {key: values for key in _trained_by(runs) if len(values := _values(runs, key)) > 1}
    if not differing:
        return []
    named = "; ".join(f"{key} {', '.join(values)}" for key, values in differing.items())
    return [f"Not only the methods of these runs differ ({named}), so a gap between scores need not be the methods'."]


def _trained_by(runs: Sequence[RunData]) -> list[str]:
    """The settings that say how clients train, without those that tuning chose for each method on purpose."""
    tuned: set[str] = set.intersection(*map(_tuned, runs)) if runs else set()
    return [key for key in FIELDS if key not in (*SAME_TASK, *CHANGE_NO_SCORE, *tuned)]


def _tuned(run: RunData) -> set[str]:
    methods = read_json(run.path.parent / TUNED).get("methods", {})
    return {name for entry in methods.values() for name in entry.get("best", {})}


def _values(runs: Sequence[RunData], key: str) -> list[str]:
    """The values of a setting; runs of before there was one have its default."""
    return sorted({str(run.config.get(key, FIELDS[key].default)) for run in runs})


def _samples(runs: Sequence[RunData]) -> list[str]:
    """Whether runs of equal settings and seed hold other samples, as where a file of data was changed in between."""
    dealt: dict[tuple[str, ...], list[RunData]] = {}
    for run in runs:
        key = (str(run.federation.get("clients")), str(run.seed), *(_values([run], k)[0] for k in SAME_TASK))
        dealt.setdefault(key, []).append(run)
    for group in dealt.values():
        other = [r for r in group if _shape(r) != _shape(group[0])]
        if other:
            named = ", ".join(f"{r.method} seed {r.seed}" for r in (group[0], *other[: MOST_NAMED - 1]))
            return [f"Runs of equal settings hold different samples ({named}), so their scores cannot be compared."]
    return []


def _shape(run: RunData) -> str:
    """What federation.json says of the samples, whatever the method makes of them."""
    return str([run.federation.get(key) for key in ("sizes", "labels", "test")])


def _versions(runs: Sequence[RunData]) -> list[str]:
    versions = sorted({str(run.env["unskew"]) for run in runs if run.env.get("unskew")})
    return [f"These runs are of different versions of unskew ({', '.join(versions)})."] if len(versions) > 1 else []
