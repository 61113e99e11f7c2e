"""Break one line at a time and see whether the tests of its room notice.

python tools/mutants.py                     every mutant in tests/mutants/*.yaml
python tools/mutants.py methods core        those of these files
python tools/mutants.py methods --only 12   one of them, with what its tests print
python tools/mutants.py --processes 2 --json mutants.json

A file of mutants holds the tests of its room and a list of `file`, `line` (text that stands once in that file), `becomes`,
and where the room's tests are too many, `tests` of its own; `{stem}` stands for the name of the broken file. A mutant that no test can notice, because both lines mean the same to
every user, is kept with the reason under `survives`, and counts as surviving. `needs` names a module without which a
file's tests are skipped: its mutants are then left out, which is said.

A mutant is killed if a test fails, or if its tests do not end in the time allowed. Exit code 1 if fewer are killed than
the share that is asked for.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
LISTS = ROOT / "tests" / "mutants"
SOURCE = ROOT / "src"
TIMEOUT_S = 240


@dataclass(frozen=True)
class Mutant:
    """One broken line. tests: paths below the repository, as pytest takes them. needs: a module that these import, or ""."""

    room: str
    number: int
    file: str
    line: str
    becomes: str
    tests: tuple[str, ...]
    survives: str = ""
    needs: str = ""

    @property
    def name(self) -> str:
        return f"{self.room} {self.number}: {self.file}: {self.line.strip()}  ->  {self.becomes.strip() or '(removed)'}"

    def problem(self) -> str:
        """Why this mutant cannot be planted, or nothing."""
        path = SOURCE / "unskew" / self.file
        if not path.is_file():
            return f"there is no {self.file}"
        count = path.read_text().count(self.line)
        missing = [t for t in self.tests if not (ROOT / t.split("::")[0]).exists()]
        if count != 1:
            return f"the line stands {count} times in {self.file}: {self.line!r}"
        return f"there is no {missing[0]}" if missing else ""

    def mistake(self) -> str:
        """Why any test would notice this mutant, whatever its line does, or nothing: the broken file is no Python."""
        path = SOURCE / "unskew" / self.file
        if path.suffix != ".py":
            return ""
        try:
            ast.parse(path.read_text().replace(self.line, self.becomes))
        except SyntaxError as error:
            return f"with its line broken {self.file} is no Python, line {error.lineno}: {error.msg}"
        return ""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: "killed", "timeout" (counts as killed), "survived" or "error"."""

    mutant: Mutant
    end: str
    seconds: float
    output: str = ""

    @property
    def killed(self) -> bool:
        return self.end in ("killed", "timeout")


def mutants(rooms: Iterable[str] = ()) -> list[Mutant]:
    """All mutants of these files (default: of all), in the order in which they stand."""
    read = []
    for path in sorted(LISTS.glob("*.yaml")):
        if not rooms or path.stem in rooms:
            given = yaml.safe_load(path.read_text())
            for number, entry in enumerate(given["mutants"], 1):
                entry = {"tests": given["tests"], "needs": given.get("needs", ""), **entry}
                entry["tests"] = tuple(entry["tests"].format(stem=Path(entry["file"]).stem).split())
                read.append(Mutant(path.stem, number, **entry))
    return read


def run_tests(
    source: Path, tests: Iterable[str], *options: str, timeout: float | None = TIMEOUT_S
) -> tuple[int | None, str]:
    """(pytest's exit code, or None past the time allowed; the end of what it printed), with the package below `source`."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, (done.stdout + done.stderr)[-3000:]


def plant(mutant: Mutant) -> Outcome:
    """Run the mutant's tests against a copy of the sources with its line broken."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        path = source / "unskew" / mutant.file
        path.write_text(path.read_text().replace(mutant.line, mutant.becomes))
        code, output = run_tests(source, mutant.tests)
    # 1: a test failed; 2: a test module could not even be imported; anything else is no verdict on the mutant
    end = {None: "timeout", 0: "survived", 1: "killed", 2: "killed"}.get(code, "error")
    return Outcome(mutant, end, time.monotonic() - began, output)


def failures(chosen: Iterable[Mutant], processes: int) -> str:
    """What the tests of these mutants print when one of them fails without any mutant; nothing if all pass."""
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    code, output = run_tests(SOURCE, tests, "-n", str(processes), "--dist", "worksteal", timeout=None)
    return output if code else ""


def report(outcomes: list[Outcome], least: float) -> int:
    killed = sum(o.killed for o in outcomes)
    for outcome in outcomes:
        if not outcome.killed:
            reason = f"   ({outcome.mutant.survives})" if outcome.mutant.survives else ""
            print(f"{outcome.end}: {outcome.mutant.name}{reason}")
    share = killed / len(outcomes)
    print(f"{killed} of {len(outcomes)} mutants killed, {100 * share:.1f} %; asked for: {100 * least:.0f} %")
    return 0 if share >= least and not any(o.end == "error" for o in outcomes) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("rooms", nargs="*", help="files of tests/mutants; default: all")
    parser.add_argument("--only", type=int, help="the mutant of this number, with what its tests print")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--least", type=float, default=0.9, help="share that must be killed (default 0.9)")
    parser.add_argument("--json", type=Path, help="write every outcome there")
    options = parser.parse_args()
    chosen = [m for m in mutants(options.rooms) if options.only in (None, m.number)]
    for room, module in sorted({(m.room, m.needs) for m in chosen if m.needs and not find_spec(m.needs)}):
        print(f"{room}: left out, because {module} is not installed; run it with a Python that has it")
        chosen = [m for m in chosen if m.room != room]
    if problems := [f"{m.room} {m.number}: {p}" for m in chosen if (p := m.problem() or m.mistake())]:
        print("\n".join(problems))
        return 2
    if not chosen:
        print("there are no such mutants")
        return 2
    if output := failures(chosen, options.processes):
        print(f"tests fail without any mutant:\n{output}")
        return 2
    with ThreadPoolExecutor(options.processes) as pool:
        outcomes = []
        for outcome in pool.map(plant, chosen):
            outcomes.append(outcome)
            print(f"{outcome.end:<9}{outcome.seconds:>5.0f} s  {outcome.mutant.name}", flush=True)
    if options.only:
        print(outcomes[0].output)
    if options.json:
        options.json.write_text(json.dumps([{**asdict(o), "output": ""} for o in outcomes], indent=1))
    return report(outcomes, options.least)


if __name__ == "__main__":
    sys.exit(main())
