"""Which of a model's weights belong to its last blocks, for methods that share one end of the model and keep the other."""

from __future__ import annotations

from unskew.core import Fed


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
