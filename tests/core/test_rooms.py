"""Imports go one way, pure rooms stay pure, and randomness has a key."""

from __future__ import annotations

import ast
from pathlib import Path

import torch

from unskew.core.keys import digest, key

SOURCE = Path(__file__).parents[2] / "src" / "unskew"
RANK = {
    "errors": 0, "measures": 0, "own": 0.5, "config": 1, "data": 1, "models": 1, "tasks": 1, "core": 2, "merge": 3, "privacy": 3, "methods": 4,
    "engine": 5, "comparison": 6, "deploy": 7, "report": 7, "api": 8, "experiments": 8, "cli": 9,
}  # fmt: skip
PURE = ("core", "measures", "methods", "merge")
IMPURE = {"os", "time", "random", "logging", "socket", "subprocess"}


def imports(path: Path, top_only: bool = False):
    tree = ast.parse(path.read_text())
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names if node.module == "unskew")


def room(name: str) -> str:
    return name.split(".")[1] if name.startswith("unskew.") else ""


def test_imports_go_one_way():
    back = []
    for path in SOURCE.rglob("*.py"):
        here = path.relative_to(SOURCE).with_suffix("").parts[0]
        if here not in RANK:
            continue
        for name in imports(path, top_only=True):
            there = room(name)
            if there in RANK and there != here and RANK[there] >= RANK[here]:
                back.append(f"{path.relative_to(SOURCE)} imports {name}")
    allowed = {"api.py imports unskew.report"}  # none at the top of a module
    assert not set(back) - allowed


def test_pure_rooms_touch_no_clock_files_or_global_randomness():
    for folder in PURE:
        for path in (SOURCE / folder).rglob("*.py"):
            assert not IMPURE & {n.split(".")[0] for n in imports(path)}, path
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if path.name != "resolve.py":  # a user's own model builder is seeded inside fork_rng
            assert "torch.manual_seed(" not in text, path
        for unsafe in ("pickle", "torch.load(", "yaml.load(", "eval(", "exec("):
            if (unsafe == "eval(" and ".eval()" in text) or (unsafe == "exec(" and "exec_module(" in text):
                continue
            assert unsafe not in text.replace("allow_pickle=False", "").replace("without pickle", "").replace(
                "literal_eval(", ""
            ).replace("ever unpickled", ""), (path, unsafe)


def test_keys_depend_on_purpose_alone():
    assert torch.equal(torch.rand(3, generator=key(1, 2, "batch")), torch.rand(3, generator=key(1, 2, "batch")))
    assert len({digest(1, 2, "a"), digest(1, 2, "b"), digest(12, "a"), digest("1", 2, "a"), digest(2, 1, "a")}) == 5


def test_every_part_has_a_public_name():
    import unskew
    from unskew.methods import registry

    for name in registry.names():
        if name != "fedavg":
            kind = type(registry.parse(name).parts[0])
            assert getattr(unskew, kind.__name__) is kind
