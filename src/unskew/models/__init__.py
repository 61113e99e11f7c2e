"""Models: those of the papers by name, and a user's own from a file or as a module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unskew.models.registry import build, check_text, default_for, describe, names

if TYPE_CHECKING:
    from unskew.models.blocks import initialise
    from unskew.models.user_model import ModelFunction, check_module, from_file, from_function, model_object

__all__ = [
    "ModelFunction",
    "build",
    "check_module",
    "check_text",
    "default_for",
    "describe",
    "from_file",
    "from_function",
    "initialise",
    "model_object",
    "names",
]

_HOMES = {
    "ModelFunction": "user_model",
    "check_module": "user_model",
    "from_file": "user_model",
    "from_function": "user_model",
    "initialise": "blocks",
    "model_object": "user_model",
}
"""Where to find the names that need torch: `unskew list models` must answer before it is loaded."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"unskew.models.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'unskew.models' has no attribute '{name}'")
