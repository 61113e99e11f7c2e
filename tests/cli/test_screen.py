"""The progress of a run on a terminal."""

from __future__ import annotations

import io
import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from unskew.cli import screen
from unskew.cli.screen import Progress
from unskew.comparison.progress import Cell
from unskew.config import build
from unskew.errors import NothingUsed

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


def test_a_remark_between_two_rounds_has_a_line_of_its_own(capsys):
    """It was glued to the end of the round's line."""
    shown = screen.Screen(rounds=9)
    shown._live = True
    for t in (1, 2):
        shown.round(SimpleNamespace(t=t, seconds=1.0, answered=9, asked=9, dropped=0, loss=1.0), SCORES)
        shown.say("E128 a remark")
    shown.say("\nInterrupted")
    lines = capsys.readouterr().out.split("\n")
    assert [line.removeprefix("\r\x1b[2K")[:13].rstrip() for line in lines] == [
        "round    1/9",
        "E128 a remark",
        "round    2/9",
        "E128 a remark",
        "",
        "Interrupted",
        "",
    ]


def test_the_name_of_a_method_is_no_markup():
    """`fedper(keeps=[head])` lost its argument in the live table."""
    from rich.console import Console

    cells = [Cell("mine.py(keeps=[head])", 0, Path("x"), build({"method": "fedavg"}), t=1, score=0.5)]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(Progress(cells).table())
    assert "mine.py(keeps=[head])" in console.export_text()


def test_a_run_that_nobody_trained_has_no_score(capsys):
    lost = Cell(
        "fedavg", 0, Path("x"), build({"method": "fedavg"}), t=1, score=0.1, code=NothingUsed.exit_code
    )
    own = Cell("apfl", 0, Path("y"), build({"method": "apfl"}), t=1, code=0)
    Progress().look([lost, own])
    told = capsys.readouterr().out.splitlines()
    assert ["not trained" in line for line in told] == [True, False]
    assert ["own model" in line for line in told] == [False, True]


def test_the_command_that_is_told_can_be_typed_as_it_is():
    """A folder with a space in its name made two arguments of it."""
    line = screen.next_steps(Path("my runs/r")).splitlines()[-1]
    assert shlex.split(line)[1:] == ["unskew", "run", str(Path("my runs/r") / "config.yaml")]
