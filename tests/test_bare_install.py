"""What `pip install unskew` brings is enough for all that happens on one machine: no package of an extra is
imported.

Environments of developers have them all, so that an import which needs one goes unnoticed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.test_api import BOUND

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
CALLED = {
    "PyYAML": "yaml",
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "typing-extensions": "typing_extensions",
}
CALLED |= {"annotated-types": "annotated_types", "dp-accounting": "dp_accounting", "mlflow-skinny": "mlflow"}
"""What is imported of a package that is called otherwise."""


def imported(requirements: list[str]) -> set[str]:
    """The modules of these packages."""
    names = {re.split(r"[\[<>=; ]", text)[0] for text in requirements}
    return {CALLED.get(name, name) for name in names}


NEEDED = imported(PROJECT["dependencies"])
EXTRA = imported(
    [one for name, extra in PROJECT["optional-dependencies"].items() if name != "dev" for one in extra]
) - {*BOUND}

BARE = f"""
import sys
from importlib.machinery import PathFinder
class Without:
    @staticmethod
    def find_spec(name, path=None, target=None):
        absent = name.partition(".")[0] in {sorted(EXTRA - NEEDED)}
        return None if absent else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


def bare(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, where no package of an extra can be found, nor by its own processes."""
    (folder / "without").mkdir(exist_ok=True)
    (folder / "without/sitecustomize.py").write_text(BARE)
    path = os.pathsep.join([str(folder / "without"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


SMALL = {"data": "digits", "clients": 3, "rounds": 1, "epochs": 1, "samples": 30, "model": "mlp"}


SETTINGS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
AFTERWARDS = [
    ["resume", "runs/r"],
    ["report", "runs/r"],
    ["attack", "runs/r", "membership", "--samples", "20", "--set", "shadows=2", "--set", "passes=1"],
    ["watch", "runs/r"],
    ["export", "runs/r", "out"],
    ["list", "methods"],
    ["explain", "flea"],
    ["data", "check", "digits"],
    # whose runs are processes of their own
    ["compare", "fedavg", *SETTINGS, "--seeds", "1", "--name", "c", "--no-references"],
]


def test_commands_and_programs_need_no_extra_and_what_needs_one_names_it(tmp_path):
    code = f"""
import sys
import unskew
from unskew.cli import main
from unskew.errors import UnskewError
for words in {[["run", "fedavg", "--name", "r", *SETTINGS], *AFTERWARDS]!r}:
    sys.argv = ["unskew", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
federation = unskew.resume("runs/r").federation
assert len(unskew.load("runs/r").predict(federation.x_test)) == len(federation.x_test)
for call in (lambda: unskew.run("fedavg", "t.parquet"), lambda: unskew.run("fedavg", "digits", track="wandb")):
    try:
        call()
    except UnskewError as error:
        print(error)
"""
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    done = bare(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr + done.stdout[-500:]
    for package in ("pyarrow", "wandb"):
        assert re.search(rf"{package}.*pip install", done.stdout), done


def test_what_concerns_networks_names_its_extra(tmp_path):
    """Of some commands it ended in an unexpected error."""
    (tmp_path / "site/runs/1").mkdir(parents=True)
    (tmp_path / "site/runs/1/setup.safetensors").write_bytes(b"")
    commands = ["serve x", "federation show x", "federation init x --host h --sites a", "join t"]
    commands += ["site watch", "predict site/runs/1 x.npy"]
    code = f"""
import sys
from unskew import cli
cli._exit = sys.exit
for words in {commands!r}:
    sys.argv = ["unskew", *words.split()]
    try:
        cli.main()
    except SystemExit as ended:
        print(words, ended.code)
"""
    done = bare(tmp_path, "-c", code)
    assert done.stdout.splitlines() == [f"{words} 2" for words in commands], done.stderr
    text = "E133 a federation needs Flower and cryptography: pip install 'unskew[flower]'."
    assert done.stderr.count(text) == len(commands)
