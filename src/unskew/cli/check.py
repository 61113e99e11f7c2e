"""`unskew check`: the conformance tests, for anybody's Part."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    method: Annotated[str, typer.Argument(help="a method by name, or a file that defines a Part")],
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
    """The Parts named, or all those a Python file defines."""
    from unskew.core.method import Method
    from unskew.core.part import Part
    from unskew.errors import UsageError

    if not text.endswith(".py"):
        return list(Method.parse(text).parts)
    path = Path(text)
    if not path.exists():
        raise UsageError("E111", f"there is no file {path}.")
    name = f"unskew_own_{path.stem}"  # a user's random.py must not replace Python's
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    kinds = [v for v in vars(module).values() if inspect.isclass(v) and issubclass(v, Part) and v.__module__ == name]
    if not kinds:
        raise UsageError("E121", f"{path} defines no subclass of unskew.Part.")
    return [kind() for kind in kinds]
