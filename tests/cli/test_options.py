"""Option names are frozen, and `--help` shows every option's meaning, default and choices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import typer

from tests.cli.calling import call
from unskew import cli
from unskew.cli import compare, reproduce, run
from unskew.cli.options import help_text
from unskew.config import Settings
from unskew.formats import arguments

SETTINGS = (
    "--data --skew --clients --samples --availability --rounds --epochs --batch --optimiser --lr --lr-decay"
    " --lr-min --lr-rounds --lr-course --lr-warmup --first-epochs --momentum --weight-decay --loss"
    " --drop-last --model --weighting --cap --secure-aggregation --normalise --partition-seed --eval-every"
    " --validation --patience --keep-best --track --measure --metrics --lanes --workers --device --precision"
)
FROZEN = {
    "": "--version",
    "run": (
        "method --set --config --name --folder --dry-run --json --on --min-sites --deadline --wait --without"
        f" --test-data --clip --no-clip --federations --seed {SETTINGS}"
    ),
    "compare": (
        "methods --seeds --set --references --no-references --processes --on --tune --target --privacy"
        f" --config --name --folder --dry-run --json {SETTINGS}"
    ),
    "diagnose": (
        "data --label --target --site --features --json --skew --clients --samples --availability --model"
        " --seed --partition-seed --secure-aggregation"
    ),
    "resume": "run --without --wait --on --method --model --metrics --json",
    "attach": "run --stop --json",
    "attack": "run attack --set --samples --seeds --data --pictures --merged --method --model --json",
    "audit": "run --set --samples --seeds --method --model --json",
    "watch": "run --once --page",
    "report": "runs --out",
    "figures": "runs --out --format --columns --font",
    "predict": "run input --out --client --model --method --best --unfinished --data --classes",
    "export": "run out --format --license --client --model --method --best --unfinished --data --classes",
    "reproduce": (
        "table --rows --methods --add --seeds --scale --processes --on --folder"
        " --keep --page --anew --dry-run --file --json"
    ),
    "list": (
        "kind --against --family --task --shares --least-samples --secure-aggregation --handing-on --json"
    ),
    "explain": "method --data --model",
    "check": "method --json",
    "serve": "name --folder --bind --metrics --log-format",
    "join": "ticket --folder --coordinator --json",
    "data": "",
    "data check": "data --label --site --target --json",
    "data get": "name --from --out --size",
    "federation": "",
    "federation init": "name --host --sites --folder --no-tls --json",
    "federation admit": "name keys --site --samples --compared --folder",
    "federation ticket": "name site --days --folder",
    "federation revoke": "name site --folder",
    "federation add": "name site --folder",
    "federation remove": "name site --folder",
    "federation renew": "name --also --folder",
    "federation show": "name --folder --json",
    "federation audit": "name run --folder --json",
    "federation export-flower": "name --folder",
    "site": "",
    "site clean": "runs --folder --older --dry-run",
    "site approve": "number --folder",
    "site policy": "--folder --set --default --json",
    "site refuse": "number --folder",
    "site watch": "--folder --port",
    "site run": (
        "--data --folder --ticket --coordinator --classes --model --device --approve --metrics --log-format"
    ),
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
        text = shown(command)
        options = [*arguments.of(own), *(arguments.of(Settings) if command != "reproduce" else ())]
        for option in options:
            if option.name in ("method", "set") or (command, option.name) == ("compare", "seed"):
                continue
            assert option.meaning, option.name
            assert help_text(option).replace("\\[", "[") in text, (command, option.name)
    assert "reset at every step [sgd|adam|adamw|sign; default: sgd]" in shown("run")
    assert "by the rate times this) [at least 0; default: 0.0]" in shown("run")
