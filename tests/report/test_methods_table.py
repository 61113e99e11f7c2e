"""The table of all methods says of each what it changes and what leaves a client, read from its code."""

from __future__ import annotations

import pytest

from tools.methods_page import OVERVIEW_HEAD, overview_page
from unskew.core.method import Method
from unskew.methods import catalogue, registry
from unskew.report.method_profile import Profile
from unskew.runs import conformance

ANY = conformance.run_for(Method()).fed


def row(name: str) -> dict[str, str]:
    method = registry.parse(name)
    loop = conformance.loop_for(method)
    text = overview_page({name: (method.parts[0], loop.fed, catalogue.entries()[name].summary)})
    (line,) = [line for line in text.splitlines() if line.startswith(f"| [`{name}`]")]
    return dict(zip(OVERVIEW_HEAD, (cell.strip() for cell in line[1:-1].split(" | ")), strict=True))


@pytest.mark.parametrize("name", catalogue.entries())
def test_every_method_changes_something_and_says_when_to_take_it_and_what_it_shares(name):
    (part,) = registry.parse(name).parts
    profile = Profile(part, ANY, "")
    assert profile.changes
    assert part.use_when
    assert all(share.kind for share in profile.shares)


def test_a_row_says_what_is_sent_and_who_reads_it():
    assert row("scaffold") == {
        "method": "[`scaffold`](../src/unskew/methods/scaffold.py)",
        "year": "2020",
        "paper": "Karimireddy et al., ICML 2020, algorithm 1, option II",
        "family": "steps",
        "against": "labels",
        "changes": "steps, server",
        "sends beside the weights": "weights",
        "read": "sums",
        "exchanges more": "",
        "up": "2",
        "down": "2",
        "computing": "1",
        "tasks": "csrmt",
        "one of its kind": "",
        "when to take it": registry.parse("scaffold").parts[0].use_when,
    }
    assert row("fedmix")["paper"] == "Yoon et al., ICLR 2021, [2107.00233](https://arxiv.org/abs/2107.00233)"
    assert row("fedamp")["one of its kind"] == "own model, start, dispatch"
    assert row("feddata")["sends beside the weights"] == "labels, inputs"
    assert (row("feddata")["read"], row("feddata")["exchanges more"]) == ("each", "1")
    assert row("local")["sends beside the weights"] == "no weights"
    assert "`rbsm`" in row("rebafl")["method"]
