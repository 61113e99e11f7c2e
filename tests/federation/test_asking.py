"""A site's operator decides on the terminal on which the site runs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.federation.site import approvals, terminal

STUDIES = {"s1": "r1", "s2": "r2"}


def wait(folder, study: str, run: str) -> None:
    approvals.bind(folder, run, study)
    approvals.ask(
        folder, approvals.Request(study, run, "fedavg", 3, "somebody", f"leaves of {study}", time.time())
    )


class Keyboard:
    """Types these lines one after the other; what comes before a question is thrown away by it. A callable is
    an event."""

    def __init__(self, *lines):
        self.lines, self.left, self.forgot = list(lines), len(lines), 0

    def line(self, within_s: float) -> str | None:
        self.left -= 1
        item = self.lines.pop(0)
        return item() if callable(item) else item

    def forget(self) -> None:
        self.forgot += 1


def decide(folder, *lines) -> list[str]:
    said: list[str] = []
    keyboard = Keyboard(*lines)
    terminal.decide_at_terminal(folder, said.append, keyboard, lambda: not keyboard.lines)
    return said


def state(folder, study: str) -> str | None:
    return next((request.state for request in approvals.all_requests(folder) if request.study == study), None)


def test_a_study_is_shown_and_decided_with_one_word(tmp_path):
    wait(tmp_path, "s1", "r1")
    said = decide(tmp_path, "  YES \n")
    assert "leaves of s1" in said[0]
    assert said[-1] == "approved  r1"
    assert state(tmp_path, "s1") == "approved"
    wait(tmp_path, "s2", "r2")
    assert decide(tmp_path, "no\n")[-1] == "refused  r2"
    assert state(tmp_path, "s2") == "refused"


def test_an_answer_concerns_the_study_that_was_shown_and_no_other(tmp_path):
    """A coordinator sends a second study while the operator still reads the first."""
    wait(tmp_path, "s1", "r1")

    def second() -> str:
        wait(tmp_path, "s2", "r2")
        return "yes\n"

    said = decide(tmp_path, second)
    assert (state(tmp_path, "s1"), state(tmp_path, "s2")) == ("approved", "waiting")
    assert not any("leaves of s2" in text for text in said)
    said = decide(tmp_path, "no\n")
    assert "leaves of s2" in said[0]


@pytest.mark.parametrize("typed", ["y\n", "\n", "yes please\n", "approve\n", "yes\x1b\n", "ja\n", "no yes\n"])
def test_nothing_but_the_whole_word_decides(tmp_path, typed):
    wait(tmp_path, "s1", "r1")
    said = decide(tmp_path, typed)
    assert said[-1] == "type yes or no, and Enter"
    assert state(tmp_path, "s1") == "waiting"


def test_what_was_typed_before_the_question_is_thrown_away(tmp_path):
    """Somebody has typed `yes` for something else, or twice."""
    keyboard = Keyboard("yes\n", lambda: wait(tmp_path, "s1", "r1"), None, None)
    terminal.decide_at_terminal(tmp_path, lambda _: None, keyboard, lambda: not keyboard.lines)
    assert (state(tmp_path, "s1"), keyboard.forgot) == ("waiting", 1)


def test_a_study_that_was_decided_elsewhere_is_not_asked_about_any_more(tmp_path):
    wait(tmp_path, "s1", "r1")
    said = decide(tmp_path, lambda: approvals.decide(tmp_path, "r1", "refused") and None, "yes\n")
    assert state(tmp_path, "s1") == "refused"
    assert len([text for text in said if "asks for" in text]) == 1


SCRIPT = """
import os, sys, time
from unskew.federation.site.terminal import Terminal, has_terminal
terminal = Terminal()
print("ready", has_terminal(), flush=True)
sys.stdin.readline()
time.sleep(0.3)
terminal.forget()
print("asked", flush=True)
print(repr(terminal.line(10)), flush=True)
print(repr(terminal.line(0.05)), flush=True)
if os.fork() == 0:
    os.setpgid(0, 0)
    print("behind", repr(terminal.line(0.1)), flush=True)
    terminal.forget()
    os._exit(0)
print("child", os.wait()[1], flush=True)
print(repr(terminal.line(10)), repr(terminal.line(0.05)), flush=True)
"""


def test_a_terminal_is_read_in_the_foreground_only_and_early_lines_are_dropped():
    """In the background the kernel stops whoever reads from the terminal, and with it the site."""
    pid, line = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", SCRIPT])
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 20
        while text not in seen and time.monotonic() < end:
            try:
                seen += os.read(line, 4096)
            except OSError:
                break
        assert text in seen, seen

    until(b"ready True")
    os.write(line, b"go\nyes\n")  # the yes is too early
    until(b"asked")
    os.write(line, b"no\n")
    until(b"child 0")
    os.write(line, b"\x04")
    until(b"None None")
    os.waitpid(pid, 0)
    os.close(line)
    text = seen.decode()
    assert "'no\\n'" in text
    assert "behind None" in text


def test_without_a_terminal_nobody_is_asked():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from unskew.federation.site.terminal import has_terminal; print(has_terminal())",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


def test_what_was_decided_elsewhere_is_said(tmp_path):
    """The question stood on the terminal, and nobody said that it had been answered."""
    wait(tmp_path, "s1", "r1")
    said = decide(tmp_path, lambda: approvals.decide(tmp_path, "r1", "approved") and None, None)
    assert said[-1] == "approved: run r1 begins when the coordinator asks again (fedavg, 3 rounds)"
