"""How a variant and the driver talk: lines on stdin and stdout.

A variant starts, does one warm-up round and prints `{"variant", "ready": true, "checksum", "versions"}`.
For every line on stdin it then does one round and prints `{"variant", "seconds", "checksum"}`.
At the end of stdin it leaves. Between lines it computes nothing, so one variant computes at a time.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

import numpy as np
from torch import Tensor
from work import checksum, flat_weights

PACKAGES = ("torch", "pfl", "flwr", "ray", "unskew")


def versions() -> dict[str, str]:
    found = {"python": python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


class Session:
    """The variant's end. Takes stdout for itself: whatever libraries print goes to stderr."""

    def __init__(self, variant: str, weights_file: str | None) -> None:
        self.variant = variant
        self.weights_file = weights_file
        self.warm = False
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def wait(self) -> bool:
        """Block until a round is wanted; False when no more are. The warm-up round is always wanted."""
        return not self.warm or sys.stdin.readline() != ""

    def done(self, seconds: float, tensors: list[Tensor]) -> None:
        """Answer one round with its time and its averaged weights, in the order of the model's parameters."""
        w = flat_weights(tensors)
        answer: dict[str, object] = {"variant": self.variant, "checksum": checksum(w)}
        if self.warm:
            answer["seconds"] = seconds
        else:
            self.warm = True
            answer |= {"ready": True, "versions": versions()}
            if self.weights_file:
                np.save(self.weights_file, w.numpy())
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()


def serve(session: Session, one_round: Callable[[], list[Tensor]]) -> None:
    """Time `one_round` once per request, for variants whose round is a plain function."""
    while session.wait():
        start = time.perf_counter()
        tensors = one_round()
        session.done(time.perf_counter() - start, tensors)
