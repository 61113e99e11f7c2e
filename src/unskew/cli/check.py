"""`unskew check`: run the conformance checks that every method must pass, built-in or third-party."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from unskew.cli import completion

if TYPE_CHECKING:
    from unskew.core.part import Part


def command(
    method: Annotated[
        str,
        typer.Argument(
            help="a method by name, or a file that defines Parts", autocompletion=completion.methods
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Check that a method is deterministic, resumes, shares only what it declares, and copes with small and
    absent clients."""
    from unskew.runs import conformance

    results = []
    for part in parts_of(method):
        for result in conformance.check_method(part):
            results.append(result)
            if not as_json:
                detail = f": {result.detail}" if result.detail else ""
                print(f"{'ok  ' if result.ok else 'FAIL'}  {result.name}{detail}", flush=True)
    failed = [result for result in results if not result.ok]
    if as_json:
        print(json.dumps([{"check": r.name, "ok": r.ok, "detail": r.detail} for r in results]))
    elif not results:
        print(f"{method} has no Parts that could be checked: it averages weights, and nothing else.")
    else:
        print(f"\n{len(results) - len(failed)} of {len(results)} checks passed")
    if failed:
        raise SystemExit(1)


def parts_of(text: str) -> list[Part]:
    """The Parts of a method, or all Parts in a Python file, with their default arguments."""
    from unskew.methods import registry
    from unskew.methods.registry import part_of

    if not text.endswith(".py"):
        return list(registry.parse(text).parts)
    return [part_of(kind, kind.spelling, {}) for kind in registry.user_parts(text)]
