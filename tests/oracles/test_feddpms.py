"""FedDPMS (Chen & Vikalo, CVPRW 2023, sections 3.1 to 3.3): clients draw images of classes they lack from
noisy means.

    latent mu = sigmoid(W h + b);  log s^2 = V h + v, within [-10, 10];  the head reads mu
    stage I, t <= T_p:  CE + lam mean_i [ KL(N(mu_i, s_i^2) || N(0, I)) / l + |decode(mu_i + s_i e) - x_i|^2 ]
Decoders stay with the clients and are averaged once, after round T_p. Then, and after every later round but
the last, those who answered and have not shared yet send, for each of their `top` largest classes with
`least` samples or more, with m_c the mean of mu over the samples of class c by the merged model,
    paper:   the first alpha vectors m_c + sigma e whose decoded image the model takes for c
    single:  m_c + sigma / sqrt(alpha) e, from which the server makes 4 alpha vectors m + spread e and keeps
    the first alpha
             that it takes for c, or m itself
All clients say after round T_p which `top` classes they have least of. Each is matched with the client whose
shared classes meet most of these, among all that have shared before its first round of stage II with a match.
    stage II:  CE; each sample is one of the n~ decoded vectors of the match with probability n~ / (n + n~),
    else its own
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.oracles.agreement import agree
from tests.oracles.plain import FedAvg
from tests.oracles.tiny import CLASSES, Case, Law, Weights, model_named
from tests.oracles.values import Client, Pass, Reply

STRIDES = {"a": 1, "b": 2, "c": 1, "d": 2}


class FedDPMS(FedAvg):
    part = "feddpms"
    lam = 0.05
    stage = 0.4
    width = 32
    top = 3
    alpha = 200
    sigma = 4.0
    least = 2
    mechanism = "paper"
    spread = 0.25

    def model(self) -> nn.Sequential:
        *body, (_, head) = model_named(self.case.model, self.case.shape).named_children()
        assert isinstance(head, nn.Linear)
        model = nn.Sequential()
        for name, block in body:
            model.add_module(name, block)
        model.add_module("base", nn.Flatten())
        model.add_module("latent", nn.Sequential(nn.Linear(head.in_features, self.width), nn.Sigmoid()))
        model.add_module("head", nn.Linear(self.width, CLASSES))
        return model

    @property
    def last_of_stage(self) -> int:
        return round(self.stage * self.case.rounds)

    def keeps(self, name: str) -> bool:
        return name.startswith("feddpms.dec_")

    def begin(self) -> None:
        K, rows = self.clients, self.top * self.alpha
        self.slice = {
            "decoder": {n: torch.zeros_like(t) for n, t in decoder_of(self.w).items()},
            "z": torch.zeros(K, rows, self.width).double(),
            "label": torch.zeros(K, rows, dtype=torch.int64),
            "count": torch.zeros(K),
            "asked": torch.zeros(K),
            "match": torch.full((K,), -1),
            "classes": torch.zeros(K, CLASSES),
            "lacks": torch.zeros(K, CLASSES),
            "begun": torch.zeros(K),
        }

    def arrive(self, c: Client) -> None:
        self.e = self.noise(c, "e", Law("normal", (), (self.width,)))
        match = int(self.slice["match"][c.k])
        self.many = int(self.slice["count"][match]) if match >= 0 else 0
        if self.t > self.last_of_stage and self.many:
            self.turn, self.row = (self.noise(c, name, Law("uniform")) for name in ("turn", "row"))
            self.drawn = self.decoded(self.slice["decoder"], self.slice["z"][match])
            self.drawn_label = self.slice["label"][match]

    def batch(self, c: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.t <= self.last_of_stage or not self.many:
            return x, y
        x, y = x.clone(), y.clone()
        for i in range(len(x)):
            if self.turn[c.step, i] < self.many / (c.n + self.many):
                row = int(self.row[c.step, i].float() * self.many)
                x[i], y[i] = self.drawn[row], F.one_hot(self.drawn_label[row], CLASSES)
        return x, y

    def forward(self, c: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        *body, latent, head = c.model
        self.h = x
        for block in body:
            self.h = block(self.h)
        mu = latent(self.h)
        return head(mu), mu

    def loss(self, c: Client, seen: Pass) -> Tensor:
        loss = super().loss(c, seen)
        if self.t > self.last_of_stage:  # what is no longer used has a gradient of 0, and still decays
            return loss + 0 * sum(p.sum() for p in c.extra.values())
        log_var = (self.h @ c.extra["feddpms.var_w"].T + c.extra["feddpms.var_b"]).clamp(-10, 10)
        kl = 0.5 * (log_var.exp() + seen.h**2 - 1 - log_var).sum(1) / self.width
        z = seen.h + (log_var / 2).exp() * self.e[c.step][: len(seen.x)]
        far = ((self.decoded(decoder_of(dict(c.extra)), z) - seen.x) ** 2).sum((1, 2, 3))
        return loss + self.lam * (kl + far).mean()

    def decoded(self, P: Weights, z: Tensor) -> Tensor:
        _, height, width = self.case.shape
        h = (z @ P["dec_w"].T + P["dec_b"]).clamp(min=0).reshape(-1, 64, height // 4, width // 4)
        for name, stride in STRIDES.items():
            h = F.conv_transpose2d(
                h, P[f"dec_{name}_w"], P[f"dec_{name}_b"], stride=stride, padding=1, output_padding=stride - 1
            )
            h = torch.sigmoid(h) if name == "d" else h.clamp(min=0)
        return h

    def exchange(self, cohort: list[int]) -> None:
        if self.t == self.last_of_stage:
            n = {k: len(self.given.rows(k)) for k in cohort}
            own = {k: decoder_of(self.kept[k]) for k in cohort}
            self.slice["decoder"] = {
                name: sum(n[k] * own[k][name] for k in cohort) / sum(n.values())
                for name in self.slice["decoder"]
            }
        if not self.last_of_stage <= self.t < self.case.rounds:
            return
        if self.t == self.last_of_stage:
            for k in range(self.clients):
                counts = self.y[self.given.rows(k)].sum(0)
                fewest = sorted(range(CLASSES), key=lambda j: (counts[j], j))[: self.top]
                self.slice["lacks"][k, fewest] = 1
        for k in cohort:
            counts = self.y[self.given.rows(k)].sum(0)
            largest = sorted(range(CLASSES), key=lambda j: (-counts[j], j))[: self.top]
            if not self.slice["asked"][k]:
                self.share(k, [j for j in largest if counts[j] >= self.least])
            self.slice["asked"][k] = 1
            if self.slice["match"][k] >= 0:
                self.slice["begun"][k] = 1
        for i in range(self.clients):
            meets = [
                int((self.slice["classes"][j] * self.slice["lacks"][i]).sum()) if j != i else 0
                for j in range(self.clients)
            ]
            if not self.slice["begun"][i]:
                self.slice["match"][i] = meets.index(max(meets)) if max(meets) > 0 else -1

    def share(self, k: int, classes: list[int]) -> None:
        rows = self.given.rows(k)
        mu, label = self.evaluated(self.w, self.x[rows])[1], self.y[rows].argmax(1)
        noise, more = (
            self.given.generator("feddpms", "release", k),
            self.given.generator("feddpms", "spread", k),
        )
        z, labels = [], []
        for j in classes:
            mean = mu[label == j].mean(0)
            if self.mechanism == "single":
                once = (
                    mean
                    + self.sigma / self.alpha**0.5 * torch.randn(1, self.width, generator=noise)[0].double()
                )
                near = once + self.spread * torch.randn(4 * self.alpha, self.width, generator=more).double()
                right = near[self.taken_for(near) == j][: self.alpha]
                kept = right if len(right) else once[None]
            else:
                kept = torch.zeros(0, self.width).double()
                for _ in range(200):
                    near = mean + self.sigma * torch.randn(self.alpha, self.width, generator=noise).double()
                    kept = torch.cat([kept, near[self.taken_for(near) == j]])
                    if len(kept) >= self.alpha:
                        break
            z.append(kept[: self.alpha])
            labels += [j] * len(z[-1])
        if labels:
            self.slice["z"][k, : len(labels)] = torch.cat(z)
            self.slice["label"][k, : len(labels)] = torch.tensor(labels)
            self.slice["count"][k] = len(labels)
            self.slice["classes"][k, labels] = 1

    def taken_for(self, z: Tensor) -> Tensor:
        """The classes that the merged model takes decoded vectors for."""
        return self.evaluated(self.w, self.decoded(self.slice["decoder"], z))[0].argmax(1)

    def server(self, replies: list[Reply], old: Weights) -> None:
        for name in ("asked", "match", "classes", "lacks", "begun", "count", "z", "label"):
            self.slice[name] = self.slice[name].clone()

    def answers(self) -> dict[int, Tensor]:
        """Decoders stay with the clients and have no part in the logits, so the server's model is scored."""
        return {-1: self.evaluated(self.w, self.x_test)[0]}


def decoder_of(w: Weights) -> Weights:
    prefix = "feddpms."
    return {n.removeprefix(prefix): t for n, t in w.items() if n.startswith(f"{prefix}dec_")}


SMALL = replace(
    Case("cnn", 0.9), shape=(1, 8, 8), lr=0.02, attendance=((0, 1, 3, 4), (1, 2, 3), (0, 1, 2, 4))
)


def test_feddpms() -> None:
    agree(SMALL, FedDPMS, width=4, alpha=5, sigma=0.5, top=2)


def test_one_noisy_mean_a_class() -> None:
    agree(
        replace(SMALL, model="mlp", momentum=0.0),
        FedDPMS,
        width=4,
        alpha=4,
        sigma=1.5,
        top=2,
        mechanism="single",
    )
