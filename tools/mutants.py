"""Change one place of the source at random and see whether the tests notice, many times.

python tools/mutants.py cover .mutants/plain               which tests execute which line: one run of the
suite, with coverage python tools/mutants.py draw --seed 7 -n 200 .mutants/plain [.mutants/flower]

`cover` takes further words for pytest. Each folder remembers the Python that made it, and its tests run with
that one again. `draw` prints each mutant that survived and the share that was killed with its 95 % interval
(Wilson). Mutants are drawn with equal chance from all places in src/unskew where a comparison, an operator, a
condition or a constant can be changed, a returned value dropped, or a call deleted. Each is planted in a copy
of the checkout and killed if one of the tests that execute its line fails, or if these tests take longer than
the time limit.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MOST_TESTS, TIMEOUT_S = 80, 150
COMPARED = {
    "==": "!=",
    "!=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "in": "not in",
    "not in": "in",
}
COMPARED |= {"is": "is not", "is not": "is"}
COMPUTED = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "//": "*",
    "%": "*",
    "**": "*",
    "@": "+",
    "|": "&",
    "&": "|",
}
SYMBOLS = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
}
SYMBOLS |= {ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not", ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
SYMBOLS |= {ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.MatMult: "@", ast.BitOr: "|"}
SYMBOLS |= {ast.BitAnd: "&"}


class Mutant(NamedTuple):
    """A node of a file, replaced by other source text."""

    path: str
    line: int
    begin: int
    end: int
    old: str
    new: str


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What can be written in the place of this node or of a part of it."""
    text = ast.unparse
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in SYMBOLS:
            yield node, f"({text(left)} {COMPARED[SYMBOLS[type(op)]]} {text(right)})"
        case ast.BinOp(left, op, right) if type(op) in SYMBOLS:
            yield node, f"(({text(left)}) {COMPUTED[SYMBOLS[type(op)]]} ({text(right)}))"
        case ast.BoolOp(op, values):
            yield (
                node,
                "("
                + (" and " if isinstance(op, ast.Or) else " or ").join(f"({text(v)})" for v in values)
                + ")",
            )
        case ast.If(test) | ast.IfExp(test) | ast.While(test):
            yield test, f"(not ({text(test)}))"
        case ast.Constant(bool() as value):
            yield node, str(not value)
        case ast.Constant(int() | float() as value):
            yield node, f"({value} + 1)"
        case ast.Return(value) if value is not None and text(value) != "None":
            yield value, "None"
        case ast.Expr(ast.Call() as call):
            yield call, "None"


def candidates() -> list[Mutant]:
    """Every change of every file; annotations and docstrings have none."""
    found = []
    for path in sorted((ROOT / "src" / "unskew").rglob("*.py")):
        source = path.read_text()
        starts = [0]
        for text in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(text.encode()))
        tree = ast.parse(source)
        for parent in ast.walk(tree):
            for field in ("annotation", "returns"):
                if isinstance(getattr(parent, field, None), ast.AST):
                    setattr(parent, field, None)
            if isinstance(
                parent, ast.JoinedStr
            ):  # positions inside of f-strings are those of Python 3.12 and later
                parent.values = []
        for node in (n for parent in ast.walk(tree) for n in changes(parent)):
            at, new = node
            begin = starts[at.lineno - 1] + at.col_offset
            end = starts[at.end_lineno - 1] + at.end_col_offset
            old = source.encode()[begin:end].decode()
            found.append(Mutant(path.relative_to(ROOT).as_posix(), at.lineno, begin, end, old, new))
    return found


def tests_of(mutant: Mutant, covered: Path, rng: random.Random) -> list[str]:
    """The tests that execute the mutant's line, or where only imports do, those that execute another line of
    the file."""
    with sqlite3.connect(covered / "lines.db") as lines:
        of_file = "SELECT DISTINCT test FROM lines WHERE path = ? AND test != ''"
        rows = lines.execute(f"{of_file} AND line = ?", (mutant.path, mutant.line)).fetchall()
        rows = rows or lines.execute(of_file, (mutant.path,)).fetchall()
    names = sorted(name for (name,) in rows)
    return names if len(names) <= MOST_TESTS else rng.sample(names, MOST_TESTS)


def fails(mutant: Mutant, tests: list[str], python: str) -> bool:
    """Whether one of these tests fails in a copy of the checkout with the mutant in it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(
            ".git", ".venv*", "__pycache__", "runs", ".mutants", "site", ".mypy_cache"
        )
        shutil.copytree(ROOT, copy, ignore=ignored)
        source = (ROOT / mutant.path).read_bytes()
        (copy / mutant.path).write_bytes(source[: mutant.begin] + mutant.new.encode() + source[mutant.end :])
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
        command = [python, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode in (1, 2)


def cover(folder: Path, words: list[str]) -> None:
    """Run the suite and keep which test executes which line."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder.resolve() / "coverage"
    environment = {**os.environ, "COVERAGE_FILE": str(data), "OMP_NUM_THREADS": "1"}
    options = ["--cov=src/unskew", "--cov-context=test", "--cov-report=", *words]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, env=environment, check=False)
    import coverage

    read = coverage.CoverageData(str(data))
    read.read()
    (folder / "python").write_text(sys.executable)
    (folder / "lines.db").unlink(missing_ok=True)
    with sqlite3.connect(folder / "lines.db") as lines:
        lines.execute("CREATE TABLE lines (path TEXT, line INT, test TEXT)")
        for path in read.measured_files():
            short = Path(path).resolve().relative_to(ROOT).as_posix()
            rows = (
                (short, n, c.split("|")[0])
                for n, tests in read.contexts_by_lineno(path).items()
                for c in tests
            )
            lines.executemany("INSERT INTO lines VALUES (?, ?, ?)", rows)
        lines.execute("CREATE INDEX places ON lines (path, line)")


def interval(killed: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share."""
    centre, spread = killed + z * z / 2, z * math.sqrt(killed * (n - killed) / n + z * z / 4)
    return (centre - spread) / (n + z * z), (centre + spread) / (n + z * z)


def draw(options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    mutants = rng.sample(candidates(), options.n)
    chosen = [[(tests_of(m, c, rng), (c / "python").read_text()) for c in options.covered] for m in mutants]

    def survives(number: int) -> bool:
        return not any(tests and fails(mutants[number], tests, python) for tests, python in chosen[number])

    survived = []
    with ThreadPoolExecutor(options.processes) as pool:
        for number, alive in enumerate(pool.map(survives, range(options.n))):
            survived += [number] if alive else []
            print(f"{number + 1:4} {'survived' if alive else 'killed'}  {mutants[number].path}", flush=True)
    rows = [{**mutants[i]._asdict(), "tests": sum(len(t) for t, _ in chosen[i])} for i in survived]
    for row in rows:
        print(
            f"{row['path']}:{row['line']}  {row['old'][:70]}  ->  {row['new'][:70]}  ({row['tests']} tests)"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    killed = options.n - len(survived)
    low, high = interval(killed, options.n)
    print(f"{killed} of {options.n} killed: {killed / options.n:.1%} (95 % interval {low:.1%} to {high:.1%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    covering = commands.add_parser("cover")
    covering.add_argument("folder", type=Path)
    drawing = commands.add_parser("draw")
    drawing.add_argument("covered", type=Path, nargs="+", help="folders that `cover` filled")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("-n", type=int, default=200)
    drawing.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    drawing.add_argument("--json", type=Path, help="write the survivors there")
    options, words = parser.parse_known_args()
    if options.command == "cover":
        cover(options.folder, words)
    else:
        draw(options)


if __name__ == "__main__":
    main()
