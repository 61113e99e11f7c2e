"""How a set is dealt out to clients, by one string.

iid                      shuffled and split evenly
dirichlet:A              Dir(A) over clients for each class, with the balance step; options min=M, groups=G, contiguous
classes:Q                Qua(Q): client i owns class i mod C and Q-1 others; a class is split among its owners
pathological:C[xM]       C random classes a client, M samples of each, wrapping round (samples can be shared)
clustered:C-C-C          clusters of clients, C classes each (ReBaFL)
domain, column:NAME      one client per value of a column

Every scheme ends: draws are bounded, then samples are moved from the largest clients until each has enough.
Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unskew.data.federation import Index
from unskew.errors import DataError, UsageError, suggestion

KINDS = ("iid", "dirichlet", "classes", "pathological", "clustered", "domain", "column")
TRIES = 50


@dataclass(frozen=True)
class Skew:
    """A parsed specification: `kind:value,option=value,flag`."""

    kind: str
    value: str
    options: dict[str, str]

    @staticmethod
    def parse(text: str) -> Skew:
        head, *rest = [piece.strip() for piece in text.split(",")]
        kind, _, value = head.partition(":")
        if kind not in KINDS:
            raise UsageError("E103", f"unknown skew '{text}'.{suggestion(kind, KINDS)} Known: {', '.join(KINDS)}.")
        options = dict(piece.partition("=")[::2] for piece in rest)
        allowed = {"dirichlet": {"min", "groups", "contiguous"}}.get(kind, set())
        for option in options:
            if option not in allowed:
                raise UsageError("E103", f"skew '{kind}' has no option '{option}'.{suggestion(option, allowed)}")
        return Skew(kind, value, options)

    def number(self, default: float | None = None, low: float = 0, whole: bool = False) -> float:
        try:
            found = float(self.value) if self.value else default
            if found is None or not math.isfinite(found) or found <= low or (whole and found != int(found)):
                raise ValueError
        except ValueError:
            wants = "a whole number" if whole else "a number"
            raise UsageError(
                "E103",
                f"skew '{self.kind}' needs {wants} above {low:g}, like {_EXAMPLES[self.kind]}; got '{self.value}'.",
            ) from None
        return found


_EXAMPLES = {
    "dirichlet": "dirichlet:0.1",
    "classes": "classes:2",
    "pathological": "pathological:2x500",
    "clustered": "clustered:2-2-3-3-5",
}


def partition(
    text: str,
    y: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    samples: int | None = None,
    columns: Mapping[str, np.ndarray] | None = None,
) -> Index:
    """Rows of every client. samples: how many each has on average; the pool is cut to clients*samples first, by class.

    Raises UsageError (E103) for what cannot be read, DataError (E406) for what cannot be dealt out.
    """
    skew = Skew.parse(text)
    if skew.kind in ("domain", "column"):
        return _by_column(skew, columns or {})
    C = int(y.max()) + 1
    pool = (
        np.arange(len(y))
        if samples is None or skew.kind == "pathological"
        else _pool(y, min(len(y), samples * clients), rng)
    )
    if samples is not None and samples * clients > len(y) and skew.kind != "pathological":
        raise DataError(
            "E406",
            f"{clients} clients of {samples} samples need {samples * clients:,}; the set has {len(y):,}. Feasible: samples={len(y) // clients}.",
        )
    match skew.kind:
        case "iid":
            rows = [np.sort(part) for part in _iid(y[pool], clients, rng)]
        case "dirichlet":
            rows = _dirichlet(skew, y[pool], clients, C, rng)
        case "classes":
            rows = _classes(int(skew.number(2, 0, True)), y[pool], clients, C, rng)
        case "pathological":
            return Index.of(_pathological(skew, y, clients, C, rng, samples))
        case _:
            counts = _cluster_counts(skew, clients)
            rows = _owned([rng.choice(C, min(c, C), replace=False) for c in counts], y[pool], C, rng)
    return Index.of([pool[r] for r in rows])


def column_names(text: str, columns: Mapping[str, np.ndarray]) -> tuple[str, np.ndarray]:
    """(column, its values in client order) of `domain` or `column:NAME`."""
    skew = Skew.parse(text)
    name = skew.value or "domain" if skew.kind == "column" else "domain"
    if name not in columns:
        raise DataError(
            "E407",
            f"the set has no column '{name}'; it has: {', '.join(columns) or 'none'}.{suggestion(name, columns)}",
        )
    return name, np.unique(columns[name])


def _by_column(skew: Skew, columns: Mapping[str, np.ndarray]) -> Index:
    name, values = column_names(f"{skew.kind}:{skew.value}" if skew.value else skew.kind, columns)
    return Index.by_owner(np.searchsorted(values, columns[name]), len(values))


def _pool(y: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """`size` rows in the proportions of the classes."""
    counts = np.bincount(y)
    wanted = largest_remainder(counts / counts.sum() * size, counts)
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(y == c))[:w] for c, w in enumerate(wanted)]))


def largest_remainder(quota: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Whole numbers near the quotas that add up to their sum, none above `most`."""
    whole = np.minimum(np.floor(quota).astype(np.int64), most)
    missing = round(float(quota.sum())) - int(whole.sum())
    for c in np.argsort(-(quota - whole), kind="stable"):
        if missing <= 0:
            break
        extra = min(1, int(most[c] - whole[c]))
        whole[c] += extra
        missing -= extra
    return whole


def _iid(y: np.ndarray, K: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Classes are dealt in turn from a shuffled deck, so that counts differ by at most one."""
    order = np.concatenate([rng.permutation(np.flatnonzero(y == c)) for c in range(int(y.max()) + 1)])
    return [order[k::K] for k in range(K)]


def _dirichlet(skew: Skew, y: np.ndarray, K: int, C: int, rng: np.random.Generator) -> list[np.ndarray]:
    alpha = skew.number()
    least = int(skew.options.get("min") or (3 if alpha <= 0.1 and K > 100 else C))
    if least * K > len(y):
        if "min" in skew.options:
            raise DataError(
                "E406",
                f"{K} clients of at least {least} samples need {least * K:,}; there are {len(y):,}. Feasible: min={len(y) // K}.",
            )
        least = len(y) // K
    groups = int(skew.options.get("groups") or 1)
    if groups == 1:
        return _dirichlet_group(alpha, y, np.arange(len(y)), K, C, least, rng)
    slices = _slices(y, groups, "contiguous" in skew.options)
    sizes = [len(part) for part in np.array_split(np.arange(K), groups)]
    return [r for rows, k in zip(slices, sizes) for r in _dirichlet_group(alpha, y, rows, k, C, least, rng)]


def _slices(y: np.ndarray, groups: int, contiguous: bool) -> list[np.ndarray]:
    """Parts of the set with equal classes, or consecutive parts of the file."""
    if contiguous:
        return np.array_split(np.arange(len(y)), groups)
    order = np.argsort(y, kind="stable")
    return [np.sort(order[g::groups]) for g in range(groups)]


def _dirichlet_group(
    alpha: float, y: np.ndarray, rows: np.ndarray, K: int, C: int, least: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Dir(alpha) with the balance step; drawn again until all have enough, at most TRIES times, then repaired."""
    labels, even = y[rows], len(rows) / K
    best: list[np.ndarray] = []
    for _ in range(TRIES):
        parts: list[list[np.ndarray]] = [[] for _ in range(K)]
        held = np.zeros(K)
        for c in range(C):
            mine = rng.permutation(rows[labels == c])
            share = rng.dirichlet(np.full(K, alpha)) * (held < even)
            total = share.sum()
            share = share / total if total > 0 else np.full(K, 1 / K)
            cuts = (np.cumsum(share)[:-1] * len(mine)).astype(np.int64)
            for k, part in enumerate(np.split(mine, cuts)):
                parts[k].append(part)
                held[k] += len(part)
        found = [np.concatenate(p) for p in parts]
        if not best or min(map(len, found)) > min(map(len, best)):
            best = found
        if min(map(len, best)) >= least:
            break
    return [np.sort(r) for r in _repaired(best, least)]


def _repaired(rows: list[np.ndarray], least: int) -> list[np.ndarray]:
    """Move samples one at a time from the largest client to those that have too few."""
    sizes = np.array([len(r) for r in rows])
    for k in np.flatnonzero(sizes < least):
        while sizes[k] < least:
            giver = int(np.argmax(sizes))
            count = max(1, min(int(least - sizes[k]), int(sizes[giver] - least) // 2))
            rows[k], rows[giver] = np.concatenate([rows[k], rows[giver][-count:]]), rows[giver][:-count]
            sizes[k] += count
            sizes[giver] -= count
    return rows


def _classes(q: int, y: np.ndarray, K: int, C: int, rng: np.random.Generator) -> list[np.ndarray]:
    if q > C:
        raise DataError("E406", f"classes:{q} asks for {q} classes a client; the set has {C}.")
    owned = []
    for k in range(K):
        first = k % C
        others = rng.permutation(np.delete(np.arange(C), first))[: q - 1]
        owned.append(np.array([first, *others]))
    return _owned(owned, y, C, rng)


def _owned(owned: list[np.ndarray], y: np.ndarray, C: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Each class's shuffled samples, split evenly among the clients that own it."""
    parts: list[list[np.ndarray]] = [[] for _ in owned]
    owners: list[list[int]] = [[] for _ in range(C)]
    for k, classes in enumerate(owned):
        for c in classes:
            owners[c].append(k)
    for c in range(C):
        if owners[c]:
            for k, part in zip(owners[c], np.array_split(rng.permutation(np.flatnonzero(y == c)), len(owners[c]))):
                parts[k].append(part)
    return [np.sort(np.concatenate(p)) if p else np.zeros(0, np.int64) for p in parts]


def _pathological(
    skew: Skew, y: np.ndarray, K: int, C: int, rng: np.random.Generator, samples: int | None
) -> list[np.ndarray]:
    head, times, size = skew.value.partition("x")
    c = int(Skew(skew.kind, head, {}).number(2, 0, True))
    if c > C:
        raise DataError("E406", f"pathological:{skew.value} asks for {c} classes a client; the set has {C}.")
    chosen = [rng.choice(C, c, replace=False) for _ in range(K)]
    if not times and samples is None:
        return _owned(chosen, y, C, rng)
    each = int(Skew(skew.kind, size, {}).number(None, 0, True)) if times else max(1, (samples or 0) // c)
    decks = [rng.permutation(np.flatnonzero(y == k)) for k in range(C)]
    at = [0] * C
    rows = []
    for classes in chosen:
        mine = []
        for k in classes:
            if not len(decks[k]):
                continue
            mine.append(np.take(decks[k], np.arange(at[k], at[k] + min(each, len(decks[k]))), mode="wrap"))
            at[k] += each
        rows.append(np.sort(np.concatenate(mine)) if mine else np.zeros(0, np.int64))
    return rows


def _cluster_counts(skew: Skew, K: int) -> list[int]:
    try:
        counts = [int(v) for v in skew.value.split("-")]
        if min(counts) < 1:
            raise ValueError
    except ValueError:
        raise UsageError(
            "E103", f"skew 'clustered' needs classes per cluster, like {_EXAMPLES['clustered']}; got '{skew.value}'."
        ) from None
    return [counts[g] for g, part in enumerate(np.array_split(np.arange(K), len(counts))) for _ in part]


def deal_tests(y_test: np.ndarray, counts_KC: np.ndarray, rng: np.random.Generator) -> Index:
    """The global test set dealt to clients class by class, in proportion to their training samples.

    Disjoint; every test row whose class somebody holds goes to somebody.
    """
    owner = np.full(len(y_test), -1, dtype=np.int64)
    for c in range(counts_KC.shape[1]):
        rows = rng.permutation(np.flatnonzero(y_test == c))
        held = counts_KC[:, c]
        if held.sum() and len(rows):
            # the places of the rows along the cumulated shares, shifted at random so that nobody is favoured
            places = (np.arange(len(rows)) + rng.random()) / len(rows) * held.sum()
            owner[rows] = np.searchsorted(np.cumsum(held), places, side="right").clip(max=len(held) - 1)
    return Index.by_owner(owner, len(counts_KC))
