"""A part of `make crash`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.crash import harness

ROOT = Path(__file__).parents[2]


def test_kills_of_forked_processes(tmp_path):
    """R1: killed anywhere, the run ends with the same bits, private state included."""
    code = "import random, sys; from pathlib import Path; from tests.crash import harness; "
    code += "harness.kills('scaffold', 2, random.Random(5), Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_damaged_files_of_every_kind(tmp_path):
    """R1, R2, R6: the same bits or one sentence for whatever becomes of a file in a run's folder."""
    ends, wrong = harness.damages(("scaffold",), 20, 3, tmp_path)
    assert not wrong
    assert sum(ends.values()) == 20
    assert len(ends) > 2  # sentences and the same bits
