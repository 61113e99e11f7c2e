"""unskew: federated learning for the data real clients have.

import unskew
result = unskew.run("flea+scaffold", data="digits", clients=20)
print(result.table())
"""

from __future__ import annotations

import importlib
from typing import Any

from unskew.version import __version__

_HOMES = {
    "run": "unskew.api",
    "compare": "unskew.api",
    "resume": "unskew.api",
    "Result": "unskew.api",
    "Comparison": "unskew.api",
    "Settings": "unskew.config",
    "Method": "unskew.core.method",
    "Part": "unskew.core.part",
    "Share": "unskew.core.values",
    "Trip": "unskew.core.trip",
    "Noise": "unskew.core.values",
    "Batch": "unskew.core.values",
    "Client": "unskew.core.client",
    "Fed": "unskew.core.client",
    "Ups": "unskew.core.replies",
    "UnskewError": "unskew.errors",
    "ClipMedian": "unskew.merge.clip",
    "MultiKrum": "unskew.merge.krum",
    "Median": "unskew.merge.median",
    "TrimmedMean": "unskew.merge.trimmed",
    "BSM": "unskew.methods.bsm",
    "CCVR": "unskew.methods.ccvr",
    "FedAvgFT": "unskew.methods.fedavg_ft",
    "FedAvgM": "unskew.methods.fedavgm",
    "FedBABU": "unskew.methods.fedbabu",
    "FedBN": "unskew.methods.fedbn",
    "FedBR": "unskew.methods.fedbr",
    "FedData": "unskew.methods.feddata",
    "FedDecorr": "unskew.methods.feddecorr",
    "FedDPMS": "unskew.methods.feddpms",
    "FedDyn": "unskew.methods.feddyn",
    "FedFA": "unskew.methods.fedfa",
    "FedGen": "unskew.methods.fedgen",
    "FedGenImages": "unskew.methods.fedgen_images",
    "FedLC": "unskew.methods.fedlc",
    "FedMix": "unskew.methods.fedmix",
    "FedNova": "unskew.methods.fednova",
    "FedNTD": "unskew.methods.fedntd",
    "FedProto": "unskew.methods.fedproto",
    "FedProx": "unskew.methods.fedprox",
    "FedRDN": "unskew.methods.fedrdn",
    "FedRS": "unskew.methods.fedrs",
    "FLea": "unskew.methods.flea",
    "Local": "unskew.methods.local",
    "MOON": "unskew.methods.moon",
    "NaiveMix": "unskew.methods.naivemix",
    "Norm": "unskew.methods.norm",
    "ReBaFL": "unskew.methods.rebafl",
    "Scaffold": "unskew.methods.scaffold",
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
