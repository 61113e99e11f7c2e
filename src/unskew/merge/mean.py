"""The weighted mean of clients' weights (FedAvg, McMahan et al., AISTATS 2017).

    w <- sum_k p_k w_k,    p_k = n_k / sum_j n_j    (or 1/|S|)

The sum runs in the order of the clients' numbers, so that its bits depend on the replies alone.
"""

# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false
# torch's own optimisers are made of its _foreach functions, which have no public names.

from __future__ import annotations

from typing import cast

import torch

from unskew.core.replies import Ups
from unskew.core.trees import Weights


def weighted_mean(w: Weights, ups: Ups, weighting: str | None = None) -> Weights:
    """The next global weights. Weights that clients did not send (local or frozen) keep their value in `w`.

    weighting: "size" or "equal"; None: the method's own.
    """
    p_K = ups.shares_of_weight(weighting)
    first, *others = ups.replies
    if not first.weights:
        return dict(w)
    merged = dict(w)
    in_memory = isinstance(cast(object, first.weights), dict)  # those on a disk are read one by one
    for names in [list(first.weights)] if in_memory else [[n] for n in first.weights]:
        total = torch._foreach_mul([first.weights[n] for n in names], p_K[0])
        for p, reply in zip(p_K[1:], others):
            torch._foreach_add_(total, [reply.weights[n] for n in names], alpha=p)
        merged |= zip(names, total)
    return merged
