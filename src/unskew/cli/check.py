"""`unskew check`: the conformance tests, for anybody's Part."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def command(
    method: Annotated[str, typer.Argument(help="a method by name, or a file that defines Parts")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Check that a method is deterministic, resumes, leaks nothing undeclared, and stands small and absent clients."""
    from unskew.engine import check

    results = []
    for part in parts_of(method):
        for result in check.check_method(part):
            results.append(result)
            if not as_json:
                print(
                    f"{'ok  ' if result.ok else 'FAIL'}  {result.name}{': ' + result.detail if result.detail else ''}",
                    flush=True,
                )
    failed = [r for r in results if not r.ok]
    if as_json:
        print(json.dumps([{"check": r.name, "ok": r.ok, "detail": r.detail} for r in results]))
    else:
        print(f"\n{len(results) - len(failed)} of {len(results)} checks passed")
    if failed:
        raise SystemExit(1)


def parts_of(text: str) -> list[object]:
    """The Parts named, or all those a Python file defines, with their usual settings."""
    from unskew.methods import own_parts, registry
    from unskew.methods.registry import part_of

    if not text.endswith(".py"):
        return list(registry.parse(text).parts)
    return [part_of(kind, kind.written, {}) for kind in own_parts.kinds(text)]
