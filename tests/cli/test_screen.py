"""The progress of a run on a terminal."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from unskew.cli import screen
from unskew.cli.progress import Progress
from unskew.comparison.watch import Cell
from unskew.config import build

SCORES = ["global  50.0%", "clients  25.0%", "worst  12.5%"]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_the_line_fits_the_terminal_so_that_it_can_be_rewritten(monkeypatch, capsys, width):
    """U4: it wrapped at 80 and 100 columns and left a stale row a round."""
    monkeypatch.setattr(screen.shutil, "get_terminal_size", lambda: os.terminal_size((width, 24)))
    shown = screen.Screen(rounds=100)
    shown._live = True
    for t in (1, 2):
        summary = SimpleNamespace(t=t, seconds=1.0, answered=900, asked=1000, dropped=100, loss=1.0)
        shown.round(summary, SCORES)
    lines = capsys.readouterr().out.split("\r\x1b[2K")[1:]
    assert [line[:15] for line in lines] == ["round    1/100 ", "round    2/100 "]
    assert all(len(line) < width for line in lines)
    assert ("left" in lines[0]) == (width == 200)
    assert lines[0] == lines[0].rstrip()


def test_a_loss_that_diverges_leaves_room_for_the_scores(capsys):
    for loss in (9.6e30, float("nan"), 1.5):
        screen.Screen(rounds=1).round(
            SimpleNamespace(t=1, seconds=1.0, answered=9, asked=9, dropped=0, loss=loss), SCORES
        )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("loss")[1].split()[0] for line in lines] == ["9.60e+30", "nan", "1.500"]


def test_a_finished_run_of_a_few_kilobytes_did_not_send_nothing(capsys):
    """6,120 bytes were 0.0 MB."""
    small = Cell("fedavg", 0, Path("x"), build({"method": "fedavg"}), t=1, score=0.5, megabytes=0.00612, code=0)
    Progress().look([small])
    assert capsys.readouterr().out.endswith("global  50.0%    0.0061 MB\n")
