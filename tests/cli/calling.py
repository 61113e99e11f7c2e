"""The command line called in this process, which costs milliseconds where a process of its own costs
seconds."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from unskew import cli


@dataclass(frozen=True)
class Called:
    """What a command left. text: of both streams."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class _Left(BaseException):
    pass


def call(*arguments: str, cwd: Path | None = None) -> Called:
    """`unskew ARGUMENTS`, in a folder. An exception that `main` does not catch is raised here, too."""
    out, err, codes, here = io.StringIO(), io.StringIO(), [], Path.cwd()

    def leave(code: int) -> None:
        codes.append(code)
        raise _Left

    handler = signal.getsignal(signal.SIGTERM)
    try:
        os.chdir(cwd or here)
        with (
            mock.patch.object(sys, "argv", ["unskew", *arguments]),
            mock.patch.object(cli, "_exit", leave),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                cli.main()
                codes.append(0)
            except _Left:
                pass
            except SystemExit as end:
                codes.append(end.code if isinstance(end.code, int) else int(end.code is not None))
    finally:
        os.chdir(here)
        signal.signal(signal.SIGTERM, handler)
    return Called(codes[0], out.getvalue(), err.getvalue())
