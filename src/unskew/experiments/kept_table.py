"""The numbers of a published table for programs: of a reproduction, or from the JSON file that it left."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from unskew.errors import DataError
from unskew.experiments.pages import plain, read_result
from unskew.experiments.result import TableResult
from unskew.report.analysis import frames

NOTHING = cast(TableResult, {"entries": [], "curves": {}, "claims": []})
"""The numbers of a dry run."""
R = TypeVar("R", bound="TableResult | None")


class TableNumbers(Generic[R]):
    """All numbers, verdicts and curves of a table in `result`, as stored in JSON; None after a dry run."""

    result: R

    def table(self) -> str:
        """The paper's numbers, ours and a verdict on every claim, as text; "" after a dry run."""
        return plain(cast(TableResult, self.result)) if self.result else ""

    def verdicts(self) -> dict[str, str]:
        """By claim a word of `experiments.verdicts`, such as `reproduced`, `agrees so far` or `not run`;
        empty after a dry run."""
        return {claim["text"]: claim["verdict"] for claim in (self.result or NOTHING)["claims"]}

    def to_frame(self, kind: str = "scores") -> Any:
        """Return a pandas DataFrame of one kind: "scores" (the final table, a row for each row and method,
        with columns such as ours.mean), "rounds" (the curves: row, method, seed, round t and value), or
        "claims" (a row for every margin of a claim). Scores are in the table's unit; empty after a dry run.

        Raises UsageError: E109 for another kind, E133 without pandas.
        """
        result = self.result or NOTHING
        kinds = {
            "scores": lambda: result["entries"],
            "rounds": lambda: _rounds(result),
            "claims": lambda: _margins(result),
        }
        return frames.frame(kind, kinds, "result holds all numbers")

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        return f"<pre>{html.escape(self.table())}</pre>"


@dataclass(frozen=True, repr=False)
class KeptTable(TableNumbers[TableResult]):
    """A table from the JSON file that `unskew reproduce` left. path: that file."""

    result: TableResult
    path: Path

    def __repr__(self) -> str:
        return f"<{self.result['title']}, from {self.path}>"


def load_table(path: Path) -> KeptTable:
    """The table in a JSON file. Raises DataError (E401) for another file."""
    if result := read_result(path):
        return KeptTable(result, path)
    raise DataError("E401", f"{path} is not a result of `unskew reproduce`.")


def _rounds(result: TableResult) -> list[dict[str, Any]]:
    return [
        {"row": row, "method": method, "seed": seed, "t": int(t), "value": value}
        for row, methods in result["curves"].items()
        for method, seeds in methods.items()
        for seed, points in enumerate(seeds)
        for t, value in points
    ]


def _margins(result: TableResult) -> list[dict[str, Any]]:
    """A row for each margin of each claim: the row or step of the table, ours and the paper's."""
    return [
        {
            "claim": claim["text"],
            "verdict": claim["verdict"],
            "row": row,
            "margin": claim["margins"].get(row),
            "paper": claim["paper"].get(row),
        }
        for claim in result["claims"]
        for row in claim["paper"] | claim["margins"]
    ]
