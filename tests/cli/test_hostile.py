"""Files of strangers: whatever they hold, a command changes nothing outside its own output, runs none of their
code, prints none of their control characters and lines, and takes a bounded amount of memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

from tests.cli.calling import Called
from tests.cli.hostile import OWN_FILES_ONLY, READS, judged
from tests.cli.test_options import commands
from unskew import cli


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    """The cases, in one process of its own, because its memory is limited and it hears what the interpreter does."""
    folder = tmp_path_factory.mktemp("hostile") / "cases"
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.hostile", str(folder)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", READS)
def test_the_files_of_strangers_do_no_harm(problems, command):
    assert not problems[command]


def test_every_command_is_tried_or_reads_only_its_users_files():
    leaves = {name for name, _ in commands(typer.main.get_command(cli.app()))} - {
        "",
        "data",
        "federation",
        "site",
    }
    assert leaves == READS.keys() | OWN_FILES_ONLY
    assert not READS.keys() & OWN_FILES_ONLY


@pytest.mark.parametrize(
    ("called", "problem"),
    [
        (Called(0, "a\tb\n", ""), ""),
        (Called(0, "", "a\x1b[8m"), "prints {'\\x1b'}"),
        (Called(0, "a\nFORGED-LINE x", ""), "prints a line of the stranger's"),
        (Called(1, "", "E143 an unexpected error"), "E143 an unexpected error"),
    ],
)
def test_a_case_is_judged_by_what_it_prints(called, problem):
    assert "".join(judged(called)) == problem
