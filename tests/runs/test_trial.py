"""A user's model on a training step before the run: which layers train side by side, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from unskew.config import build
from unskew.errors import UsageError
from unskew.round.run import Run
from unskew.runs.resolve import resolve

SHAPE, CLASSES, N = (1, 6, 6), 3, 60


def data() -> unskew.Dataset:
    rng = np.random.default_rng(2)
    y = np.arange(N) % CLASSES
    x = (rng.random((N, *SHAPE)) + 0.4 * y[:, None, None, None]).astype(np.float32)
    return unskew.data.arrays(x, y, x, y)


def sequence(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.rnn = layer(6, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x[:, 0])[0][:, -1])


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, dropout, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x[:, 0]
        return self.head(self.attention(h, h, h)[0].mean(1))


def resolved(module: nn.Module, method: str = "fedavg", **options) -> Run:
    settings = build({"method": method, "clients": 3, "normalise": "none", "device": "cpu", **options})
    return resolve(settings, data(), model=module)


def trained(module: nn.Module, **options) -> unskew.Result:
    settings = {"rounds": 2, "clients": 3, "epochs": 1, "batch": 8, "normalise": "none", "device": "cpu"}
    return unskew.run(options.pop("method", "fedavg"), data(), model=module, **(settings | options))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_recurrent_model_trains_one_client_after_another(layer):
    """M18: 16 lanes, a GPU's default, ended in "Batching rule not implemented"."""
    torch.manual_seed(0)
    module = Recurrent(layer)
    result = trained(module, lanes="16")
    assert result.run.lanes == 1
    assert result.digest == trained(module, lanes="1").digest
    texts = [e["text"] for e in result.record.rows["events"] if e["code"] == "E128"]
    assert any("so lanes=1 is used" in text for text in texts)
    before, after = module.state_dict(), result.model.state_dict()
    assert all(not torch.equal(before[n], after[n]) for n in before)


def test_a_recurrent_model_has_no_gradients_of_single_samples_and_is_refused_in_a_sentence():
    """M18: `dpsgd` ended in "Batching rule not implemented", also with one lane."""
    pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")
    for lanes in ("1", "16"):
        text = r"E108 'dpsgd' cannot run here: every sample needs .*: .*lstm.*, in the layer rnn .LSTM."
        with pytest.raises(UsageError, match=text):
            resolved(Recurrent(nn.LSTM), "dpsgd", lanes=lanes)
        resolved(Attention(), "dpsgd", lanes=lanes)
        with pytest.raises(UsageError, match=r"in the layer attention .*give it dropout=0\.0"):
            resolved(Attention(0.1), "dpsgd", lanes=lanes)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.3, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x[:, 0]).mean(1))


def test_a_model_that_draws_by_itself_has_the_same_bits_in_every_run():
    """M18: attention's dropout draws from torch's own generator, which no seed of the run reached."""
    digests = {
        trained(Transformer(), lanes=lanes, workers=w).digest for lanes, w in (("1", 1), ("1", 2), ("16", 2))
    }
    assert len(digests) == 1
    assert digests != {trained(Transformer(), lanes="1", seed=1, partition_seed=0).digest}
    assert resolved(Transformer()).fed.net.draws
    assert not resolved(Attention()).fed.net.draws


def test_layers_that_work_side_by_side_keep_their_lanes():
    """M18: attention among them, with the results of one lane."""
    torch.manual_seed(0)
    for module in (
        Attention(),
        sequence(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, CLASSES)),
    ):
        assert resolved(module, lanes="16").lanes == 16
        one, many = (trained(module, lanes=lanes).weights for lanes in ("1", "16"))
        assert max(float((one[n] - many[n]).abs().max()) for n in one) < 1e-5


def test_a_model_that_cannot_train_is_refused():
    """M18: it answers in evaluation mode, and fails as it trains."""

    class Fails(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not self.training, "no training today"
            return super().forward(x)

    with pytest.raises(UsageError, match=r"E123.*cannot be trained: AssertionError: no training today"):
        resolved(sequence(nn.Flatten(), Fails(36, CLASSES)))


class Remembering(nn.Module):
    """A model that counts or averages in its forward pass. how: the way in which it does."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.head = how, nn.Linear(36, CLASSES)
        self.register_buffer("centre", torch.zeros(36))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.flatten(1)
        if self.training and self.how == "assigned":
            self.centre = 0.9 * self.centre + 0.1 * h.detach().mean(0)
        elif self.training and self.how == "in place":
            self.centre.mul_(0.9).add_(0.1 * h.detach().mean(0))
        elif self.training and self.how == "whole numbers":
            self.steps += 1
        elif self.training and self.how == "assigned whole numbers":
            self.steps = self.steps + 1
        return self.head(h - self.centre)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("assigned", "buffer 'centre'"),
        ("whole numbers", "buffer 'steps'"),
        ("assigned whole numbers", "buffer 'steps'"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_state_that_would_be_lost_is_refused(how, says, inside):
    """Tensors that forward assigned to buffers, and whole-number counts, were lost after every pass."""
    module = nn.Sequential(Remembering(how)) if inside else Remembering(how)
    if inside:
        module.add_module("last", nn.Linear(CLASSES, CLASSES))
    with pytest.raises(UsageError, match="E123 .*" + says.replace("'", r"'(?:0\.)?", 1)):
        unskew.run("fedavg", data(), model=module, rounds=1, clients=2, epochs=1)


class Counting(nn.Module):
    """A model that keeps something in an attribute. keeps: what its forward does with itself."""

    def __init__(self, keeps) -> None:
        super().__init__()
        self.keeps, self.head = keeps, nn.Linear(36, CLASSES)
        self.passes, self.mean, self.seen, self.shape = 0, torch.zeros(()), [], None
        self.last, self.total = {}, np.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keeps(self, x.detach())
        return self.head(x.flatten(1)) * (1 if self.passes < 1000 else 0)


def count(layer, x):
    layer.passes += 1


def average(layer, x):
    layer.mean = 0.9 * layer.mean + 0.1 * x.mean()


def average_in_place(layer, x):
    layer.mean.mul_(0.9).add_(0.1 * x.mean())


def add_up(layer, x):
    layer.total += len(x)


@pytest.mark.parametrize(
    ("keeps", "what"),
    [(count, "passes"), (average, "mean"), (average_in_place, "mean"), (add_up, "total")],
)
@pytest.mark.parametrize("inside", [False, True])
def test_attributes_that_change_at_every_pass_are_refused(keeps, what, inside):
    """Clients in turn went on from one another's counts, and a resumed run began at 0."""
    module = nn.Sequential(Counting(keeps), nn.Linear(CLASSES, CLASSES)) if inside else Counting(keeps)
    name = f"0.{what}" if inside else what
    with pytest.raises(UsageError, match=f"E123 the model's forward changes its attribute '{name}'"):
        unskew.run("fedavg", data(), model=module, rounds=1, clients=2, epochs=1)


def test_attributes_that_say_of_the_samples_alone_are_the_models_own_matter():
    def note(layer, x):
        layer.shape, layer.last = (
            tuple(x.shape),
            {
                "x": x * (torch.rand(()) if layer.training else 1),
                "mean": float(x.mean()),
                "seen": {len(x), "x"},
            },
        )

    result = unskew.run("fedavg", data(), model=Counting(note), rounds=1, clients=2, epochs=1, skew="iid")
    assert result.t == 1


class Changing(nn.Module):
    """how: what its forward does to a weight of its own."""

    def __init__(self, how=None) -> None:
        super().__init__()
        self.how, self.body, self.head = how, nn.Linear(36, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how:
            self.how(self.body.weight)
        return self.head(self.body(x.flatten(1)).relu())


def clamped(w):
    with torch.no_grad():
        w.clamp_(-1, 1)  # which leaves the first weights as they are


def clamped_data(w):
    w.data.clamp_(-1, 1)


def divided(w):
    w.data.div_(w.norm())


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, max_norm=0.5), nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table((x.flatten(1) > 0.7).long()).mean(1))


@pytest.mark.parametrize(
    ("module", "weight"),
    [*((Changing(how), "body") for how in (clamped, clamped_data, divided)), (Bounded(), "table")],
)
def test_a_forward_that_changes_weights_is_refused(module, weight):
    """The change was lost, and another model was trained without a word."""
    with pytest.raises(UsageError, match=f"E123 the model's forward changes its weight '{weight}.weight'"):
        unskew.run("fedavg", data(), model=module, rounds=1, clients=2, epochs=1)


class Held(Changing):
    """where: what holds the body's weight beside it."""

    def __init__(self, where) -> None:
        super().__init__()
        self.held = where(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.held
        w = {dict: lambda: w["w"], list: lambda: w[0]}.get(type(w), lambda: w)()
        return self.head(nn.functional.linear(x.flatten(1), w).relu())


HOLDERS = {
    "list": lambda m: [m.body.weight],
    "dictionary": lambda m: {"w": m.body.weight},
    "view": lambda m: m.body.weight.data,
}


@pytest.mark.parametrize("where", HOLDERS)
def test_a_weight_that_is_held_elsewhere_too_is_refused(where):
    """A list still held the first weight, which was never trained; a usual loop trains it."""
    with pytest.raises(UsageError, match=r"E123 .* it holds its weight 'body.weight' in 'held', too"):
        unskew.run("fedavg", data(), model=Held(HOLDERS[where]), rounds=1, clients=2, epochs=1)
