"""What attacks measured of the methods of a comparison, as text for a terminal or a pipe, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from unskew.attacks.coverage import NOT_MEASURED
from unskew.core.account import number
from unskew.report.leakage import Leak, Leakage
from unskew.report.numbers import MISSING, one
from unskew.scores import significant

HEAD = ("method", "score", "epsilon", "payload", "attack", "found, 95 %", "without payload", "leakage")


def cells(row: Leakage) -> list[list[str]]:
    """A line for each attack on each payload, and one for each payload that needs none, or that nobody has attacked."""
    lines = [_measured(leak) for leak in row.leaks]
    lines += [[_payload(share), "none needed", words, "", ""] for share, words in row.clear.items()]
    lines += [[_payload(share), NOT_MEASURED, "", "", ""] for share in row.unmeasured]
    return lines or [["nothing", "", "", "", ""]]


def plain(rows: Sequence[Leakage]) -> str:
    """The table, as text; "" without a method."""
    if not rows:
        return ""
    lines = [list(HEAD)]
    for row in rows:
        first = [row.method, one(row.score.mean, row.metric), number(row.epsilon)]
        lines += [[*(first if i == 0 else ["", "", ""]), *line] for i, line in enumerate(cells(row))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    note = "leakage: from nothing learnt (0 %) to the raw samples (100 %); a better attack may find more"
    return "\n".join([*text, note])


def as_json(row: Leakage) -> dict[str, Any]:
    """The fields of a method's row: an infinite epsilon and NaN become null."""
    return {
        "epsilon": _finite(row.epsilon),
        "covers": row.reading,
        "leaks": [_leak_as_json(leak) for leak in row.leaks],
        "in_clear": row.clear,
        "not_measured": list(row.unmeasured),
    }


def _leak_as_json(leak: Leak) -> dict[str, Any]:
    intervals = {name: getattr(leak, name)._asdict() for name in ("value", "reach")}
    plain = {name: _finite(value) for name, value in asdict(leak).items() if name not in intervals}
    return plain | {name: {end: _finite(v) for end, v in ends.items()} for name, ends in intervals.items()}


def _measured(leak: Leak) -> list[str]:
    value, reach = leak.value, leak.reach
    score = f"{leak.metric} {significant(value.mean, 3)} [{significant(value.low, 3)}, {significant(value.high, 3)}]"
    share = f"{_whole(reach.mean)} % [{_whole(reach.low)}, {_whole(reach.high)}]"
    return [_payload(leak.payload), leak.attack, score, significant(leak.floor, 3), share]


def _payload(share: str) -> str:
    return "weights" if share == "w" else share


def _whole(share: float) -> str:
    return MISSING if math.isnan(share) else f"{100 * share:.0f}"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
