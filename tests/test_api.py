"""The package as a user at a prompt, in an editor or in a notebook meets it."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import partial
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

import unskew
from unskew.config import CompareOptions, RunOptions, Settings
from unskew.errors import UsageError
from unskew.formats import documents
from unskew.runs import conformance

PACKAGE = Path(unskew.__file__).parent
ROOT = Path(__file__).parents[1]
PUBLIC = """
    Batch Callback Client Comparison Diagnosis EarlyStopping Fed KeepBest Method Noise Part Progress Replied Reproduction
    Result Settings Share Trip UnskewError Ups compare data diagnose load methods models reproduce resume run __version__
"""
"""The names that users import, beside the classes of methods: change this list only as docs/versioning.md
says."""
MODULES = {"dp-accounting": "dp_accounting", "mlflow-skinny": "mlflow"}
"""What a distribution's module is called where it is not called like the distribution."""


def test_what_type_checkers_see_is_what_the_package_gives():
    """U2: the public names were `Any` to a type checker, and the package said nothing of its types."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    seen = {alias.asname: n.module for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    assert {name: home for name, home in seen.items() if home != "unskew"} == unskew._HOMES
    assert {name for name, home in seen.items() if home == "unskew"} == set(unskew._ROOMS)
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize(
    ("options", "own"),
    [
        (RunOptions, {"method", "data", "model", "metrics", "loss"}),
        (CompareOptions, {"method", "data", "model", "metrics", "loss", "seed"}),
    ],
)
def test_editors_know_the_settings_as_keywords(options, own):
    """own: the settings that are named parameters, or that a comparison has several of."""
    typed, settings = get_type_hints(options), get_type_hints(Settings)
    assert typed.keys() == settings.keys() - own
    for name, hint in typed.items():
        assert hint == settings[name] or settings[name] in get_args(hint), name


def test_the_package_lists_what_it_has():
    """U2: `dir(unskew)` was empty."""
    assert not {"sys", "annotations", "registry", "storage", "__all__"} & set(dir(unskew.data))
    assert {"arrays", "read", "take", "Dataset"} <= set(dir(unskew.data))
    assert {"run", "compare", "Result", "Part", "FLea", "data", "__version__"} <= set(dir(unskew))
    assert all(getattr(unskew, name) is not None for name in dir(unskew))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    where = tmp_path_factory.mktemp("api")
    return unskew.run(
        "fedavg", conformance.small_federation(), rounds=1, epochs=1, workers=1, name="mine", folder=where
    )


def test_a_result_shows_itself_in_a_line_and_in_a_notebook_as_its_table(result):
    """U2: its repr was 28 kB of tensors."""
    last = result.scores()["last"]
    assert repr(result) == f"<Result of fedavg: accuracy {last:.1%} after 1 rounds, kept in {result.path}>"
    assert result._repr_html_() == f"<pre>{result.table()}</pre>"
    result.settings.__dict__["seed"] = "<b>"
    assert "seed &lt;b&gt;" in result._repr_html_()


def test_the_public_names_are_frozen():
    assert {*unskew._HOMES, *unskew._ROOMS, "__version__"} == set(PUBLIC.split())


BOUND = {"click": "of its later versions the Typer that Flower pins loses the help of arguments"}
"""Packages of an extra that is there for their version alone, and why."""


def test_every_extra_is_imported_somewhere():
    """Eight extras were promised, and five were imported nowhere."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    for extra, packages in project["optional-dependencies"].items():
        for package in packages if extra not in ("dev", "docs") else ():
            name = re.split(r"[<>=\[ ]", package)[0]
            if name in BOUND:
                continue
            module = re.escape(MODULES.get(name, name))
            imports = rf'(import|from) {module}\b|(import_module|package)\("{module}[".]'
            assert re.search(imports, code), f"nothing imports {name} of the extra [{extra}]"


def test_the_citation_names_this_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = documents.load((ROOT / "CITATION.cff").read_text(), "CITATION.cff", "E111")
    assert citation["version"] == project["version"] == unskew.__version__
    assert citation["license"] == project["license"]


@pytest.mark.parametrize(
    ("methods", "options", "told"),
    [
        (["fedavg"], {"seed": 3}, r"compare takes seeds, such as seeds=\[3\], and no seed"),
        (["fedavg"], {"method": "fedprox"}, r"compare takes methods, such as methods=\['fedprox'\]"),
        ([], {}, "at least one method"),
    ],
)
def test_what_a_comparison_would_not_read_is_refused(tmp_path, methods, options, told):
    """`seed=3` trained seed 0, and an empty list of methods the references alone."""
    with pytest.raises(UsageError, match=f"E109 .*{told}"):
        unskew.compare(methods, "digits", name="c", folder=tmp_path, seeds=1, rounds=1, **options)
    assert not [*tmp_path.iterdir()]


def test_a_page_is_written_where_it_was_asked_for_or_refused_in_a_sentence(result, tmp_path):
    """A missing folder, or one in the file's place, was told with the name of a file nobody asked for."""
    assert result.report(tmp_path / "new" / "page.html").is_file()
    with pytest.raises(UsageError, match=r"E161 .*new is a folder; name a file"):
        result.report(tmp_path / "new")
    with pytest.raises(UsageError, match=r"E161 .*cannot be written: .*page.html is no folder; name another"):
        result.report(tmp_path / "new" / "page.html" / "page.html")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["page.html"]


@pytest.mark.parametrize("call", [unskew.run, partial(unskew.compare, ["fedavg"], references=False)])
def test_a_warning_about_data_names_the_line_of_the_call(tmp_path, monkeypatch, call):
    monkeypatch.setattr("unskew.comparison.training.train_all", lambda *_: None)
    x, y = np.random.default_rng(0).normal(size=(100, 5)).astype(np.float32), (np.arange(100) > 95) * 1
    few = {"clients": 2, "skew": "iid", "rounds": 1, "epochs": 1, "progress": False, "folder": tmp_path}
    with pytest.warns(UserWarning, match="of class '0'") as seen:
        call(data=(x, y), **few)
    assert {Path(warning.filename) for warning in seen} == {Path(__file__)}
