"""What a Share or a Noise cannot mean, said when it is made: each would be taken for something else, or fail rounds later."""

from __future__ import annotations

from typing import Any, get_args

import torch

from unskew.errors import UsageError, excerpt, suggestion

ARGS = {"uniform": 0, "normal": 0, "beta": 2, "integers": 1, "cycle": 1}
"""How many numbers each law of Noise takes."""


def check_share(share: Any, kinds: Any) -> None:
    """Raises UsageError (E121). kinds: the type of its `kind`."""
    if not isinstance(share.shape, tuple | list) or not all(n is None or _is_count(n) for n in share.shape):
        _refuse("Share", f"shape has to be a tuple of whole numbers, like ({excerpt(share.shape)},)")
    if None in share.shape[1:]:
        _refuse("Share", "None, a number of rows that differs, can only stand first in its shape")
    if None in share.shape and share.rows < 1:
        _refuse("Share", "rows has to say how many rows it has at most, since its shape begins with None")
    if not isinstance(share.dtype, torch.dtype):
        _refuse("Share", f"dtype has to be one of torch's, like torch.float32; got {excerpt(share.dtype)}")
    if not share.low <= share.high:
        _refuse("Share", f"low has to be at most high; got {share.low} and {share.high}")
    if share.norm is not None and not share.norm > 0:
        _refuse("Share", f"norm has to be above 0; got {share.norm}")
    _check_word("Share", "kind", share.kind, (None, *get_args(kinds)))
    _check_word("Share", "reads", share.reads, ("sum", "each"))
    _check_word("Share", "guarantee", share.guarantee, ("none", "empirical", "dp"))
    if not (_is_count(share.samples) and share.samples > 0):
        _check_word("Share", "samples", share.samples, ("class", "client"), "a whole number above 0, ")


def check_noise(noise: Any) -> None:
    """Raises UsageError (E121)."""
    _check_word("Noise", "law", noise.law, tuple(ARGS))
    args, count = noise.args, ARGS[noise.law]
    if not isinstance(args, tuple | list) or len(args) != count:
        more = "; scale what you draw, such as low + (high - low) * c.noise[...]" * (not count)
        _refuse("Noise", f"the law '{noise.law}' takes {count or 'no'} args; got {excerpt(args)}{more}")
    if not all(a > 0 for a in args) or (count == 1 and args[0] != int(args[0])):
        _refuse(
            "Noise",
            f"the args of '{noise.law}' have to be {'whole numbers ' * (count == 1)}above 0; got {excerpt(args)}",
        )


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def _check_word(what: str, name: str, value: Any, known: tuple[Any, ...], further: str = "") -> None:
    if value not in known:
        near = suggestion(value, [k for k in known if k]) if isinstance(value, str) else ""
        _refuse(
            what, f"{name} has to be {further}{' or '.join(map(repr, known))}; got {excerpt(value)}.{near}".rstrip(".")
        )


def _refuse(what: str, text: str) -> None:
    raise UsageError("E121", f"{what}: {text if text.endswith('?') else f'{text}.'}")
