"""Write src/unskew/methods/scores.csv: what each method scores at its default beside FedAvg, for its page.

unskew reproduce benchmarks/methods.yaml --seeds 3 --page methods --keep docs/results
python tools/scores.py docs/results/methods.json

The first command trains and may be stopped and repeated; the second replaces the rows of the methods in the
result and keeps the others. A client's own score counts for methods that give clients a model of their own,
the global model's for all others. The column `why`, a sentence for a method far below FedAvg, is written by
hand and kept.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

from unskew.methods import registry
from unskew.report.method_profile import SCORES_FILE, Score, scores

PATH = Path(__file__).parents[1] / "src" / "unskew" / "methods" / SCORES_FILE


def measured(result: dict[str, Any]) -> dict[str, Score]:
    """The scores in a result of `unskew reproduce`, by method."""
    percent = {
        (e["row"], e["method"]): e["ours"]["mean"] for e in result["entries"] if e["ours"]["mean"] is not None
    }
    known, found = scores(), dict[str, Score]()
    for row, name in percent:
        own = any(part.personal for part in registry.parse(name).parts)
        if row == ("sites" if own or ("model", name) not in percent else "model") and name != "fedavg":
            why = known[name].why if name in known else ""
            found[name] = Score(percent[row, name], percent[row, "fedavg"], result["seeds"], why)
    return found


def text_of(known: dict[str, Score]) -> str:
    """The file that `scores` reads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "score", "fedavg", "seeds", "why"])
    rows = sorted(known.items())
    writer.writerows((name, f"{s.score:.1f}", f"{s.fedavg:.1f}", s.seeds, s.why) for name, s in rows)
    return out.getvalue()


if __name__ == "__main__":
    PATH.write_text(text_of(scores() | measured(json.loads(Path(sys.argv[1]).read_text()))), encoding="utf-8")
