"""Programs that are kept running."""

from __future__ import annotations

import os
import sys
import time

import pytest

pytest.importorskip("cryptography", reason="a deployment's tests need the extra: pip install 'unskew[flower]'")

from unskew.deploy import kept


def seen(program: kept.Kept, there, seconds: float = 20.0) -> list[str]:
    said: list[str] = []
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, said
        program.look(said.append)
        time.sleep(0.02)
    return said


def test_a_program_that_ends_or_gives_up_without_ending_is_started_again(tmp_path, monkeypatch):
    """Flower's SuperNode gives up when its network fails, in other words each time, and its process can stay."""
    monkeypatch.setattr(kept, "BACK_OFF_S", 0.1)
    for code, told in (
        ("print('it is over')", "ended with code 0"),
        ("print('it is over'); time.sleep(99)", "gave up"),
    ):
        log = tmp_path / f"{told}.log"
        command = [sys.executable, "-uc", f"import time; {code}"]
        program = kept.Kept("it", command, dict(os.environ), log, (b"never said", b"is over"))
        try:
            said = seen(program, lambda program=program: program.starts >= 3)
        finally:
            program.stop(0.5)
        assert told in said[0]
    still = kept.Kept(
        "it", [sys.executable, "-uc", "import time; time.sleep(99)"], dict(os.environ), tmp_path / "l", (b"over",)
    )
    (tmp_path / "l").write_text("it is over\n")  # what an earlier one said does not count
    try:
        end = time.monotonic() + 0.5
        assert not seen(still, lambda: time.monotonic() > end)
        assert still.starts == 1
    finally:
        still.stop(0.5)


def test_a_sentence_is_not_said_again_before_its_time(monkeypatch):
    told: list[str] = []
    now = 1.0
    monkeypatch.setattr(kept.time, "monotonic", lambda: now)
    say = kept.Rarely(told.append)
    for now in (1.0, 30.0, 60.9, 61.0):
        say("gone")
        say(f"back {now}")
    assert told == ["gone", "back 1.0", "back 30.0", "back 60.9", "gone", "back 61.0"]
