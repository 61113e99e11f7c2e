"""What several methods declare: figures by class, labels of rows, and an exchange before round 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from unskew.core import Client, Fed, Share, Tree, Trip, Ups, Weights

Reads = Literal["sum", "each"]


def class_counts(fed: Fed, reads: Reads = "sum") -> Share:
    """The client's samples per class, [C]."""
    most, what = float(fed.sizes.max()), "samples per class"
    return Share((fed.classes,), low=0, high=most, reads=reads, what=what, kind="statistics", samples="class")


def class_marks(fed: Fed, what: str = "which classes it has", reads: Reads = "each") -> Share:
    """A number from 0 to 1 for each class, [C]."""
    return Share((fed.classes,), low=0, high=1, reads=reads, what=what, kind="statistics", samples="class")


def class_features(fed: Fed, what: str = "sum of features per class", reads: Reads = "sum") -> Share:
    """A vector of features for each class, [C, D]."""
    kind = fed.kind_at("features", "sums")
    return Share((fed.classes, fed.features), reads=reads, what=what, kind=kind, samples="class")


def row_labels(fed: Fed, rows: int, what: str) -> Share:
    """The labels of at most `rows` samples, in clear."""
    return Share((None,), torch.int64, 0, fed.classes - 1, rows=rows, reads="each", what=what, kind="labels")


def before_training(
    client: Callable[[Weights, Client], Tree],
    server: Callable[[Weights, Tree, Ups, Fed], tuple[Weights, Tree]],
    shares: Callable[[Fed], dict[str, Share]],
    sums: int = 0,
    weights: bool = False,
) -> tuple[Trip]:
    """`trips` with one exchange of all clients before round 1, at which clients read nothing of the slice.
    weights: whether they read the weights."""
    first = Trip(lambda t, T: t == 0, client, server, shares, True, sums=sums, weights=weights, reads=())
    return (first,)


def uniform(rows: int, columns: int, draw: torch.Generator) -> Tensor:
    """Initial weights of a dense layer as torch draws them, [rows, columns]: uniform up to columns^-0.5."""
    return (2 * torch.rand(rows, columns, generator=draw) - 1) * columns**-0.5
