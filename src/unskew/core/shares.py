"""What a Part declares: the tensors that leave a client (Share) and the random numbers that its hooks use
(Noise).

Both are checked when they are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from unskew.errors import UsageError, excerpt, suggestion

LAW_ARGUMENTS = {"uniform": 0, "normal": 0, "beta": 2, "integers": 1, "cycle": 1}
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
    _check_word("Noise", "law", noise.law, tuple(LAW_ARGUMENTS))
    args, count = noise.args, LAW_ARGUMENTS[noise.law]
    if not isinstance(args, tuple | list) or len(args) != count:
        more = "; scale what you draw, such as low + (high - low) * c.noise[...]" * (not count)
        _refuse("Noise", f"the law '{noise.law}' takes {count or 'no'} args; got {excerpt(args)}{more}")
    if not all(a > 0 for a in args) or (count == 1 and args[0] != int(args[0])):
        _refuse(
            "Noise",
            f"the args of '{noise.law}' have to be {'whole numbers ' * (count == 1)}above 0; got"
            f" {excerpt(args)}",
        )


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def _check_word(what: str, name: str, value: Any, known: tuple[Any, ...], further: str = "") -> None:
    if value not in known:
        near = suggestion(value, [k for k in known if k]) if isinstance(value, str) else ""
        _refuse(
            what,
            f"{name} has to be {further}{' or '.join(map(repr, known))}; got {excerpt(value)}.{near}".rstrip(
                "."
            ),
        )


def _refuse(what: str, text: str) -> None:
    raise UsageError("E121", f"{what}: {text if text.endswith('?') else f'{text}.'}")


Kind = Literal["weights", "sums", "statistics", "features", "labels", "inputs"]
"""What a Share discloses, roughly from least to most: weights or their changes; sums or means of features;
counts and other figures of a class or a client; features of samples; labels of samples; inputs, also averaged
ones."""


@dataclass(frozen=True)
class Share:
    """The declaration of one tensor that leaves a client beside its weights. What is not declared cannot
    leave.

    shape: of the tensor; it may start with None, for a number of rows that differs by client. rows: the most
    rows.
    dtype: of the tensor. low, high: bounds on every value. norm: bound on the L2 norm of the whole tensor, if
    any.
    guarantee: what protects it: a proof ("dp"), a measurement ("empirical") or nothing ("none").
    reads: what the server must see: the sum over clients ("sum"), which secure aggregation can give without
    showing any client's own, or every client's own ("each").
    what: a few words for tables: "mean of each channel".
    kind: what it discloses; None, where a Part does not say, counts as "inputs".
    samples: how many samples stand behind each of its numbers: so many, or all of a class or of the client
    ("class", "client"). 1 where a Part does not say.
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
        """Raises UsageError (E121) for what it cannot mean."""
        check_share(self, Kind)

    @property
    def discloses(self) -> Kind:
        """Its kind; the strictest where its Part does not say."""
        return self.kind or "inputs"

    @property
    def behind(self) -> str:
        """In words, how many samples stand behind each of its numbers."""
        words = {"class": "all of a class", "client": "all"}
        return words[self.samples] if isinstance(self.samples, str) else str(self.samples)

    def fewest(self, n: int, counts_C: np.ndarray[Any, Any]) -> int:
        """The fewest samples that stand behind one of its numbers at a client with n samples, so many of each
        class (of
        masks: pixels); 0 at a client without any.

        Where a client deals its samples to any number of rows, the last row may have fewer than the others.
        """
        if not n:
            return 0
        if isinstance(self.samples, str):
            return n if self.samples == "client" else min(n, int(counts_C[counts_C > 0].min()))
        last = n % self.samples if self.shape[:1] == (None,) else 0
        return last or min(self.samples, n)

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest tensor that fits this declaration."""
        sizes = [self.rows if s is None else s for s in self.shape]
        return math.prod(sizes) * torch.empty((), dtype=self.dtype).element_size()


@dataclass(frozen=True)
class Noise:
    """Random numbers that a client's hooks ask for. The engine draws them anew at every step, keyed by client
    and round.

    law: "uniform" on [0, 1); "normal", standard; "beta" with args (a, b); "integers" 0..n-1 with args (n,),
    drawn independently; "cycle" with args (n,): 0..n-1 in shuffled order, again and again, so that a pass
    meets each equally often (drawn independently where n is smaller than the batch).
    shape: of one draw. per_sample: one draw for every sample, a tensor [B, *shape]; else one for the step,
    [*shape].
    """

    law: Literal["uniform", "normal", "beta", "integers", "cycle"]
    args: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    per_sample: bool = True

    def __post_init__(self):
        """Raises UsageError (E121) for what it cannot mean."""
        check_noise(self)
