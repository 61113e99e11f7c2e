"""Updates as whole numbers, which can be masked and added up in any order with one result.

    q_k = min(M, max(-M, round(2^F x_k)))      x_k: p_k (w_k - w), the client's shares, and its loss
    w <- w + 2^-F sum_k q_k / sum_k p_k        sum of shares: 2^-F sum_k q_k

Every client of the sum then counts as if it had replied with the mean. The error of a number below the clip
is at most K 2^-(F + 1). Letters: F binary digits after the point (`fraction`), K clients of the sum, N
numbers of a client, M the largest number: one step below 2^F clip, because a sum of K numbers of size 2^F
clip may be out of range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unskew.core import gate
from unskew.core.replies import Reply, cap_weights
from unskew.core.trees import Tree, Weights, flat_tree, nested_tree
from unskew.privacy.secure_aggregation import SUM


def shares_of_weight(sizes: Sequence[float], weighting: str, cap: float) -> list[float]:
    """The weight p_k of each client's update; the weights add up to 1."""
    raw_K = torch.tensor(sizes if weighting == "size" else [1.0] * len(sizes), dtype=torch.float64)
    return cap_weights((raw_K / raw_K.sum()).tolist(), cap)


@dataclass(frozen=True)
class FixedPoint:
    """Converts replies of one form to whole numbers and their sum back. clip, fraction: as above. bits: of
    each number, 32 or 64."""

    spec: gate.Spec
    clip: float
    fraction: int
    bits: int

    @property
    def tensors(self) -> int:
        """The number of tensors of a reply in this form."""
        return 1 + len(list(self._forms()))

    @property
    def most(self) -> int:
        """M, the largest number."""
        return math.ceil(self.clip * 2.0**self.fraction) - 1

    @property
    def most_cut(self) -> int:
        """The largest count of clipped numbers that a client reports; a million such counts stay in range."""
        return 2 ** (self.bits - 1) // 2**20

    @property
    def length(self) -> int:
        """N: the numbers of a reply, its loss, and the count of clipped numbers."""
        return 2 + sum(math.prod(shape) for _, shape in self._forms())

    def numbers(self, reply: Reply, w: Weights, p: float) -> Tensor:
        """A reply as numbers, int64 [N]. w: the weights at the start of the round. p: the client's weight."""
        q_N, at, cut = torch.zeros(self.length, dtype=torch.int64), 2, 0
        q_N[0], cut = self._steps(torch.as_tensor(reply.loss).reshape(1))
        shared = flat_tree(reply.shares)
        for path, shape in self._forms():
            first, _, name = path.partition("/")
            x = (reply.weights[name].double() - w[name].double()) * p if first == "w" else shared[name]
            end = at + math.prod(shape)
            q_N[at:end], more = self._steps(x.reshape(-1))
            cut, at = cut + more, end
        q_N[1] = min(cut, self.most_cut)
        return q_N

    def tree(self, numbers_N: Tensor) -> Tree:
        """A vector as the tensors of a reply; `sum` holds the loss and the count of clipped numbers."""
        pieces, at = {SUM: numbers_N[:2]}, 2
        for path, shape in self._forms():
            end = at + math.prod(shape)
            pieces[path], at = numbers_N[at:end].reshape(shape), end
        return nested_tree(pieces)

    def vector(self, tree: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
        """The inverse of `tree`, [N]. Raises ValueError for tensors of other names, shapes or types."""
        pieces, forms = flat_tree(tree), {SUM: (2,), **dict(self._forms())}
        if {path: (tuple(t.shape), t.dtype) for path, t in pieces.items()} != {
            p: (s, dtype) for p, s in forms.items()
        }:
            raise ValueError("its numbers are others than those that are summed")
        return torch.cat([pieces[path].reshape(-1) for path in forms])

    def problem(self, total_N: Tensor, clients: int) -> str | None:
        """The reason why this cannot be a sum over `clients` clients, as the end of a sentence; else None."""
        most = clients * self.most
        outside_N = (total_N > most) | (total_N < -most)  # not its size: the lowest int64 has none
        outside_N[1] = total_N[1] < 0
        wild = int(outside_N.sum())
        if wild:
            return f"{wild:,} of its {self.length:,} numbers are out of the range of {clients} clients' sums"
        return None

    def replies(self, total_N: Tensor, w: Weights, members: Sequence[Reply], weight: float) -> list[Reply]:
        """One equal reply for every client of the sum.

        members: the clients of the sum, with their sizes and private state. weight: the sum of their p_k.
        """
        x, at = total_N.double() * 2.0**-self.fraction, 2
        sums: dict[str, Tensor] = {}
        for path, shape in self._forms():
            end = at + math.prod(shape)
            sums[path], at = x[at:end].reshape(shape), end
        K, dtypes = len(members), self.spec.dtypes
        weights = {n: self._moved(w[n], sums[f"w/{n}"] / weight, dtypes[n]) for n in self.spec.weights}
        shares: dict[str, Tree] = {}
        device = next((t.device for t in w.values()), x.device)
        for part, declared in self.spec.shares.items():
            shares[part] = nested_tree(
                {
                    leaf: (sums[f"shares/{part}/{leaf}"] / K)
                    .clamp(share.low, share.high)
                    .to(device, share.dtype)
                    for leaf, share in declared.items()
                }
            )
        loss = float(x[0]) / K
        return [Reply(r.client, r.size, weights, shares, r.private, loss) for r in members]

    def cut(self, total_N: Tensor) -> str:
        """The count of clipped numbers of all clients as text; "" if there are none."""
        cut = int(total_N[1])
        if not cut:
            return ""
        return f"at least {cut:,}" if cut >= self.most_cut else f"{cut:,}"

    def _moved(self, w: Tensor, by: Tensor, dtype: torch.dtype) -> Tensor:
        moved = w.double() + by.to(w.device)
        return moved.to(dtype) if dtype.is_floating_point else moved.round().to(dtype)

    def _steps(self, x: Tensor) -> tuple[Tensor, int]:
        """Numbers as whole numbers of steps, and the count of clipped ones."""
        x = x.detach().double().cpu()
        steps = (x * 2.0**self.fraction).round().clamp(-self.most, self.most)
        return steps.long(), int((x.abs() > self.clip).sum())

    def _forms(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(path, shape) of every tensor of a reply, in the order of the vector."""
        for part in sorted(self.spec.shares):
            for leaf, share in sorted(self.spec.shares[part].items()):
                yield f"shares/{part}/{leaf}", tuple(s or 0 for s in share.shape)
        for name, shape in sorted(self.spec.weights.items()):
            yield f"w/{name}", shape
