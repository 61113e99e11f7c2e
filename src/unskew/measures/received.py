"""What clients receive of others' inputs: how like their class they are, and how near to a real sample.

likeness = share of received inputs whose nearest test row is of their class
nearness = median_i min_n |r_i - x_n| / median_j min_n |t_j - x_n|
r received inputs, x training rows of all clients, t test rows: 0 for copies of training samples, 1 for inputs as far from
them as unseen real ones are.  Letters: D values of an input, N and M rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PIECE, ROWS = 256, 4096


def nearest(a_ND: Tensor, b_MD: Tensor, others: bool = False) -> tuple[Tensor, Tensor]:
    """(distances [N], rows of b [N]): for every row of a the nearest one of b; the first of several.

    others: a is b, and a row is not its own neighbour.
    """
    least = torch.full((len(a_ND),), math.inf, device=a_ND.device)
    at = torch.zeros(len(a_ND), dtype=torch.int64, device=a_ND.device)
    for first in range(0, len(b_MD), ROWS):
        b = b_MD[first : first + ROWS].to(a_ND.dtype)
        half_M = b.pow(2).sum(1) / 2
        for begin in range(0, len(a_ND), PIECE):
            part = slice(begin, begin + PIECE)
            far_NM = half_M - a_ND[part] @ b.T  # half the squared distance, less what is a row's own
            if others:
                far_NM[torch.arange(len(far_NM))[:, None] + begin == torch.arange(len(b)) + first] = math.inf
            low_N, where_N = far_NM.min(1)
            nearer = low_N < least[part]
            least[part] = torch.where(nearer, low_N, least[part])
            at[part] = torch.where(nearer, where_N + first, at[part])
    return (a_ND - b_MD[at]).pow(2).sum(1).sqrt(), at  # from the rows themselves: products lose what is near 0


def likeness(a_ND: Tensor, y_N: Tensor, test_MD: Tensor, test_y_M: Tensor) -> float:
    """In [0, 1]; NaN without rows."""
    if not len(a_ND) or not len(test_MD):
        return math.nan
    return float((test_y_M[nearest(a_ND, test_MD)[1]] == y_N).float().mean())


def likeness_of_real(test_MD: Tensor, test_y_M: Tensor) -> float:
    """The same of the test rows themselves, each among the others: what received inputs can reach. NaN below two rows."""
    if len(test_MD) < 2:
        return math.nan
    return float((test_y_M[nearest(test_MD, test_MD, others=True)[1]] == test_y_M).float().mean())


def nearness(a_ND: Tensor, train_ND: Tensor, test_MD: Tensor) -> float:
    """0 for copies, 1 for as far as unseen rows; NaN where unseen rows are copies themselves, or nothing is there."""
    if not (len(a_ND) and len(train_ND) and len(test_MD)):
        return math.nan
    unseen = float(nearest(test_MD, train_ND)[0].median())
    return float(nearest(a_ND, train_ND)[0].median()) / unseen if unseen > 0 else math.nan
