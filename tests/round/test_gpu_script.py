"""`benchmarks/gpu.py`: it writes after every row, keeps what failed apart, and goes on where a time limit
ended it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch) -> Any:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    yield importlib.import_module("gpu")
    for name in set(sys.modules) - before:
        if (BENCHMARKS / f"{name}.py").exists():
            del sys.modules[name]


def rows(script: Any, monkeypatch: Any, out: Path, *options: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(out), "--rehearse", *options])
    script.main()
    return json.loads(out.read_text())["rows"] if out.exists() else {}


def test_a_row_that_fails_costs_no_other_and_rows_are_made_once(script, monkeypatch, tmp_path):
    made: list[str] = []

    def job(name: str) -> dict[str, Any]:
        made.append(name)
        if name == "b" and made.count("b") == 1:
            raise MemoryError("full")
        return {"is": name}

    monkeypatch.setattr(script, "jobs", lambda _: [(f"run {n}", lambda n=n: job(n)) for n in "abc"])
    out = tmp_path / "gpu.json"
    assert rows(script, monkeypatch, out, "--budget", "-1") == {}
    first = rows(script, monkeypatch, out)
    assert first["run b"]["error"] == "MemoryError: full"
    assert (first["run a"]["is"], first["run c"]["is"]) == ("a", "c")
    assert rows(script, monkeypatch, out) == first
    assert made == ["a", "b", "c"]
    assert rows(script, monkeypatch, out, "--retry")["run b"]["is"] == "b"


def test_rows_of_another_gpu_are_not_gone_on_with(script, monkeypatch, tmp_path):
    out = tmp_path / "gpu.json"
    out.write_text(json.dumps({"gpu": "another", "torch": script.torch.__version__, "rows": {}}))
    with pytest.raises(SystemExit, match="begun with another gpu"):
        rows(script, monkeypatch, out)


def test_every_row_can_be_made(script, tmp_path):
    """One method's whole run, and the run whose lanes give way, with tiny sizes on the CPU."""
    row = script.gpu_runs.checked("scaffold", "cpu", True)
    assert (row["apart_from_cpu"], row["apart_again"], row["apart_resumed"]) == (0, 0, 0)
    assert len(row["seconds_a_round"]) == 2
    assert script.gpu_runs.too_many_lanes("cpu", True)["gave_way"] == 0
