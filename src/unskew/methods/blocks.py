"""The two ends of a model, for methods that share one and keep the other, or train one after the other."""

from __future__ import annotations

from unskew.core import Client, Fed, Tensor

HEAD_FIRST = ("fedah", "fedpac", "fedrep")
"""Parts by which the body rests in some of a client's steps."""


def in_last_blocks(name: str, blocks: int, fed: Fed) -> bool:
    """Whether a weight or statistic is the head's, or belongs to one of the model's last `blocks` blocks."""
    above = fed.net.blocks[-blocks:] if blocks > 1 else ()
    return fed.net.of_head(name) or name.partition(".")[0] in above


def too_many(blocks: int, fed: Fed) -> str | None:
    """Why the model cannot be divided below its last `blocks` blocks, as the end of a sentence; None if it can."""
    most = len(fed.net.blocks) - 1
    if blocks <= most:
        return None
    return f"its {blocks} last blocks are the whole model ({', '.join(fed.net.blocks)}); take at most {most}"


def head_first(share: float, c: Client) -> dict[str, Tensor]:
    """What `holds` returns where the first round(share S) of a client's S local steps train the head, the others the body.

    Rounding leaves a step to each, or with few steps one of them would stay as it began; a single step trains both.
    """
    first = c.step < (share * c.steps).round().clamp(min=1).minimum(c.steps - 1)
    both = c.steps < 2
    return {n: (~first if c.net.of_head(n) else first) & ~both for n in c.net.trainable}
