"""Inputs that clients receive from others: how like their class they are, and how near to a real sample.

likeness = share of received inputs whose nearest test row is of their class
nearness = median_i min_n |r_i - x_n| / median_j min_n |t_j - x_n|
r: received inputs, x: training rows of all clients, t: test rows. A nearness of 0 means copies of training samples, 1 means
inputs that are as far from them as unseen real ones. Letters: D values of an input, N and M rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def nearest(a_ND: Tensor, b_MD: Tensor, others: bool = False) -> tuple[Tensor, Tensor]:
    """(distances [N], rows of b [N]): for every row of a the nearest row of b, by Euclidean distance.

    others: a is b, and a row is not its own neighbour.
    """
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(b_MD.cpu().numpy())
    neighbours = index.kneighbors(None if others else a_ND.cpu().numpy(), return_distance=False)[:, 0]
    rows_N = torch.as_tensor(neighbours, device=a_ND.device)
    return (a_ND - b_MD[rows_N]).pow(2).sum(1).sqrt(), rows_N  # from the rows themselves: a copy is at exactly 0


def likeness(a_ND: Tensor, y_N: Tensor, test_MD: Tensor, test_y_M: Tensor) -> float:
    """The share of inputs a_ND whose nearest test row has their label, in [0, 1]; NaN without rows."""
    if not len(a_ND) or not len(test_MD):
        return math.nan
    return float((test_y_M[nearest(a_ND, test_MD)[1]] == y_N).float().mean())


def likeness_of_real(test_MD: Tensor, test_y_M: Tensor) -> float:
    """The likeness of the test rows themselves, each among the others: the most to expect of received inputs.

    NaN with fewer than two rows.
    """
    if len(test_MD) < 2:
        return math.nan
    return float((test_y_M[nearest(test_MD, test_MD, others=True)[1]] == test_y_M).float().mean())


def nearness(a_ND: Tensor, train_ND: Tensor, test_MD: Tensor) -> float:
    """The median distance of inputs a_ND to the nearest training row, in units of that of test rows: 0 means copies.

    NaN where test rows are copies of training rows themselves, and without rows.
    """
    if not (len(a_ND) and len(train_ND) and len(test_MD)):
        return math.nan
    unseen = float(nearest(test_MD, train_ND)[0].median())
    return float(nearest(a_ND, train_ND)[0].median()) / unseen if unseen > 0 else math.nan
