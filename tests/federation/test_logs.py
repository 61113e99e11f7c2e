"""Logs: one JSON object a line where that is asked for, and files that do not grow without end and lose
nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.calling import call
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.errors import DataError, UsageError
from unskew.federation import journal
from unskew.federation import programs as federation_programs
from unskew.federation.programs import Log, Program
from unskew.federation.site import processes
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket

LINES = 4000


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(federation_programs, "MOST_BYTES", 5000)
    federation_programs.log_file.cache_clear()
    yield
    federation_programs.log_file.cache_clear()


def ran(
    tmp_path, code: str, form: federation_programs.LogForm = "text", heard: list[str] | None = None
) -> Path:
    """The log file of a program that has run to its end."""
    path = tmp_path / "it.log"
    lines: list[str] = [] if heard is None else heard
    program = Program("it", [sys.executable, "-c", code], dict(os.environ), path, form, lines.append)
    program.tend(lambda _: None)
    assert program.process is not None
    program.process.wait(30)
    assert program.tend(lambda _: None) is not None
    program.stop(0.5)
    return path


def files(path: Path) -> list[Path]:
    """From the oldest to the youngest."""
    return [*(path.with_name(f"{path.name}.{k}") for k in range(federation_programs.OLD_FILES, 0, -1)), path]


def test_a_log_is_rotated_by_size_and_every_line_is_heard_once(tmp_path):
    heard: list[str] = []
    path = ran(tmp_path, f"for k in range({LINES}): print(f'line {{k}}', flush=True)", heard=heard)
    assert heard == [f"line {k}" for k in range(LINES)]
    kept = [file.read_text().splitlines() for file in files(path)]
    assert [line for file in kept for line in file] == heard[-sum(map(len, kept)) :]
    assert all(file.stat().st_size <= 5000 for file in files(path))
    assert not path.with_name(f"{path.name}.{federation_programs.OLD_FILES + 1}").exists()


def test_two_programs_that_share_a_log_file_rotate_it_together(tmp_path):
    path, code = tmp_path / "shared.log", f"for k in range({LINES // 4}): print('x' * 9, flush=True)"
    programs = [Program(name, [sys.executable, "-c", code], dict(os.environ), path) for name in "ab"]
    for program in programs:
        program.tend(lambda _: None)
    for program in programs:
        assert program.process is not None
        program.process.wait(30)
        program.tend(lambda _: None)
        program.stop(0.5)
    assert [file.stat().st_size for file in files(path)[:-1]] == [
        4990
    ] * federation_programs.OLD_FILES  # lines of 10 bytes, up to the size


def test_a_journal_is_never_rotated(tmp_path):
    """It stands in the folder of logs that are, and grows beyond their size."""
    home = Coordinator.make(tmp_path / "fed", "lung", "127.0.0.1:8123", ["a"])
    for k in range(20):
        journal.record_events(home, [("refused", {"who": "x" * 300, "times": k})])
    path = home.folder / journal.JOURNAL_FILE
    assert path.stat().st_size > 5000
    assert journal.verify(path, home.key.public) == journal.Verdict(20, journal.Journal(path, home.key).head)
    assert [p.name for p in home.folder.glob("audit.jsonl*")] == ["audit.jsonl"]


def test_a_child_that_prints_anything_has_one_object_a_line(tmp_path):
    odd = r"""
import sys
sys.stdout.buffer.write(b'plain\n\xff\xfe\x1b[2J\rx\n{"is": "json"}\nE401 the data\nare bad\n\nno end')
"""
    text = ran(tmp_path, odd, "json").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["text"] for row in rows] == [
        "plain", "��\\x1b[2J\\rx", '{"is": "json"}', "the data", "are bad", "", "no end"
    ]  # fmt: skip
    assert [row.get("code") for row in rows] == [None, None, None, "E401", None, None, None]
    assert {row["program"] for row in rows} == {"it"}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["time"]) for row in rows)
    assert "\x1b" not in text


def test_a_line_without_end_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(federation_programs, "MOST_LINE", 1000)
    heard: list[str] = []
    ran(tmp_path, "print('y' * 2500)", heard=heard)
    assert [len(line) for line in heard] == [1000, 1000, 500]


def test_a_full_disk_under_a_log_stops_nobody_and_the_log_goes_on_afterwards(tmp_path, monkeypatch, capsys):
    file, full = federation_programs.log_file(tmp_path / "l"), [True]
    real = federation_programs.LogFile.flush

    def flush(self) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self)

    monkeypatch.setattr(federation_programs.LogFile, "flush", flush)
    file.add("lost")
    full[0] = False
    file.add("kept")
    file.close()
    assert (tmp_path / "l").read_text().splitlines()[-1] == "kept"
    assert capsys.readouterr().err == ""


def test_the_last_words_of_a_program_are_kept_before_it_is_said_to_have_ended(tmp_path, monkeypatch):
    """Its supervisor looks for its error at once."""
    real = federation_programs.LogFile.add
    monkeypatch.setattr(
        federation_programs.LogFile, "add", lambda self, line: (time.sleep(0.3), real(self, line))[1]
    )
    program = Program("it", [sys.executable, "-c", "print('E401 bad')"], dict(os.environ), tmp_path / "l")
    program.tend(lambda _: None)
    assert program.process is not None
    program.process.wait(30)
    assert program.tend(lambda _: None) == 0
    assert federation_programs.last_error(tmp_path / "l") == ("E401", "bad")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_workers_own_error_is_told_in_either_form(tmp_path, form):
    path = ran(
        tmp_path, "print('E403 old'); print('E1 no code'); print('E402 the data set is missing.')", form
    )
    error = processes._last_error(path, 3)
    assert (error.code, error.text, error.exit_code) == ("E402", "the data set is missing.", 3)
    assert processes._last_error(tmp_path / "none", 2).code == "E507"


def test_text_stays_as_it_was(capsys):
    Log("text", {"program": "serve"})("b is admitted")
    Log("text", {}, timed=True)("round 1")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "b is admitted"
    assert re.fullmatch(r"\d\d:\d\d:\d\d round 1", second)


def test_an_object_holds_the_code_the_facts_and_the_whole_sentence_on_one_line(capsys):
    Log("json", {"program": "site run", "site": "b"})("E520 the policy\ndoes not allow it")
    row = json.loads(capsys.readouterr().out)
    row.pop("time")
    text = "the policy\ndoes not allow it"
    assert row == {"level": "warning", "program": "site run", "site": "b", "code": "E520", "text": text}


@pytest.mark.parametrize(
    "error", [UsageError("E507", "taken."), DataError("E401", "bad."), ValueError("odd")]
)
def test_an_error_that_ends_the_program_is_an_object_too(capsys, error):
    with pytest.raises(SystemExit) as end, Log("json", {}).to_the_end():
        raise error
    row = json.loads(capsys.readouterr().out)
    assert end.value.code == getattr(error, "exit_code", 1)
    assert row["code"] == getattr(error, "code", "E143")
    with pytest.raises(type(error)), Log("text", {}).to_the_end():
        raise error


def test_serve_and_site_run_print_nothing_but_objects(tmp_path, monkeypatch):
    home = Coordinator.make(tmp_path / "federations/lung", "lung", "127.0.0.1:8123", ["a"])
    done = call("serve", "none", "--log-format", "json", cwd=tmp_path)
    assert (done.code, json.loads(done.out)["code"], done.err) == (2, "E161", "")
    monkeypatch.setattr(processes.SiteProcesses, "run", lambda self: self.say("E507 it is over"))
    SiteFolder.make(tmp_path / "site", Ticket.read(home.ticket_file("a")))
    done = call("site", "run", "--data", "x.npz", "--log-format", "json", cwd=tmp_path)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["text"].split()[0] for row in rows] == ["site", "logs", "studies", "it"]
    assert (rows[-1]["site"], rows[-1]["code"], done.code) == ("a", "E507", 0)
    joining = call(
        "site",
        "run",
        "--data",
        "x.npz",
        "--log-format",
        "json",
        "--ticket",
        "none",
        "--folder",
        "n",
        cwd=tmp_path,
    )
    assert (joining.code, json.loads(joining.out)["code"]) == (2, "E111")


def test_nothing_is_lost_if_the_supervisor_is_slow(tmp_path):
    """A child that prints more than a pipe holds waits; it is not cut off."""
    heard: list[str] = []
    slow = Program(
        "it",
        [sys.executable, "-c", "for k in range(3000): print('z' * 99)"],
        dict(os.environ),
        tmp_path / "l",
        seen=lambda line: (time.sleep(0.0001), heard.append(line))[1],
    )
    slow.tend(lambda _: None)
    assert isinstance(slow.process, subprocess.Popen)
    slow.process.wait(60)
    slow.tend(lambda _: None)
    assert len(heard) == 3000
    slow.stop(0.5)
