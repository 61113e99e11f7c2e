"""The table of mistakes in tests/README.md is true: each test is there and names its mistake."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
ROW = re.compile(r"\| ([A-Z]\d+) \| [^|]+ \| `([^`]+\.py)::(\w+)`(?: and (\d+) more)? \|")


def naming() -> dict[str, set[str]]:
    """By id, the tests that name it in their docstrings."""
    tests: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                for mistake in re.findall(r"\b([MDRUN]\d{1,2})\b", ast.get_docstring(node) or ""):
                    tests.setdefault(mistake, set()).add(f"{path.relative_to(TESTS).as_posix()}::{node.name}")
    return tests


def test_every_mistake_has_the_tests_that_the_table_says():
    rows = ROW.findall((TESTS / "README.md").read_text())
    tests = naming()
    assert {mistake for mistake, *_ in rows} == set(tests)
    for mistake, file, name, more in rows:
        assert f"{file}::{name}" in tests[mistake]
        assert len(tests[mistake]) == 1 + int(more or 0), mistake
