"""YAML documents: reading with errors that name the line, and writing.

The reader is stricter than most: it refuses duplicate keys, of which others keep the last, and aliases, with
which a short text can describe billions of entries. It is more lenient in one point: 1e-3 is a number, which
YAML 1.1 reads as text.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from unskew.errors import UsageError

_PLAIN = {
    "a valid tuple": "a list",
    "a valid list": "a list",
    "a valid dictionary": "keys and values",
    "a valid string": "text, perhaps in quotes",
}
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


def text_of(path: Path) -> str:
    """The content of a text file. Raises UsageError (E111) if it does not exist or is not text."""
    try:
        return path.read_text(encoding="utf-8")  # as YAML is, whatever the machine's language
    except FileNotFoundError:
        raise UsageError("E111", f"there is no file {path}.") from None
    except UnicodeDecodeError:
        raise UsageError("E111", f"cannot read {path}: save it as UTF-8.") from None
    except OSError as error:
        raise UsageError("E111", f"cannot read {path}: {os.strerror(error.errno or 0)}.") from None


def load(text: str, where: str, code: str) -> Any:
    """The content of a YAML text. Raises UsageError of this code; where: the file's name, for the message."""
    import yaml

    try:
        return _loader()(text).get_single_data()
    except _Refused as refused:
        raise UsageError(code, f"{where}: {refused}.") from None
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: a date that does not exist
        reason = " ".join(str(error).replace(' in "<unicode string>",', " at").split())
        raise UsageError(code, f"{where} is not YAML: {reason}.") from None
    except RecursionError:
        raise UsageError(code, f"{where} is nested too deeply.") from None


def lines_of(text: str) -> dict[str, int]:
    """The line of each key of a YAML mapping, counted from 1; {} if the text is not a mapping."""
    import yaml

    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: key.start_mark.line + 1 for key, _ in node.value if isinstance(key, yaml.ScalarNode)}


def dump(values: dict[str, Any]) -> str:
    """Keys and values as YAML, in their order."""
    import yaml

    text: str = yaml.dump(values, Dumper=_with_exponents("SafeDumper"), sort_keys=False, allow_unicode=True)
    return text


def validation_text(message: str) -> str:
    """A message of pydantic in the terms of YAML instead of Python."""
    for python, plain in _PLAIN.items():
        message = message.replace(python, plain)
    return message


@cache
def _with_exponents(base: str) -> Any:
    """YAML's safe loader or dumper, with 1e-3 as a number; a dumper then quotes such texts."""
    import yaml

    kind: Any = type(base, (getattr(yaml, base),), {"ignore_aliases": lambda *_: True})
    kind.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    return kind


@cache
def _loader() -> Any:
    """YAML's safe loader, which refuses duplicate keys and aliases."""
    import yaml

    class Loader(_with_exponents("SafeLoader")):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                alias = self.peek_event()
                line = alias.start_mark.line + 1
                raise _Refused(f"line {line} has the alias '*{alias.anchor}'; write out what it stands for")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            lines: dict[str, int] = {}
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode):
                    if key.value in lines:
                        first = lines[key.value]
                        raise _Refused(f"'{key.value}' stands at line {first} and at line {line}")
                    lines[key.value] = line
            return super().construct_mapping(node, deep)

    return Loader


class _Refused(Exception):
    """The text is YAML, and has a duplicate key or an alias."""
