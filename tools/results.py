"""Judges the claims of every kept result anew, from its numbers, and writes its page and the index.

python tools/results.py          after a change of how verdicts are given, or of `superseded` in a result
"""

from __future__ import annotations

from pathlib import Path

from unskew.experiments import pages
from unskew.experiments.result import with_verdicts

FOLDER = Path("docs/results")

if __name__ == "__main__":
    for result in pages.results_in(FOLDER):
        pages.write_result(FOLDER, with_verdicts(result))
