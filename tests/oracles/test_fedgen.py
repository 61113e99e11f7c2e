"""FedGen (Zhu, Hong & Zhou, ICML 2021, eq. 4 and 5, algorithm 1): a generator of features, trained at the
server.

    G(y, e) = W2 relu(W1 [y, e] + b1) + b2,   e uniform on [0, 1)
    server:  sum_k w_ky CE(head_k(G(y, e)), y) + exp(-mean_ij |G_i - G_j| |e_i - e_j|^2),   w_ky = n_ky /
    sum_j n_jy
             Adam, |.| and |.|^2 averaged over coordinates; y uniform over the classes with more than one
             sample
    client, from round 2:  CE(z, y) + a_t CE(head(G(y', e)), y') + b_t KL(head(G(y, e')) || z)
             a_t = max(a decay^t, 1e-4), b_t likewise; the generated side of KL is constant
A class that G has not learnt adds nothing to the last two terms, whose sums are divided by the whole batch.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tests.oracles.agreement import agree, on_both_models
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case, Law, Tree, Weights
from tests.oracles.values import Client, Pass, Reply

NOISE, HIDDEN = 64, 512


class FedGen(FedAvg):
    part = "fedgen"
    a = 10.0
    b = 10.0
    decay = 0.98
    steps = 50
    batch_size = 128
    lr = 0.0003
    weight_decay = 0.01
    D = 7

    def begin(self) -> None:
        random, G = self.given.generator("fedgen", "generator"), {}
        for i, (out, inside) in (("1", (HIDDEN, NOISE + CLASSES)), ("2", (self.D, HIDDEN))):
            G[f"w{i}"] = ((2 * torch.rand(out, inside, generator=random) - 1) / inside**0.5).double()
            G[f"b{i}"] = ((2 * torch.rand(out, generator=random) - 1) / inside**0.5).double()
        self.G = {n: t.requires_grad_() for n, t in G.items()}
        self.adam = torch.optim.Adam(list(self.G.values()), self.lr, weight_decay=self.weight_decay)
        self.known: list[int] = []
        self.describe()

    def describe(self) -> None:
        """Put the generator and its optimiser's state into the slice."""
        state = {n: self.adam.state.get(t, {}) for n, t in self.G.items()}
        zeros = {n: torch.zeros_like(t) for n, t in self.G.items()}
        self.slice = {
            "G": {n: t.detach().clone() for n, t in self.G.items()},
            "first": {n: s.get("exp_avg", zeros[n]).clone() for n, s in state.items()},
            "second": {n: s.get("exp_avg_sq", zeros[n]).clone() for n, s in state.items()},
            "done": torch.as_tensor(state["w1"].get("step", 0.0)).clone(),
            "known": torch.tensor([float(j in self.known) for j in range(CLASSES)]),
        }

    def arrive(self, c: Client) -> None:
        self.e, self.e_own = (self.noise(c, name, Law("uniform", (), (NOISE,))) for name in ("e", "e_own"))
        self.label = self.noise(c, "label", Law("integers", (CLASSES,)))

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss, head = super().loss(c, seen), c.model.head
        if self.t == 1:
            return loss
        a, b = (max(v * self.decay**self.t, 1e-4) if v else 0.0 for v in (self.a, self.b))
        for i, y in enumerate(seen.y.argmax(1).tolist()):
            drawn = int(self.label[c.step, i])
            if drawn in self.known:
                z = head(self.features(drawn, self.e[c.step, i]).detach())  # type: ignore[operator]
                loss = loss - a * z.log_softmax(0)[drawn] / len(seen.y)
            if y in self.known:
                p = head(self.features(y, self.e_own[c.step, i])).detach().softmax(0)  # type: ignore[operator]
                loss = loss + b * (p * (p.log() - seen.z[i].log_softmax(0))).sum() / len(seen.y)
        return loss

    def features(self, y: int, e: Tensor) -> Tensor:
        """G(y, e) of one class and one noise vector."""
        one_hot = torch.zeros(CLASSES).double()
        one_hot[y] = 1
        hidden = (self.G["w1"] @ torch.cat([one_hot, e]) + self.G["b1"]).clamp(min=0)
        return self.G["w2"] @ hidden + self.G["b2"]

    def leave(self, c: Client) -> Tree:
        return {"counts": c.counts}

    def server(self, replies: list[Reply], old: Weights) -> None:
        n_C = sum(r.shared["counts"] for r in replies)
        self.known = [j for j in range(CLASSES) if n_C[j] > 1]  # type: ignore[index]
        random = self.given.generator(self.t, "fedgen")
        for _ in range(self.steps if self.known else 0):
            e = torch.rand(self.batch_size, NOISE, generator=random).double()
            labels = [
                self.known[i] for i in torch.randint(len(self.known), (self.batch_size,), generator=random)
            ]
            h = torch.stack([self.features(y, e_i) for y, e_i in zip(labels, e)])
            loss = self.diversity(h, e)
            for r in replies:
                log_p = (h @ r.w["head.weight"].T + r.w["head.bias"]).log_softmax(1)
                for i, y in enumerate(labels):
                    loss = loss - r.shared["counts"][y] / n_C[y] * log_p[i, y] / self.batch_size  # type: ignore[index]
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
        self.describe()

    def diversity(self, h: Tensor, e: Tensor) -> Tensor:
        pairs = [(a - b).abs().mean() * ((d - f) ** 2).mean() for a, d in zip(h, e) for b, f in zip(h, e)]
        return torch.exp(-torch.stack(pairs).mean())


@on_both_models
def test_fedgen(case: Case) -> None:
    agree(case, FedGen, steps=2, batch_size=8, lr=0.001)


def test_its_decay_and_classes_with_a_single_sample() -> None:
    """Round 1 has one sample of one class, which the generator does not learn."""
    few = replace(Case(seed=3), attendance=((0, 4), (1, 2), (3,)))
    agree(few, FedGen, steps=2, batch_size=8, decay=0.5)
