"""Names that differ in capitals and spaces alone are told before anything trains."""

from __future__ import annotations

import numpy as np

import unskew
from unskew.data.data_overview import facts, table
from unskew.data.python_objects import take

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
SAYS = "differ in capitals or spaces alone and count as 2; if they are one, give them one name"


def warnings(y, site) -> list[str]:
    """Those of the table, which are those of the facts."""
    dataset = take(unskew.data.arrays(X, np.array(y), columns={"site": np.array(site)}))
    told = [
        line.removeprefix("warning  ") for line in table(dataset).splitlines() if line.startswith("warning")
    ]
    assert told == [note["text"] for note in facts(dataset)["notes"] if note["about"] == "warning"]
    return told


def test_names_that_differ_in_capitals_or_spaces_are_told():
    """`Yes` and `yes` were two of three classes without a word."""
    assert warnings(["no", "yes", "Yes", "no"] * 10, ["a", "b"] * 20) == [f"classes 'Yes' and 'yes' {SAYS}"]
    assert warnings(["no", "yes"] * 20, ["St Anna", "b", "StAnna", "b"] * 10) == [
        f"sites 'St Anna' and 'StAnna' {SAYS}"
    ]
    assert warnings(["no", "yes"] * 20, ["a", "b"] * 20) == []
