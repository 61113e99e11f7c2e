"""Whether a folder holds the run that is asked for now: the same settings, files of the user's own, and given objects.

A file that only metrics come from changes no weight. It may be mended, and a record tells from which round on its scores are
of another version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew import config
from unskew.config import Settings
from unskew.engine.resolve import Run
from unskew.engine.server.used import RESCORED
from unskew.errors import StateError


def check_same(path: Path, settings: Settings) -> None:
    """Raises StateError (E112) unless the run in this folder is of these settings, and of the same files of a user's own."""
    config.check_same(config.load(path / "config.yaml"), settings, path)
    check_files(files_at_first(path), settings, path)


def files_at_first(path: Path) -> dict[str, str]:
    """The digests that the user's own files had when the run in this folder began. Raises StateError (E111) for a damaged file."""
    env = path / "env.json"
    try:
        return dict(json.loads(env.read_text())["files"]) if env.exists() else {}
    except (ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: remove it to go on without the versions and the files it names"
        raise StateError("E111", f"{env} is damaged ({why}).") from None


def check_files(before: Mapping[str, str], settings: Settings, path: Path) -> None:
    """Raises StateError (E112) if a file that the settings name, other than for metrics alone, has not the digest it had before."""
    for file in _changed(before, settings):
        if file not in settings.files_of_metrics():
            raise StateError(
                "E112", f"{file} has changed since {path} began; going on would mix two of it. Choose another --name."
            )


def rescored(before: Mapping[str, str], settings: Settings, t: int) -> list[dict[str, Any]]:
    """An event (E327) for every file of metrics that has changed. before: digests; t: the last round that is finished."""
    versions = f"its scores are of the new version from round {t + 1} on, and of the older one up to there"
    return [
        {"t": t, "code": RESCORED, "text": f"{file}, a file of metrics, was changed after round {t}: {versions}."}
        for file in _changed(before, settings)
        if file in settings.files_of_metrics()
    ]


def _changed(before: Mapping[str, str], settings: Settings) -> list[str]:
    """Of files that were not told before, as versions that knew nothing of imports did not, nobody can say whether they have."""
    return [file for file, now in settings.files().items() if before.get(file, now) != now]


def check_given(before: Mapping[str, str], run: Run, path: Path) -> None:
    """Raises StateError where a model or Part that a program gave is another one than before (E112), or missing (E118)."""
    for name, then in before.items():
        if name not in run.given:
            raise StateError("E118", f"{path} was begun from Python with {name} given as an object; resume it there.")
        if run.given[name] != then:
            raise StateError(
                "E112",
                f"{name} given here is not the one with which {path} was begun; going on would mix two runs. Choose "
                "another --name.",
            )
