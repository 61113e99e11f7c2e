"""unskew: federated learning for the data real clients have.

import unskew
result = unskew.run("flea+scaffold", data="digits", clients=20)
print(result.table())
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "run": "unskew.api",
    "compare": "unskew.api",
    "resume": "unskew.api",
    "Result": "unskew.api",
    "Comparison": "unskew.api",
    "Settings": "unskew.config",
    "Method": "unskew.core.method",
    "Part": "unskew.core.part",
    "Share": "unskew.core.part",
    "Trip": "unskew.core.part",
    "Noise": "unskew.core.part",
    "Batch": "unskew.core.part",
    "Client": "unskew.core.client",
    "Fed": "unskew.core.client",
    "Ups": "unskew.core.replies",
    "UnskewError": "unskew.errors",
    "FedProx": "unskew.methods.fedprox",
    "Scaffold": "unskew.methods.scaffold",
    "FedBN": "unskew.methods.fedbn",
    "Norm": "unskew.methods.norm",
    "FedRDN": "unskew.methods.fedrdn",
    "ReBaFL": "unskew.methods.rebafl",
    "FLea": "unskew.methods.flea",
    "Local": "unskew.methods.local",
}
_ROOMS = ("data", "models", "methods")
__all__ = [*_HOMES, *_ROOMS, "__version__"]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: the command line must answer before torch is loaded."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"unskew.{name}")
    raise AttributeError(f"module 'unskew' has no attribute '{name}'")
