"""Option names are frozen, and `--help` shows every option's meaning, default and choices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import typer
import yaml

from tests.cli.calling import call
from unskew import cli
from unskew.cli import compare, reproduce, run
from unskew.cli.options import help_text
from unskew.config import Settings
from unskew.formats import arguments

SETTINGS = (
    "--data --skew --clients --samples --availability --rounds --epochs --batch --lr --model"
    " --secure-aggregation --metrics --workers --device"
)
FROZEN = {
    "": "--version --install-completion --show-completion",
    "run": (
        "method --set --config --name --folder --dry-run --json --on --min-sites --deadline --wait --without"
        f" --seed {SETTINGS}"
    ),
    "compare": (
        "methods --seeds --set --references --no-references --processes --tune --target --privacy"
        f" --config --name --folder --dry-run --json {SETTINGS}"
    ),
    "diagnose": (
        "data --label --target --site --group --features --json --skew --clients --samples --availability --model"
        " --seed --partition-seed --secure-aggregation"
    ),
    "resume": "run --rounds --without --wait --method --model --metrics --loss --json",
    "attack": "run attack --set --samples --seeds --method --model --loss --json",
    "audit": "run --set --samples --seeds --method --model --loss --json",
    "watch": "run --once",
    "report": "runs --out",
    "predict": "run input --out --client --model --method --best --unfinished --data --classes",
    "export": "run out --client --model --method --best --unfinished --data --classes",
    "reproduce": (
        "table --rows --methods --add --seeds --scale --processes --folder"
        " --keep --page --anew --dry-run --file --json"
    ),
    "list": "kind --against --family --task --json --time",
    "explain": "method --data --model",
    "check": "method --json",
    "serve": "name --folder --bind",
    "join": "ticket --folder --coordinator --json",
    "data": "",
    "data check": "data --label --site --target --group",
    "data get": "name --from --out",
    "federation": "",
    "federation init": "name --host --sites --folder --json",
    "federation admit": "name keys --compared --folder",
    "federation ticket": "name site --days --folder",
    "federation revoke": "name site --folder",
    "federation add": "name site --folder",
    "federation remove": "name site --folder",
    "federation show": "name --folder --json",
    "federation audit": "name run --folder --json",
    "site": "",
    "site approve": "number --folder",
    "site policy": "--folder --default --json",
    "site refuse": "number --folder",
    "site watch": "--folder",
    "site run": "--data --folder --ticket --coordinator --classes --model --device --approve",
    "site check": "--data --folder --classes --study --sites --model --json",
}
"""The arguments and options of each command. Scripts use these names: change this table only on purpose."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Every command with the names of its arguments and options, those of groups included."""
    yield " ".join(path), {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def test_the_options_are_frozen():
    assert dict(commands(typer.main.get_command(cli.app()))) == {
        name: set(text.split()) for name, text in FROZEN.items()
    }


def shown(*words: str) -> str:
    """What `--help` prints on a wide terminal, without its frames and line breaks."""
    with mock.patch.dict(os.environ, {"COLUMNS": "110"}):
        done = call(*words, "--help")
    assert done.code == 0, done.err
    return " ".join(done.out.replace("│", " ").split())


def test_help_shows_every_meaning_choice_range_and_default():
    """U1: rich took the brackets for markup, so that no default and no choice was shown."""
    for command, own in (
        ("run", run.Arguments),
        ("compare", compare.Arguments),
        ("reproduce", reproduce.Arguments),
    ):
        text = shown(command, *["--all"] * (command != "reproduce"))
        options = [*arguments.of(own), *(arguments.of(Settings) if command != "reproduce" else ())]
        for option in options:
            if option.name in ("method", "set") or (command, option.name) == ("compare", "seed"):
                continue
            assert option.meaning, option.name
            assert help_text(option).replace("\\[", "[") in text, (command, option.name)
    assert "<bool>" not in shown("run", "--all")
    assert "reset at every step [sgd|adam|adamw|sign; default: sgd]" in shown("run", "--all")
    assert "by the rate times this) [at least 0; default: 0.0]" in shown("run", "--all")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("run fedpro", {"fedprox", "fedproto"}),
        ("compare fedavg fedprox+scaf", {"fedprox+scaffold"}),
        ("run fedavg --data dig", {"digits"}),
        ("explain scaff", {"scaffold"}),
        ("reproduce flea-tabl", {"flea-table1"}),
    ],
)
def test_a_shell_completes_names(words, completed):
    shell = {"_UNSKEW_COMPLETE": "complete_bash", "COMP_WORDS": f"unskew {words}"}
    with mock.patch.dict(os.environ, shell | {"COMP_CWORD": str(len(words.split()))}):
        assert set(call().out.split()) == completed


def test_names_are_completed_without_torch():
    names = "('methods', 'data', 'model', 'attack', 'table')"
    code = f"import sys; from unskew.cli import options as c; [c.completion_of(name)('') for name in {names}]"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_setting_without_an_option_is_set_by_its_name(tmp_path):
    names = ("lr-decay=0.5", "KEEP_BEST=true", "eval_every=2", "fedprox.mu=0.5", "batch=8", "folder=here")
    words = [word for name in names for word in ("--set", name)]
    done = call("run", "fedprox", "--name", "r", "--rounds", "1", "--epochs", "1", *words, cwd=tmp_path)
    assert done.code == 0, done.err
    settings = yaml.safe_load((tmp_path / "here/r/config.yaml").read_text())
    assert (settings["lr_decay"], settings["keep_best"], settings["eval_every"]) == (0.5, True, 2)
    assert (settings["batch"], settings["set"], settings["method"]) == (8, {}, "fedprox(mu=0.5)")
