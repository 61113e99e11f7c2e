"""`make crash`: kills and damaged files. A run ends with the bits it would have had, or in one sentence;
never silently else.

Kills: a child process trains, is killed at a random moment, and another one goes on, again and again. Damage:
one file of a run's folder is changed, and `unskew resume` is called.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import unskew
from tests.cli.calling import call
from unskew.records import checkpoints

METHODS = (
    "fedavg",
    "scaffold",
    "feddyn",
    "moon",
    "flea",
    "rebafl",
    "scaffold+flea",
    "fedbabu",
    "fedproto",
    "ccvr",
)
SETTINGS = {
    "clients": 5, "rounds": 5, "epochs": 1, "samples": 12, "model": "cnn_small", "workers": 1,
    "availability": "bernoulli:0.7", "measure": "diversity",
}  # fmt: skip
LONGEST_S = 120


class Stop(Exception):
    pass


def train(folder: Path, method: str, stop_after: int = 0) -> None:
    """Begin or resume the run `folder/r`; stop_after: the round after which it is interrupted."""

    def shown(_: object, summary: unskew.round.loop.Round) -> None:
        if summary.t == stop_after:
            raise Stop

    unskew.run(method, folder=folder, name="r", shown=shown, **SETTINGS)


def end(run: Path) -> tuple[object, ...]:
    """What must be equal: the weights as a file, every row but for seconds, and pictures of measures."""
    tree, facts = checkpoints.read(run / checkpoints.LATEST)
    rows = [
        json.loads(line)
        for kind in ("metrics", "ledger", "events")
        for line in (run / f"{kind}.jsonl").open()
    ]
    rows = [row for row in rows if row.get("metric") != "seconds"]
    pictures = (run / "measures.json").read_text() if (run / "measures.json").exists() else ""
    return (run / "model.safetensors").read_bytes(), checkpoints.digest(tree), facts["t"], rows, pictures


def in_a_child(work: Callable[[], None], kill_after_s: float | None = None) -> bool:
    """Do work in a forked process, killed after some seconds unless done before. Returns whether it was."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(code)
    deadline = time.monotonic() + (kill_after_s or LONGEST_S)
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0, f"a child ended with {status}"
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert kill_after_s is not None, "a child hangs"
    return False


def kills(method: str, count: int, rng: random.Random, folder: Path) -> None:
    """Kill runs of a method so many times, each at a random moment; the bits stay the same."""
    began = time.monotonic()
    assert in_a_child(lambda: train(folder / "straight", method))
    took_s, expected, killed, attempt = time.monotonic() - began, end(folder / "straight" / "r"), 0, 0
    while killed < count:
        attempt += 1
        place = folder / f"killed{attempt}"
        while killed < count and not in_a_child(lambda at=place: train(at, method), rng.random() * took_s):
            killed += 1
        assert in_a_child(lambda at=place: train(at, method))
        assert end(place / "r") == expected, f"{method}: other bits after {killed} kills"


@dataclass(frozen=True)
class Outcome:
    """how: "same bits", or the code of the sentence; wrong: what must not be, or ""."""

    how: str
    wrong: str = ""


def flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content or b"\0")
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def zeros(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + bytes(min(512, len(content) - start)) + content[start + 512 :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a bit": flip,
    "cut": lambda content, rng: content[: rng.randrange(len(content) + 1)],
    "empty": lambda content, rng: b"",
    "zeros": zeros,
    "noise": lambda content, rng: rng.randbytes(len(content)),
    "more": lambda content, rng: content + rng.randbytes(40),
    "twice": lambda content, rng: content + content,
}


def damage(file: Path, how: str, rng: random.Random) -> None:
    """Change a file. how: of DAMAGES, or removed, a folder in its place, or another file's content."""
    if how in DAMAGES:
        content = DAMAGES[how](file.read_bytes(), rng)
        file.unlink()  # the checkpoint before may share the content
        file.write_bytes(content)
        return
    others = [path for path in sorted(file.parent.iterdir()) if path.is_file() and path != file]
    file.unlink()
    if how == "folder":
        file.mkdir()
    if how == "another" and others:
        shutil.copy(rng.choice(others), file)


def damaged(template: Path, expected: tuple, rng: random.Random, folder: Path) -> tuple[str, Outcome]:
    """Damage one file of a copy of a run and resume it. Returns what was done, and how it ended."""
    run = folder / "r"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(template, run)
    file = rng.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    how = rng.choice([*DAMAGES, "remove", "folder", "another"])
    damage(file, how, rng)
    return f"{file.relative_to(run)}: {how}", outcome(run, expected)


def outcome(run: Path, expected: tuple[object, ...]) -> Outcome:
    """How `unskew resume` of a run ends."""
    called = call("resume", str(run), "--json")
    last = (called.err.strip().splitlines() or [""])[-1]
    if "Traceback" in called.text or re.match("E143", last):
        return Outcome("defect", called.text[-600:])
    if called.code:
        match = re.match(r"(E\d{3}) \S.*[.?]$", last)
        return Outcome(match[1]) if match else Outcome("silent", f"no sentence: {called.text[-300:]!r}")
    return Outcome("same bits") if end(run) == expected else Outcome("silent", "other bits, exit code 0")


def templates(method: str, folder: Path) -> tuple[list[Path], tuple[object, ...]]:
    """A run stopped after its third round and one that is done, and how it ends."""
    with_stop, done = folder / "stopped", folder / "done"
    with suppress(Stop):
        train(with_stop, method, stop_after=3)
    train(done, method)
    return [with_stop / "r", done / "r"], end(done / "r")


def damages(methods: tuple[str, ...], count: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """(how so many damages ended, what was wrong), spread evenly over the methods."""
    ends, wrong = Counter[str](), []
    for i, method in enumerate(methods):
        place = folder / f"d{i}"
        runs, expected = templates(method, place)
        for case in range(count * i // len(methods), count * (i + 1) // len(methods)):
            rng = random.Random(seed * 1_000_003 + case)
            what, ended = damaged(rng.choice(runs), expected, rng, place)
            ends[ended.how] += 1
            if ended.wrong:
                wrong.append(f"case {case}, {method}, {what}: {ended.wrong}")
    return ends, wrong


def main(kill_count: int = 100, damage_count: int = 200, seed: int = 0) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i, method in enumerate(METHODS):  # first, while this process has no threads
            kills(method, kill_count // len(METHODS), random.Random(seed + i), folder / f"k{i}")
            print(f"{kill_count // len(METHODS)} kills of {method}: the same bits", flush=True)
        ends, wrong = damages(METHODS, damage_count, seed, folder)
    print(f"{damage_count} damaged files: " + ", ".join(f"{how} {n}" for how, n in ends.most_common()))
    print("\n".join(wrong) or "0 silent, 0 tracebacks")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
