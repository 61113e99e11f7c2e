"""The folder of a run opened for attacks. It may be anybody's: no Python file is imported because the folder names it."""

from __future__ import annotations

from pathlib import Path

from unskew import config, disk, scores
from unskew.config import Settings
from unskew.data.intake.take import GIVEN
from unskew.engine import resolve
from unskew.engine.disk import state
from unskew.engine.disk.code import Code, check_model, method_of
from unskew.engine.disk.folder import Folder, as_recorded
from unskew.engine.disk.state import Checkpoint
from unskew.errors import StateError

SUMMED = "the server read sums alone (secure_aggregation)"
"""Why single replies cannot be attacked in a run, as the end of a sentence."""
NONE = Code()
"""No code: what a run takes that needs none."""


def settings_of(path: Path) -> Settings:
    """The settings of the run in this folder. Raises StateError (E117) where there is none."""
    file = path / "config.yaml"
    if not file.exists():
        raise disk.no_run(path, "config.yaml")
    return config.load(file)


def opened(path: Path, settings: Settings, code: Code) -> Folder:
    """The run of a folder whose settings name its samples, with the caller's code in place of what they name."""
    _check_here(path, settings)
    checkpoint = last(path)
    files = checkpoint[1]["files"]
    method = method_of(path, files, settings, code.method)
    check_model(path, files, settings, code.model)
    here, model = settings.replace(metrics=scores.NONE), code.model  # no attack reads metrics, which may be files, too
    if isinstance(model, str):
        here, model = here.replace(model=model), None
    return Folder(path, as_recorded(resolve.resolve(here, method=method, model=model), checkpoint))


def without_code(settings: Settings) -> Settings:
    """The settings of what a run reads beside code, which was compared when it was opened."""
    code = {
        "method": "fedavg",
        "set": {},
        "metrics": scores.NONE,
        **({"model": "auto"} if ".py" in settings.model else {}),
    }
    return settings.replace(**code)


def last(path: Path) -> Checkpoint:
    """The last checkpoint of the run in this folder. Raises StateError (E152) where there is none, (E201) for a damaged one."""
    try:
        return state.read(path / state.LATEST)
    except FileNotFoundError:
        raise StateError("E152", f"{path} has no state.safetensors: it has not begun, or lost it.") from None


def _check_here(path: Path, settings: Settings) -> None:
    """Raises StateError (E152) for a run whose samples or model are not in reach of this machine."""
    if settings.data.startswith("("):
        text = f"the samples of {path} are not named in its settings (they stayed at sites, or were given in Python)"
        remedy = "for a run of sites name each site's data (unskew attack RUN --data SITE=PATH), else attack a simulated run of the same settings"
        raise StateError("E152", f"{text}, and an attack is scored on them; {remedy}.")
    if settings.model == GIVEN:
        raise StateError(
            "E152", f"the model of {path} was given in Python; attack a run whose model has a name or a file."
        )
