"""The mutants that `make mutants` plants: each can be planted, there are enough, and every room has some."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("mutants", Path(__file__).parents[1] / "tools" / "mutants.py")
assert spec is not None
assert spec.loader is not None
tool = importlib.util.module_from_spec(spec)
sys.modules["mutants"] = tool
spec.loader.exec_module(tool)

ROOMS = {"methods", "core", "engine", "merge", "data", "privacy", "report", "deploy"}
ROOMS |= {"gpu", "policy", "fairness", "front", "attacks", "operations", "intake", "commands"}


def test_every_mutant_breaks_a_line_that_is_there():
    assert not [problem for mutant in tool.mutants() if (problem := mutant.problem())]
    assert not [m.name for m in tool.mutants() if m.line == m.becomes]


@pytest.mark.slow
def test_every_broken_file_is_python():
    """A line that became no Python was noticed by whatever imports it, and said nothing of the tests it was written for."""
    assert not [f"{mutant.name}: {mistake}" for mutant in tool.mutants() if (mistake := mutant.mistake())]


def test_a_mutant_that_is_no_python_is_told():
    broken = tool.Mutant("x", 1, "errors.py", "import difflib", "import difflib * 2", ("tests/test_mutants.py",))
    assert not broken.problem()
    assert "errors.py is no Python, line " in broken.mistake()
    assert not tool.Mutant("x", 1, "errors.py", "import difflib", "import os", ()).mistake()


def test_there_are_mutants_enough_in_every_room():
    listed = tool.mutants()
    assert len(listed) >= 150
    assert {m.room for m in listed} >= ROOMS
    assert len({(m.file, m.line, m.becomes) for m in listed}) == len(listed)


def test_a_mutant_is_planted_and_killed(tmp_path, monkeypatch):
    test = tmp_path / "test_one.py"
    test.write_text(
        "from unskew.errors import suggestion\n\ndef test_it():\n    assert suggestion('fedavgg', ['fedavg'])\n"
    )
    line = 'return f" Did you mean'
    killed = tool.Mutant("x", 1, "errors.py", line, 'return "" and f" Did you mean', (str(test),))
    survived = tool.Mutant("x", 2, "errors.py", "E1xx wrong use", "E1xx misuse", (str(test),))
    assert not killed.problem()
    assert not survived.problem()
    assert tool.plant(killed).end == "killed"
    assert tool.plant(survived).end == "survived"
