"""CFL (Sattler et al., TNNLS 2021, algorithm 3): a cluster at rest whose clients are not is split in two.

th_c <- th_c + sum_k n_k / n_c d_k;    split where |mean d| < still, max |d| > moving and three clients or
more, into the two parts with the least maximum cosine between them.
"""

from itertools import combinations

import torch

from tests.oracles.agreement import agree
from tests.oracles.personal import Dispatched
from tests.oracles.tiny import Case, Weights
from tests.oracles.values import Reply
from unskew.methods.cfl import CFL as Engine


class CFL(Dispatched):
    part = "cfl"
    still = 0.4
    moving = 1.6
    first = 20
    gap = 0.0

    def begin(self) -> None:
        self.th, self.unused = [dict(self.w)], dict(self.w)
        self.of = [0] * self.clients
        self.d: dict[int, Weights] = {}
        self.note()

    def note(self) -> None:
        zeros = {n: torch.zeros_like(self.w[n]) for n in self.learned}
        self.slice = {
            "th": self.rows(self.th + [self.unused] * (self.clients - len(self.th))),
            "d": self.rows([self.d.get(k, zeros) for k in range(self.clients)]),
            "of": torch.tensor(self.of).double(),
            "has": torch.tensor([float(k in self.d) for k in range(self.clients)]),
        }

    def sent_to(self, k: int) -> Weights:
        return self.w | self.th[self.of[k]]

    def merge(self, replies: list[Reply]) -> Weights:
        for r in replies:
            self.d[r.k] = {n: r.w[n] - self.sent_to(r.k)[n] for n in self.learned}
        if self.t > self.first:
            for c in range(len(self.th)):
                self.divide(c, [k for k in sorted(self.d) if self.of[k] == c])
        for c in range(len(self.th)):
            here = [r for r in replies if self.of[r.k] == c]
            n_c = sum(r.n for r in here)
            if here:
                self.th[c] = {n: sum(r.n / n_c * r.w[n] for r in here) for n in here[0].w}  # type: ignore[misc]
        return super().merge(replies)

    def divide(self, c: int, members: list[int]) -> None:
        flat = {k: torch.cat([t.flatten() for t in self.d[k].values()]) for k in members}
        if len(members) < 3 or sum(flat.values()).norm() / len(members) >= self.still:  # type: ignore[union-attr]
            return
        if max(float(v.norm()) for v in flat.values()) <= self.moving:
            return
        unit = {k: v / v.norm() for k, v in flat.items()}
        ways = [
            leaving
            for size in range(1, len(members))
            for leaving in combinations(members, size)
            if members[0] not in leaving
        ]
        between = {
            way: max(float(unit[i] @ unit[j]) for i in way for j in set(members) - set(way)) for way in ways
        }
        leaving = min(ways, key=lambda way: between[way])
        if ((1 - between[leaving]) / 2) ** 0.5 > self.gap:
            self.th.append(dict(self.th[c]))
            for k in leaving:
                self.of[k] = len(self.th) - 1

    def server(self, replies: list[Reply], old: Weights) -> None:
        self.note()


def test_cfl() -> None:
    agree(Case("cnn", 0.9), CFL, still=100.0, moving=0.0, first=1, gap=0.1)


def test_before_the_first_split_it_is_one_cluster() -> None:
    agree(Case(), CFL, first=9)


def test_two_directions_are_two_clusters() -> None:
    """Clients 0, 2 and 3 go east, 1 and 4 west; client 5 was never there, 6 did not move."""
    d = torch.tensor([[2.0, 0], [-2, 0.1], [2, 0.1], [2, -0.1], [-2, 0], [9, 9], [0, 0]])
    has, start = torch.tensor([1.0, 1, 1, 1, 1, 0, 1]), torch.zeros(7)
    assert Engine(still=0.41).split(d, start, has).tolist() == [0, 1, 0, 0, 1, 0, 0]
    two = torch.tensor([[2.0, 0], [-2, 0]])
    assert Engine().split(two, start[:2], torch.ones(2)).tolist() == [0, 0]  # a cluster of two stays
    assert Engine().split(d, start, has).tolist() == [0] * 7  # their mean is (0.4, 0.02)
    assert Engine(still=0.41, moving=2.1).split(d, start, has).tolist() == [0] * 7
    assert (
        Engine(gap=0.999)
        .split(torch.tensor([[2.0, 0], [0, 2], [-2, -2]]), torch.zeros(3), torch.ones(3))
        .tolist()
        == [0] * 3
    )


def test_linkage() -> None:
    """On a quarter circle at 0, 30, 60 and 100 degrees the widest gap parts the last; halves are equally wide
    from end to end."""
    angles = torch.deg2rad(torch.tensor([0.0, 30, 60, 100]))
    d = torch.stack([angles.cos(), angles.sin()], 1).double()
    assert Engine().leavers(d) == [3]
    assert Engine(linkage="complete").leavers(d) == [2, 3]


def test_a_shortened_run_splits_at_the_same_share_of_its_rounds() -> None:
    """If `first` stayed 20, a row of CFL in a table shortened to 20 rounds would have FedAvg's numbers."""
    assert Engine(first=20).paced(100, 20).first == 4
    assert Engine(first=0, still=0.1).paced(100, 20) == Engine(first=0, still=0.1)
