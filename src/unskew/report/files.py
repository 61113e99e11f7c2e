"""The files of a run's folder, parsed. What cannot be parsed is named in one sentence (StateError E111).

Rows and the facts of federation.json are checked by `engine/disk/shapes.py`. Here as there, every text is one line whose
control characters are escaped, since a run may be somebody else's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from unskew.engine.disk import shapes
from unskew.errors import StateError, printable

TUNED = "tuning.json"
"""In a comparison's folder: what its tuning tried and found."""
Record = dict[str, Any]
"""One line of a .jsonl file."""


class _Loader(yaml.SafeLoader):
    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        return printable(str(super().construct_scalar(node)).strip())


def _printable(value: Any) -> Any:
    """A JSON value with its texts made printable, except for keys."""
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def read_yaml(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file. Raises StateError (E111) if it is not YAML or holds anything else."""
    try:
        content = _Loader(path.read_text(encoding="utf-8")).get_single_data()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StateError("E111", f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(content, dict):
        raise StateError("E111", f"{path} must hold keys and values.")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file, {} if there is none. Raises StateError (E111) if it is not JSON."""
    if not path.is_file():
        return {}
    try:
        content = _printable(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise StateError("E111", f"{path} is not JSON: {why}.") from None
    if not isinstance(content, dict):
        raise StateError("E111", f"{path} must hold keys and values.")
    return content


def read_facts(path: Path) -> dict[str, Any]:
    """The content of federation.json, {} if there is none. Raises StateError (E111) if it is not what it should be."""
    return shapes.facts(path, path.read_bytes()) if path.is_file() else {}


def read_records(path: Path) -> list[Record]:
    """The records of a JSON-lines file, [] if there is none.

    A run that is killed while it writes leaves an incomplete last line, which is skipped. Raises StateError (E111) with
    the number of any other line that is not what it should be.
    """
    if not path.is_file():
        return []
    complete, _, _ = path.read_bytes().rpartition(b"\n")
    return shapes.rows(path, [line for line in complete.split(b"\n") if line.strip()])
