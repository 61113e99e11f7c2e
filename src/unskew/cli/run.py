"""`unskew run`: train one method on one federation; `unskew resume`: continue a run, or a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from unskew import config
from unskew.cli.options import FURTHER, POSITIONAL, FromSettings, Json, Option, set_over
from unskew.errors import NothingUsed, Terminated, UsageError

SITES = Option(panel="Real sites")


@dataclass(frozen=True)
class Arguments:
    """The options of the command, in addition to the settings of the run."""

    method: Annotated[
        str | None,
        POSITIONAL,
        "Parts joined by +, such as fedprox(mu=0.01)+fedrdn; or the config.yaml of a run",
    ] = None
    set: Annotated[
        tuple[str, ...],
        "an argument of a Part, such as flea.alpha=0.1, or one of the further settings, such as"
        " lr_decay=0.99, which --help --all lists (repeatable)",
    ] = ()
    config: Annotated[Path | None, "read settings from this YAML file; options given here override it"] = None
    name: Annotated[str | None, "name of the run; the method and a number if left out"] = None
    folder: Annotated[Path, "where runs are kept"] = Path("runs")
    dry_run: Annotated[bool, "show the partition and what leaves each client, then stop"] = False
    json: Json = False
    on: Annotated[
        str | None,
        SITES,
        "train on the real sites of this federation (there cap is 0.5 by default)",
    ] = None
    min_sites: Annotated[int, SITES, "a round with answers from fewer sites does not count"] = 1
    deadline: Annotated[str, SITES, "how long sites may take for one exchange: 30s, 10m or 2h"] = "10m"
    wait: Annotated[str, SITES, "how long to wait for missing sites before round 1"] = "10m"
    without: Annotated[tuple[str, ...], SITES, "leave this site out of the run (repeatable)"] = ()
    test_data: Annotated[str | None, FURTHER, "a test set at the server: an .npz file or a folder"] = None
    clip: Annotated[
        bool,
        FURTHER,
        "limit each site's update to the median norm, unless the method merges in a way of its own",
    ] = True
    federations: Annotated[Path, FURTHER, "where federations are kept"] = Path("federations")


def run(arguments: Arguments, given: Annotated[dict[str, Any], FromSettings()]) -> None:
    """Train one method on one federation, and write its report."""
    from unskew.system.disk import check_name, slug
    from unskew.system.machine import kept_objects

    with kept_objects():
        from unskew.runs.run_folder import free_path

    on_sites = bool(arguments.on)
    settings = _settings(arguments, given, on_sites)
    name, folder = arguments.name, arguments.folder
    path = folder / check_name(name) if name is not None else free_path(folder, slug(settings.method))
    if on_sites:
        _run_on_sites(path, settings, arguments, {**_in_file(arguments), **given})
    else:
        _train(path, settings, arguments)


def _settings(arguments: Arguments, given: dict[str, Any], sites: bool) -> Any:
    """The settings of the YAML file, overridden by the options, and these by --set. sites: whether the run is
    on real sites."""
    from unskew.runs.resolve import with_arguments

    base = {**(config.ON_SITES if sites else {}), **_in_file(arguments)}
    method = {} if arguments.method is None or _is_file(arguments.method) else {"method": arguments.method}
    settings = config.build({**base, **given, **method})
    settings = settings.replace(set=set_over(settings.set, arguments.set))
    return with_arguments(settings)


def _in_file(arguments: Arguments) -> dict[str, Any]:
    """The settings in the YAML file without defaults, because the default skew depends on the data; {}
    without a file."""
    named = arguments.method if _is_file(arguments.method) else arguments.config
    return config.load_partial(Path(named)) if named else {}


def _is_file(method: str | None) -> bool:
    """Whether `method` names a file of settings."""
    return bool(method) and str(method).endswith((".yaml", ".yml"))


def _run_on_sites(path: Path, settings: Any, arguments: Arguments, asked: dict[str, Any]) -> None:
    """Start the run on real sites. asked: the settings that the user wrote, without defaults."""
    from unskew.cli.remote_run import print_text, run_on
    from unskew.federation.protocol.study_rules import SITE_CHOICES, with_clipping

    if arguments.dry_run:
        raise UsageError(
            "E109", "--dry-run shows a partition, but sites only say what they hold when a run begins."
        )
    if (ignored := [name for name in SITE_CHOICES if name in asked]) and not arguments.json:
        print_text(
            f"ignored {', '.join(ignored)}: every site trains on its own samples, on the device that it was"
            " started with"
        )
    if arguments.clip:
        settings = with_clipping(settings)
    terms = {
        "min_sites": arguments.min_sites,
        "deadline": arguments.deadline,
        "wait": arguments.wait,
        "test": arguments.test_data,
        "without": arguments.without,
    }
    run_on(arguments.federations / str(arguments.on), path, settings, terms, arguments.json)


def _train(path: Path, settings: Any, arguments: Arguments) -> None:
    from unskew.cli.screen import Screen
    from unskew.data import data_overview
    from unskew.runs.assemble import loop_of
    from unskew.runs.disclosure import disclosure_lines
    from unskew.runs.resolve import resolve
    from unskew.runs.run_folder import RunFolder

    resolved = resolve(settings)
    screen = Screen(settings.rounds, quiet=arguments.json)
    screen.say(data_overview.terminal(resolved.federation))
    if arguments.dry_run:
        loop = loop_of(resolved)
        screen.say("\n".join(disclosure_lines(loop)))
        loop.trainer.close()
        return
    finish(RunFolder(path, resolved), screen, arguments.json)


def finish(folder: Any, screen: Any, as_json: bool) -> None:
    """Train the run of a folder to its end and show its progress; then print its scores, write its report and
    print the next steps."""
    from unskew.cli.screen import json_of, next_steps
    from unskew.report import page
    from unskew.results import result_of
    from unskew.runs.disclosure import disclosure_lines
    from unskew.scores import latest

    loops: list[Any] = []

    def ready(loop: Any) -> None:
        loops.append(loop)
        screen.say("\n".join(disclosure_lines(loop)))

    def after_round(state: Any, summary: Any) -> None:
        screen.round(summary, latest(loops[0].record.latest, loops[0].fed.task.main_score, summary.t))

    try:
        loop, state = folder.go(screen.say, after_round, ready)
    except (KeyboardInterrupt, Terminated):
        t = loops[0].record.last_round if loops else 0
        command = config.resume_command(folder.path, folder.run.settings)
        screen.say(f"\nInterrupted at round {t}, which is saved. Continue with: {command}")
        raise
    except NothingUsed:
        page.write_report([folder.path], folder.path / "report.html")
        screen.say(f"\nreport  {folder.path / 'report.html'}")
        raise
    finally:
        screen.leave_line()
    result = result_of(loop, state, folder.path)
    result.report()
    if as_json:
        print(json_of(_as_json(result)))
    else:
        screen.say(f"\n{result.table()}\n{next_steps(folder.path)}")


def _as_json(result: Any) -> dict[str, Any]:
    """The result as `--json` prints it."""
    from unskew.runs.score_coverage import SCOPES as scopes

    beside = {
        metric: {
            scope: result.scores(scope, metric) for scope in scopes if metric in result.record.metrics(scope)
        }
        for metric in result.metrics
    }
    return {
        "run": str(result.path),
        "method": str(result.method),
        "scores": {scope: result.scores(scope) for scope in scopes},
        **({"metrics": beside} if beside else {}),
        "bytes": {way: result.bytes(way) for way in ("up", "down")},
        "sha256": result.digest,
    }


def resume(
    run: Annotated[Path, "the folder of a run or of a comparison"],
    rounds: Annotated[
        int | None, "more rounds than the run had, which may have ended; a simulated run only"
    ] = None,
    without: Annotated[tuple[str, ...], "over a network: leave this site out from now on (repeatable)"] = (),
    wait: Annotated[
        str, "over a network: how long to wait for missing sites: 10m, 24h (default: as before)"
    ] = "",
    method: Annotated[tuple[str, ...], "FILE.py of a run with a Part in a Python file (repeatable)"] = (),
    model: Annotated[str, "FILE.py:FUNCTION of a run whose model is in a Python file"] = "",
    metrics: Annotated[str, "FILE.py:FUNCTION of a run with a metric in a Python file"] = "",
    loss: Annotated[str, "FILE.py:FUNCTION of a run with a loss in a Python file"] = "",
    as_json: Json = False,
) -> None:
    """Continue a run to the same bits as if it had never stopped, or as if it had had more rounds from the
    start.

    A Python file is imported only if this command names it, too.
    """
    from unskew.cli import compare
    from unskew.cli.screen import Screen
    from unskew.runs.run_folder import RunFolder
    from unskew.system import python_files

    deployed, compared = ((run / name).exists() for name in ("deploy.json", "compare.yaml"))
    if (without or wait) and not deployed:
        option = "--without names" if without else "--wait waits for"
        raise UsageError("E109", f"{option} sites of a run over a network, and {run} is none.")
    if rounds is not None and (deployed or compared):
        raise UsageError("E109", f"--rounds continues one simulated run, and {run} is none.")
    with python_files.restrict(*method, model, loss, *metrics.split(",")):
        if compared:
            compare.resume(run, as_json)
        elif deployed:
            from unskew.cli.remote_run import conduct

            conduct(run, as_json, without, wait)
        else:
            folder = RunFolder.open(run, rounds)
            finish(folder, Screen(folder.run.settings.rounds, quiet=as_json), as_json)
