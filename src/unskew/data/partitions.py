"""How a set is dealt out to clients, by one string.

iid                      shuffled and split evenly, class by class (samples with masks: all together)
dirichlet:A              Dir(A) over clients for each class, with the balance step; options min=M, groups=G, contiguous
classes:Q                Qua(Q): client i owns class i mod C and Q-1 others; a class is split among its owners
pathological:C[xM]       C random classes a client, M samples of each, wrapping round (samples can be shared)
clustered:C-C-C          clusters of consecutive clients, C random classes each (ReBaFL)
domain, column:NAME      one client per value of a column

A suffix +SHIFT:STRENGTH (unskew.data.transforms) changes no rows. Every scheme ends, and none but `pathological` with
a size gives a row to two clients.
Letters: N samples, K clients, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from unskew.data.dataset import strata
from unskew.data.dirichlet import dirichlet
from unskew.data.index import Index
from unskew.data.skew import KINDS, Skew, refusal
from unskew.errors import DataError, UsageError, suggestion

__all__ = ["KINDS", "Skew", "column_names", "largest_remainder", "partition"]


def partition(
    text: str,
    y: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    columns: Mapping[str, np.ndarray] | None = None,
    samples: int | None = None,
) -> Index:
    """Rows of every client.

    samples: how many each has on average; the pool is cut to clients * samples first, by class. With `domain` and
    `column`, which have their own number of clients, the most a client keeps; with `pathological:C`, exactly how many.
    Raises UsageError (E103) for what cannot be read, DataError (E406) for what cannot be dealt out.
    """
    skew = Skew.parse(text)
    if not len(y):
        raise DataError("E403", "there are no samples to deal out.")
    if y.ndim > 1 and skew.kind not in ("iid", "domain", "column"):
        named = ", ".join(f"column:{name}" for name in columns or {}) or "column:NAME"
        raise DataError("E406", f"skew '{skew.kind}' deals by class and these samples have masks; use iid or {named}.")
    y = strata(y)
    if skew.kind in ("domain", "column"):
        return _by_column(skew, y, columns or {}, samples, rng)
    if clients < 1:
        raise UsageError("E109", f"clients should be at least 1, got {clients}.")
    if skew.kind == "pathological":
        return _pathological(skew, y, clients, rng, samples)
    pool = _pool(y, clients, samples, rng)
    match skew.kind:
        case "iid":
            index = _iid(y[pool], clients, rng)
        case "dirichlet":
            index = dirichlet(skew, y[pool], clients, rng)
        case "classes":
            index = _classes(skew.whole(), y[pool], clients, rng)
        case _:
            index = _clustered(skew, y[pool], clients, rng)
    return replace(index, rows=pool[index.rows])


def column_names(text: str, columns: Mapping[str, np.ndarray]) -> tuple[str, np.ndarray]:
    """(column, its values in client order) of `domain` or `column:NAME`."""
    skew = Skew.parse(text)
    name = skew.value if skew.kind == "column" else "domain"
    if name not in columns:
        raise DataError(
            "E407",
            f"the set has no column '{name}'; it has: {', '.join(columns) or 'none'}.{suggestion(name, columns)}",
        )
    return name, np.unique(columns[name])


def _by_column(
    skew: Skew, y: np.ndarray, columns: Mapping[str, np.ndarray], samples: int | None, rng: np.random.Generator
) -> Index:
    name, values = column_names(f"{skew.kind}:{skew.value}" if skew.value else skew.kind, columns)
    index = Index.by_owner(np.searchsorted(values, columns[name]), len(values))
    if samples is None:
        return index
    return Index.of([rows[_drawn(y[rows], min(samples, len(rows)), rng)] for rows in index])


def _pool(y: np.ndarray, K: int, samples: int | None, rng: np.random.Generator) -> np.ndarray:
    """The rows that are dealt out: all, or K * samples of them."""
    if samples is None:
        return np.arange(len(y))
    if samples * K > len(y):
        raise DataError(
            "E406",
            f"{K} clients of {samples} samples need {samples * K:,}; the set has {len(y):,}. "
            f"Feasible: {f'samples={len(y) // K}' if len(y) >= K else f'at most {len(y):,} clients'}.",
        )
    return _drawn(y, samples * K, rng)


def _drawn(y: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """`size` rows in the proportions of the classes, ascending."""
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


def _iid(y: np.ndarray, K: int, rng: np.random.Generator) -> Index:
    """Cards are dealt in turn from decks of one class each, so that class counts and sizes differ by at most one."""
    order = np.concatenate([rng.permutation(np.flatnonzero(y == c)) for c in range(int(y.max()) + 1)])
    owner = np.empty(len(y), dtype=np.int64)
    owner[order] = np.arange(len(y)) % K
    return Index.by_owner(owner, K)


def _classes(q: int, y: np.ndarray, K: int, rng: np.random.Generator) -> Index:
    C = int(y.max()) + 1
    _check_classes(f"classes:{q}", q, C)
    first_K = np.arange(K) % C
    others = np.tile(np.arange(C), (C, 1))[~np.eye(C, dtype=bool)].reshape(C, C - 1)[first_K]
    return _owned(np.column_stack([first_K, rng.permuted(others, axis=1)[:, : q - 1]]), y, C, rng)


def _clustered(skew: Skew, y: np.ndarray, K: int, rng: np.random.Generator) -> Index:
    counts, C = [skew.whole(v) for v in skew.value.split("-")], int(y.max()) + 1
    _check_classes(f"clustered:{skew.value}", max(counts), C)
    if len(counts) > K:
        raise refusal("clustered", f"no more clusters than clients ({K})", skew.value)
    owned = []
    for count, cluster in zip(counts, np.array_split(np.arange(K), len(counts))):
        owned += _different(count, len(cluster), C, rng)
    return _owned(owned, y, C, rng)


def _different(count: int, clients: int, C: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Random sets of classes for the clients of a cluster, different ones where luck allows."""
    found: list[np.ndarray] = []
    taken: set[frozenset[int]] = set()
    for _ in range(clients):
        for _ in range(20):
            drawn = rng.choice(C, count, replace=False)
            if frozenset(drawn.tolist()) not in taken:
                break
        taken.add(frozenset(drawn.tolist()))
        found.append(drawn)
    return found


def _owned(owned: Sequence[np.ndarray] | np.ndarray, y: np.ndarray, C: int, rng: np.random.Generator) -> Index:
    """Each class's shuffled samples, split evenly among the clients that own it; nobody's class stays behind."""
    clients = np.repeat(np.arange(len(owned)), [len(classes) for classes in owned])
    classes = np.concatenate(list(owned))
    owner = np.full(len(y), -1, dtype=np.int64)
    for c in range(C):
        owners = clients[classes == c]
        if len(owners):
            rows = rng.permutation(np.flatnonzero(y == c))
            sizes = len(rows) // len(owners) + (np.arange(len(owners)) < len(rows) % len(owners))
            owner[rows] = np.repeat(owners, sizes)
    return Index.by_owner(owner, len(owned))


def _pathological(skew: Skew, y: np.ndarray, K: int, rng: np.random.Generator, samples: int | None) -> Index:
    head, times, size = skew.value.partition("x")
    c, C = skew.whole(head), int(y.max()) + 1
    _check_classes(f"pathological:{skew.value}", c, C)
    chosen = [rng.choice(C, c, replace=False) for _ in range(K)]
    if not times and samples is None:
        return _owned(chosen, y, C, rng)
    each = skew.whole(size) if times else max(1, (samples or 0) // c)
    return _wrapped(chosen, each, y, C, rng)


def _wrapped(chosen: list[np.ndarray], each: int, y: np.ndarray, C: int, rng: np.random.Generator) -> Index:
    """`each` samples of every chosen class, taken consecutively from the class's deck, beginning again at its end."""
    decks = [rng.permutation(np.flatnonzero(y == k)) for k in range(C)]
    at = [0] * C
    rows = []
    for classes in chosen:
        mine = []
        for k in classes:
            if len(decks[k]):
                mine.append(np.take(decks[k], np.arange(at[k], at[k] + min(each, len(decks[k]))), mode="wrap"))
                at[k] += each
        rows.append(np.sort(np.concatenate(mine)) if mine else np.zeros(0, np.int64))
    return Index.of(rows)


def _check_classes(text: str, wanted: int, C: int) -> None:
    if wanted > C:
        raise DataError("E406", f"{text} asks for {wanted} classes a client; the set has {C}. Feasible: {C}.")
