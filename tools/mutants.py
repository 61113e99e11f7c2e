"""Change one place of the source at random and see whether the tests notice, many times.

python tools/mutants.py cover .mutants/plain
python tools/mutants.py draw --seed 7 -n 200 .mutants/plain [.mutants/flower]

The first runs the suite once with coverage, to learn which tests execute which line; the second draws.
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
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
MOST_TESTS, TIMEOUT_S = 80, 150


class Mutant(NamedTuple):
    """A node of a file, replaced by other source text."""

    path: str
    line: int
    begin: int
    end: int
    old: str
    new: str


def swapped(op: ast.operator | ast.cmpop) -> str:
    """The other operator of its pair; empty if it is in none."""
    pairs = {ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
    pairs |= {
        ast.In: "not in",
        ast.NotIn: "in",
        ast.Is: "is not",
        ast.IsNot: "is",
        ast.Add: "-",
        ast.Sub: "+",
    }
    pairs |= {ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*", ast.MatMult: "+"}
    return pairs.get(type(op), "")


def changes(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """What can be written in the place of this node or of a part of it."""
    text = ast.unparse
    match node:
        case ast.Compare(left, [op], [right]) | ast.BinOp(left, op, right) if swapped(op):
            yield node, f"(({text(left)}) {swapped(op)} ({text(right)}))"
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
    """Every change of every file, but for annotations and f-strings (their positions need Python 3.12)."""
    found = []
    for path in sorted((ROOT / "src" / "unskew").rglob("*.py")):
        source = path.read_text()
        starts = [0]
        for text in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(text.encode()))
        tree = ast.parse(source)
        for parent in ast.walk(tree):
            for field in {"annotation", "returns"} & set(parent._fields):
                setattr(parent, field, None)
            if isinstance(parent, ast.JoinedStr):
                parent.values = []
        for at, new in (change for parent in ast.walk(tree) for change in changes(parent)):
            begin = starts[at.lineno - 1] + at.col_offset
            end = starts[(at.end_lineno or 0) - 1] + (at.end_col_offset or 0)
            old = source.encode()[begin:end].decode()
            found.append(Mutant(path.relative_to(ROOT).as_posix(), at.lineno, begin, end, old, new))
    return found


def collected(python: str) -> set[str]:
    """The tests that pytest finds here; a run of any other would fail without a mutant."""
    command = [python, "-m", "pytest", "--collect-only", "-n", "0", "-m", "flower or not flower", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {line for line in done.stdout.splitlines() if "::" in line}


def tests_of(mutant: Mutant, covered: CoverageData, known: set[str], rng: random.Random) -> list[str]:
    """The tests that execute the mutant's line, or where only imports do, those that execute its file."""
    lines = covered.contexts_by_lineno(str(ROOT / mutant.path))
    names = set(lines.get(mutant.line, [])) - {""} or {name for tests in lines.values() for name in tests}
    tests = sorted({name.rpartition("|")[0] for name in names} & known)
    return tests if len(tests) <= MOST_TESTS else rng.sample(tests, MOST_TESTS)


def fails(mutant: Mutant, tests: list[str], python: str) -> bool:
    """Whether one of these tests fails in a copy of the checkout with the mutant in it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
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
        return done.returncode > 0


def cover(folder: Path, words: list[str]) -> None:
    """Run the suite and keep which test executes which line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python").write_text(sys.executable)
    environment = {**os.environ, "COVERAGE_FILE": str(folder.resolve() / "coverage"), "OMP_NUM_THREADS": "1"}
    options = ["--cov=src/unskew", "--cov-context=test", "--cov-report=", *words]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, env=environment, check=False)


def coverage_in(folder: Path) -> CoverageData:
    data = CoverageData(str(folder / "coverage"))
    data.read()
    return data


def interval(killed: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share."""
    centre, spread = killed + z * z / 2, z * math.sqrt(killed * (n - killed) / n + z * z / 4)
    return (centre - spread) / (n + z * z), (centre + spread) / (n + z * z)


def draw(options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    mutants = rng.sample(candidates(), options.n)
    covered = []
    for folder in options.covered:
        python = (folder / "python").read_text()
        covered.append((coverage_in(folder), collected(python), python))
    chosen = [[(tests_of(m, data, known, rng), python) for data, known, python in covered] for m in mutants]

    def survives(number: int) -> bool:
        return not any(tests and fails(mutants[number], tests, python) for tests, python in chosen[number])

    survived = []
    with ThreadPoolExecutor(options.processes) as pool:
        for number, alive in enumerate(pool.map(survives, range(options.n))):
            survived += [number] if alive else []
            print(f"{number + 1:4} {'survived' if alive else 'killed'}  {mutants[number].path}", flush=True)
    for m, tests in ((mutants[i], sum(len(t) for t, _ in chosen[i])) for i in survived):
        print(f"{m.path}:{m.line}  {m.old[:70]}  ->  {m.new[:70]}  ({tests} tests)")
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
    options, words = parser.parse_known_args()
    cover(options.folder, words) if options.command == "cover" else draw(options)


if __name__ == "__main__":
    main()
