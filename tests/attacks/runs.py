"""Small finished runs to attack, each trained once for all tests of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import unskew

NOISE = (1, 10, 10)
"""The shape of samples that have nothing in common, so that whoever knows one has seen it."""


def noise(folder: Path, n: int = 300, classes: int = 2) -> str:
    """The path of a data set of noise with labels drawn by lot; its test rows are like its training rows."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, *NOISE)).astype(np.float32)
    y = rng.integers(0, classes, n)
    path = folder / "noise.npz"
    np.savez(
        path,
        x=x,
        y=y,
        x_test=rng.normal(size=(n, *NOISE)).astype(np.float32),
        y_test=rng.integers(0, classes, n),
    )
    return str(path)


def trained(folder: Path, method: str = "fedavg", data: str = "digits", **settings: object) -> Path:
    """The folder of a run of few rounds."""
    few = {"clients": 3, "samples": 30, "skew": "iid", "rounds": 2, "epochs": 1, "model": "mlp(hidden=[16])"}
    few |= {"workers": 1, "batch": 10} | settings
    unskew.run(method, data, name="r", folder=folder, progress=False, **few)
    return folder / "r"
