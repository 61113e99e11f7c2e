"""Whether Python runs what a file of the user's own says by now: it does not where the file was edited after its import.

The digests of a run are those of the text, so such a run would stand under code that it never ran.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from unskew.engine.compiled import SCALARS, compiled, functions
from unskew.errors import UsageError


def source_of(kind: Any) -> str | None:
    """The source of a class or function; None where Python has none, as of what was typed into a notebook.

    Raises UsageError (E112) where the source is no longer what Python runs. Not asked of code that a tool rewrote while it was
    imported, as pytest does.
    """
    module = sys.modules.get(kind.__module__)
    file = Path(getattr(module, "__file__", None) or "")
    if type(getattr(module, "__loader__", None)) is SourceFileLoader and file.is_file():
        codes = _codes(file.read_bytes())
        # what exec made, say, for which Python 3.13 would take any lines of the file
        if codes and kind.__qualname__ not in codes:
            return None
        if not _agrees(kind, codes):
            text = f"'{kind.__qualname__}' is not what {file} says: one of them was changed after Python had imported the other"
            mend = "start Python anew, or importlib.reload the module and make the object again"
            raise UsageError("E112", f"{text}; {mend}.")
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return None


def _agrees(kind: Any, codes: Mapping[str, list[CodeType]]) -> bool:
    """codes: of the file by now, by their names; none where it is no Python any more."""
    entries = vars(kind).values() if inspect.isclass(kind) else [kind]
    for function in (f for entry in entries for f in functions(entry) if f.__module__ == kind.__module__):
        if function.__code__.co_filename.startswith("<"):  # what dataclasses and other decorators write
            continue
        if compiled(function.__code__) not in map(compiled, codes.get(function.__qualname__, [])):
            return False
    bodies = codes.get(kind.__qualname__, [])
    return not inspect.isclass(kind) or any(_holds(vars(kind), body) for body in bodies)


def _holds(attributes: Mapping[str, Any], body: CodeType) -> bool:
    """Whether a class has plain values that its body may give it."""
    return all(
        attributes[name] in values
        for name, values in _constants(body).items()
        if isinstance(attributes.get(name), SCALARS[:-1])
    )


def _constants(body: CodeType) -> dict[str, list[Any]]:
    """The plain values that code may give each name; without names to which it also gives what it computes."""
    given: dict[str, list[Any]] = defaultdict(list)
    computed, before = set[str](), None
    for step in dis.get_instructions(body):
        if step.opname == "STORE_NAME" and before is not None and before.opname == "LOAD_CONST":
            given[step.argval].append(before.argval)
        elif step.opname == "STORE_NAME":
            computed.add(step.argval)
        before = step
    return {name: values for name, values in given.items() if name not in computed and not name.startswith("__")}


@lru_cache(32)
def _codes(source: bytes) -> dict[str, list[CodeType]]:
    """What a file's functions and classes would be compiled to, by their qualified names."""
    by_name: dict[str, list[CodeType]] = defaultdict(list)
    try:
        waiting = [SourceFileLoader("", "").source_to_code(source, "<file>")]  # never run
    except (SyntaxError, ValueError):
        return by_name
    while waiting:
        code = waiting.pop()
        by_name[code.co_qualname].append(code)
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return by_name
