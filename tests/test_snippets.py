"""What the documentation tells readers to type works: commands are parsed, and those that are cheap are run,
as is all Python.

Runs are made smaller: one round, few samples. `make test` follows a part of the pages; `make matrix` follows
all, and also runs commands that take seconds.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from torch import nn

import unskew
from tests.cli.calling import call
from tests.samples import EVERYTHING, a_part_of
from tests.snippets import Snippet, every_command, snippets
from tools import pages
from unskew import cli
from unskew.config import Settings
from unskew.experiments.files import parse_experiment
from unskew.formats import documents

PAGES = ["README.md", *map(pages.in_repository, pages.kept_pages())]
READ_ONLY = {
    "docs/commands.md": "usage lines, made from the commands themselves",
    "benchmarks/README.md": "takes minutes, in environments of its own",
    "docs/deploy.md": "a federation of real processes: tests/federation/test_first_round.py follows it",
    "docs/guides/language-models.md": "needs the extra [hf]; tests/models/test_hf.py trains as it says",
    "docs/measures.md": "measures whole runs; tests/runs/test_measure.py takes every measure",
    "docs/privacy.md": "attacks whole runs; tests/attacks makes every attack",
    "docs/reproduce.md": "published tables take hours; tests/experiments runs small ones",
}
"""Pages with code of which only the commands are parsed, and why. Those of docs/results are all like
docs/reproduce.md."""
RUN = [
    page
    for page in PAGES
    if page not in READ_ONLY and "/results/" not in page
    and any(s.commands or s.kind == "python" for s in snippets(pages.ROOT / page))
]  # fmt: skip
SMALLER = {
    "run": "--rounds 1 --epochs 1 --workers 1 --samples 8",
    "compare": "--rounds 1 --epochs 1 --seeds 1 --processes 1 --samples 8 --no-references",
}
"""What is added to commands: the last of two equal options counts."""
COSTLY = (
    "compare",
    "check",
    "diagnose",
    "attack",
    "report",
    "watch",
    "resume",
    "explain",
    "export",
)
"""Commands that take seconds, or read what one of them has written."""
ELSEWHERE = {
    "serve",
    "join",
    "attach",
    "federation",
    "site",
    "audit",
    "--on",
    "reproduce",
    "onnx",
    "get",
    "cifar10",
}
"""Words of commands that are tested elsewhere: those of a federation, published tables, and what needs an
extra or an archive."""


@cache
def command_line() -> Any:
    return typer.main.get_command(cli.app())


def parsed(words: list[str]) -> None:
    """Read a command as the command line does, without running it. Raises click's errors."""
    context = command_line().make_context("unskew", list(words))
    while hasattr(context.command, "commands"):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != "docs/commands.md" and every_command(pages.ROOT / page)]
)
def test_every_command_exists_with_its_options(page):
    for words in every_command(pages.ROOT / page):
        try:
            parsed(words)
        except Exception as error:
            pytest.fail(f"unskew {' '.join(words)}: {error}")


def test_a_command_that_does_not_exist_is_noticed():
    parsed(["run", "fedavg", "--rounds", "3"])
    for wrong in (["rum"], ["run", "--round", "3"], ["federation", "admits"], ["predict"]):
        with pytest.raises(Exception, match=r"No such|Missing"):
            parsed(wrong)


def test_pages_that_are_only_read_are_still_there():
    assert all((pages.ROOT / page).is_file() for page in READ_ONLY)


@pytest.fixture(scope="module")
def a_run(tmp_path_factory) -> Path:
    """The folder of a finished run of a table."""
    folder = tmp_path_factory.mktemp("finished")
    write_table(folder)
    few = {"rounds": 1, "epochs": 1, "workers": 1, "keep_best": True, "folder": folder}
    unskew.run("fedavg", f"{folder / 'patients.csv'}(site=hospital)", name="my-run", **few)
    return folder / "my-run"


def write_table(folder: Path) -> None:
    """patients.csv and new.csv."""
    values = np.random.default_rng(0).normal(size=(60, 2))
    rows = [
        f"{'abc'[i % 3]},{v[0]:.3f},{v[1]:.3f},{'no' if v[0] < 0 else 'yes'}" for i, v in enumerate(values)
    ]
    (folder / "patients.csv").write_text("\n".join(["hospital,pressure,pulse,diagnosis", *rows]))
    (folder / "new.csv").write_text("pressure,pulse\n1.5,0.5\n-0.5,1.5\n")


@pytest.fixture
def reader(tmp_path, monkeypatch, a_run) -> Path:
    """The folder of a reader: it holds what pages take for granted."""
    (tmp_path / "examples").mkdir()
    for name in ("my_method.py", "demo.yaml"):
        (tmp_path / "examples" / name).write_text((pages.ROOT / "examples" / name).read_text())
    write_table(tmp_path)
    shutil.copytree(a_run, tmp_path / "runs" / "my-run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNSKEW_DATA", raising=False)  # nobody's sets are touched
    for name, more in (
        ("run", {"workers": 1}),
        ("compare", {"processes": 1, "seeds": 1, "references": False}),
    ):
        monkeypatch.setattr(unskew, name, _smaller(getattr(unskew, name), more), raising=False)
    return tmp_path


def _smaller(function: Any, more: dict[str, Any]) -> Any:
    def called(method: Any, *data: Any, **settings: Any) -> Any:
        few = {} if data and not isinstance(data[0], str) else {"samples": 8, "clients": 3}
        return function(method, *data, **{**settings, **few, **more, "rounds": 1, "epochs": 1})

    return called


def names(page: str) -> dict[str, Any]:
    """What snippets of Python take for granted beside files: samples and a model."""
    x = np.random.default_rng(0).random((60, 1, 4, 4)).astype(np.float32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    if page == "docs/using.md":
        x = x[:, 0, 0, :2]  # as the columns of the run there
        return {"x": x}
    return {"x": x, "y": (x[:, 0, 0, 0] > 0.5).astype(int), "site": np.arange(60) % 3, "my_module": model}


def follow(snippet: Snippet, known: dict[str, Any], folder: Path) -> None:
    """Do what a reader does with a block: save it, run it, or type its commands."""
    if snippet.file:
        (folder / snippet.file).write_text(snippet.text)
    elif snippet.kind == "python":
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(snippet.text, "snippet", "exec"), known)
    for words in snippet.commands:
        if ELSEWHERE & set(words) or (words[0] in COSTLY and not EVERYTHING):
            continue
        more = "" if "--dry-run" in words else SMALLER.get(words[0], "")
        done = call(*words, *more.split(), cwd=folder)
        assert done.code == 0, f"unskew {' '.join(words)}: {done.text}"


@pytest.mark.parametrize(
    "page", a_part_of(RUN, 2, always=["docs/tutorial.md", "docs/using.md", "docs/data.md"])
)
def test_a_reader_can_follow_the_page(page, reader):
    known = names(page)
    for snippet in snippets(pages.ROOT / page):
        if not snippet.why:
            follow(snippet, known, reader)


def test_every_study_and_table_is_read():
    """Keys of a study are settings; an experiment has what an experiment needs."""
    found = 0
    for page in PAGES:
        for snippet in snippets(pages.ROOT / page):
            if snippet.kind == "toml":
                assert tomllib.loads(snippet.text)
            if snippet.kind == "yaml" and "\nmethods:" in snippet.text:
                assert parse_experiment("mine", snippet.text)
            elif snippet.kind == "yaml":
                read = documents.load(snippet.text, page, "E111")
                assert set(read) <= set(Settings.__dataclass_fields__), page
            found += snippet.kind in ("toml", "yaml")
    assert found > 3
