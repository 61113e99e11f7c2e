"""The page of a method: settings with default, range and meaning, hooks, and what leaves a client."""

from __future__ import annotations

from unskew.methods import registry
from unskew.report.method_pages import method_page
from unskew.report.method_profile import scores
from unskew.runs import conformance


def page_of(text: str) -> str:
    method = registry.parse(text)
    loop = conformance.loop_for(method)
    return method_page(method.parts[0], loop.fed, "eight clients")


def row(text: str, first: str) -> list[str]:
    (line,) = [line for line in page_of(text).splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_a_setting_stands_with_default_range_and_meaning():
    assert row("fedavgm", "`beta`") == [
        "`beta`",
        "`0.9`",
        "number, at least 0, below 1",
        "share of the last step that is kept; 0 is FedAvg",
    ]
    assert row("fedavgm(beta=0.5)", "`beta`")[1] == "`0.9`, here `0.5`"
    assert row("fedrdn", "`variant`")[2] == "'paper' or 'official'"


def test_hooks_trips_and_shares_stand_there():
    text = page_of("feddata")
    assert "| a trip | `upload` runs at all clients, then `collect` at the server. |" in text
    assert row("feddata", "`batch`")[1].startswith("At every step, before the forward pass")
    assert row("scaffold", "`scaffold/delta`")[4:7] == ["weights", "all", "sum"]
    assert "Nothing beside the weights." in page_of("fedprox")
    assert "each client's weights by themselves" in page_of("median")


def test_a_default_far_below_fedavg_says_so_and_why():
    text = page_of("clip_gradients")
    measured = scores()["clip_gradients"]
    assert f"the score is {measured.score:.1f} % on digits where FedAvg has {measured.fedavg:.1f}" in text
    assert measured.why in text
    assert "Below FedAvg" not in page_of("ditto")
    assert all(score.why for score in scores().values() if score.is_far_below)
