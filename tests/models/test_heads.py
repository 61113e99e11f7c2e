"""The head of a user's module, and passes that go on from it or from a cut.

Likely mistakes: a gate or an attention that is made after the head, a softmax after it, a shortcut past the
cut.
"""

from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unskew
from tests.samples import a_part_of
from unskew.core.network import Network
from unskew.errors import UsageError
from unskew.models import check_module

SHAPE, CLASSES, D = (2, 4, 4), 3, 32
RNG = np.random.default_rng(1)
CLIENTS = {
    str(k): (RNG.normal(size=(9, *SHAPE)).astype(np.float32), np.arange(9) % CLASSES) for k in range(3)
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, 2, 1)
        self.classifier = nn.Linear(D, CLASSES)
        self.made()

    def made(self) -> None:
        """Layers that are made after the head."""

    def forward(self, x):
        return self.classifier(self.body(self.first(x)).flatten(1))

    def body(self, h):
        return h


class Gated(Model):
    def made(self):
        self.gate = nn.Linear(D, D)

    def body(self, h):
        return h.flatten(1) * torch.sigmoid(self.gate(h.flatten(1)))


class Attending(Model):
    def made(self):
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def body(self, h):
        rows = h.flatten(2)
        return self.attention(rows, rows, rows)[0]


class Softened(Gated):
    def forward(self, x):
        return F.softmax(super().forward(x), 1)


class Convolved(Model):
    """Its answers are the mean of a convolution's over pixels, and a dense layer stands before that."""

    def made(self):
        del self.classifier
        self.excite, self.last = nn.Linear(2, 2), nn.Conv2d(2, CLASSES, 1)

    def forward(self, x):
        h = self.first(x)
        return self.last(h * self.excite(h.mean((2, 3)))[:, :, None, None]).mean((2, 3))


class Supervised(Model):
    """A second classifier, called last, answers only while the model trains."""

    def made(self):
        self.auxiliary = nn.Linear(D, CLASSES)

    def forward(self, x):
        z, second = super().forward(x), self.auxiliary(self.first(x).flatten(1))
        return z + 0.1 * second if self.training else z


class Shortcut(Model):
    def made(self):
        self.second = nn.Conv2d(2, 2, 1)

    def body(self, h):
        return self.second(F.relu(h)) + h


class Twice(Model):
    def body(self, h):
        return self.first(F.relu(h))


def trained(model: nn.Module, method: str) -> unskew.Result:
    clients = {name: (x, y, x, y) for name, (x, y) in CLIENTS.items()}
    settings = {"rounds": 2, "epochs": 1, "batch": 3, "normalise": "none", "device": "cpu", "workers": 1}
    return unskew.run(method, clients, model=model, **settings)


def dense_or_convolved() -> tuple[nn.Module, nn.Module]:
    """Two equal models: a convolution over the whole map is a dense layer on its flattened numbers."""
    torch.manual_seed(0)
    first, dense, convolution = nn.Conv2d(2, 2, 1), nn.Linear(D, CLASSES), nn.Conv2d(2, CLASSES, 4)
    with torch.no_grad():
        convolution.weight.copy_(dense.weight.view_as(convolution.weight))
        convolution.bias.copy_(dense.bias)
    return (
        nn.Sequential(OrderedDict(first=first, relu=nn.ReLU(), flat=nn.Flatten(), head=dense)),
        nn.Sequential(OrderedDict(first=first, relu=nn.ReLU(), head=convolution, flat=nn.Flatten())),
    )


@pytest.mark.parametrize(
    ("made", "head"),
    [
        (Model, "classifier"),
        (Gated, "classifier"),
        (Attending, "classifier"),
        (Softened, "classifier"),
        (Convolved, "last"),
        (Shortcut, "classifier"),
        (Supervised, "classifier"),
    ],
)
def test_the_head_is_the_layer_that_answers_wherever_it_was_made(made, head):
    """It was the dense layer made last: FedPer kept a gate, and FedProto took its input for features."""
    model = check_module(made(), SHAPE, CLASSES)
    assert Network(model, SHAPE).head == Network(model, SHAPE).copy().head == head


def test_clients_keep_the_head_and_send_what_was_made_after_it():
    model = Gated()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    after = trained(model, "fedper").model.state_dict()
    assert torch.equal(after["classifier.weight"], before["classifier.weight"])
    assert not torch.equal(after["gate.weight"], before["gate.weight"])


@pytest.mark.parametrize("method", ["ccvr", "fedgh"])
def test_a_pass_from_the_head_would_leave_out_what_comes_after_it(method):
    """The head was trained for logits of its own, which no softmax had seen."""
    trained(Gated(), method)
    for made in (Softened, Convolved):
        with pytest.raises(
            UsageError,
            match=f"E108 '{method}' cannot run here: it trains the head alone, and what the model does after",
        ):
            trained(made(), method)
    trained(Softened(), "feddecorr")


@pytest.mark.parametrize(("made", "cut"), [(Shortcut, "second"), (Twice, "first")])
def test_a_pass_from_a_cut_that_others_pass_by_is_refused(made, cut):
    """The shortcut held what zeros gave, and clients trained on the sum of that and others' activations."""
    with pytest.raises(
        UsageError,
        match=f"E108 'flea' cannot run here: it mixes samples at '{cut}', and other paths of the model",
    ):
        trained(made(), f"flea(cut={cut})")
    trained(Shortcut(), "flea(cut=first)")


@pytest.mark.parametrize(
    "method",
    a_part_of(
        [
            *(
                "adcol",
                "ccvr",
                "fedas",
                "fedbabu",
                "fedbr",
                "feddbe",
                "feddecorr",
                "fedgen",
                "fedgh",
                "fedhkd",
            ),
            *("fedkd", "fedpac", "fedpcl", "fedphp", "fedproto", "floco", "gpfl", "knn_per", "rebafl"),
        ],
        4,
        ("fedproto", "ccvr"),
    ),
)
def test_a_head_that_is_a_convolution_learns_what_a_dense_one_does(method):
    """Half of these ended in a traceback, for features came in the shape of a map."""
    dense, convolved = (trained(model, method) for model in dense_or_convolved())
    for ours, theirs in zip(convolved.model.state_dict().values(), dense.model.state_dict().values()):
        torch.testing.assert_close(ours.flatten(), theirs.flatten(), rtol=0, atol=1e-4)
    for scope in ("global@client", "personal@client"):
        assert convolved.scores(scope) == dense.scores(scope)


@pytest.mark.parametrize(
    "end", [nn.LogSoftmax(1), nn.Softmax(1), nn.Dropout(0.1), nn.BatchNorm1d(CLASSES), nn.LayerNorm(CLASSES)]
)
def test_the_head_of_a_sequential_stands_before_layers_without_a_matrix(end):
    """Such a layer was the head, so that FedBABU froze nothing, and FedProto's features were the logits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, CLASSES), end)
    assert Network(check_module(model, SHAPE, CLASSES), SHAPE).head == "3"
    before = {n: t.clone() for n, t in model.state_dict().items()}
    for method in ("fedbabu", "fedper"):
        after = trained(model, method).model.state_dict()
        assert [n for n in before if torch.equal(after[n], before[n]) and "tracked" not in n] == [
            "3.weight",
            "3.bias",
        ], method
    plain, same = (
        trained(m, "fedavg").model.state_dict()
        for m in (model, nn.Sequential(nn.Sequential(*model[:4]), end))
    )
    for (name, t), other in zip(plain.items(), same.values()):
        torch.testing.assert_close(t, other, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
