"""A run's folder may be anybody's: an attack imports only the Python files that the user names."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.attacks.runs import trained
from tests.cli.calling import call
from unskew import resume
from unskew.comparison import training as stage
from unskew.comparison.progress import Cell
from unskew.config import load, resume_command
from unskew.errors import UsageError
from unskew.methods import registry
from unskew.records import schema

QUICK = ("membership", "--set", "clients=1", "--set", "shadows=2", "--set", "passes=1", "--samples", "40")
MARK = "open({mark!r}, 'a').write('{name} ')\n"
METHOD = """
from dataclasses import dataclass
from typing import ClassVar
from unskew import Part

@dataclass(frozen=True)
class Halved(Part):
    name: ClassVar[str] = "halved"

    def grad(self, g, w, c):
        return {n: 0.5 * t for n, t in g.items()}
"""
MODEL = """
from torch import nn

def make(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
METRIC = """
def share(y, p):
    return float((y == p.argmax(1)).mean())
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of its user's own method, model and metric, and a file that says which were imported since."""
    folder = tmp_path_factory.mktemp("own")
    mark = folder / "imported"
    for name, text in (("method", METHOD), ("model", MODEL), ("metric", METRIC)):
        (folder / f"my_{name}.py").write_text(MARK.format(mark=str(mark), name=name) + text)
    files = {name: str(folder / f"my_{name}.py") for name in ("method", "model", "metric")}
    run = trained(folder, files["method"], model=f"{files['model']}:make", metrics=f"{files['metric']}:share")
    return run, files, mark


@pytest.fixture
def copy(own, tmp_path):
    run, files, mark = own
    registry._read_user_parts.cache_clear()  # methods are imported once in a process, which would hide a second import
    mark.write_text("")
    return Path(shutil.copytree(run, tmp_path / "r")), files, mark


def test_a_file_that_only_the_folder_names_is_not_imported(copy):
    run, files, mark = copy
    done = call("attack", str(run), *QUICK)
    assert (done.code, done.err[:4]) == (2, "E156"), done.err
    assert "--method" in done.err
    assert "--model FILE.py:FUNCTION" in done.err
    assert mark.read_text() == ""
    done = call("attack", str(run), *QUICK, "--method", files["method"])
    assert (done.code, done.err[:4]) == (2, "E156"), done.err
    assert "--model FILE.py:FUNCTION" in done.err
    assert mark.read_text() == ""
    assert call("audit", str(run)).err.startswith("E156")
    assert schema.read_privacy(run) == {}


def test_files_that_the_user_names_are_those_of_the_training_wherever_they_lie(copy, tmp_path):
    """No attack reads metrics, so a file of those is not imported at all."""
    run, files, mark = copy
    method, model = (
        shutil.copy(files[name], tmp_path / f"another_{name}.py") for name in ("method", "model")
    )
    words = ("--method", str(method), "--model", f"{model}:make")
    done = call("attack", str(run), *QUICK, *words)
    assert done.code == 0, done.err
    assert set(mark.read_text().split()) == {"method", "model"}
    assert (
        f"--method {method} --model {model}:make"
        in schema.read_privacy(run)["attacks"]["membership"]["command"]
    )
    audited = call("audit", str(run), "--samples", "10", *words)
    assert audited.code == 0, audited.err
    Path(method).write_text(Path(method).read_text().replace("0.5", "0.25"))
    changed = call("attack", str(run), *QUICK, *words)
    assert (changed.code, changed.err[:4]) == (2, "E112"), changed.err


def test_a_comparison_attacks_with_the_files_that_its_own_plan_names(copy):
    run, _, mark = copy
    said = []
    stage.attack_all([Cell("mine", 0, run, load(run / "config.yaml"), code=None)], said.append)
    assert "membership" in schema.read_privacy(run)["attacks"], said
    assert set(mark.read_text().split()) == {"method", "model"}


def test_resuming_imports_what_the_user_names_and_refuses_a_changed_file(copy):
    """`unskew resume` imported whatever the folder's config.yaml named."""
    run, files, mark = copy
    words = (
        "--method",
        files["method"],
        "--model",
        f"{files['model']}:make",
        "--metrics",
        f"{files['metric']}:share",
    )
    for named in ((), words[:2], words[:4]):
        done = call("resume", str(run), *named)
        assert (done.code, done.err[:4]) == (2, "E506"), done.err
        assert len(set(mark.read_text().split())) == len(named) // 2
    with pytest.raises(UsageError, match=r"^E506 .*my_metric\.py is named in a document and not by you"):
        resume(run, model=f"{files['model']}:make")
    mark.write_text("")
    assert call("resume", str(run), *words).code == 0
    assert resume_command(run, load(run / "config.yaml")) == shlex.join(
        ["unskew", "resume", str(run), *words]
    )
    before = Path(files["method"]).read_text()
    try:
        Path(files["method"]).write_text(before.replace("0.5", "0.25"))
        done = call("resume", str(run), *words)
        assert (done.code, done.err[:4]) == (2, "E112"), done.err
    finally:
        Path(files["method"]).write_text(before)
