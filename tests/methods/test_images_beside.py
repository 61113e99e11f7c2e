"""Parts that change images do to the images among several inputs what they do to an image that is the whole
sample.

Likely mistakes: ages that nobody scales because the method normalises, constants for three channels and an
image of one, a second image that is overlooked.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from unskew.errors import UsageError

N, TRAIN = 90, 60
RNG = np.random.default_rng(1)
Y = np.arange(N) % 3
IMAGES = (0.6 * RNG.random((N, 4, 6, 6)) + 0.1 * Y[:, None, None, None]).astype(np.float32)
AGES = (60 + 10 * RNG.normal(size=N) + 5 * Y).astype(np.float32)
SEXES = RNG.integers(0, 2, N)
SETTINGS = {"clients": 3, "rounds": 2, "epochs": 1, "batch": 8, "workers": 1, "skew": "dirichlet:1"}
CONSTANTS = {"norm": {"mean": (0.4, 0.5, 0.6, 0.7), "std": (0.2, 0.3, 0.4, 0.5)}}


class Plain(nn.Module):
    def __init__(self, further: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(4, 5, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(5 * 4 + further, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Beside(Plain):
    """Gives on the image alone, from between two inputs that it ignores."""

    def forward(self, age: Tensor, scan: Tensor, sex: Tensor) -> Tensor:
        return super().forward(scan)


class Whole(Plain):
    """Uses all inputs."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, age: Tensor, scan: Tensor, sex: Tensor) -> Tensor:
        return self.head(torch.cat([self.body(scan), age[:, None], sex[:, None].float()], 1))


GIVEN = {"age": AGES, "scan": IMAGES, "sex": SEXES}
PAIR = {"after": IMAGES[:, :3], "age": AGES, "before": IMAGES[:, 3:]}


def trained(x, model: nn.Module, method: str, **more) -> unskew.Result:
    train, test = (
        {name: values[rows] for name, values in x.items()} if isinstance(x, dict) else x[rows]
        for rows in (slice(0, TRAIN), slice(TRAIN, N))
    )
    return unskew.run(method, (train, Y[:TRAIN], test, Y[TRAIN:]), model=model, **{**SETTINGS, **more})


METHODS = {
    "fedrdn": {},
    "fedrdn_v": {},
    "norm": CONSTANTS,
    "augment(shift=1)+fedrdn": {},
    "unskew": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_an_image_among_several_inputs_is_treated_as_an_image_alone(method):
    lanes = "3" if "fedrdn" in method else "1"
    alone = trained(IMAGES, Plain(), method, lanes=lanes, set=METHODS[method])
    beside = trained(GIVEN, Beside(), method, lanes=lanes, set=METHODS[method])
    for name, t in alone.model.state_dict().items():
        torch.testing.assert_close(beside.model.state_dict()[name], t, rtol=1e-5, atol=1e-6)
    assert np.allclose(beside.predict_proba(GIVEN), alone.predict_proba(IMAGES), atol=1e-5)
    plain = trained(IMAGES, Plain(), "feddyn" if method == "unskew" else "fedavg", lanes=lanes)
    assert not torch.allclose(
        plain.model.state_dict()["head.weight"], alone.model.state_dict()["head.weight"], 1e-3
    )


@pytest.mark.parametrize("method", ["fedrdn", "norm", "fedrdn+standardise(images=False)"])
def test_what_is_no_image_is_standardised_all_the_same(method, tmp_path):
    """A method that normalises gets raw samples, which left ages in years beside scans in [0, 1]."""
    more = {"set": CONSTANTS if method == "norm" else {}}
    run = trained(GIVEN, Whole(), method, **more)
    years = AGES[:TRAIN].astype(np.float64)
    if "standardise" in method:
        down, applied = run.trained.end.down["standardise"], run.federation.applied
        constants = down["mu"].tolist(), down["sigma"].tolist()
        assert applied is None
    else:
        constants = run.federation.applied
    assert np.allclose(constants, [[years.mean(), 0, 0, 0, 0, 0], [years.std(), 1, 1, 1, 1, 1]], rtol=1e-5)
    scaled = {
        **GIVEN,
        "age": ((AGES - np.float32(years.mean())) / np.float32(years.std())).astype(np.float32),
    }
    by_hand = trained(scaled, Whole(), method.partition("+")[0], normalise="none", **more)
    for name, t in by_hand.model.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[name], t, rtol=1e-4, atol=1e-5)
    assert np.allclose(run.predict_proba(GIVEN), by_hand.predict_proba(scaled), atol=1e-4)


@pytest.mark.parametrize(
    ("method", "x", "says"),
    [
        ("fedrdn", {"age": AGES, "sex": SEXES}, r"fedrdn.*none of a sample's inputs is an image"),
        ("augment", {"age": AGES, "sex": SEXES}, r"augment.*none of a sample's inputs is an image"),
        ("norm", PAIR, r"it has 3 channel constants and the data have 1; set norm.mean"),
        ("augment(shift=6)", GIVEN, r"up to 6 positions of an axis that has 6"),
        ("standardise+fedrdn", GIVEN, r"E107 .*standardise\(images=False\) scales the others alone"),
        ("standardise(images=False)", IMAGES, r"images=False leaves out one of several inputs"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(method, x, says):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.LazyLinear(3)

        def forward(self, **inputs: Tensor) -> Tensor:
            return self.head(torch.cat([v.float().reshape(len(v), -1) for v in inputs.values()], 1))

    with pytest.raises(UsageError, match=says):
        trained(x, Net() if isinstance(x, dict) else Plain(), method)
