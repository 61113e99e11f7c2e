"""`unskew reproduce`: run a published table, with the paper's numbers next to ours and a verdict on every
claim."""

from __future__ import annotations

from dataclasses import dataclass

from unskew.cli.options import Json
from unskew.errors import Terminated
from unskew.experiments import Request


@dataclass(frozen=True)
class Arguments(Request):
    """The options of the command."""

    json: Json = False


def reproduce(arguments: Arguments) -> None:
    """Run a published table, or one of your own. Finished runs are saved, so you can stop and extend it at
    any time."""
    from unskew.cli.screen import Progress, json_of
    from unskew.experiments.reproduce import carry_out

    with Progress(quiet=arguments.json) as progress:
        try:
            reproduction = carry_out(arguments, progress.say, progress.look)
        except (KeyboardInterrupt, Terminated):
            progress.say("\nInterrupted; every run is saved. The same command continues them.")
            raise
    if reproduction.result is None:
        return
    if arguments.json:
        print(json_of(reproduction.result))
        return
    print(reproduction.table())
    print(
        f"\npage    {reproduction.page}, with every number in the .json of the same name; README.md lists all"
        " tables run here"
    )
    if arguments.keep:
        name = reproduction.result["page"]
        print(f"kept    {arguments.keep / name}.md and .json, {arguments.keep / 'README.md'}")
