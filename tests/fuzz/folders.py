"""Run folders of a stranger: one value of one file is another, a key or a row is gone, or a row stands twice.

Reading such a folder ends right, or in one sentence.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.cli.calling import Called, call

ROWS = ("metrics.jsonl", "ledger.jsonl", "events.jsonl")
FACTS = ("federation.json", "measures.json", "privacy.json", "env.json", "config.yaml")
OF_COMPARISONS = ("compare.yaml", "compare.json", "tuning.json")
ODD: tuple[Any, ...] = (
    None, True, [], {}, "", "text", "x" * 5000, "<script>alert(1)</script>", "\x1b[31m\u202e", "eJw=",
    -1, 0, 1, 3.5, -7e300, 1e308, 10**8, 5 * 10**9, 2**53, 10**30, float("nan"), float("inf"),
    [1, 2], ["text"], [None], [[0]], {"sum": 1},
)  # fmt: skip
"""What may stand for a value."""


def templates(folder: Path, data: Path) -> list[Path]:
    """Runs with measures and with epsilon, and a comparison."""
    folder.mkdir(parents=True)
    shared = ["--data", str(data), "--clients", "4", "--skew", "dirichlet:0.5", "--model", "mlp"]
    shared += ["--epochs", "1", "--workers", "1"]
    measures = ("--set", "measure=confusion,diversity,histograms")
    for name, method, *options in (
        ("r", "flea", "--rounds", "2", *measures),
        ("p", "feddpms", "--rounds", "1"),
    ):
        run = call("run", method, *shared, *options, "--name", name, cwd=folder)
        assert not run.code, run.text
    assert (folder / "runs" / "p" / "privacy.json").exists()
    more = ["--rounds", "2", "--seeds", "2", "--no-references", "--tune", "2", "--name", "c"]
    compared = call("compare", "fedprox", *shared, *more, cwd=folder)
    assert not compared.code, compared.text
    return [folder / "runs" / name for name in ("r", "p", "c")]


def altered(template: Path, rng: random.Random, place: Path) -> tuple[str, Called]:
    """Alter one value in a copy of a run or comparison, and read it by some command. Returns what was done,
    and how it ended."""
    there = place / template.name
    shutil.copytree(template, there)
    file = rng.choice(files(there))
    what = _alter(file, rng)
    arguments = rng.choice(commands(there, place))
    return f"{file.relative_to(place)}: {what}; {arguments[0]}", call(*arguments, cwd=place)


def files(there: Path) -> list[Path]:
    return sorted(path for path in there.rglob("*") if path.name in (*ROWS, *FACTS, *OF_COMPARISONS))


def commands(there: Path, place: Path) -> list[tuple[str, ...]]:
    """The commands that read such a folder."""
    both = [("report", str(there)), ("watch", str(there), "--once")]
    if (there / "compare.yaml").exists():
        plan = str(there / "compare.yaml")
        return [*both, ("resume", str(there)), ("compare", "fedavg", "--config", plan, "--dry-run")]
    out = str(place / "out")
    return [
        *both * 3,
        ("export", str(there), out),
        ("resume", str(there)),
        ("predict", str(there), str(place.parent / "default.npz")),
        ("attack", str(there), "labels"),
        ("run", str(there / "config.yaml"), "--dry-run"),
    ]


def _alter(file: Path, rng: random.Random) -> str:
    if file.suffix == ".jsonl":
        lines = file.read_text().splitlines()
        i = rng.randrange(len(lines)) if lines else 0
        how = rng.choice(["value"] * 8 + ["drop", "twice", "cut", "text"])
        match how if lines else "text":
            case "value":
                row = json.loads(lines[i])
                how = _replace(row, rng)
                lines[i] = json.dumps(row)
            case "drop":
                del lines[i]
            case "twice":
                lines.insert(i, lines[i])
            case "cut":
                lines[i] = lines[i][: rng.randrange(len(lines[i]))]
            case _:
                lines.insert(i, rng.choice(["[]", "3", "null", "{}", "not JSON", '"text"', "[" * 100_000]))
        file.write_text("".join(line + "\n" for line in lines))
        return f"line {i + 1}, {how}"
    read: Callable[[str], Any] = json.loads if file.suffix == ".json" else yaml.safe_load
    content = read(file.read_text())
    how = _replace(content, rng)
    file.write_text(json.dumps(content) if file.suffix == ".json" else yaml.safe_dump(content))
    return how


def _replace(content: Any, rng: random.Random) -> str:
    """Replace a value somewhere in nested lists and mappings, or take it out."""
    path, inner = [], content
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        if not keys:
            return "nothing"
        key = rng.choice(keys)
        path.append(str(key))
        if not isinstance(inner[key], dict | list) or not inner[key] or rng.random() < 0.3:
            break
        inner = inner[key]
    if rng.random() < 0.15:
        del inner[key]
        return f"without {'.'.join(path)}"
    inner[key] = copy.deepcopy(rng.choice(ODD))
    return f"{'.'.join(path)} = {inner[key]!r:.40}"
