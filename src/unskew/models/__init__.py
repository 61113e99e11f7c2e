"""Models: those of the papers by name, and a user's own from a file or as a module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unskew.models.registry import build, check_text, default_for, describe, names, weight_bytes

if TYPE_CHECKING:
    from unskew.models.blocks import initialise
    from unskew.models.user_model import ModelFunction as ModelFunction
    from unskew.models.user_model import check_module as check_module
    from unskew.models.user_model import from_file as from_file
    from unskew.models.user_model import from_function as from_function
    from unskew.models.user_model import model_object as model_object

_OF_USERS = ("ModelFunction", "check_module", "from_file", "from_function", "model_object")
__all__ = [
    "build",
    "check_text",
    "default_for",
    "describe",
    "initialise",
    "names",
    "weight_bytes",
    *_OF_USERS,
]


def __getattr__(name: str) -> Any:
    """Names that need torch: `unskew list models` must answer before it is loaded."""
    if name in _OF_USERS or name == "initialise":
        home = "blocks" if name == "initialise" else "user_model"
        return getattr(importlib.import_module(f"unskew.models.{home}"), name)
    raise AttributeError(f"module 'unskew.models' has no attribute '{name}'")
