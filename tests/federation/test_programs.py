"""Programs that are kept running, and their logs."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "cryptography", reason="a deployment's tests need the extra: pip install 'unskew[flower]'"
)


import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from unskew.federation import programs
from unskew.federation import programs as federation_programs
from unskew.federation.programs import Program


def seen(program: programs.Program, there, seconds: float = 20.0) -> list[str]:
    said: list[str] = []
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, said
        program.tend(said.append)
        time.sleep(0.02)
    return said


def test_a_program_that_ends_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "BACK_OFF_S", 0.1)
    program = programs.Program("it", [sys.executable, "-c", ""], dict(os.environ), tmp_path / "log")
    try:
        said = seen(program, lambda: program.starts >= 3)
    finally:
        program.stop(0.5)
    assert "it ended with code 0 and will be restarted" in said[0]


KEEPER = """
import os, signal, sys, time
from pathlib import Path
from unskew.federation.programs import Program, stop_at_end

def stop(*_):
    raise SystemExit(143)

signal.signal(signal.SIGTERM, stop)
slow = "import signal, time; signal.signal(15, lambda *_: time.sleep(0.5) or exit()); print('up', flush=True); time.sleep(99)"
logs = [Path(path) for path in sys.argv[1:]]
programs = [Program("it", [sys.executable, "-c", slow], dict(os.environ), log) for log in logs]
with stop_at_end(*programs):
    for program, log in zip(programs, logs):
        program.tend(print)
        while "up" not in log.read_text():
            time.sleep(0.02)
    print(*(program.process.pid for program in programs), flush=True)
    time.sleep(99)
"""


@pytest.mark.parametrize(
    "numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT), (signal.SIGKILL,)]
)
def test_nothing_stays_behind(numbers, tmp_path):
    """Told twice to end, as `timeout` does, or killed outright."""
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(tmp_path / "one"), str(tmp_path / "two")],
        stdout=subprocess.PIPE,
        text=True,
    )
    children = [int(pid) for pid in keeper.stdout.readline().split()]
    assert len(children) == 2
    for number in numbers:
        keeper.send_signal(number)
        time.sleep(0.2)
    keeper.communicate(timeout=20)
    end = time.monotonic() + 10
    while any(map(alive, children)):
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Not gone, and no zombie that only waits to be collected."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


LINES = 4000


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(federation_programs, "MOST_BYTES", 5000)
    federation_programs.log_file.cache_clear()
    yield
    federation_programs.log_file.cache_clear()


def ran(tmp_path, code: str, heard: list[str] | None = None) -> Path:
    """The log file of a program that has run to its end."""
    path = tmp_path / "it.log"
    lines: list[str] = [] if heard is None else heard
    program = Program("it", [sys.executable, "-c", code], dict(os.environ), path, lines.append)
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


def test_the_log_of_a_child_holds_no_control_characters(tmp_path):
    """It is read at a terminal, and quotes what a coordinator or a site wrote."""
    assert ran(tmp_path, r"print('a\x1b[2J\rb')").read_text() == "a\\x1b[2J\\rb\n"
