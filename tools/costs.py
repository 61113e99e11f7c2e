"""Measure what a round of each method costs beside one of FedAvg: bytes up and down, and what clients
compute.

python tools/costs.py              measure every method; takes minutes
python tools/costs.py NAME ...     measure these anew, and those that are not there yet
python tools/costs.py TABLE ROW METHOD KEY=VALUE ...    only print what a method of a published table costs in
                                   a row, with these changes of its settings

Measured is the second round of a run on the federation of `unskew check`: bytes by the ledger, computing as
the operations of convolutions and products of matrices, those of the server left out.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry

from unskew.experiments.files import experiment_names, read_experiment
from unskew.methods import catalogue, registry
from unskew.records import client_lists
from unskew.report.method_profile import COSTS_FILE, Cost, costs
from unskew.round.run import Run
from unskew.runs import conformance
from unskew.runs.assemble import loop_of
from unskew.runs.resolve import resolve

PATH = Path(__file__).parents[1] / "src" / "unskew" / "methods" / COSTS_FILE
ROUND = 2
"""The first in which clients meet what they kept and were sent."""


class Counted(TorchDispatchMode):
    """Counts the operations of what is computed inside by the formulas of torch's own counter, which does not
    stand a gradient of a gradient (FedMix) and counts too many for gradients of grouped convolutions
    (gradients by sample)."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution_backward.default:
            slope, x, w, *_, transposed, _, _, mask = args
            self.operations += sum(mask[:2]) * conv_flop_count(x.shape, w.shape, slope.shape, transposed)
        elif formula := flop_registry.get(func._overloadpacket):
            self.operations += formula(*args, **(kwargs or {}), out_val=out)
        return out


def measured(text: str) -> Cost:
    """What a round of this method costs on the federation of `unskew check`, as multiples of FedAvg's."""
    run, plain = (conformance.run_for(registry.parse(name), lanes="1") for name in (text, "fedavg"))
    return cost(run, plain)


def in_table(table: str, row: str, method: str, *changes: str) -> Cost:
    """What a round costs in a row of a published table, as multiples of FedAvg's there."""
    experiment = read_experiment(table)
    changed = {key: yaml.safe_load(value) for key, _, value in (text.partition("=") for text in changes)}
    changed |= {"lanes": "1", "rounds": ROUND, "eval_every": ROUND}
    settings = (experiment.settings_of(experiment.row(row), name) for name in (method, "FedAvg"))
    return cost(*(resolve(each.replace(**changed)) for each in settings))


def cost(run: Run, plain: Run) -> Cost:
    """What a round of a run costs, as multiples of that of a plain one."""
    (up, down, computing), (plain_up, plain_down, plain_computing) = _round(run), _round(plain)
    return Cost(up / plain_up, down / plain_down, computing / plain_computing)


def _round(run: Run) -> tuple[int, int, int]:
    """(bytes up, bytes down, operations of the clients) of one round."""
    loop, counted = loop_of(run), Counted()

    def each(function: Any, items: Any) -> list[Any]:
        with counted:  # which sees what its own thread computes
            return [function(item) for item in items]

    loop.trainer.each = each  # type: ignore[method-assign]
    before = 0
    try:
        state = loop.begin()
        for t in range(1, ROUND + 1):
            before, counted.operations = len(loop.record.rows["ledger"]), 0
            state, _ = loop.round(state, t)
    finally:
        loop.trainer.close()
    sizes = {"up": 0, "down": 0}
    for row in loop.record.rows["ledger"][before:]:
        sizes[row["way"]] += client_lists.total_bytes(row)
    return sizes["up"], sizes["down"], counted.operations


def text_of(known: dict[str, Cost]) -> str:
    """The file that `costs` reads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "up", "down", "computing"])
    writer.writerows(
        (name, *(f"{v:.3g}" for v in (c.up, c.down, c.computing))) for name, c in sorted(known.items())
    )
    return out.getvalue()


def main() -> None:
    """Measure what is asked for, and write the file."""
    names, asked = list(catalogue.entries()), sys.argv[1:]
    if asked and asked[0] in experiment_names():
        return print(in_table(*asked))
    known = {name: cost for name, cost in costs().items() if name in names and asked and name not in asked}
    for name in names:
        if name not in known:
            known[name] = measured(name)
            print(name, known[name], flush=True)
    PATH.write_text(text_of(known), encoding="utf-8")


if __name__ == "__main__":
    main()
