"""What the header of a request may say, which a site checks before it uses any of it.

The coordinator signs its requests, but its key may have been stolen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from unskew.config import Settings
from unskew.deploy.refusing import refusal
from unskew.deploy.summing.roster import MOST_SEALED, MOST_SIGNATURE, is_texts
from unskew.errors import UsageError

MOST_CLIENTS, MOST_SAMPLES, MOST_ROUNDS = 10_000, 1 << 40, 1_000_000
NEEDED = {
    "hello": ("settings",),
    "setup": ("settings", "k", "clients", "largest"),
    "train": ("lr",),
    "visit": ("lr", "part", "trip"),
    "score": ("lr",),
    "share": ("roster",),
    "mask": ("dealt",),
    "agree": ("came", "left"),
    "open": ("came", "left"),
}
"""By kind of request, what its header must say beside run, serial, site, kind and t."""


def check_values(header: Mapping[str, Any]) -> None:
    """Raises UsageError (E310), naming the first value that no honest request has. Values that are absent pass."""
    clients = header.get("clients", MOST_CLIENTS)
    for name, (fits, expected) in _VALUES.items():
        if name in header and not fits(header[name]):
            raise UsageError("E310", f"the request's '{name}' is {_shown(header[name])}, expected {expected}.")
    if header.get("k", 0) >= clients:
        raise UsageError("E310", f"the request's 'k' is {header['k']}, expected a number below its {clients} clients.")


def check_complete(header: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Raises UsageError (E310), naming the first thing that a request of this kind lacks."""
    lacking = [name for name in NEEDED[header["kind"]] if name not in header]
    if header["kind"] == "setup" and not isinstance(tree.get("w"), Mapping):
        lacking.append("w")
    if lacking:
        raise UsageError("E310", f"the request lacks '{lacking[0]}', which every '{header['kind']}' has.")


def check_round(t: int, rounds: int) -> None:
    """Raises UsageError (E310) for a round that the study does not have."""
    if t > rounds:
        raise UsageError("E310", f"the request's 't' is {t}, expected at most the study's {rounds} rounds.")


def check_scored(header: Mapping[str, Any], settings: Settings, may_end_early: bool) -> None:
    """Raises UsageError (E520) for scores of a round that the study does not score: weights of the coordinator's choice would be
    scored more often than was approved. may_end_early: whether any round may be the last, which is always scored."""
    t = header["t"] if header["kind"] == "score" else header["t"] - 1
    asked = header["kind"] == "score" or "score" in header
    if asked and t % settings.eval_every and t != settings.rounds and not may_end_early:
        raise refusal(f"scores of round {t} are asked for, and the study scores every {settings.eval_every} rounds")


def check_rates(header: Mapping[str, Any], settings: Settings) -> None:
    """Raises UsageError (E520) for a learning rate that is not the study's, which is the one that was approved."""
    t = header["t"]
    for name, at in (("lr", t), ("score", t - 1)):
        if name in header and not math.isclose(header[name], settings.lr_in(at), rel_tol=1e-6, abs_tol=1e-12):
            text = f"round {at} is asked for with the learning rate {header[name]:g}"
            raise refusal(f"{text}, and the study says {settings.lr_in(at):g}")


def check_weights(weights: Any, first: Mapping[str, Tensor]) -> None:
    """Raises UsageError (E310), naming the first of a request's weights that the run's model, set up with `first`, lacks,
    or has in another shape or type."""
    if not isinstance(weights, Mapping):
        raise UsageError("E310", "the request's weights are one tensor, expected one for each name.")
    for name, tensor in weights.items():
        if name not in first:
            raise UsageError("E310", f"the request's weights hold {_shown(name)}, which the run's model has not.")
        if (form := _form(tensor)) != (expected := _form(first[name])):
            raise UsageError("E310", f"the request's '{name}' is {form}, expected {expected} as in the run's model.")


def _form(tensor: Any) -> str:
    """The shape and type of a tensor."""
    return f"{list(tensor.shape)} of {str(tensor.dtype)[6:]}" if isinstance(tensor, Tensor) else "no tensor"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _whole(least: int, most: int) -> tuple[Callable[[Any], bool], str]:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return fits, f"a whole number from {least} to {most:,}"


def _is_name(value: Any) -> bool:
    """Whether it can be the name of a run's folder, or is none."""
    return isinstance(value, str) and re.fullmatch(r"[\w.-]{0,64}", value) is not None


def _is_rate(value: Any) -> bool:
    """Whether it can be a learning rate."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= 1e300


def _are_trips(value: Any) -> bool:
    """Whether it is a list of (name of a Part, number of its trip)."""
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and _PLACE[0](pair[1]) for pair in value
    )


def _are_versions(value: Any) -> bool:
    """Whether it gives a few versions by package, each in a short text."""
    return (
        isinstance(value, dict)
        and len(value) <= 10
        and all(
            isinstance(text, str) and text.isprintable() and len(text) <= 100 for pair in value.items() for text in pair
        )
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_CLIENTS and all(isinstance(name, str) for name in value)


_PLACE, _RATE = _whole(0, 1_000), (_is_rate, "a number from 0 to 1e300")
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_name, "the name of a run"),
    "run": (lambda value: isinstance(value, str), "the number of a run"),
    "t": _whole(0, MOST_ROUNDS),
    "clients": _whole(1, MOST_CLIENTS),
    "k": _whole(0, MOST_CLIENTS - 1),
    "largest": _whole(0, MOST_SAMPLES),
    "base": _whole(0, MOST_ROUNDS),
    "trip": _PLACE,
    "lr": _RATE,
    "score": _RATE,
    "part": (lambda value: isinstance(value, str), "the name of a Part"),
    "settings": (lambda value: isinstance(value, dict), "the settings of a study"),
    "early": (_are_trips, "a list of trips"),
    "versions": (_are_versions, "versions by package"),
    "roster": (lambda value: isinstance(value, list) and len(value) <= MOST_CLIENTS, "a list of sites"),
    "dealt": (lambda value: is_texts(value, MOST_SEALED), "sealed shares by site"),
    "came": (_are_names, "a list of sites"),
    "left": (_are_names, "a list of sites"),
    "signatures": (lambda value: is_texts(value, MOST_SIGNATURE), "signatures by site"),
}
