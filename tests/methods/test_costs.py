"""The costs in the table of methods are those that a round is measured to have."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.samples import a_part_of
from unskew.report.method_profile import costs

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "costs.py"))


@pytest.mark.parametrize("name", a_part_of(costs(), one_of=200, always=["moon", "lg_fedavg"]))
def test_a_cost_is_what_is_measured(name):
    kept, measured = costs()[name], TOOL["measured"](name)
    assert [measured.up, measured.down, measured.computing] == pytest.approx(
        [kept.up, kept.down, kept.computing], rel=0.006
    )


def test_the_file_is_written_as_it_is_read():
    assert (TOOL["PATH"]).read_text() == TOOL["text_of"](costs())
