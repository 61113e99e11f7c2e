"""The command line: one file per command. Only commands that compute load torch."""

from __future__ import annotations

import atexit
import inspect
import io
import os
import re
import signal
import sys
from contextlib import suppress
from typing import Any


def app() -> Any:
    """The typer application with all commands."""
    import typer

    from unskew.cli.options import Commands

    about = "Federated learning for label-skewed, feature-skewed, scarce data, held by clients that drop out."
    commands = typer.Typer(
        name="unskew",
        cls=Commands,
        help=about,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _normalise},
    )
    for panel, entries in _panels().items():
        for entry in entries:
            _add(commands, entry, panel)

    @commands.callback(invoke_without_command=True)
    def show_version(
        version: bool = typer.Option(False, "--version", help="show the version and exit"),
    ) -> None:
        if version:
            from unskew.version import __version__

            print(f"unskew {__version__}")
            raise typer.Exit

    return commands


def _panels() -> dict[str, list[Any]]:
    """The functions of commands, and groups as (name, help, functions), in the panels of `--help`."""
    from unskew.cli import (  # fmt: skip
        attack,
        compare,
        data,
        explain,
        federation,
        list_,
        predict,
        report,
        reproduce,
        run,
        site,
        watch,
    )

    about_data = "Look at data before training on them; make data sets from their original archives."
    data_commands = [data.check, data.get]
    about_federation = "Create a federation, admit its sites, inspect it."
    federation_commands = [
        *(federation.admit, federation.init, federation.ticket, federation.revoke, federation.add),
        *(federation.remove, federation.show, federation.audit),
    ]
    about_site = "Take part in a federation with data that stay here."
    site_commands = [site.run, site.approve, site.refuse, site.watch, site.policy, site.check]
    return {
        "Train": [run.run, compare.compare, run.resume, watch.watch, reproduce.reproduce],
        "Look at data and methods": [
            ("data", about_data, data_commands),
            *(data.diagnose, list_.list_, explain.explain, explain.check),
        ],
        "Use results": [report.report, predict.predict, predict.export],
        "Measure privacy": [attack.attack, attack.audit],
        "Real sites": [
            ("federation", about_federation, federation_commands),
            *(federation.serve, site.join, ("site", about_site, site_commands)),
        ],
    }


def _add(commands: Any, entry: Any, panel: str | None = None) -> None:
    """Add a command or a group; each paragraph of a docstring becomes one line of help."""
    import typer

    from unskew.cli.options import Command, as_command

    if isinstance(entry, tuple):
        name, about, functions = entry
        group = typer.Typer(help=about, no_args_is_help=True)
        group.callback()(lambda: None)
        for function in functions:
            _add(group, function)
        commands.add_typer(group, name=name, rich_help_panel=panel)
        return
    name = entry.__name__.rstrip("_").replace("_", "-")
    paragraphs = inspect.cleandoc(entry.__doc__).split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    commands.command(name, cls=Command, help=text, rich_help_panel=panel)(as_command(entry))


def _normalise(name: str) -> str:
    """The canonical name of an option or command that may be written `--LR` or `--lr_decay`."""
    return name.lower().replace("_", "-")


def main() -> None:
    """Run the command line and end the process.

    Exit codes: 0 success, 1 unexpected error, 2 wrong use or bad data, 75 paused, 130 interrupted, 141 output
    pipe closed by its reader, 143 terminated.
    """
    from unskew.errors import Terminated
    from unskew.system import python_files

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends it twice: finish cleaning up
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    _open_streams()
    _print_anything()
    try:
        sys.argv[1:] = map(_with_home, sys.argv[1:])
        with python_files.restrict(*sys.argv[1:]):
            app()(prog_name="unskew")
    except Terminated:
        _exit(143)
    except KeyboardInterrupt:
        _exit(130)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # typer turns this error into a silent exit 1
            raise
        _exit(141)
    except Exception as error:
        from unskew.system.unexpected_errors import explain

        shown = explain(error)
        _say(str(shown))
        _exit(shown.exit_code)


def command() -> None:
    """As `main`, in a process of its own, which it ends at once: Python would first take down, object by
    object, what torch has built."""
    try:
        main()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        code = end.code or 0
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):  # Python says so as it ends
        sys.exit(code)
    atexit._run_exitfuncs()
    os._exit(code)


def _with_home(argument: str) -> str:
    """An argument, `--OPTION=PATH` or `SITE=PATH` with `~` as the home folder, which shells do not replace
    in quotes."""
    match = re.match(r"((?:--)?[\w.-]+=)?(~.*)", argument, re.DOTALL)
    return (match[1] or "") + os.path.expanduser(match[2]) if match else argument


def _open_streams() -> None:
    """Open standard streams that are closed at the start, as under some schedulers, on the null device."""
    # The order matters: each open() takes the lowest free file descriptor.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as the process


def _say(text: str) -> None:
    """Print why the command ends, if the stream can be written; on a full disk only the exit code remains."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _print_anything() -> None:
    """Print characters that the output's encoding lacks as escape codes, so that a ± does not end a run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _exit(code: int) -> None:
    """End the process at once, without waiting for worker threads in the middle of a round."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
