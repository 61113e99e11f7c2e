"""Partitions in which a client owns some of the classes, and each class is split among its owners.

classes        Quantity skew Qua(Q) of FLea: client i owns class i mod C and others at random
clustered      Groups of consecutive clients, each group with its own number of classes (ReBaFL)
pathological   Random classes; with a number of samples, clients may share rows (McMahan 2017)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, MinLen

from unskew.data.clients.partition import Index, Partition, Request, split_among_owners
from unskew.errors import UsageError

TRIES = 20
"""Draws for one client before it may share its classes with another client of its group."""


@dataclass(frozen=True)
class Classes(Partition):
    """Every client holds a fixed number of classes: client i owns class i mod C and others at random.

    This is the quantity skew Qua(Q) of FLea."""

    count: Annotated[int, Gt(0), "classes per client"]
    name = "classes"
    value = ("count",)
    example = "classes:2"

    def deal_all(self, request: Request, rng: np.random.Generator) -> Index:
        C = request.classes
        self.require_classes(self.count, request)
        first_K = np.arange(request.clients) % C
        other_classes = np.tile(np.arange(C), (C, 1))[~np.eye(C, dtype=bool)].reshape(C, C - 1)[first_K]
        client_classes = np.column_stack([first_K, rng.permuted(other_classes, axis=1)[:, : self.count - 1]])
        return split_among_owners(list(client_classes), request, rng)


@dataclass(frozen=True)
class Clustered(Partition):
    """Groups of consecutive clients, each group with its own number of random classes per client (ReBaFL).

    Within a group they differ from client to client if chance allows."""

    counts: Annotated[tuple[Annotated[int, Gt(0)], ...], MinLen(1), "classes per client, of each group"]
    name = "clustered"
    value = ("counts",)
    example = "clustered:2-2-3-3-5"

    def deal_all(self, request: Request, rng: np.random.Generator) -> Index:
        K = request.clients
        self.require_classes(max(self.counts), request)
        if len(self.counts) > K:
            raise UsageError(
                "E103", f"skew 'clustered' names {len(self.counts)} groups; there are only {K} clients."
            )
        client_classes = []
        for count, group in zip(self.counts, np.array_split(np.arange(K), len(self.counts))):
            client_classes += _distinct_classes(count, len(group), request.classes, rng)
        return split_among_owners(client_classes, request, rng)


def _distinct_classes(count: int, clients: int, C: int, rng: np.random.Generator) -> list[np.ndarray]:
    """`count` random classes for each client of a group."""
    sets: list[np.ndarray] = []
    previous: set[frozenset[int]] = set()
    for _ in range(clients):
        classes = rng.choice(C, count, replace=False)
        for _ in range(TRIES - 1):
            if frozenset(classes.tolist()) not in previous:
                break
            classes = rng.choice(C, count, replace=False)
        previous.add(frozenset(classes.tolist()))
        sets.append(classes)
    return sets


@dataclass(frozen=True)
class Pathological(Partition):
    """A few random classes per client; with a number of samples, clients may share rows (McMahan 2017).

    `pathological:2` splits every class among its owners; `pathological:2x500` gives 500 samples of each
    class.

    Every class has an owner under `pathological:2`, if there are at least as many places as classes.
    Without a number in the text, the setting `samples` is the number of samples of a client.
    """

    count: Annotated[int, Gt(0), "classes per client"]
    each: Annotated[
        int | None, Gt(0), "samples of each of its classes; beyond the last one, the first follows again"
    ] = None
    name = "pathological"
    value = ("count", "each")
    example = "pathological:2x500"

    def deal(self, request: Request, rng: np.random.Generator) -> Index:
        C = request.classes
        self.require_classes(self.count, request)
        client_classes = [rng.choice(C, self.count, replace=False) for _ in range(request.clients)]
        if self.each is None and request.samples is None:
            give_owners(client_classes, request, rng)
            return split_among_owners(client_classes, request, rng)
        each = self.each or max(1, (request.samples or 0) // self.count)
        return wrap_rows(client_classes, each, request, rng)


def give_owners(client_classes: list[np.ndarray], request: Request, rng: np.random.Generator) -> None:
    """Give each class without an owner to a random client, in place of the class with most owners.

    client_classes: the classes of every client, which are changed. With fewer places than classes, classes
    remain without an owner.
    """
    owners = np.bincount(np.concatenate(client_classes), minlength=request.classes)
    present = np.bincount(request.y, minlength=request.classes) > 0
    for c in np.flatnonzero(present & (owners == 0)):
        most = int(owners.argmax())
        if owners[most] < 2:
            return
        k = int(rng.choice([k for k, classes in enumerate(client_classes) if most in classes]))
        client_classes[k][client_classes[k] == most] = c
        owners[most], owners[c] = owners[most] - 1, 1


def wrap_rows(
    client_classes: list[np.ndarray], each: int, request: Request, rng: np.random.Generator
) -> Index:
    """`each` rows of every owned class, consecutive in the class's shuffled rows, which start again at their
    end.

    A class with fewer rows than `each` gives all of them. client_classes: the classes of every client.
    """
    decks = [rng.permutation(np.flatnonzero(request.y == c)) for c in range(request.classes)]
    begins = [0] * len(decks)
    rows_of_clients = []
    for classes in client_classes:
        pieces = [np.zeros(0, np.int64)]
        for c in classes:
            if len(decks[c]):
                places = np.arange(begins[c], begins[c] + min(each, len(decks[c])))
                pieces.append(np.take(decks[c], places, mode="wrap"))
                begins[c] += each
        rows_of_clients.append(np.sort(np.concatenate(pieces)))
    return Index.of(rows_of_clients)
