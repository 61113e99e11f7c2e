"""Declarations of a Part: the tensors that leave a client (Share) and the random numbers that hooks use
(Noise). Both are checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from unskew.errors import UsageError, excerpt, suggestion

LAW_ARGUMENTS = {"uniform": 0, "normal": 0, "beta": 2, "integers": 1, "cycle": 1}
"""The number of arguments of each law of Noise."""


def _check_share(share: Any) -> None:
    shape = share.shape
    counts = isinstance(shape, tuple | list) and all(n is None or _is_count(n) for n in shape)
    _check("Share", counts, f"shape has to be a tuple of whole numbers; got {excerpt(shape)}")
    rows = None not in shape[1:] and (None not in shape or share.rows > 0)
    _check("Share", rows, "None, a number of rows that differs, stands first in its shape, and needs `rows`")
    _check(
        "Share", isinstance(share.dtype, torch.dtype), "dtype has to be one of torch's, like torch.float32"
    )
    _check("Share", share.low <= share.high, f"low has to be at most high; got {share.low}, {share.high}")
    _check("Share", share.norm is None or share.norm > 0, f"norm has to be above 0; got {share.norm}")
    _check_word("Share", "kind", share.kind, (None, *get_args(Kind)))
    _check_word("Share", "reads", share.reads, ("sum", "each"))
    _check_word("Share", "guarantee", share.guarantee, ("none", "empirical", "dp"))
    if not (_is_count(share.samples) and share.samples > 0):
        _check_word("Share", "samples", share.samples, ("class", "client"))


def _check_noise(noise: Any) -> None:
    _check_word("Noise", "law", noise.law, tuple(LAW_ARGUMENTS))
    args, count = noise.args, LAW_ARGUMENTS[noise.law]
    fits = isinstance(args, tuple | list) and len(args) == count and all(a > 0 for a in args)
    fits = fits and (count != 1 or args[0] == int(args[0]))
    takes = f"'{noise.law}' takes {count} args above 0" + (", a whole number" if count == 1 else "")
    _check("Noise", fits, f"{takes}; got {excerpt(args)}. Scale what you draw: low + (high - low) * c.noise")


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def _check_word(what: str, name: str, value: Any, known: tuple[Any, ...]) -> None:
    near = suggestion(value, [k for k in known if k]) if isinstance(value, str) else ""
    _check(what, value in known, f"{name} is {' or '.join(map(repr, known))}; got {excerpt(value)}.{near}")


def _check(what: str, holds: bool, text: str) -> None:
    """Raises UsageError (E121) with this text unless a declaration holds."""
    if not holds:
        raise UsageError("E121", f"{what}: {text}")


Kind = Literal["weights", "sums", "statistics", "features", "labels", "inputs"]
"""What a Share discloses, roughly from least to most: weights or their changes; sums or means of features;
counts and other figures of a class or a client; features of samples; labels of samples; inputs, also averaged
ones."""


@dataclass(frozen=True)
class Share:
    """The declaration of one tensor that leaves a client in addition to its weights. What is not declared
    cannot leave.

    shape: of the tensor; it may begin with None for a number of rows that differs by client, at most `rows`.
    dtype: of the tensor. low, high: bounds on every value. norm: bound on the L2 norm of the whole tensor.
    guarantee: what protects it: a proof ("dp"), a measurement ("empirical") or nothing ("none").
    reads: what the server must see: the sum over clients ("sum"), which secure aggregation provides without
    showing single clients, or every client's tensor ("each").
    what: a few words for tables, such as "mean of each channel".
    kind: what it discloses; None counts as "inputs".
    samples: the number of samples from which each of its numbers is computed; "class" or "client" for all of
    a class or of the client. Sites decide by kind and samples what may leave.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype = torch.float32
    low: float = -math.inf
    high: float = math.inf
    norm: float | None = None
    guarantee: Literal["dp", "empirical", "none"] = "none"
    reads: Literal["sum", "each"] = "sum"
    rows: int = 0
    what: str = ""
    kind: Kind | None = None
    samples: int | Literal["class", "client"] = 1

    def __post_init__(self):
        """Raises UsageError (E121) for an invalid field."""
        _check_share(self)

    @property
    def discloses(self) -> Kind:
        """Its kind, by default the most sensitive one."""
        return self.kind or "inputs"

    @property
    def behind(self) -> str:
        """In words, the number of samples from which each of its numbers is computed."""
        words = {"class": "all of a class", "client": "all"}
        return words[self.samples] if isinstance(self.samples, str) else str(self.samples)

    def fewest(self, n: int, counts_C: np.ndarray[Any, Any]) -> int:
        """The smallest number of samples from which one of its numbers is computed, at a client with n
        samples.

        counts_C: the client's samples of each class (with masks: pixels). If a client distributes its samples
        over rows, the last row may have fewer than the others. 0 for a client without samples.
        """
        if not n:
            return 0
        if isinstance(self.samples, str):
            return n if self.samples == "client" else min(n, int(counts_C[counts_C > 0].min()))
        last = n % self.samples if self.shape[:1] == (None,) else 0
        return last or min(self.samples, n)

    @property
    def max_bytes(self) -> int:
        """The bytes of the largest tensor that this declaration allows."""
        sizes = [self.rows if s is None else s for s in self.shape]
        return math.prod(sizes) * torch.empty((), dtype=self.dtype).element_size()


@dataclass(frozen=True)
class Noise:
    """Random numbers for a client's hooks. The engine draws them anew at every step, keyed by client and
    round.

    law: "uniform" on [0, 1); "normal", standard; "beta" with args (a, b); "integers" 0..n-1 with args (n,),
    drawn independently; "cycle" with args (n,): 0..n-1 in shuffled order, repeated, so that a pass has each
    equally often (drawn independently if n is smaller than the batch).
    shape: of one draw. per_sample: one draw per sample, [B, *shape], instead of one per step, [*shape].
    """

    law: Literal["uniform", "normal", "beta", "integers", "cycle"]
    args: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    per_sample: bool = True

    def __post_init__(self):
        """Raises UsageError (E121) for an invalid field."""
        _check_noise(self)
