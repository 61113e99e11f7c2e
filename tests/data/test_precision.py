"""Numbers that lie closer together than float32 tells apart are told, not rounded without a word."""

from __future__ import annotations

import numpy as np
import pytest

from unskew import data
from unskew.data import registry
from unskew.data.samples import conversion

SAYS = "lie closer together than float32 tells apart, so they are rounded"
z = np.random.default_rng(0).normal(size=200)


def told(values, dtype=np.float64):
    x = np.stack([z, values], 1).astype(dtype)
    return [text for _, text in data.arrays(x, z > 0).intake.notes if SAYS in text]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (1.7e9 + 100 * z, True),  # seconds since 1970, within minutes
        (1.7e9 + 3e6 * z, False),  # within months
        (20_000_000 + np.arange(200) % 3, True),
        (2000 + np.arange(200) % 20, False),
        (np.full(200, 1.7e9 + 1), False),  # says nothing in any case
        (np.where(np.arange(200) == 5, 1e9, z), False),  # an outlier
    ],
)
def test_columns_of_arrays(values, expected):
    assert bool(told(values)) == expected == conversion.loses_precision(values)


def test_what_came_as_float32_was_not_rounded_here():
    assert not told(1.7e9 + 100 * z, np.float32)
    assert told(20_000_000 + np.arange(200) % 3, np.int64) == [
        f"the numbers of column 1 {SAYS}: subtract what they have in common, or count in larger units"
    ]


def test_columns_of_a_table(tmp_path):
    rows = [f"{1_700_000_000 + 10 * (i % 7)},{z[i]:.3f},{'ab'[i % 2]}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["when,size,label", *rows]))
    found = [text for _, text in registry.read(f"{tmp_path}/t.csv").intake.notes if SAYS in text]
    assert found == [
        f"the numbers of column 'when' {SAYS}: subtract what they have in common, or count in larger units"
    ]
