"""A federation from a data set: training, validation and test rows for every client, and feature shifts.

A text names the skew: `kind:value,option=value+shift:strength`. The kind is a partition (a file of `skews/`),
a shift changes the features and never the rows. Letters: n test rows, N samples, K clients, C classes.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index, Partition, Request
from unskew.data.samples.dataset import Dataset, most_frequent, strata, whole_groups, with_fewer_tests
from unskew.data.skews.column import Column
from unskew.data.storage.rows_on_disk import is_streamed
from unskew.errors import DataError, UsageError
from unskew.formats import specs
from unskew.system import python_files

SKEWS_FOLDER = Path(__file__).parent / "skews"


@cache
def partitions() -> dict[str, type[Partition]]:
    """The classes of all partitions by name, found in the files of `skews/`."""
    modules = [
        importlib.import_module(f"unskew.data.skews.{path.stem}")
        for path in python_files.module_files(SKEWS_FOLDER)
    ]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return dict(sorted((k.name, k) for k in {*kinds} if issubclass(k, Partition) and k.name))


GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Client:
    """The client that sees the samples. stream: which of the client's independent noises is drawn."""

    id: int
    stream: int = 0

    @property
    def level(self) -> float:
        """u_k in (-1, 1)."""
        return 2 * ((self.id + 0.5) * GOLDEN % 1) - 1


class Shift:
    """A kind of feature skew; subclasses are frozen dataclasses of their settings, see unskew.formats.specs.

    Feature shifts let every client see the data through a device that differs from the others'. Each has a
    strength s; client k has a level u_k in (-1, 1), spread evenly over clients by the golden ratio:
    u_k = 2 frac((k + 1/2) (sqrt 5 - 1) / 2) - 1, and v_k = (1 + u_k) / 2 in (0, 1). They are applied when a
    federation is built, to the client's training, validation and test rows, in natural units.
    """

    name: ClassVar[str] = ""
    value: ClassVar[tuple[str, ...]] = ("strength",)
    example: ClassVar[str] = ""
    turns: ClassVar[bool] = False
    """Whether pixels change places, so that a mask has to follow its image."""

    def transform(self, x: np.ndarray, client: Client, unit: bool) -> np.ndarray:
        """Samples [n, channels, ...] as this client sees them, float32; x itself is not changed.

        unit: whether values lie in [0, 1]; they are then clipped to that range.
        Raises UsageError (E103) if the shift does not apply to samples of this shape and range.
        """
        self.check(x.shape[1:], unit)
        shifted = self.apply(x, client)
        if self.turns:
            return shifted
        return np.clip(shifted, 0, 1).astype(np.float32) if unit else shifted.astype(np.float32)

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        """The shifted samples, before they are clipped."""
        raise NotImplementedError

    def check(self, shape: tuple[int, ...], unit: bool) -> None:
        """Raises UsageError (E103) if the shift does not apply to samples of this shape and range."""


@dataclass(frozen=True)
class Brightness(Shift):
    """x + s u"""

    strength: Annotated[float, Ge(0), "s: the largest change"] = 0.2
    name = "brightness"
    example = "+brightness:0.2"

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        return x + np.float32(self.strength * client.level)


@dataclass(frozen=True)
class Contrast(Shift):
    """m + (x - m) 2^(s u), m the sample's mean"""

    strength: Annotated[float, Ge(0), "s: the exponent of the largest factor"] = 1.0
    name = "contrast"
    example = "+contrast:1"

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        m = x.mean(axis=tuple(range(1, x.ndim)), keepdims=True)
        return m + (x - m) * np.float32(2 ** (self.strength * client.level))


@dataclass(frozen=True)
class Gamma(Shift):
    """x^(2^(s u)), for values in [0, 1]"""

    strength: Annotated[float, Ge(0), "s: 2^s is the largest exponent"] = 1.0
    name = "gamma"
    example = "+gamma:1"

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        # Scaling and its inverse may move black to just below 0, which has no root.
        return np.maximum(x, 0) ** np.float32(2 ** (self.strength * client.level))

    def check(self, shape: tuple[int, ...], unit: bool) -> None:
        if not unit:
            text = "feature skew '+gamma' needs values in [0, 1]; use +contrast or +brightness"
            raise UsageError("E103", f"{text}.")


@dataclass(frozen=True)
class Noise(Shift):
    """x + s v N(0, 1)"""

    strength: Annotated[float, Ge(0), "s: the largest standard deviation"] = 0.1
    name = "noise"
    example = "+noise:0.1"

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        normal = np.random.default_rng([client.id, client.stream]).standard_normal(x.shape, dtype=np.float32)
        return x + np.float32(self.strength * (1 + client.level) / 2) * normal


@dataclass(frozen=True)
class Rotate90(Shift):
    """k mod 4 quarter turns of square images"""

    name = "rotate90"
    value = ()
    example = "+rotate90"
    turns = True

    def apply(self, x: np.ndarray, client: Client) -> np.ndarray:
        return np.ascontiguousarray(np.rot90(x, client.id % 4, axes=(-2, -1)))

    def check(self, shape: tuple[int, ...], unit: bool) -> None:
        if len(shape) != 3 or shape[-1] != shape[-2]:
            text = f"feature skew '+rotate90' needs square images; samples are {list(shape)}"
            raise UsageError("E103", f"{text}.")


SHIFTS: dict[str, type[Shift]] = {kind.name: kind for kind in (Brightness, Contrast, Gamma, Noise, Rotate90)}
"""The kinds by name."""


def apply_shifts(federation: Federation, shifts: Sequence[Shift], dataset: Dataset) -> Federation:
    """The federation with all clients' training, validation and test samples changed by the shifts, in their
    order.

    Every client then has separate samples: a row that two clients shared becomes two. The server's reserved
    samples do not change.
    dataset: the set from which the federation was made.
    Raises DataError (E103) for a set that is read from disk, UsageError (E103) for samples with several
    inputs, or to which a shift does not apply.
    """
    f = federation
    if f.layout:
        text = f"feature skew '+{shifts[0].name}' changes samples with one input, and these have {f.layout}"
        raise UsageError("E103", f"{text}; give a skew without it.")
    if is_streamed(dataset.x) or is_streamed(dataset.x_test):
        text = "is read from files row by row; a feature skew needs a set that fits into memory"
        raise DataError("E103", f"{f.name} {text}.")
    rows = np.concatenate([f.train.rows, f.val.rows])
    x, x_test = dataset.to_natural(dataset.x[rows]), dataset.to_natural(dataset.x_test[:]).copy()
    y, y_test = f.y[rows], f.y_test.copy()
    unit = bool(len(x)) and x.min() > -1e-5 and x.max() < 1 + 1e-5
    n_train = len(f.train.rows)
    train = Index(np.arange(n_train), f.train.offsets)
    val = Index(np.arange(n_train, len(rows)), f.val.offsets)
    for part, (values, labels, index) in enumerate(((x, y, train), (x, y, val), (x_test, y_test, f.test))):
        for k in np.flatnonzero(index.sizes).tolist():
            samples, masks = values[index[k]], labels[index[k]]
            for i, shift in enumerate(shifts):
                client = Client(k, stream=3 * i + part)
                samples = shift.transform(samples, client, unit)
                masks = shift.apply(masks, client) if f.masks and shift.turns else masks
            values[index[k]], labels[index[k]] = samples, masks
    reserved = np.arange(len(rows), len(rows) + len(f.reserved))
    rows = np.concatenate([rows, f.reserved])
    return replace(
        f,
        x=np.concatenate([dataset.from_natural(x), dataset.x[f.reserved]]),
        y=np.concatenate([y, f.y[f.reserved]]),
        x_test=dataset.from_natural(x_test),
        y_test=y_test,
        train=train,
        val=val,
        columns={name: values[rows] for name, values in f.columns.items()},
        reserved=reserved,
    )


@dataclass(frozen=True)
class Skew:
    """A partition and the feature shifts that follow it."""

    partition: Partition
    shifts: tuple[Shift, ...] = ()

    @staticmethod
    def parse(text: str) -> Skew:
        """The skew that a text names. Raises UsageError (E103) for an unknown kind or setting, or one out
        of range."""
        kind, *suffixes = (specs.parse(piece.strip(), "skew", "E103") for piece in text.split("+"))
        shifts = (specs.read(spec, SHIFTS, "feature skew", "E103") for spec in suffixes)
        return Skew(specs.read(kind, partitions(), "skew", "E103"), tuple(shifts))


def partition(
    text: str,
    y: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    *,
    columns: Mapping[str, np.ndarray] | None = None,
    samples: int | None = None,
    groups: np.ndarray | None = None,
) -> Index:
    """The rows of every client.

    y: classes [N]; or targets, dealt by tenth; or several labels a sample, bool [N, C], dealt by the rarest
    label; or masks [N, H, W].
    samples: the mean number of samples of a client; clients * samples rows are drawn first, by class. With
    `domain` and `column`, which define the number of clients, it is the most that a client keeps; with
    `pathological:C`, the number of each client.
    groups: the group of each sample, [N]. The groups are then dealt in place of the samples, each with its
    most frequent class, so that every group is at one client; unless there are fewer groups than clients, or
    the skew makes clients of a column.
    Raises UsageError (E103) for a text that cannot be read, DataError (E103) for an
    infeasible request or a column that does not exist.
    """
    kind = Skew.parse(text).partition
    if not len(y):
        raise DataError("E403", "there are no samples to deal out.")
    if y.ndim > 1 and y.dtype.kind not in "bf" and kind.by_class:
        usable = ", ".join(f"column:{name}" for name in columns or {}) or "column:NAME"
        labels = "a label for each token" if y.ndim == 2 else "masks"
        text = f"skew '{kind.name}' deals by class, but these samples have {labels}"
        raise DataError("E103", f"{text}; use iid or {usable}.")
    if clients < 1 and not kind.own_clients:
        raise UsageError("E109", f"clients must be at least 1; got {clients}.")
    request = Request(strata(y), clients, samples, columns or {})
    if groups is None or kind.own_clients or len(np.unique(groups)) < clients:
        return kind.deal(request, rng)
    return _deal_groups(kind, request, groups, rng)


def _deal_groups(kind: Partition, request: Request, groups: np.ndarray, rng: np.random.Generator) -> Index:
    """The rows of every client, of whole groups."""
    _, owner, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    owner, count = owner.reshape(-1), request.samples
    if count is not None:
        count = int(np.clip(round(count / sizes.mean()), 1, len(sizes) // request.clients))
    dealt = kind.deal(Request(most_frequent(request.y, owner), request.clients, count), rng)
    rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
    return Index.of([np.sort(np.concatenate([mine[:0], *(rows[g] for g in mine)])) for mine in dealt])


def deal_tests(y_test: np.ndarray, counts_KC: np.ndarray, rng: np.random.Generator) -> Index:
    """The test rows of every client; rows of a class that no client trains on are left out.

    One pass over the test set then scores the model and every client. For each class with n test rows, the
    quota of client k is n * (its training samples of the class) / (those of all clients); quotas are rounded
    by largest remainder, ties at random. No row is dealt twice, and every row of a class that some client
    trains on is dealt.

    y_test: classes [N]. counts_KC: training samples of every client and class.
    """
    owner = np.full(len(y_test), -1, dtype=np.int64)
    for c in range(counts_KC.shape[1]):
        rows = rng.permutation(np.flatnonzero(y_test == c))
        holders = np.flatnonzero(counts_KC[:, c])
        if len(holders) and len(rows):
            owner[rows] = np.repeat(
                holders, largest_remainder_exact(len(rows), counts_KC[holders, c].astype(np.int64), rng)
            )
    return Index.by_owner(owner, len(counts_KC))


def largest_remainder_exact(n: int, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers that add up to n, in proportion to whole weights above 0, computed exactly in integers.

    The units missing after rounding down go to the largest remainders, one each, ties at random.
    """
    counts, remainders = np.divmod(n * weights, weights.sum())
    missing = n - int(counts.sum())
    if missing:
        # The random part is below 1, so it decides only between equal remainders.
        order = remainders + rng.random(len(remainders))
        counts[np.argpartition(-order, missing - 1)[:missing]] += 1
    return counts


def build(
    dataset: Dataset,
    skew: str,
    clients: int,
    rng_partition: np.random.Generator,
    rng_test: np.random.Generator,
    *,
    samples: int | None = None,
    test_samples: int | None = None,
    validation: float = 0.0,
    reserve: int = 0,
) -> Federation:
    """A set dealt out to clients.

    The test set is dealt in proportion to each client's training samples of each class, or tenth of a target.
    If the clients are the values of a column, test samples are dealt by that column.
    skew, clients, samples: see `partition`. test_samples: the most samples of the test set, see
    `with_fewer_tests`; of clients that are the values of a column each keeps its share. validation: the share
    of its rows that every client holds back, rounded down, so that a client with few samples trains on all of
    them. reserve: number of samples of each class that the server keeps; they are taken out first.
    Raises UsageError (E103, E109) and DataError (E103) as `partition` does.
    """
    if not 0 <= validation < 1:
        raise UsageError("E109", f"validation must be at least 0 and below 1; got {validation}.")
    parsed = Skew.parse(skew)
    by_column = parsed.partition if isinstance(parsed.partition, Column) else None
    if test_samples:
        dataset = with_fewer_tests(dataset, test_samples, by_column.column if by_column else "")
    reserved = _reserve_rows(dataset, reserve, rng_partition)
    remaining = np.setdiff1d(np.arange(len(dataset.y)), reserved)
    columns = {name: values[remaining] for name, values in dataset.columns.items()}
    groups = columns.get(dataset.group_column) if dataset.intake else None  # papers deal named sets by sample
    rows = partition(
        skew, dataset.y[remaining], clients, rng_partition, samples=samples, columns=columns, groups=groups
    )
    rows = Index(remaining[rows.rows], rows.offsets)
    train, val = rows, Index.empty(0)
    if validation and dataset.group_column:
        train, val = _split_groups(rows, dataset, validation, rng_partition)
    elif validation:
        train, val = _split_validation(rows, validation, rng_partition)
    tests = _tests_by_column(dataset, by_column) if by_column else None
    if groups is not None and not parsed.partition.own_clients and len(np.unique(groups)) < clients:
        text = f"fewer groups ('{dataset.group_column}') than clients, so samples of a group are at several"
        dataset = dataset.with_notes(("note", text))
    shared = {f.name for f in fields(Dataset)} & {f.name for f in fields(Federation)}
    federation = Federation(
        **{name: getattr(dataset, name) for name in shared},
        train=train,
        test=tests or Index.empty(len(train)),
        skew=skew,
        natural=tests is not None and len(tests.rows) == len(dataset.y_test),
        names=_client_names(dataset, by_column) if by_column else None,
        val=val,
        reserved=reserved,
    )
    if not by_column:
        federation = replace(
            federation,
            test=deal_tests(strata(dataset.y_test, dataset.y), _group_counts(federation), rng_test),
        )
    return apply_shifts(federation, parsed.shifts, dataset) if parsed.shifts else federation


def _group_counts(federation: Federation) -> np.ndarray:
    """Training samples of every client and group, int64 [K, groups]; test samples are dealt by these
    groups."""
    if federation.masks:
        return federation.sizes[:, None]
    if not federation.several:
        return federation.label_counts
    groups = federation.n_classes + 1  # its rarest label, or none
    flat = federation.train.owner * groups + strata(federation.y)[federation.train.rows]
    return np.bincount(flat, minlength=federation.clients * groups).reshape(-1, groups)


def _reserve_rows(dataset: Dataset, count: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of `count` samples of every class, ascending. Raises DataError (E103) if a class has too few."""
    if not count:
        return np.zeros(0, np.int64)
    if dataset.target or dataset.several:
        text = f"{count} samples of each class are to be held back, but samples have no single class"
        raise DataError("E103", f"{text}.")
    smallest = int(np.bincount(dataset.y, minlength=len(dataset.classes)).min())
    if smallest <= count:
        text = f"{count} samples of each class are to be held back, but one class has only {smallest}"
        raise DataError("E103", f"{text}.")
    of_class = (np.flatnonzero(dataset.y == c) for c in range(len(dataset.classes)))
    return np.sort(np.concatenate([rng.permutation(rows)[:count] for rows in of_class]))


def _client_names(dataset: Dataset, by_column: Column) -> tuple[str, ...]:
    """The clients' names: the names of the column's values, or `column-value`."""
    names = dataset.labels.get(by_column.column)
    values = by_column.values(dataset.columns)
    return tuple(names[int(v)] if names else f"{by_column.column}-{v}" for v in values)


def _tests_by_column(dataset: Dataset, by_column: Column) -> Index | None:
    """Test rows by client. Values that only the test set has belong to no client; None if no row belongs
    to one."""
    column = dataset.test_columns.get(by_column.column)
    if column is None:
        return None
    values = by_column.values(dataset.columns)
    place = np.searchsorted(values, column).clip(max=len(values) - 1)
    owner = np.where(values[place] == column, place, -1)
    return Index.by_owner(owner, len(values)) if (owner >= 0).any() else None


def _split_validation(index: Index, share: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """(the remaining rows, a random share of each client's rows)."""
    order = np.lexsort((rng.random(len(index.rows)), index.owner))
    place = np.arange(len(order)) - index.offsets[:-1][index.owner]
    validation = np.zeros(len(order), dtype=bool)
    validation[order] = place < np.floor(share * index.sizes)[index.owner]
    return _subset(index, ~validation), _subset(index, validation)


def _split_groups(
    index: Index, dataset: Dataset, share: float, rng: np.random.Generator
) -> tuple[Index, Index]:
    """(the remaining rows, a random share of each client's rows in whole groups). A group of several clients
    is held back at all of them if it is at the first, unless one would have no rows to train on."""
    groups, kinds = dataset.columns[dataset.group_column], strata(dataset.y)
    validation = [whole_groups(groups[rows], [kinds[rows]], share, rng) for rows in index]
    held, owner = np.concatenate(validation), index.owner
    _, first, group = np.unique(groups[index.rows], return_index=True, return_inverse=True)
    group = group.reshape(-1)
    held = held[first][group]
    bare = np.bincount(owner[~held], minlength=len(index)) == 0
    held &= ~np.isin(group, group[bare[owner]])
    return _subset(index, ~held), _subset(index, held)


def _subset(index: Index, keep: np.ndarray) -> Index:
    sizes = np.bincount(index.owner[keep], minlength=len(index))
    return Index(index.rows[keep], np.concatenate([[0], np.cumsum(sizes)]))
