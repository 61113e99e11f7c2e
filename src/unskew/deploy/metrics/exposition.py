"""Prometheus's text format, version 0.0.4: what a metric is, its kind, and its values by label."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """name: with its unit, and ending in `_total` where it is a counter. values: by the label's value.

    label: "" for a metric with one value, which then stands under "".
    """

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    values: Mapping[str, float]
    label: str = ""


def counter(name: str, meaning: str, values: float | Mapping[str, float], label: str = "") -> Metric:
    """A number that only grows, and begins at 0 with its process."""
    return Metric(f"unskew_{name}_total", "counter", meaning, _by_label(values), label)


def gauge(name: str, meaning: str, values: float | Mapping[str, float], label: str = "") -> Metric:
    """A number that goes up and down."""
    return Metric(f"unskew_{name}", "gauge", meaning, _by_label(values), label)


def text(metrics: Iterable[Metric]) -> str:
    """What a scrape is answered with."""
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {_escaped(metric.meaning)}", f"# TYPE {metric.name} {metric.kind}"]
        for value, number in metric.values.items():
            label = f'{{{metric.label}="{_escaped(value, quoted=True)}"}}' if metric.label else ""
            lines.append(f"{metric.name}{label} {_number(number)}")
    return "\n".join(lines) + "\n"


def _by_label(values: float | Mapping[str, float]) -> Mapping[str, float]:
    return dict(values) if isinstance(values, Mapping) else {"": values}


def _escaped(words: str, quoted: bool = False) -> str:
    words = words.replace("\\", "\\\\").replace("\n", "\\n")
    return words.replace('"', '\\"') if quoted else words


def _number(number: float) -> str:
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return str(int(number)) if float(number).is_integer() else repr(float(number))
