"""Commands that read a run's folder check its files: an altered value is one sentence, and no traceback."""

from __future__ import annotations

import json

import pytest

from tests.cli.calling import call
from tests.report.fake_runs import fake_run


def altered(file, change):
    """Change a row of a .jsonl file, its last one, or what a .json file holds."""
    if file.suffix == ".jsonl":
        *lines, last = file.read_text().splitlines()
        file.write_text("\n".join([*lines, json.dumps({**json.loads(last), **change})]) + "\n")
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


@pytest.mark.parametrize(
    ("file", "change", "command"),
    [
        ("metrics.jsonl", {"value": "much"}, "report"),
        ("metrics.jsonl", {"t": None}, "watch"),
        ("ledger.jsonl", {"bytes": 1 << 52}, "report"),
        ("events.jsonl", {"answered": [None]}, "watch"),
        ("federation.json", {"clients": "many"}, "report"),
        ("measures.json", {"histograms": [1]}, "report"),
    ],
)
def test_an_altered_value_is_one_sentence(tmp_path, file, change, command):
    at = fake_run(tmp_path / "r", "flea", rounds=3, histograms=True)
    altered(at / file, change)
    called = call(command, str(at), *["--once"] * (command == "watch"))
    assert called.code == 2
    last = called.err.strip().splitlines()[-1]
    assert last.startswith("E111 "), called.text
    assert "copy" in last
    assert "folder again" in last
