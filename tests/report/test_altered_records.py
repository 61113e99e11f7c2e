"""Records that are not as the run wrote them are named wherever their figures are shown."""

from __future__ import annotations

import shutil

import pytest

import unskew
from tests.cli.calling import call
from unskew.comparison import plan, training
from unskew.errors import StateError

SETTINGS = {"clients": 3, "rounds": 2, "epochs": 1, "model": "mlp(hidden=(8,))", "workers": 1}
PLAN = plan.Plan(("fedavg", "fedprox"), (0,), {"data": "digits", **SETTINGS})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for cell in plan.plan_cells(folder, PLAN):
        unskew.run(cell.method, "digits", folder=folder, name=cell.path.name, **SETTINGS)
    plan.write_plan(folder, PLAN)
    return folder


@pytest.fixture
def comparison(done, tmp_path):
    return shutil.copytree(done, tmp_path / "c")


def other_score(file) -> None:
    """The last global score of a run is a tenth of what it was."""
    rows = file.read_text().splitlines(keepends=True)
    last = max(i for i, row in enumerate(rows) if '"global"' in row and '"accuracy"' in row)
    rows[last] = rows[last].replace('"value":0.', '"value":0.0')
    file.write_text("".join(rows))


def test_a_page_with_another_score_says_so(comparison):
    """A digit of metrics.jsonl, and the report showed 8.1 % for 81 % without a word."""
    run = comparison / "fedavg--s0"
    other_score(run / "metrics.jsonl")
    called = call("report", str(comparison))
    assert called.code == 0, called.text
    assert called.err.startswith(f"Warning: {run}: metrics.jsonl is missing or not as the run wrote it")
    assert called.err.count("\n") == 1
    assert "so these figures may be wrong" in (comparison / "report.html").read_text()


@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
def test_a_comparison_does_not_print_what_a_run_did_not_write(comparison, how):
    """Its row was the changed score, or was missing, with exit code 0."""
    file = comparison / "fedavg--s0" / "metrics.jsonl"
    content = file.read_bytes()
    if how == "changed":
        other_score(file)
    elif how == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.unlink()
    called = call("resume", str(comparison))
    assert called.code == 2
    text = (
        f"E201 fedavg, seed 0: {file} is missing, or not as the run wrote it. Put it back, or remove"
        f" {file.parent}"
    )
    assert called.err.startswith(text), called.text
    cells = plan.plan_cells(comparison, PLAN)
    with pytest.raises(StateError, match="E201"):
        training.train_all(cells, 1, lambda _: None)
    file.write_bytes(content)
    training.train_all(cells, 1, lambda _: None)
    assert all(cell.done for cell in cells)
