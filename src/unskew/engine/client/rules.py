"""The rules that let one hook train many clients side by side, in plain words where torch's refusal is in its own."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from unskew.errors import UsageError

_TORCH = str(Path(torch.__file__).parent)
_BY_VALUE = "decides by a tensor's value; hooks see many clients at once, so choose with torch.where"
RULES = {
    "data-dependent control flow": _BY_VALUE,
    "calling .item()": _BY_VALUE,
    "random operation": "draws random numbers of its own; define `noise` and take them from c.noise",
}
"""Words of an error of torch.func.vmap, and the rule that the hook breaks."""


@contextmanager
def rules_of_hooks() -> Iterator[None]:
    """Raises UsageError (E127), with the file and the line, for a hook that breaks a rule."""
    try:
        yield
    except RuntimeError as error:
        rule = next((rule for words, rule in RULES.items() if words in str(error)), None)
        if rule is None:
            raise
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_TORCH)]
        file, line = frames[-1].filename, frames[-1].lineno or 0
        text = linecache.getline(file, line).strip()
        raise UsageError(
            "E127", f"{file}, line {line} (`{text}`) {rule}. docs/guides/method.md has the rules."
        ) from error
