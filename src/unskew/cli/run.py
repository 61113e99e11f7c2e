"""`unskew run`: one method on one federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli.options import parts_arguments, with_settings
from unskew.errors import Terminated, UsageError


@with_settings()
def command(
    method: Annotated[
        str | None, typer.Argument(help="parts joined by +, like fedprox(mu=0.01)+fedrdn; or a config.yaml")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="an argument of a part: flea.alpha=0.1 (repeatable)")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="settings from a YAML file; options given here come on top")
    ] = None,
    name: Annotated[str | None, typer.Option(help="the run's name; default: the method and a number")] = None,
    folder: Annotated[Path, typer.Option(help="where runs are kept")] = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show the partition and what leaves each client, then stop")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON and nothing else")] = False,
    on: Annotated[
        str | None, typer.Option(help="a federation of real sites, by name", rich_help_panel="Real sites")
    ] = None,
    min_sites: Annotated[
        int, typer.Option(help="a round with fewer answers does not count", rich_help_panel="Real sites")
    ] = 1,
    deadline: Annotated[
        str, typer.Option(help="how long sites may take for an exchange: 30s, 10m, 2h", rich_help_panel="Real sites")
    ] = "10m",
    wait: Annotated[
        str, typer.Option(help="how long to wait for missing sites before round 1", rich_help_panel="Real sites")
    ] = "10m",
    test_data: Annotated[
        str | None,
        typer.Option(help="a test set at the server: an .npz or a folder", rich_help_panel="Real sites"),
    ] = None,
    clip: Annotated[
        bool,
        typer.Option(
            help="bound each site's update by the median norm, where the method leaves merging alone",
            rich_help_panel="Real sites",
        ),
    ] = True,
    federations: Annotated[Path, typer.Option(help="where federations are kept", rich_help_panel="Real sites")] = Path(
        "federations"
    ),
    options: dict[str, Any] | None = None,
) -> None:
    """Train one method on one federation, and write its report."""
    from unskew.config import build, load
    from unskew.engine.disk.folder import check_name, fresh
    from unskew.methods import registry

    values = dict(options or {})
    if method and method.endswith((".yaml", ".yml")):
        method, config = None, Path(method)
    base = load(config).as_dict() if config else {}
    settings = build({**base, **values, **({"method": method} if method else {})})
    if set_:
        settings = settings.replace(set={**settings.set, **parts_arguments(set_)})
    settings = (
        settings.replace(method=str(registry.parse(settings.method, settings.set)), set={})
        if settings.method != "centralised"
        else settings
    )
    from unskew.comparison.cells import slug

    at = folder / check_name(name) if name else fresh(folder, slug(settings.method))
    if on:
        if dry_run:
            raise UsageError("E109", "--dry-run shows a partition; sites tell what they hold when a run begins.")
        from unskew.cli.deployed import clipped, run_on

        if clip:
            settings = settings.replace(method=clipped(settings.method))
        terms = {"min_sites": min_sites, "deadline": deadline, "wait": wait, "test": test_data}
        run_on(federations / on, at, settings, terms, as_json)
        return
    _train(at, settings, dry_run, as_json)


def _train(path: Path, settings: Any, dry_run: bool, as_json: bool) -> None:
    from unskew.api import method_of
    from unskew.cli.screen import Screen
    from unskew.comparison.cells import federation_for
    from unskew.data import preview
    from unskew.engine import resolve
    from unskew.engine.disk.folder import Folder

    method = method_of(settings)
    federation = federation_for(settings, method)
    screen = Screen(settings.rounds, quiet=as_json)
    screen.say(preview.terminal(federation))
    if dry_run:
        from unskew.engine.leaves import leaves

        loop = resolve.loop_of(settings, method, federation)
        screen.say("\n".join(leaves(loop)))
        loop.trainer.close()
        return
    finish(Folder(path, settings, method, federation), screen, as_json)


def finish(at: Any, screen: Any, as_json: bool) -> None:
    """Train a folder to its end, on the screen; then its table, its report and what to do next."""
    from unskew.api import _result
    from unskew.cli.screen import next_steps
    from unskew.engine.leaves import leaves

    opened: list[Any] = []

    def ready(loop: Any) -> None:
        opened.append(loop)
        screen.say("\n".join(leaves(loop)))

    def shown(state: Any, told: Any) -> None:
        record = opened[0].record
        main = opened[0].fed.task.main_score
        found = {"global": record.series("global", main)[1], "clients": record.series("global@client", "mean")[1]}
        found["worst"] = record.series("global@client", "worst")[1]
        screen.round(told, {n: v[-1] for n, v in found.items() if v})

    try:
        loop, state = at.go(screen.say, shown, ready)
    except (KeyboardInterrupt, Terminated):
        t = opened[0].record.rows["metrics"][-1]["t"] if opened and opened[0].record.rows["metrics"] else 0
        screen.say(f"\nStopped by you at round {t}; saved. Resume with: unskew resume {at.path}")
        raise
    result = _result(at.settings, at.method, at.federation, loop, state, at.path)
    result.report()
    if as_json:
        scores = {scope: result.scores(scope) for scope in ("global", "global@client", "personal@client")}
        sent = {way: result.bytes(way) for way in ("up", "down")}
        print(
            json.dumps(
                {
                    "run": str(at.path),
                    "method": str(at.method),
                    "scores": scores,
                    "bytes": sent,
                    "sha256": result.digest,
                }
            )
        )
        return
    screen.say("\n" + result.table() + "\n" + next_steps(at.path))
