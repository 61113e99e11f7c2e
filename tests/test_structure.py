"""The rules of the layout that a machine can read: which way imports run, and what is never called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "unskew"
PURE = ("core", "merge", "methods", "privacy")
SEEDED = {"unskew.core.user_parts", "unskew.round.layer_kernels", "unskew.runs.resolve"}
"""Modules that seed torch's generator, inside of fork_rng, for builders, layers and hooks of users."""
UNPICKLER = "unskew.data.downloads"
"""Its reader refuses all names but three, and imports none."""
IMPURE = {"os", "time", "random", "logging", "socket", "subprocess"}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package by its own."""
    paths = sorted(SOURCE.rglob("*.py"))
    names = (".".join(p.relative_to(SOURCE.parent).with_suffix("").parts) for p in paths)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths)}


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, also inside functions and for types alone."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules() else str(node.module) for name in names)


def folder(path: Path) -> Path:
    """The folder of a file; a file at the root of the package stands for itself."""
    return path if path.parent == SOURCE else path.parent


def circle(graph: dict[Path, set[Path]]) -> list[Path]:
    """A circle of a directed graph; empty if there is none."""
    finished: set[Path] = set()

    def search(node: Path, way: list[Path]) -> list[Path]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node not in finished:
            for other in sorted(graph.get(node, ())):
                if found := search(other, [*way, node]):
                    return found
            finished.add(node)
        return []

    return next((found for node in sorted(graph) if (found := search(node, []))), [])


def test_the_graph_of_folders_has_no_circle():
    graph: dict[Path, set[Path]] = {}
    for name, path in modules().items():
        others = {folder(modules()[to]) for to in imported(path) if to in modules() and to != name}
        graph.setdefault(folder(path), set()).update(others - {folder(path)})
    assert circle({Path("a"): {Path("b")}, Path("b"): {Path("a")}}), "the search finds circles"
    assert not circle(graph), " -> ".join(str(p.relative_to(SOURCE)) for p in circle(graph))


def test_core_knows_neither_models_nor_data():
    others = {
        other
        for name, path in modules().items()
        if name.startswith("unskew.core")
        for other in imported(path)
    }
    assert not {other for other in others if other.startswith(("unskew.models", "unskew.data"))}


def test_pure_rooms_touch_no_clock_files_or_global_randomness():
    pure = {name: path for name, path in modules().items() if {*name.split(".")[1:2]} & {*PURE}}
    tops = {(name, other.split(".")[0]) for name, path in pure.items() for other in imported(path)}
    assert not {(name, top) for name, top in tops if top in IMPURE}


def test_nothing_is_unpickled_or_evaluated_and_the_seed_is_global_nowhere():
    unsafe = {
        "eval",
        "exec",
        "compile",
        "torch.load",
        "yaml.load",
        "pickle.load",
        "pickle.loads",
        "np.random.seed",
    }
    calls = {
        (name, ast.unparse(node.func))
        for name, path in modules().items()
        for node in nodes(path)
        if isinstance(node, ast.Call)
    }
    assert not {(name, call) for name, call in calls if call in unsafe}
    assert {name for name, call in calls if call == "torch.manual_seed"} <= SEEDED
    assert {name for name, path in modules().items() if "pickle" in set(imported(path))} == {UNPICKLER}


def test_the_version_of_the_package_is_that_of_the_code():
    from unskew.version import __version__

    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()
