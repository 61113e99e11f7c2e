"""A document may come from anybody: a command imports no Python file because one names it, only those the
user names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unskew
from tests.attacks.test_code import METHOD, METRIC, MODEL
from tests.cli.calling import call
from unskew.config import build
from unskew.errors import UsageError
from unskew.system import python_files

SMALL = {"clients": 2, "samples": 30, "rounds": 1, "epochs": 1, "skew": "iid", "workers": 1}
NAMES = {"method": "{}/method.py", "model": "{}/model.py:make", "metrics": "auroc,{}/metrics.py:share"}
TEXTS = {"method": METHOD, "model": MODEL, "metrics": METRIC}


@pytest.fixture(params=NAMES)
def foreign(request, tmp_path):
    """A setting that names a Python file, its text, and what that file leaves behind when it is imported."""
    setting = request.param
    (tmp_path / f"{setting}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n{TEXTS[setting]}")
    return setting, NAMES[setting].format(tmp_path), tmp_path / "mark"


def test_a_file_of_settings_has_nothing_imported(foreign, tmp_path):
    setting, text, mark = foreign
    document = tmp_path / "study.yaml"
    document.write_text(json.dumps(SMALL | {setting: text}))
    for command in (["run", str(document)], ["run", "--config", str(document), "--dry-run"]):
        refused = call(*command, cwd=tmp_path)
        assert (refused.code, refused.err[:4]) == (2, "E506"), refused.text
        assert not mark.exists()
    named = [text] if setting == "method" else [f"--{setting}={text}"]
    assert call("run", *named, "--config", str(document), "--dry-run", cwd=tmp_path).code == 0
    assert mark.exists()


@pytest.mark.parametrize(
    "place", ["model.py.yaml", "model.pytorch/s.yaml", "model.py+b/s.yaml", "model.py,1/s.yaml"]
)
def test_the_name_of_a_document_names_no_file(tmp_path, monkeypatch, place):
    """Who made a document chose its name, too: study.py.yaml comes with a study.py that it names."""
    document, mark = tmp_path / place, tmp_path / "mark"
    (tmp_path / "model.py").write_text(f"open({str(mark)!r}, 'w')\n{MODEL}")
    document.parent.mkdir(exist_ok=True)
    document.write_text(json.dumps(SMALL | {"model": "model.py:make"}))
    for typed in (str(document), f"--config={document}", place, f"--config={place}"):
        refused = call("run", typed, "--dry-run", cwd=tmp_path)
        assert (refused.code, refused.err[:4]) == (2, "E506"), refused.text
    monkeypatch.chdir(tmp_path)
    for folder in ("r.py,1", "scans,r.py"):
        (tmp_path / folder).mkdir()
    (tmp_path / "r.py").write_text("x = 1\n")
    for typed in (
        "r.py,1",
        "scans,r.py",
        "--folder=r.py,1",
        "r.py,1/s.yaml",
        "r.py,1(size=8)",
        "r.py.yaml",
        "a+r.py/s.yaml",
    ):
        with python_files.restrict(typed), pytest.raises(UsageError, match="E506"):
            python_files.import_file(tmp_path / "r.py")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("typed", "file"),
    [
        ("net.py:make", "net.py"),
        ("net.py:make(width=3)", "sub/../net.py"),
        ("fedprox(mu=0.1)+net.py:Part(a=1)", "net.py"),
        ("a+b/net.py:make", "a+b/net.py"),
        ("a (1)/net.py:load", "a (1)/net.py"),
        ("--model=net.py:make(width=3)", "net.py"),
        ("--set=loss=net.py:loss", "net.py"),
        ("--metrics=auroc,net.py:cost", "net.py"),
    ],
)
def test_what_the_user_typed_names_its_file_and_no_other(tmp_path, monkeypatch, typed, file):
    monkeypatch.chdir(tmp_path)
    for place in {file, "other/net.py"}:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text("x = 1\n")
    (tmp_path / "sub").mkdir(exist_ok=True)
    with python_files.restrict("fedavg", typed):
        assert python_files.import_file(file).x == 1
        with pytest.raises(UsageError, match=r"^E506 other/net\.py is named in a document"):
            python_files.import_file("other/net.py")
    assert python_files.import_file("other/net.py").x == 1


def test_a_call_imports_the_files_that_its_arguments_name_and_no_other(tmp_path, monkeypatch):
    """Calls in Python imported any file; only those that read a run's folder did as commands do."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py", "theirs.py"):
        Path(name).write_text("x = 1\n")

    @python_files.restricted
    def function(file, *, data=None, **options):
        return python_files.import_file(file)

    theirs = Path("theirs.py")  # a document names it
    for words in ({"model": "mine.py:make"}, {"set": {"a": ["b", "mine.py"]}}):
        assert python_files.restricted(lambda **words: python_files.import_file("mine.py"))(**words).x == 1
        with pytest.raises(UsageError, match=r"^E506 theirs\.py"):
            python_files.restricted(lambda **words: python_files.import_file(theirs))(**words)
    with python_files.restrict("mine.py"):  # a callback or a model of the user's calls
        assert function("theirs.py").x == 1
        with pytest.raises(UsageError, match="E506"):
            python_files.import_file(theirs)
    assert function(Path("mine.py"), data=[["theirs.py"]]).x == 1


@pytest.mark.parametrize("name", ["run", "compare", "resume", "load", "diagnose", "reproduce"])
def test_every_function_that_reads_documents_is_restricted(name, monkeypatch):
    """`restrict` is entered before anything else of the function is done."""
    entered = []
    monkeypatch.setattr(python_files, "restrict", lambda *texts, **_: entered.append(texts) or pytest.fail)
    with pytest.raises(TypeError, match="context manager"):
        getattr(unskew, name)("no-such-thing")
    assert entered == [("no-such-thing",)]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, {}),
        ({"method": "fedprox+a/m.py:Part(mu=0.1)+n.py"}, {"method": ["a/m.py", "n.py"]}),
        ({"model": "a+b/net.py:make(width=3)"}, {"model": ["a+b/net.py"]}),
        ({"metrics": "auroc,c.py:cost,d.py:cost2"}, {"metrics": ["c.py", "d.py"]}),
    ],
)
def test_the_files_that_settings_name_are_those_that_would_be_imported(settings, code):
    assert build(settings).code() == code
