"""A method in a file of a user's own: named by its path, and never confused with another version."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unskew
from unskew import cli
from unskew.comparison.plan import Plan, plan_cells
from unskew.comparison.training import train_all
from unskew.config import Settings
from unskew.errors import StateError, UsageError
from unskew.methods import registry
from unskew.runs import conformance
from unskew.system import python_files

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"
TINY = {"clients": 4, "samples": 30, "rounds": 2, "epochs": 1}
TWO = """
from dataclasses import dataclass
from unskew import Part

@dataclass(frozen=True)
class One(Part):
    name = "one"

@dataclass(frozen=True)
class Two(Part):
    name = "two"
    def loss(self, w, out, b, c):
        return 0.1 * b.mean(out.features.pow(2).mean(-1))
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """my_method.py in the folder that the commands run in."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, tmp_path)
    return "my_method.py"


def refused(text: str) -> str:
    with pytest.raises(UsageError) as error:
        registry.parse(text)
    return str(error.value)


def test_a_file_is_a_part_that_writes_itself_as_it_was_named(mine):
    method = registry.parse("fedprox + my_method.py(pull=0.5)")
    assert [p.name for p in method.parts] == ["fedprox", "myproto"]
    assert str(method) == "fedprox+my_method.py(pull=0.5)"
    assert registry.parse(str(method)) == method  # the same class, so that equal parts are equal
    assert registry.parse("my_method.py:MyProto", {"myproto": {"pull": 0.5}}).parts == method.parts[1:]


def test_one_of_several_is_named_by_its_class(tmp_path):
    file = tmp_path / "two.py"
    file.write_text(TWO)
    assert registry.parse(f"{file}:Two+{file}:One").parts[0].name == "two"
    assert str(registry.parse(f"{file}:Two")) == f"{file}:Two"
    assert refused(str(file)) == f"E121 {file} defines One and Two; write {file}:One."
    assert refused(f"{file}:Tow").endswith("defines no Part 'Tow'. Did you mean 'Two'?")


def test_a_file_that_cannot_be_a_method_is_refused(tmp_path):
    file = tmp_path / "bad.py"
    for text, says in (
        ("x = 1", "E121 .*defines no subclass of unskew.Part with a name"),
        ("from unskew import Part\nclass A(Part): name = 'a'", "E121 .*write @dataclass.* above class A"),
        ("import nothing_of_that_name", "E111 .*cannot be read as Python at line 1: ModuleNotFoundError"),
        ("def f(:", "E111 .*cannot be read as Python at line 1: SyntaxError"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=says):
            registry.parse(str(file))
    assert refused(str(tmp_path / "none.py")).startswith("E111 there is no file")

    assert "has no argument 'pul'; it takes pull. Did you mean 'pull'" in refused(f"{EXAMPLE}(pul=1)")


def test_a_changed_file_is_another_run(mine):
    settings = Settings(method=f"fedprox+{mine}")
    before, first = settings.fingerprint(), registry.parse(mine)
    result = unskew.run(mine, name="r", **TINY)
    assert json.loads((result.path / "env.json").read_text())["files"] == {mine: python_files.digest(mine)}
    assert unskew.resume(result.path).digest == result.digest
    plan = plan_cells(Path("runs/c"), Plan((mine,), (0,), TINY))
    train_all(plan, 1, lambda _: None)
    Path(mine).write_text(EXAMPLE.read_text().replace("] = 0.1", "] = 0.2"))
    assert settings.fingerprint() != before
    assert registry.parse(mine) != first
    for again in (
        lambda: unskew.resume(result.path),
        lambda: plan_cells(Path("runs/c"), Plan((mine,), (0,), TINY)),
    ):
        with pytest.raises(StateError, match=f"E112 {mine} has changed since"):
            again()


def test_a_changed_module_that_a_file_imports_is_another_run(tmp_path, monkeypatch):
    """Only the file itself was looked at: with another constant beside it, the old run was the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("strengths.py").write_text("from layers_of import deep\n\nMU = 0.1\n")
    Path("layers_of").mkdir()
    Path("layers_of/__init__.py").write_text("")
    Path("layers_of/deep.py").write_text("from . import deeper\n")
    Path("layers_of/deeper.py").write_text("from strengths import MU\n")  # in a circle
    Path("random.py").write_text("")  # Python's own is what an import finds
    file = (
        "import random\nfrom strengths import MU\nfrom unskew import Part\nfrom dataclasses import"
        " dataclass\n"
    )
    Path("pulled_by.py").write_text(file + "@dataclass(frozen=True)\nclass A(Part):\n    name = 'a'\n")
    imported = {"strengths.py", "layers_of/__init__.py", "layers_of/deep.py", "layers_of/deeper.py"}
    assert {str(m) for m in python_files.imported_files(Path("pulled_by.py"))} == imported
    settings = Settings(method="pulled_by.py")
    assert {*settings.files()} == {"pulled_by.py", *(f"{m} (imported by pulled_by.py)" for m in imported)}
    before = settings.fingerprint()
    Path("layers_of/deeper.py").write_text("MU = 0.2\n")
    assert settings.fingerprint() != before


def test_a_module_that_changed_is_read_anew(tmp_path, monkeypatch):
    """Python would go on with the old one, and with what imports it, under the digest of the new one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("inner_of.py").write_text("MU = 1\n")
    Path("outer_of.py").write_text("from inner_of import MU\n")
    Path("reads_both.py").write_text("from outer_of import MU\n")
    first = python_files.import_file("reads_both.py")
    outer = sys.modules["outer_of"]
    assert (first.MU, python_files.import_file("reads_both.py").MU) == (1, 1)
    assert sys.modules["outer_of"] is outer  # nothing changed, so that nothing is read again
    Path("inner_of.py").write_text("MU = 22\n")
    assert python_files.import_file("reads_both.py").MU == 22


def test_it_is_compared_and_explained(mine):
    def run(*words: str) -> str:
        done = CliRunner().invoke(cli.app(), words)
        assert done.exit_code == 0, done.output
        return done.output

    explained = run("explain", mine)
    assert "myproto/sums" in explained
    assert f"`unskew run {mine}`" in explained
    assert "unskew run myproto" not in explained
    options = [f"--{n}={v}" for n, v in TINY.items()]
    told = json.loads(
        run("compare", "fedavg", f"{mine}(pull=1.0)", *options, "--seeds=1", "--no-references", "--json")
    )
    assert {r["method"] for r in told["rows"]} == {"fedavg", f"{mine}(pull=1.0)"}


SETTINGS = """
from dataclasses import dataclass, field
from unskew import Part

@dataclass(frozen=True)
class Own(Part):
    title: str = "a"
    layers: list[int] = field(default_factory=lambda: [1, 2])
    weights_of: dict = field(default_factory=dict)
    name = "own"
"""


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        ("(title='a,b')", "(title='a,b')"),
        ("(title='None', layers=[3])", "(title='None', layers=[3])"),
        ("(title=b, layers=[1, 2], weights_of={'x': 1})", "(title=b, weights_of={'x': 1})"),
        ("(title=a, weights_of={})", ""),
    ],
)
def test_what_a_method_is_written_as_is_read_back(tmp_path, monkeypatch, given, kept):
    """Text with a comma, or one that looks like a number, was written without its quotes, and no run with it
    could begin; a default that a factory makes counted as set."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(SETTINGS)
    method = registry.parse(f"own.py{given}")
    assert str(method) == f"own.py{kept}"
    assert registry.parse(str(method)) == method


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("krum", r"unknown method 'krum'\. Did you mean 'multi_krum'\?"),
        ("fedprox, scaffold", r"Parts are joined by '\+': fedprox\+scaffold\."),
        ("fed", "unknown method 'fed'"),
    ],
)
def test_a_method_that_was_nearly_named_is_suggested(written, told):
    """A piece of a name was near to none, and of two methods with a comma the last was suggested."""
    with pytest.raises(UsageError, match=f"E102 .*{told}"):
        registry.parse(written)


EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"


def test_an_installed_method_is_listed_checked_and_combined(installed):
    assert "class means" in registry.names()["myproto"]
    (theirs,) = registry.parse("myproto(pull=0.5)").parts
    checks = [conformance.shares_only_what_it_declares, conformance.changes_nothing_with_neutral_settings]
    found = list(conformance.check_method(theirs, checks))
    assert not [f"{f.name}: {f.detail}" for f in found if not f.ok]
    conformance.train_run(registry.parse("myproto+scaffold+flea"), rounds=2)


def test_without_the_package_its_name_is_unknown():
    registry.installed.cache_clear()
    with pytest.raises(UsageError, match="unknown method 'myproto'"):
        registry.parse("myproto")


@pytest.mark.usefixtures("installed")
def test_a_package_that_cannot_be_imported_is_named_and_hides_no_other_method(tmp_path):
    """Every command that knows methods by name ended as an unexpected error, `unskew list methods` too."""
    (tmp_path / "their_package.py").write_text("import not_installed_here\n")
    sys.modules.pop("their_package", None)
    text = (
        "the installed method 'myproto' (their_package:MyProto) cannot be imported: ModuleNotFoundError: No"
        " module"
    )
    with pytest.raises(UsageError) as caught:
        registry.parse("myproto")
    assert (caught.value.code, caught.value.text[: len(text)]) == ("E111", text)
    assert caught.value.text.endswith("'not_installed_here'; mend its package, or install it again.")
    assert registry.names()["myproto"].startswith(text)
    assert registry.names()["fedprox"]
