"""The classes of each client."""

from __future__ import annotations

import numpy as np

from unskew.report.analysis.numbers import plural
from unskew.report.analysis.runs import RunData
from unskew.report.figures.partition import partition_map
from unskew.report.sections import Context, Section, figure

ORDER = 60


def build(context: Context) -> Section | None:
    """The partition of the first competing run, without a picture if labels were not counted; None without
    labels."""
    run = context.first
    if not run.federation.get("labels"):
        return None
    html = figure(partition_map(run.federation))
    return Section("Who holds what", "partition", html, lead=sentence(run), link="Partition")


def sentence(run: RunData) -> str:
    """The partition in words."""
    federation = run.federation
    sizes = federation["sizes"]["train"]
    if not sizes:
        return ""
    unit = federation.get("unit")
    each = {"pixels": ("pixel", "images"), "tokens": ("token", "samples")}.get(str(unit))
    who = (
        f"{federation['name']}, {federation['skew']}, seed {run.seed}:"
        f" {plural(federation['clients'], 'client')}"
    )
    what = f"{each[1] if each else 'samples'} (median {np.median(sizes):,.0f})"
    if not any(map(any, federation["labels"])):
        return (
            f"{who}, each with {min(sizes):,} to {max(sizes):,} training {what}. They do not tell of which"
            " classes."
        )
    held = np.mean([sum(1 for count in row if count) for row in federation["labels"]])
    groups = f"tenths of the target {federation['target']['name']}" if "target" in federation else "classes"
    of_classes = "" if each else f" from {held:.1f} of the {len(federation['classes'])} {groups} on average"
    scored = "held-out part" if run.config.get("validation") else "test set"
    test = f" The {scored} has {federation['test']:,} samples." if federation.get("test") else ""
    cells = (
        f"Every {each[0]} is labelled: a cell is the class’s share of the client’s training {each[0]}s, in"
        " percent."
        if each
        else (
            "The stronger a cell’s colour, the more samples of the tenth, or class, the client has."
            if "target" in federation
            else "The stronger a cell’s colour, the more samples of the class the client has."
        )
    )
    return f"{who}, each with {min(sizes):,} to {max(sizes):,} training {what}{of_classes}.{test} {cells}"
