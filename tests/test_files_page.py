"""docs/files.md tells of every file of a run and of a comparison, and of every field."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typing_extensions
from safetensors import safe_open

import unskew
from tests.cli.calling import call
from unskew.deploy import site_files
from unskew.engine.disk import findings, shapes
from unskew.report.summary import Gap, MethodSummary
from unskew.report.terms import Terms

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "files.md").read_text()
SMALL = {"clients": 3, "samples": 20, "rounds": 1, "epochs": 1, "workers": 1}
ELSEWHERE = {"Curve", "Sheet", "Line", "Plot", "Drawn", "Asked"}
"""What the report draws of an attack, which the page does not take apart, and settings."""
OWN = re.compile(r"r\d{6}\.safetensors|METHOD--sSEED")


def untold(names: Any) -> list[str]:
    """Those that the page names nowhere as code."""
    words = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"[\w.]+", code)}
    return sorted(set(names) - words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run, and a comparison of two methods."""
    folder = tmp_path_factory.mktemp("files")
    kept = {"keep_best": True, "measure": "calibration", "folder": folder, **SMALL}
    unskew.run("scaffold+fedrdn", "digits", name="run", **kept)
    unskew.run("fedavg", "diabetes", name="regression", folder=folder, **SMALL)
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    more = ["--seeds=1", "--processes=1", "--no-references", f"--folder={folder}", "--name=comparison"]
    assert call("compare", "fedavg", "--data=digits", *options, *more).code == 0
    return folder


def test_every_file_of_a_run_and_of_a_comparison_is_on_the_page(folder):
    files = {path.name for path in folder.rglob("*") if path.is_file() and not OWN.fullmatch(path.name)}
    assert {"model.safetensors", "best.safetensors", "compare.json", "index.jsonl", "wanted.yaml"} <= files
    assert untold(files) == []


def test_every_field_of_these_files_is_on_the_page(folder):
    read: set[str] = set()
    for path in folder.rglob("*.json*"):
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        read |= {name for text in texts for name in fields(json.loads(text))}
    assert {"ece", "center", "asked", "guarantee", "leads"} <= read
    assert untold(name for name in read if not name.isdigit()) == []


def fields(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from fields(inner)


def test_every_field_that_a_reader_checks_is_on_the_page():
    every = [*vars(shapes).values(), *vars(findings).values()]
    forms = [form for form in every if typing_extensions.is_typeddict(form) and form.__module__.startswith("unskew.")]
    names = {name for form in forms if form.__name__ not in ELSEWHERE for name in form.__annotations__}
    assert {"hands_on", "encoded", "overconfidence"} <= names
    assert untold(name for name in names if not name.startswith("__")) == []


def test_every_field_of_a_comparisons_row_is_on_the_page():
    names = {field.name for form in (MethodSummary, Gap, Terms) for field in dataclasses.fields(form)}
    assert "rounds_to" in names
    assert untold(names) == []


def test_the_facts_of_a_model_are_those_of_the_page(folder):
    with safe_open(folder / "run" / "model.safetensors", "numpy") as file:
        (name,) = file.metadata()
        facts = json.loads(json.loads(file.metadata()[name])[1])
    assert untold([name, *facts, *facts["inputs"]]) == []
    settings = {name for name in unskew.Settings.__dataclass_fields__ if name not in ("model", "method")}
    assert not settings & set(facts)


def test_what_a_site_keeps_of_a_run_is_told():
    page = (DOCS / "deploy.md").read_text()
    kept = {value for name, value in vars(site_files).items() if name.isupper() and isinstance(value, str)}
    assert len(kept) == 6
    assert [name for name in kept if f"`{name}`" not in page] == []
