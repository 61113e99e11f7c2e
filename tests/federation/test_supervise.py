"""Programs that are kept running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip(
    "cryptography", reason="a deployment's tests need the extra: pip install 'unskew[flower]'"
)

from unskew.federation import programs


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


def test_a_program_that_ends_at_once_is_started_again_soon_and_then_less_and_less_often(
    tmp_path, monkeypatch
):
    clock = [100.0]
    monkeypatch.setattr(programs.time, "monotonic", lambda: clock[0])
    program = programs.Program("it", [sys.executable, "-c", ""], dict(os.environ), tmp_path / "l")
    pauses = []
    for _ in range(6):
        program.tend(lambda _: None)
        assert program.process is not None
        program.process.wait(30)
        program.tend(lambda _: None)
        pauses.append(program.not_before - clock[0])
        clock[0] = program.not_before
    assert pauses == [1, 2, 4, 5, 5, 5]
    program.tend(lambda _: None)
    program.process.wait(30)
    clock[0] += 60
    program.tend(lambda _: None)
    assert program.not_before - clock[0] == 0.5
    program.stop(0.5)


def test_a_sentence_is_not_said_again_before_its_time(monkeypatch):
    told: list[str] = []
    now = 1.0
    monkeypatch.setattr(programs.time, "monotonic", lambda: now)
    say = programs.RareSay(told.append)
    for now in (1.0, 30.0, 60.9, 61.0):
        say("gone")
        say(f"back {now}")
    assert told == ["gone", "back 1.0", "back 30.0", "back 60.9", "gone", "back 61.0"]


def test_signals_work_again_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with programs.stop_at_end():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


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


def test_a_program_that_a_restart_cannot_help_is_not_said_to_be_restarted(tmp_path):
    """`site run --data nope` said that the worker will be restarted, and then why it will not."""
    for hopeless, lines in (((2, 3), 0), ((), 1)):
        command = [sys.executable, "-c", "raise SystemExit(2)"]
        program = programs.Program("it", command, dict(os.environ), tmp_path / "log", hopeless=hopeless)
        said: list[str] = []
        program.tend(said.append)
        assert program.process is not None
        program.process.wait(30)
        assert program.tend(said.append) == 2
        assert len(said) == lines
