"""Option names are frozen, and `--help` shows every option's meaning, default and choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from unskew import cli

SETTINGS = (
    "--data --skew --clients --samples --availability --rounds --epochs --batch --optimiser --lr --lr-decay --lr-min "
    "--momentum --weight-decay --loss --drop-last --model --normalise --partition-seed --eval-every --validation "
    "--measure --lanes --workers --device"
)
FROZEN = {
    "": "--version",
    "run": "method --set --config --name --folder --dry-run --json --on --min-sites --deadline --wait --test-data --clip "
    f"--no-clip --federations --seed {SETTINGS}",
    "compare": "methods --seeds --set --references --no-references --processes --target --config --name --folder "
    f"--dry-run --json {SETTINGS}",
    "resume": "run --json",
    "watch": "run --once",
    "report": "runs --out",
    "reproduce": "table --rows --methods --add --seeds --scale --tune --sampler --processes --folder --keep --page "
    "--anew --dry-run --json",
    "list": "kind --json --time",
    "explain": "method --data --model",
    "check": "method --json",
    "serve": "name --folder --bind",
    "join": "ticket --folder --json",
    "federation": "",
    "federation init": "name --host --sites --folder --no-tls --json",
    "federation admit": "name key --site --folder",
    "federation show": "name --folder --json",
    "federation audit": "name run --folder --json",
    "federation export-flower": "name --folder",
    "site": "",
    "site run": "--data --folder --classes --model --device --port",
    "site check": "--data --folder --classes --study --sites --json",
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
