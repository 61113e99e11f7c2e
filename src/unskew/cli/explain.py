"""`unskew explain NAME`: what a method does, what it shares, and its settings."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Annotated

import typer


def command(
    method: Annotated[str, typer.Argument(help="a method by name, like flea or flea+scaffold")],
    data: Annotated[str, typer.Option(help="for which data set to count bytes")] = "digits",
    model: Annotated[str, typer.Option(help="for which model to count bytes")] = "auto",
) -> None:
    """Print the equations, what leaves a client with its bytes, and the settings of a method."""
    print(text(method, data, model))


def text(method: str, data: str = "digits", model: str = "auto") -> str:
    """The page `unskew explain` prints."""
    from unskew.api import method_of
    from unskew.cli.screen import leaves
    from unskew.config import build
    from unskew.engine import setup
    from unskew.engine.cells import federation_for

    settings = build({"method": method, "data": data, "model": model, "skew": "iid", "clients": 10})
    chosen = method_of(settings)
    loop = setup.loop_of(settings, chosen, federation_for(settings, chosen))
    try:
        shared = leaves(loop)
    finally:
        loop.trainer.close()
    pieces = [_part(p) for p in chosen.parts] or [_fedavg()]
    name = settings.model if model != "auto" else "its default model"
    return "\n\n".join([*pieces, f"With {data} ({name}, 10 clients):", "\n".join(shared)])


def _fedavg() -> str:
    from unskew.merge import mean

    return inspect.cleandoc(mean.__doc__ or "")


def _part(part: object) -> str:
    kind = type(part)
    described = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")
    fields = [f for f in dataclasses.fields(part) if f.init]  # type: ignore[arg-type]
    if not fields:
        return described
    lines = [f"  {f.name} = {getattr(part, f.name)!r}" for f in fields]
    return "\n".join([described, "", "Settings:", *lines, "", inspect.cleandoc(kind.__doc__ or "")])
