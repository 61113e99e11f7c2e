"""What the terminal of `unskew site run` says of each exchange: one line, from the worker's own answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew.deploy.sealed import Sealed
from unskew.errors import printable

CONNECTED = "connected to the server"
SPENT = "spent.json"
UNTOLD = ("E522", "E205")
"""A study that waits is announced by itself; a run that this site has forgotten is set up again by itself."""


def line(folder: Path, answer: Sealed) -> str:
    """What became of a request, for the site's operator; "" where there is nothing to say. folder: the site's."""
    try:
        header = json.loads(answer.text)
        run, t, kind = (header.get(name) for name in ("run", "t", "kind"))
        if code := header.get("code"):
            return "" if code in UNTOLD else printable(_refused(header))
        if kind == "hello":
            return f"run {run} was told how many samples this site holds, their shape and the classes"
        facts = _of_run(folder, run)
        rounds = f"round {t} of {facts['rounds']}"
        if kind == "setup":
            return f"run {run} begins: {facts['method']}, {facts['rounds']} rounds"
        if kind == "train":
            return f"run {run}, {rounds}: trained on {header['n']:,.0f} samples{_loss(header.get('loss'))}"
        if kind == "visit":
            return f"run {run}, after {rounds}: sent what the method shares beside the weights"
        if kind in ("share", "agree", "open"):
            return ""  # steps between the training and the next round
        if kind == "mask":
            return f"run {run}, {rounds}: sent masked numbers, of which only the sum over sites can be read"
        if t == facts["rounds"]:
            return f"run {run} is over: {rounds} scored, {facts['bytes'] / 1e6:,.1f} MB have left in all"
        return f"run {run}, {rounds}: scored on this site's test samples"
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        return ""  # nothing that is only told may stop an answer


def _refused(header: Mapping[str, Any]) -> str:
    where = f"run {header['run']}" if "run" in header else "a request"
    return f"{where} was not answered: {header['code']} {header.get('text', '')}"


def _loss(loss: Any) -> str:
    """Nothing where it is 0, which stands for a loss that is withheld because no noise covers it."""
    return f", mean loss {loss:.4g}" if isinstance(loss, int | float) and loss else ""


def _of_run(folder: Path, run: str) -> Mapping[str, Any]:
    """What stands on record of a run: method, rounds and bytes."""
    return json.loads((folder / SPENT).read_text())[run]
