"""`unskew explain NAME`: print what a method does, what it shares, and its settings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated

import typer

from unskew.cli import completion

if TYPE_CHECKING:
    from unskew.round.loop import Loop

DATA, MODEL = "digits", "auto"


def command(
    method: Annotated[
        str,
        typer.Argument(
            help="a method by name, like flea or flea+scaffold", autocompletion=completion.methods
        ),
    ],
    data: Annotated[
        str, typer.Option(help="for which data set to count bytes", autocompletion=completion.data_sets)
    ] = DATA,
    model: Annotated[str, typer.Option(help="for which model to count bytes")] = MODEL,
) -> None:
    """Print the equations of a method, its settings, and what leaves a client, in bytes."""
    print(text(method, data, model))


def text(method: str, data: str = DATA, model: str = MODEL) -> str:
    """The text that `unskew explain` prints."""
    from unskew.attacks.coverage import what_it_tells
    from unskew.merge import mean
    from unskew.report.method_pages import method_page

    loop, beside = _example(method, data, model)
    try:
        shared = [*_disclosed(loop), *_summed(loop), *what_it_tells(loop.run.method, loop.fed)]
    finally:
        loop.trainer.close()
    pages = [method_page(p, loop.fed, beside).rstrip() for p in loop.run.method.parts] or [
        inspect.cleandoc(mean.__doc__ or "")
    ]
    return "\n\n".join([*pages, *_order(loop), f"With {beside}, in all:", "\n".join(shared)])


def _order(loop: Loop) -> list[str]:
    """A sentence on the order of Parts that change gradients, if there are several."""
    from unskew.core.part import overrides

    names = [p.name for p in loop.run.method.parts if overrides(p, "grad")]
    return [f"Order matters: of the gradient, {' before '.join(names)}."] if len(names) > 1 else []


def _disclosed(loop: Loop) -> list[str]:
    """What leaves each client; without the library that accounts for privacy (E133), how to install it."""
    from unskew.errors import UsageError
    from unskew.runs.disclosure import disclosure_lines

    try:
        return disclosure_lines(loop)
    except UsageError as error:
        if error.code != "E133":
            raise
        return [str(error)]


def _summed(loop: Loop) -> list[str]:
    """Lines that say whether secure aggregation can hide what each client sends, and if not, why."""
    from unskew.core.protection import sum_problem
    from unskew.privacy.secure_aggregation import LEAST_SITES

    reasons = [
        f"not possible with '{p.name}': {r}" for p in loop.method.parts if (r := sum_problem(p, loop.fed))
    ]
    hidden = (
        f"with --secure-aggregation on, all of it is read only in the sum of {LEAST_SITES} or more clients"
    )
    return [f"secure aggregation  {(reasons or [hidden])[0]}"]


def _example(method: str, data: str, model: str) -> tuple[Loop, str]:
    """(run, description of the run): a run that has not begun, as the basis for counting bytes.

    A method that cannot work with the defaults (FedBN without batch normalisation) gets colour images and a
    model with normalisation.
    """
    from unskew.config import build
    from unskew.data.registry import divided_by
    from unskew.errors import UsageError
    from unskew.runs import conformance
    from unskew.runs.assemble import loop_of
    from unskew.runs.resolve import method_of, resolve

    split = {} if divided_by(data) else {"skew": "iid", "clients": 10}
    settings = build({"method": method, "data": data, "model": model, **split})
    try:
        loop = loop_of(resolve(settings))
        return (
            loop,
            f"{data} and {'its default model' if model == 'auto' else model}, {loop.fed.clients} clients",
        )
    except UsageError as refusal:
        if refusal.code != "E108" or (data, model) != (DATA, MODEL):
            raise
    parts = method_of(settings)
    small = conformance.settings_for(parts)
    return loop_of(
        resolve(small, conformance.small_federation(), parts)
    ), f"colour images of 8x8 and {small.model}, 8 clients"
