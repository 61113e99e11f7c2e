"""Samples that look unscaled (E504): what both ends read is something that the study can do, and that mends
it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import unskew
from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_several_inputs import sites
from unskew.data.samples.dataset import Dataset
from unskew.federation.protocol.study_rules import COMMON_SCALING, scaling_remedy, site_settings
from unskew.federation.site.study_review import Study, forecast_settings, looks_unscaled

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shapes, classes):
        super().__init__()
        self.head = nn.Linear(49, classes)

    def forward(self, photo, age):
        return self.head(torch.cat([photo.flatten(1), age[:, None]], 1))
"""
RNG = np.random.default_rng(5)
Y = np.arange(24) % 3
AGES, PHOTOS = RNG.normal(60, 15, 24).astype("f4"), RNG.random((24, 3, 4, 4)).astype("f4")
NAMES = ("a", "b", "c")


@pytest.fixture
def module(tmp_path) -> str:
    (tmp_path / "net.py").write_text(MODULE)
    return f"{tmp_path / 'net.py'}:Net"


def several() -> Dataset:
    x = {"photo": 1000 * PHOTOS, "age": AGES}
    return unskew.data.arrays(x, Y, x, Y, classes=NAMES)


def table() -> Dataset:
    x = np.stack([AGES, 1000 * AGES], 1)
    return unskew.data.arrays(x, Y, x, Y, classes=NAMES)


def study_of(method: str, data: Dataset, model: str) -> Study:
    settings = fake.small("fedavg").replace(method=method, model=model, clients=3)
    return forecast_settings(data, site_settings(settings, model))[0]


@pytest.mark.parametrize(
    "method", ["fedavg", "fedrdn", "norm", "unskew", "unskew(statistics=False)", "fedprox+fedrdn"]
)
def test_beside_a_part_that_scales_images_only_the_other_inputs_are_left_to_scale(method, module):
    """Beside fedrdn the message named +standardise, which is refused there."""
    study = study_of(method, several(), module)
    alone, why = method in ("fedavg", "unskew(statistics=False)"), looks_unscaled(several(), study)
    assert ("input age" in why, "input photo" in why) == (True, alone)
    (added,) = re.findall(
        r"add (\+\S+) to the method", scaling_remedy(study.method, study.fed.net.layout, summed=False)
    )
    assert added == ("+standardise" if alone else "+standardise(images=False)")
    assert looks_unscaled(several(), study_of(f"{method}{added}", several(), module)) == ""


@pytest.mark.parametrize("method", ["fedavg", "unskew"])
def test_the_columns_of_a_table_are_scaled_all_together(method):
    study = study_of(method, table(), "mlp")
    assert looks_unscaled(table(), study)
    assert scaling_remedy(study.method, None, summed=False).startswith("add +standardise to the method, or ")
    assert looks_unscaled(table(), study_of(f"{method}+standardise", table(), "mlp")) == ""


@pytest.mark.parametrize("factor", [1, 1000])
def test_raw_images_are_no_matter_where_the_method_scales_them(factor):
    photos = unskew.data.arrays(factor * PHOTOS, Y, factor * PHOTOS, Y, classes=NAMES)
    for method in ("unskew", "fedrdn"):
        assert looks_unscaled(photos, study_of(method, photos, "mlp")) == "", method
    assert bool(looks_unscaled(photos, study_of("fedavg", photos, "mlp"))) == (factor > 1)


@pytest.mark.parametrize(
    "method", ["dp(clip=1.0,noise_multiplier=1.0)", "dpsgd(clip=1.0,noise_multiplier=1.0)"]
)
def test_where_nobody_may_send_statistics_the_sites_have_to_agree_beforehand(method):
    """Both refuse +standardise, and so do sums, which the message named."""
    assert scaling_remedy(study_of("fedavg", table(), "mlp").method, None, summed=True) == COMMON_SCALING
    assert scaling_remedy(unskew.methods.registry.parse(method), None, summed=False) == COMMON_SCALING


def test_the_coordinator_reads_what_its_study_can_do(tmp_path, module):
    channel = fake.Direct(sites(tmp_path, module, [several()] * 3))
    settings = fake.small("fedavg").replace(method="fedrdn", model=module, clients=3, rounds=1)
    loop, _, _ = fake.run(tmp_path / "run", channel, settings)
    told = [e["text"] for e in loop.record.rows["events"] if e["code"] == "E504"]
    assert len(told) == 3
    assert all(f"add +standardise(images=False) to the method, or {COMMON_SCALING}." in text for text in told)
