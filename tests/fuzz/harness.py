"""`make fuzz`: inputs of every kind, right, wrong and damaged. Each is taken, or refused in one sentence with
a code.

A case fails if it ends in a traceback or in E143, does not end, says nothing that ends in a full stop, is
taken though it is wrong, or refused though it is right.
"""

from __future__ import annotations

import random
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from tests.cli.calling import Called, call
from tests.fuzz import cases, folders

LONGEST_S = 30
MOST_MEMORY = 2 << 30
STRANGERS = "values in run folders"
NAMES = (*cases.KINDS, STRANGERS)


class Hangs(Exception):
    """Not an error of the command line, which would catch it."""


def verdict(called: Called, wrong: bool | None) -> str:
    """What is wrong with how a case ended; "" for nothing."""
    last = (called.err.strip().splitlines() or [""])[-1]
    if "Traceback" in called.text:
        return "a traceback"
    if called.code and "E143" in last:
        return f"an unexpected error: {last}"
    if (
        called.code and not re.match(r"E\d{3} \S.*[.?]$", last) and "╰" not in last
    ):  # the frame of typer's own sentences
        return f"no sentence: {last!r}"
    if "\x1b" in last:
        return "an escape sequence reaches the terminal"
    if wrong and not called.code:
        return "taken though it is wrong"
    return f"refused though it is right: {last}" if wrong is False and called.code else ""


class Fuzz:
    """Runs cases by number; the same number is always the same case."""

    def __init__(self, folder: Path, seed: int = 0):
        self.folder, self.seed = folder, seed
        rng = np.random.default_rng(0)
        x, y = rng.random((80, 1, 8, 8), dtype=np.float32), np.arange(80) % 4
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "default.npz"
        np.savez(self.data, x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
        self._strangers: list[Path] = []

    def problem(self, number: int) -> str:
        """What is wrong with how this case ended; "" for nothing."""
        kind, rng = NAMES[number % len(NAMES)], random.Random(self.seed * 1_000_003 + number)
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        if kind == STRANGERS and not self._strangers:
            self._strangers = folders.templates(self.folder / "strangers", self.data)
        before = signal.signal(signal.SIGPROF, _hangs)
        signal.setitimer(
            signal.ITIMER_PROF, LONGEST_S
        )  # of processor time, so that other processes do not count
        try:
            note, wrong = self._altered(rng, place) if kind == STRANGERS else self._given(kind, rng, place)
        except Hangs:
            note, wrong = "", f"does not end within {LONGEST_S} s of processor time"
        except Exception as error:
            note, wrong = "", f"raises {type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
        return f"case {number}, {kind}, {note[:200]!r}: {wrong}" if wrong else ""

    def _given(self, kind: str, rng: random.Random, place: Path) -> tuple[str, str]:
        case = cases.KINDS[kind](rng, place)
        given = " ".join(case.arguments)
        usual = [
            ("--data", str(self.data)),
            ("--clients", "4"),
            ("--skew", "iid"),
            ("--model", "mlp"),
            ("--workers", "1"),
        ]
        rest = [item for name, value in usual if name not in given for item in (name, value)]
        method = [] if kind in ("method", "yaml") else ["fedprox"]
        if kind == "yaml":
            rest = ["--data", str(self.data), "--model", "mlp"]
        called = call("run", *method, *rest, "--dry-run", *case.arguments, cwd=place)
        return case.note, verdict(called, case.wrong)

    def _altered(self, rng: random.Random, place: Path) -> tuple[str, str]:
        what, called = folders.altered(rng.choice(self._strangers), rng, place)
        return what, verdict(called, None)


def _hangs(*_: object) -> None:
    raise Hangs


def main(count: int = 3000, seed: int = 0) -> int:
    with tempfile.TemporaryDirectory() as folder:
        fuzz, problems = Fuzz(Path(folder), seed), []
        for number in range(count):
            if problem := fuzz.problem(number):
                problems.append(problem)
                print(problem, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    by_kind = Counter(problem.split(", ")[1] for problem in problems)
    print(
        f"{count} cases of {len(NAMES)} kinds, {len(problems)} wrong {dict(by_kind)}; at most"
        f" {peak / 2**20:,.0f} MB of memory"
    )
    return int(bool(problems) or peak > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
