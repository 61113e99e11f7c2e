"""Pages of shortened runs: the paper's number in brackets or grey, no gap, and a published log at equal
rounds."""

from __future__ import annotations

import copy

import pytest

from unskew.errors import UsageError
from unskew.experiments import pages, tables
from unskew.experiments.files import parse_experiment
from unskew.experiments.result import TableResult

WHOLE: TableResult = {
    **{
        "experiment": "t",
        "title": "T",
        "paper": "P",
        "measure": "best",
        "unit": "percent",
        "metric": "accuracy",
    },
    **{"scope": "global", "axis": "", "finding": "", "page": "t", "command": "c", "seeds": 2, "scale": 1.0},
    **{
        "seconds_now": 1.0,
        "unskew": "0",
        "made_by": {},
        "date": "d",
        "machine": "m",
        "hours": 0.1,
        "claims": [],
    },
    "rows": {"r": {"note": "", "x": None, "panel": ""}},
    "logs": {"r": {"FLea": {"source": "a log", "values": [10.0, 20.0, 12.0, 40.0] * 6}}},
    "entries": [
        {
            **{
                "row": "r",
                "method": "FLea",
                "paper": 48.43,
                "gap": -8.1,
                "megabytes": 1.0,
                "ahead": None,
                "p": None,
            },
            **{
                s: {"mean": 40.3, "std": 1.0, "n": 2} for s in ("ours", "last", "best", "mean10", "stability")
            },
        }
    ],
    **{"open": [], "privacy": {}},
    "curves": {"r": {"FLea": [[[t, 10.0 + t] for t in range(2, 13)], [[t, 12.0 + t] for t in range(2, 13)]]}},
}  # type: ignore[typeddict-item]


def short(**changes) -> TableResult:
    return copy.deepcopy(WHOLE) | {"scale": 0.25, "schedules": ["lr_decay 0.98 becomes 0.92"]} | changes  # type: ignore[return-value]


def test_the_papers_number_is_set_apart_and_without_a_gap():
    assert "| FLea | 48.43 | 40.3 ± 1.0 | -8.1 |" in pages.markdown_page(WHOLE)
    page = pages.markdown_page(short())
    assert "| FLea | (48.43) | 40.3 ± 1.0 | 40.3" in page
    assert "gap" not in page
    assert "-8.1" not in tables.plain(short())
    assert "in brackets, are of whole runs and no target" in page
    assert "Schedules end where the whole run's end: lr_decay 0.98 becomes 0.92." in page
    assert r"$\pm$ 1.0 \textcolor{gray}{(48.4)}" in tables.latex(short())
    assert "textcolor" not in tables.latex(WHOLE)


def test_a_p_value_needs_five_seeds_also_on_pages_of_earlier_versions():
    led = short(scale=1.0)
    led["entries"][0] |= {"ahead": 2.3, "p": 0.012}
    assert "| +2.3 |" in pages.markdown_page(led)
    assert "; 2 seeds are too few for a test, which needs 5." in pages.markdown_page(led)
    led["entries"][0]["ours"]["n"] = 5
    assert "| +2.3, p = .012 |" in pages.markdown_page(led)
    assert ", with a paired t-test over seeds, Holm-corrected." in pages.markdown_page(led)


def test_a_log_is_compared_at_the_rounds_that_both_have():
    """Ours begins in round 2 and ends in round 12, the log ends in round 24."""
    _, lines = tables.log_table(short())
    values = {line[2]: line[3:] for line in lines}
    assert list(values) == ["1 to 10", "11 to 12", "best to 12", "a round to the next"]
    assert values["1 to 10"] == ["20.4", "17.0 ± 1.4", "-3.4"]  # rounds 2 to 10: the log's mean is 184 / 9
    assert values["11 to 12"] == ["26.0", "22.5 ± 1.4", "-3.5"]
    assert values["best to 12"] == ["40.0", "23.0 ± 1.4", "-17.0"]
    assert values["a round to the next"] == ["19.0", "1.0 ± 0.0", "-18.0"]
    assert "a log. rounds:" in pages.markdown_page(WHOLE)
    assert tables.SHORT_RUN_NOTE not in pages.markdown_page(WHOLE)
    assert tables.SHORT_RUN_NOTE in pages.markdown_page(short())
    assert "Ours has shortened schedules" in pages.html_page(short())
    assert "best to 12" in tables.plain(short())


def test_ours_follows_a_log_where_means_of_ten_are_as_near_as_its_own_next_round():
    parted = verdict([20.0, 22.0] * 5 + [12.0, 14.0])
    assert parted.startswith(
        "r, FLea: parts from the log in rounds 1 to 10 (-4.1), 11 to 12 (+9.5); the other 0 of 2 means"
    )
    assert "the log are 2.0 apart in the median, a round of ours and the same round of the log 5.0." in parted
    assert "parts from the log in rounds 11 to 12 (+9.5); the other 1 of 2" in verdict(
        [18.0, 16.0] * 5 + [12.0, 14.0]
    )
    followed = verdict([10.0, 20.0, 12.0, 40.0] * 3)
    assert followed.startswith("r, FLea: follows the log: all 2 means of ten rounds lie within 3.5 of its. ")
    for page in (pages.markdown_page(short()), pages.html_page(short()), tables.plain(short())):
        assert followed in page
    assert tables.log_verdicts(short(curves={"r": {"FLea": [[[3, 50.0]]]}})) == []


def verdict(log: list[float]) -> str:
    (sentence,) = tables.log_verdicts(short(logs={"r": {"FLea": {"source": "a log", "values": log}}}))
    return sentence


TABLE = "methods: {{A: fedavg}}\nrows: {{r: {{logs: {{{method}: {{source: s, values: {values}}}}}}}}}"


@pytest.mark.parametrize(
    ("method", "values", "said"),
    [
        ("B", "[1.0]", "mentions 'B'"),
        ("A", "[1.0, .nan]", "finite numbers only"),
        ("A", "[1.0, .inf]", "finite numbers only"),
        ("A", "[one]", "row r: logs.A.values.0"),
        ("A", "{a: 1}", "row r: logs.A.values"),
    ],
)
def test_a_log_that_cannot_be_one_is_refused(method, values, said):
    with pytest.raises(UsageError, match="E126") as refused:
        parse_experiment("t", TABLE.format(method=method, values=values))
    assert said in str(refused.value)
