"""privacy.json: what noisy releases of a run amount to, by Part, and under ATTACKS what attacks on it have measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew import disk
from unskew.engine.disk import findings

FILE, ATTACKS = "privacy.json", "attacks"


def read(folder: Path) -> dict[str, Any]:
    """The content of the file, {} if there is none. Raises StateError (E111) if it is damaged."""
    path = folder / FILE
    if not path.is_file():
        return {}
    return findings.privacy(path, path.read_bytes(), ATTACKS)


def put_releases(folder: Path, releases: Mapping[str, Any]) -> None:
    """Write what noisy releases amount to, by Part; what attacks measured stays."""
    measured = read(folder).get(ATTACKS)
    _write(folder, {**releases, **({ATTACKS: measured} if measured else {})})


def put_attack(folder: Path, name: str, finding: Mapping[str, Any]) -> None:
    """Write what an attack measured, in place of what it had measured before; everything else stays."""
    content = read(folder)
    _write(folder, {**content, ATTACKS: {**content.get(ATTACKS, {}), name: finding}})


def _write(folder: Path, content: Mapping[str, Any]) -> None:
    if content:
        disk.replace(folder / FILE, json.dumps(content, indent=1, allow_nan=False))
