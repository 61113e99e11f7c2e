"""YAML as users write it: read or refused in one sentence. A key that stands twice, of which YAML's readers would keep the
last, is refused, and so is a document that holds itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unskew.errors import UsageError

_PLAIN = {
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid dictionary": "keys and values",
    "a valid string": "text, maybe in quotes",
}


def text_of(path: Path) -> str:
    """What a file holds. Raises UsageError (E111) where it is not there, or is no text."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = "there is no file" if isinstance(error, FileNotFoundError) else "cannot read"
        raise UsageError("E111", f"{why} {path}.") from None


def load(text: str, where: str, code: str) -> Any:
    """What a YAML text says. Raises UsageError of this code, which says where (a file's name) and at which line."""
    import yaml

    try:
        if (node := yaml.compose(text, Loader=yaml.SafeLoader)) is not None:
            _check(node, {}, where, code)
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: a date that there is none of
        said = " ".join(str(error).replace(' in "<unicode string>",', " at").split())
        raise UsageError(code, f"{where} is not YAML: {said}.") from None
    except RecursionError:
        raise UsageError(code, f"{where} is nested too deeply.") from None


def in_words(message: str) -> str:
    """What pydantic says of a value, as a file's author would call it."""
    for python, plain in _PLAIN.items():
        message = message.replace(python, plain)
    return message


def _check(node: Any, seen: dict[int, bool], where: str, code: str) -> None:
    """seen: the nodes met so far, each once however many aliases lead to it, and whether all in it has been looked at."""
    import yaml

    if id(node) in seen:
        if not seen[id(node)]:
            raise UsageError(code, f"{where}: what begins at line {node.start_mark.line + 1} holds itself.")
        return
    seen[id(node)] = False
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, seen, where, code)
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            at = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    raise UsageError(
                        code, f"{where}: '{key.value}' stands at line {lines[key.value]} and at line {at}."
                    )
                lines[key.value] = at
            _check(value, seen, where, code)
    seen[id(node)] = True
