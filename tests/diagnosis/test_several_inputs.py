"""A diagnosis of samples with several inputs measures each by its own statistics.

Likely mistakes: a row that is read as a table, in which a scan's pixels outnumber the age; a model that is
missing.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import unskew
from tests.cli.calling import call
from tests.round.test_several_inputs import AGES, BY_NAME, MODULE, SCANS, Row, Scans, Y
from unskew.diagnosis import skews
from unskew.errors import UsageError

OPTIONS = {"clients": 3, "skew": "iid"}
WORDS = "every setting of the evidence has one input and one label a sample, and these samples have several"


class Named(Row):
    def forward(self, row):
        return super().forward(row)


def test_every_input_has_its_own_moments():
    federation = unskew.data.arrays(BY_NAME, Y)
    found = skews.moments(federation.x, federation.layout)
    scans = federation.x[:, 1:].reshape(-1, 64)
    assert np.allclose(found, np.stack([federation.x[:, 0], scans.mean(1), scans.std(1)], 1), atol=1e-6)
    wide = unskew.data.arrays({"a": np.zeros((9, 900)), "b": np.zeros((9, 3)), "c": np.zeros(9)}, Y[:9])
    assert skews.moments(wide.x, wide.layout).shape == (len(wide.x), 85 + 3 + 1)


def test_a_shift_of_one_input_between_sites_is_measured():
    site = np.arange(len(Y)) // 40
    options = {"model": Scans(), "skew": "column:site"}

    def skew(ages: np.ndarray, scans: np.ndarray) -> float:
        data = unskew.data.arrays({"scan": scans, "age": ages}, Y, columns={"site": site})
        return unskew.diagnose(data, **options).skews.feature_skew or 0.0

    plain = skew(AGES, SCANS)
    assert skew(AGES + 5 * site, SCANS) > plain + 0.5
    assert skew(AGES, SCANS + site[:, None, None, None].astype(np.float32)) > plain + 0.5


def test_the_command_names_methods_for_the_users_own_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("s.npz", **{"x.age": AGES, "x.scan": SCANS, "y": Y})
    (tmp_path / "net.py").write_text(MODULE)
    asked = ("diagnose", "s.npz", "--skew", "dirichlet:0.5", "--clients", "3")
    told = json.loads(call(*asked, "--model", "net.py:Net", "--json").out)
    assert told["method"]
    assert any(WORDS in text for text in told["cautions"])
    refused = call(*asked)
    assert refused.code == 2
    assert refused.err.startswith("E123 samples have several inputs"), refused.err
    with pytest.raises(UsageError, match="E123 samples have several inputs"):
        unskew.diagnose((BY_NAME, Y), **OPTIONS)
