"""What there is, the documentation tells: every extra, target, figure, key of a policy, attack, measure, metric, tracker and hook."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import unskew
from unskew import arguments, measures, scores, texts
from unskew.attacks import catalogue
from unskew.data import page, registry
from unskew.data.intake import tables
from unskew.deploy.policy import Policy

ROOT = Path(__file__).parents[1]
HERE_ALONE = {"UNSKEW_SITE_SOCKET", "UNSKEW_TASK"}
"""Variables that processes of ours set for each other."""


def untold(page: str, names: Iterable[str]) -> list[str]:
    """Those that a page names nowhere as code."""
    code = re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())
    words = {word for text in code for word in re.findall(r"[\w-]+", text)} | set(code)
    return sorted(set(names) - words)


def test_every_extra_and_every_variable_is_on_the_page_of_installation():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    variables = {name for text in texts for name in re.findall(r"UNSKEW_[A-Z_]+", text)} - HERE_ALONE
    assert {"UNSKEW_DATA", "UNSKEW_SCRATCH"} <= variables
    assert untold("docs/install.md", [*extras, *variables]) == []


def test_every_target_of_the_makefile_is_told():
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M)
    assert len(set(targets)) > 15
    assert untold("CONTRIBUTING.md", {f"make {name}" for name in targets}) == []


def test_every_figure_for_prometheus_is_told():
    made = [path.read_text() for path in (ROOT / "src/unskew/deploy/metrics").glob("*.py")]
    found = [pair for text in made for pair in re.findall(r"\b(gauge|counter)\(\"([a-z_]+)\"", text)]
    assert len(found) > 20
    named = set(re.findall(r"unskew_[a-z_]+", (ROOT / "docs/deploy.md").read_text()))
    assert {f"unskew_{name}{'_total' * (kind == 'counter')}" for kind, name in found} - named == set()


def test_every_key_of_a_policy_is_told():
    assert untold("docs/deploy.md", [field.name for field in dataclasses.fields(Policy)]) == []


def test_every_attack_measure_metric_and_tracker_is_told():
    assert untold("docs/privacy.md", catalogue.names()) == []
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/measures.md").read_text(), re.M)
    assert set(measures.NAMES) - set(headings) == set()
    assert untold("docs/metrics.md", scores.METRICS) == []
    assert untold("docs/callbacks.md", texts.TRACKERS) == []


def test_every_reader_of_data_of_ones_own_is_told():
    readers = {reader for reader, _ in registry.FILES.values()}
    assert len(readers) > 2
    assert readers <= {*page.READERS.values()}
    takes = [{argument.name for argument in arguments.of(reader)} for reader in (tables.csv_set, tables.csv_pair)]
    assert takes[0] == takes[1]  # so that one row stands for both
    assert untold("docs/data-sets.md", {a.name for reader in page.READERS.values() for a in arguments.of(reader)}) == []


def test_every_hook_of_a_callback_and_what_it_is_told_is_on_the_page():
    hooks = [name for name, value in vars(unskew.Callback).items() if callable(value) and not name.startswith("_")]
    told = [name for name in vars(unskew.Progress) if not name.startswith("_")]
    assert {"evaluated", "main_score"} <= {*hooks, *told}
    assert untold("docs/callbacks.md", [*hooks, *told]) == []


def test_every_family_of_the_campaign_is_told():
    sources = [path.read_text() for path in (ROOT / "tests/campaign").rglob("*.py")]
    families = [name for text in sources for name in re.findall(r"^FAMILY = \"(\w+)\"", text, re.M)]
    assert len(families) == 8
    assert untold("docs/deploy.md", families) == []
