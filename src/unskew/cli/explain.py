"""`unskew explain NAME`: what a method does, what it shares, and its settings."""

from __future__ import annotations

import inspect
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
    from unskew.config import build
    from unskew.engine.assemble import loop_of
    from unskew.engine.leaves import leaves
    from unskew.engine.resolve import resolve
    from unskew.merge import mean
    from unskew.report.methods import page

    settings = build({"method": method, "data": data, "model": model, "skew": "iid", "clients": 10})
    loop = loop_of(resolve(settings))
    try:
        shared = leaves(loop)
    finally:
        loop.trainer.close()
    beside = f"{data} and {'its default model' if model == 'auto' else model}, 10 clients"
    pages = [page(p, loop.fed, beside).rstrip() for p in loop.run.method.parts] or [
        inspect.cleandoc(mean.__doc__ or "")
    ]
    return "\n\n".join([*pages, f"With {beside}, in all:", "\n".join(shared)])
