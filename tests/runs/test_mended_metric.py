"""A user's metric that fails late is mended, and the run goes on to the weights it would have had."""

from __future__ import annotations

import pytest

import unskew
from unskew.errors import StateError, UsageError

FAILS = """
import itertools
calls = itertools.count()
def cost(y, p):
    return 1 / 0 if next(calls) >= {at} else 3.0
"""
MENDED = "def cost(y, p):\n    return 5.0\n"
TINY = {"model": "mlp(hidden=[])", "rounds": 3, "epochs": 1, "clients": 2, "samples": 60, "workers": 1}


@pytest.fixture
def failed(tmp_path):
    """A run whose metric failed in round 2, and its file. With two clients it has three calls a round."""
    file = tmp_path / "cost.py"
    file.write_text(FAILS.format(at=6))
    with pytest.raises(UsageError, match="E126 the metric 'cost' failed with ZeroDivisionError"):
        unskew.run("fedavg", "digits", metrics=f"{file}:cost", name="m", folder=tmp_path, **TINY)
    return file


def test_a_mended_metric_resumes_the_run_to_its_own_weights(failed, tmp_path):
    failed.write_text(MENDED)
    result = unskew.resume(tmp_path / "m", metrics=f"{failed}:cost")
    assert result.digest == unskew.run("fedavg", "digits", **TINY).digest
    assert result.record.series("global", "own:cost") == ([0, 1, 2, 3], [3.0, 3.0, 5.0, 5.0])


def test_a_file_that_also_trains_may_not_change(failed, tmp_path):
    """Nor a file of metrics that is the model's, too."""
    from unskew.runs.run_folder import check_files

    model = failed.with_name("model.py")
    model.write_text("x = 1\n")
    settings = unskew.config.build({"metrics": f"{failed}:cost,{model}:m", "model": f"{model}:make"})
    assert settings.files_of_metrics() == {str(failed)}
    check_files({str(failed): "another"}, settings, tmp_path)
    with pytest.raises(StateError, match=r"E112 .*model.py has changed"):
        check_files({str(model): "another"}, settings, tmp_path)
