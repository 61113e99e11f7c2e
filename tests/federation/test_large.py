"""A large model passes in bounded memory: both sides of a run, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing

pytestmark = pytest.mark.flower  # with the other tests of processes, as each takes seconds
ROOT = Path(__file__).parents[2]
SMALL, LARGE = 8, 1024
"""Widths of a model that is nearly nothing, and of one of 42 MB."""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("side", ["server", "site"])
def test_neither_side_of_a_run_holds_a_large_model_more_than_a_few_times(tmp_path, side):
    """The server held it 25 times for three sites, a site 17 times."""
    running = {}
    for width in (SMALL, LARGE):
        (tmp_path / str(width)).mkdir()
        command = [
            sys.executable,
            "-m",
            "tests.federation.heavy",
            side,
            str(tmp_path / str(width)),
            str(width),
        ]
        running[width] = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    peaks = {width: process.communicate(timeout=300)[0].split() for width, process in running.items()}
    assert not any(process.returncode for process in running.values())
    (base, _), (peak, holds) = (map(int, peaks[width]) for width in (SMALL, LARGE))
    assert (peak - base) / holds < 3.0
