"""The house rules that a machine can read: which way imports run, how long files and functions are, what stays private."""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "unskew"
ROOMS = (
    {
        "version",
        "errors",
        "disk",
        "locks",
        "ram",
        "cores",
        "calls",
        "hints",
        "many",
        "failures",
        "arguments",
        "sources",
        "specs",
        "markdown",
        "documents",
        "own",
        "revision",
        "measures",
        "scores",
    },
    {"data", "models", "tasks"},
    {"core"},
    {"merge", "privacy"},
    {"methods"},
    {"config", "texts"},
    {"cluster"},
    {"engine"},
    {"attacks"},
    {"comparison"},
    {"diagnosis"},
    {"report"},
    {"tuning"},
    {"experiments"},
    {"deploy"},
    {"notebook", "predicting", "results", "loading", "api", "unskew"},
    {"cli", "__main__"},
)
"""Rooms from low to high; "unskew" is the package itself, which users import. A room imports from those below it and from
its own set, and nowhere may imports go in a circle."""
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}
PURE = ("core", "measures", "methods", "merge", "privacy")
IMPURE = {"os", "time", "random", "logging", "socket", "subprocess"}
MOST_LINES, MOST_IN_FUNCTION, MOST_PARAMETERS = 800, 50, 6
LONG_SIGNATURES = {"kernels.py", "folded.py", "columns.py"}
"""Files whose functions stand in for torch's own and take what those take."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package by its own."""
    named = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Whatever a file is made of, parsed and walked through once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imports(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return tuple(node for node in nodes(path) if isinstance(node, (ast.Import, ast.ImportFrom)))


@cache
def calls(path: Path) -> tuple[str, ...]:
    """What a file calls, as it is written there."""
    return tuple(ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call))


def imported(name: str) -> Iterator[str]:
    """The modules of the package that one imports, also inside functions and for types alone."""
    known = modules()
    for node in imports(known[name]):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in known)
        else:
            assert node.level == 0, f"{name} has a relative import"
            if node.module and node.module.split(".")[0] == "unskew":
                whole = [f"{node.module}.{a.name}" for a in node.names]
                yield from (w if w in known else node.module for w in whole)


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else "unskew"


def test_every_room_has_a_place():
    assert {room(name) for name in modules()} == set(RANK)


def test_no_import_runs_upwards():
    upwards = [
        f"{name} imports {other}"
        for name in modules()
        if name != "unskew"
        for other in imported(name)
        if RANK.get(room(other), len(ROOMS)) > RANK[room(name)]
    ]
    assert not upwards


def test_no_import_runs_in_a_circle():
    """A package's __init__ counts as itself: importing a module of it is no import of the __init__."""
    graph = {name: sorted(set(imported(name)) - {name}) for name in modules()}
    done: set[str] = set()

    def circle(name: str, way: tuple[str, ...]) -> tuple[str, ...]:
        if name in way:
            return (*way[way.index(name) :], name)
        if name in done:
            return ()
        for other in graph[name]:
            if closed := circle(other, (*way, name)):
                return closed
        done.add(name)
        return ()

    for name in graph:
        assert not circle(name, ()), " -> ".join(circle(name, ()))


def test_pure_rooms_touch_no_clock_files_or_global_randomness():
    impure = [
        f"{name} imports {top}"
        for name, path in modules().items()
        if room(name) in PURE
        for node in imports(path)
        for top in {(a.name if isinstance(node, ast.Import) else node.module or "").split(".")[0] for a in node.names}
        if top in IMPURE
    ]
    assert not impure


def test_nothing_is_unpickled_or_evaluated_and_the_seed_is_global_nowhere():
    unsafe = {"eval", "exec", "compile", "torch.load", "yaml.load", "pickle.load", "pickle.loads", "np.random.seed"}
    dangerous = [f"{name}: {call}" for name, path in modules().items() for call in calls(path) if call in unsafe]
    seeds = {name for name, path in modules().items() if "torch.manual_seed" in calls(path)}
    pickles = [name for name, path in modules().items() if "import pickle" in path.read_text()]
    assert not dangerous
    assert pickles == ["unskew.data.getting.unpickled"]  # its reader refuses every name but three, and imports none
    allowed = {"unskew.engine.resolve", "unskew.models.initial", "unskew.engine.client.dropout", "unskew.core.guarded"}
    assert seeds <= allowed, "a user's own builder, layers and hooks at the server are seeded inside fork_rng"


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in nodes(path) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_files_and_functions_are_short():
    long_files = [
        f"{p.relative_to(ROOT)}: {n}" for p in SOURCE.rglob("*.py") if (n := p.read_text().count("\n")) > MOST_LINES
    ]
    long_functions = [
        f"{path.relative_to(ROOT)}:{f.lineno} {f.name}: {length}"
        for path in SOURCE.rglob("*.py")
        for f in functions(path)
        if (length := (f.end_lineno or f.lineno) - f.lineno + 1) > MOST_IN_FUNCTION
    ]
    assert not long_files
    assert not long_functions


def parameters(f: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    listed = [a.arg for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)]
    return len(listed) - (listed[:1] in (["self"], ["cls"]))


def test_signatures_take_few_parameters():
    """Those that users call with names (`*, option=...`) may take more: nobody has to remember an order."""
    long = [
        f"{path.relative_to(ROOT)}:{f.lineno} {f.name}: {parameters(f)}"
        for path in SOURCE.rglob("*.py")
        if path.name not in LONG_SIGNATURES and "cli" not in path.parts
        for f in functions(path)
        if parameters(f) - len(f.args.kwonlyargs) > MOST_PARAMETERS
    ]
    assert not long


def test_private_names_stay_in_their_module():
    read = []
    for name, path in modules().items():
        aliases = {
            a.asname or a.name.split(".")[-1]
            for node in imports(path)
            for a in node.names
            if (node.module if isinstance(node, ast.ImportFrom) else a.name or "").split(".")[0] == "unskew"
        }
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unskew"):
                read += [
                    f"{name}: {a.name}" for a in node.names if a.name.startswith("_") and not a.name.startswith("__")
                ]
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                owner = node.value
                if isinstance(owner, ast.Name) and owner.id in aliases:
                    read.append(f"{name}: {owner.id}.{node.attr}")
    assert not read


VAGUE = {"found", "made", "told", "wanted"}


def bound(path: Path) -> Iterator[str]:
    """Names that a file binds: variables, parameters, attributes of self."""
    for node in nodes(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_names_say_what_things_are():
    vague = [f"{path.relative_to(ROOT)}: {n}" for path in SOURCE.rglob("*.py") for n in sorted({*bound(path)} & VAGUE)]
    assert not vague


COMPREHENSIONS = {"listcomp", "setcomp", "dictcomp"}


def clashes(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that one comprehension of a function binds and another one beside it takes from the module."""
    beside = [inner for inner in table.get_children() if inner.get_name() in COMPREHENSIONS]
    for one in beside:
        bound = {s.get_name() for s in one.get_symbols() if s.is_local() and not s.is_parameter()}
        for other in beside:
            taken = {s.get_name() for s in other.get_symbols() if s.is_global() and s.is_referenced()}
            yield from (f"{table.get_name()}: {name}" for name in (bound & taken if other is not one else ()))
    for inner in table.get_children():
        yield from clashes(inner)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="symtable has no comprehensions from 3.12 on")
def test_no_comprehension_binds_what_another_one_calls():
    """Python 3.12.1 looks for both in one place, so that the second ends in an UnboundLocalError: damaged rows of a run's
    files did, where they are one sentence."""
    wrong = "def f():\n    [row for row in ()]\n    return [row(x) for x in ()]\n"
    assert list(clashes(symtable.symtable(wrong, "wrong.py", "exec"))) == ["f: row"]
    paths = SOURCE.rglob("*.py")
    assert not [
        f"{path}: {c}" for path in paths for c in clashes(symtable.symtable(path.read_text(), path.name, "exec"))
    ]


def test_no_text_holds_the_marks_of_a_merge_that_stopped():
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    folders = ("docs", "src", "tests", "tools", "benchmarks", "examples")
    paths = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    texts = [path for path in paths if path.suffix in (".md", ".py", ".yaml", ".toml", ".yml")]
    assert len(texts) > 500
    assert not [path for path in texts if any(line.startswith(marks) for line in path.read_text("utf-8").splitlines())]


def test_the_version_of_the_package_is_that_of_the_code():
    from unskew.version import __version__

    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()
