"""Settings whose texts have a grammar of their own: metrics, measure, track and secure_aggregation."""

from __future__ import annotations

from typing import Any

from unskew import measures, scores, specs
from unskew.errors import UsageError, suggestion

TRACKERS = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb", "codecarbon": "codecarbon"}
"""What has to be installed of each tracker, which is imported by its own name."""


def spelt(key: str, value: Any) -> Any:
    """The text that a YAML file or a program means: it reads a bare on or off as true or false, and names may be a list."""
    if key == "secure_aggregation" and isinstance(value, bool):
        return "on" if value else "off"
    if key == "metrics" and isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value


def checked(key: str, value: Any, where: str) -> Any:
    """The value, in one spelling where its text has several. where: of the key, for messages: " at line 3".

    Raises UsageError: E109 for a text that cannot be read, E130 for an unknown measure, E135 for an unknown metric.
    """
    if key == "track":
        specs.names_in(str(value), list(TRACKERS), f"track{where}")
    if key == "metrics":
        return ",".join(scores.named_in(str(value), where)) or scores.NONE
    if key == "measure":
        return _measures(str(value), where)
    if key == "secure_aggregation":
        _check_secure(str(value), where)
    return value


def _check_secure(text: str, where: str) -> None:
    """Raises UsageError for a text of the setting `secure_aggregation` that cannot be read."""
    from unskew.privacy import secure

    try:
        secure.parse(text)
    except UsageError as error:
        raise UsageError(
            error.code, error.text.replace("secure_aggregation", f"secure_aggregation{where}", 1)
        ) from None


def _measures(text: str, where: str) -> str:
    """The names of measures in one spelling."""
    try:
        return measures.written(measures.names_in(text))
    except KeyError as unknown:
        name, known = str(unknown.args[0]), ", ".join(measures.NAMES)
        near = suggestion(name, measures.NAMES)
        raise UsageError("E130", f"unknown measure '{name}'{where}.{near} Measures: {known}.") from None
