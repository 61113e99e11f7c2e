"""Every experiment's file holds together, and a small one runs: numbers, verdicts, cache, refusals."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from unskew import cli, config, data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.engine import setup
from unskew.errors import DataError, UsageError
from unskew.experiments import estimate, page, plan, tune, verdict
from unskew.experiments.verdict import Verdict

SMALL = """
title: "A small table"
paper: "Nobody, 2026"
measure: best
settings: {data: digits, clients: 4, samples: 60, rounds: 8, epochs: 3, lr: 0.2}
methods: {FedAvg: fedavg, Still: "fedprox(mu=1000000.0)"}
overrides: {Still: {lr: 0.0000001}}
rows:
  even: {settings: {data: digits, skew: iid}, published: {FedAvg: 50.0}, note: "made up"}
  lost: {settings: {data: cifar10}}
claims:
  - {text: "learning helps", better: FedAvg, than: all}
  - {text: "standing still helps", better: Still, than: [FedAvg], by: 1}
open: ["everything"]
finding: "Standing still gets nowhere."
"""


@pytest.mark.parametrize("name", plan.names())
def test_every_file_holds_together(name):
    made = plan.load(name)
    assert made.rows
    assert made.paper
    for row in made.rows:
        for method in made.methods:
            settings = made.settings_of(row, method)
            assert str(Method.parse(settings.method)) == settings.method
        for value in row.published.values():
            assert (1 < value <= 100) if made.unit == "percent" else value > 0  # percent, not shares
    if any(r.published for r in made.rows):
        assert made.claims or made.axis


def test_the_papers_own_numbers_bear_out_the_claims_they_make():
    """A slip in copying a table would show: the published margins of its main claim are positive, as the paper says."""
    for name, text in (
        ("flea-table1", "FLea exceeds FedMix"),
        ("rebafl-table1", "ReBaFL is best"),
        ("rebafl-table3", "ReBaFL is best at every size"),
        ("rebafl-table3", "ReBaFL exceeds BSM-FedAvg"),
        ("rebafl-table3", "BSM-FedAvg exceeds FedAvg"),
    ):
        made = plan.load(name)
        claim = next(c for c in made.claims if c.text == text)
        rows = [r for r in made.rows if r.published]
        margins = [r.published[claim.better] - max(r.published[m] for m in claim.than) for r in rows]
        assert min(margins) > 0, (name, margins)


def test_scale_cuts_rounds_and_nothing_else():
    made = plan.load("flea-table1")
    row = made.rows[0]
    full, half = (made.settings_of(row, "FLea", s) for s in (1.0, 0.5))
    assert (full.rounds, half.rounds) == (100, 50)
    assert full.replace(rounds=50) == half
    assert made.settings_of(row, "FLea", 0.001).rounds == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SMALL + "\nmeassure: best", "unknown entry 'meassure'. Did you mean 'measure'"),
        (SMALL.replace("published: {FedAvg: 50.0}", "published: {FedAvgg: 50.0}"), "speaks of 'FedAvgg'"),
        (SMALL.replace("measure: best", "measure: middle"), "measure is one of"),
        (SMALL + "\nunit: points", "unit is percent or number"),
        (SMALL.replace("note: ", "nte: "), "row even: unknown entry 'nte'. Did you mean 'note'"),
    ],
)
def test_a_file_that_does_not_hold_together_is_refused(text, says):
    with pytest.raises(UsageError, match="E126.*" + says):
        plan.read("small", text)


def test_unknown_names_are_refused_with_a_suggestion():
    with pytest.raises(UsageError, match="Did you mean 'flea-table1'"):
        plan.load("flea-table")
    made = plan.load("rebafl-table2")
    with pytest.raises(UsageError, match="has no row 'mnist'"):
        plan.chosen(made, ["mnist"])
    with pytest.raises(UsageError, match="has no row 'mnist'"):
        plan.chosen(made, ["fashion", "mnist"])  # one that is right does not hide it
    with pytest.raises(UsageError, match="does not compare 'moon'"):
        plan.chosen(made, (), ["moon"])
    with pytest.raises(UsageError, match="does not compare 'moon'"):
        plan.chosen(made, (), ["FedAvg", "moon"])


def test_a_rows_whole_name_means_that_row_alone(monkeypatch):
    monkeypatch.setattr(plan.Row, "at_hand", True)

    def rows(name, *wanted):
        return [r.name for r in plan.chosen(plan.load(name), wanted)[0]]

    assert len(rows("flea-table1", "uci_har")) == 6
    assert rows("flea-table1", "uci_har-dir0.1-100") == ["uci_har-dir0.1-100"]
    assert len(rows("flea-table1", "uci_har-dir0.1-100", "urbansound8k-qua3")) == 3
    assert rows("fedrdn-table2", "fundus_vessels") == ["fundus_vessels"]  # and not -small


def test_rows_without_data_are_left_out_or_refused(monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    made = plan.read("small", SMALL)
    rows, methods, missing = plan.chosen(made)
    assert [r.name for r in rows] == ["even"]
    assert [r.name for r in missing] == ["lost"]
    assert methods == ["FedAvg", "Still"]
    with pytest.raises(DataError, match=r"E402.*cifar10"):
        plan.chosen(made, ["lost"])


def test_a_claim_is_reproduced_where_it_holds_in_every_row():
    claim = plan.Claim("a", "A", ("B",), by=2.0)
    assert Verdict(claim, {"x": 3.0, "y": 2.0}, {}).word == "reproduced"
    assert Verdict(claim, {"x": 3.0, "y": 1.9}, {}).word == "reproduced in 1 of 2 rows"
    assert Verdict(claim, {"x": -3.0}, {}).word == "not reproduced"
    assert Verdict(claim, {}, {}).word == "not run"


def run(seed, values):
    rounds = np.arange(1, len(values) + 1)
    return SimpleNamespace(
        seed=seed,
        series=lambda scope, metric: (rounds, np.array(values)),
        bytes_by_round=lambda way: (rounds, np.array([1e6] * len(values))),
        privacy={},
    )


def test_numbers_are_those_of_the_runs():
    made = plan.read("small", SMALL)
    runs = {
        ("even", "FedAvg"): [run(0, [0.2, 0.6, 0.5]), run(1, [0.3, 0.4, 0.7])],
        ("even", "Still"): [run(0, [0.1, 0.1, 0.1]), run(1, [0.1, 0.2, 0.1])],
    }
    found = {e.method: e for e in verdict.entries(made, runs)}
    first = found["FedAvg"]
    assert first.ours.mean == pytest.approx(65)
    assert first.last.mean == pytest.approx(60)
    assert first.gap == pytest.approx(15)
    assert first.ahead == pytest.approx(50)
    assert first.p == pytest.approx(found["Still"].p)
    assert math.isnan(found["Still"].paper)
    learning, still = verdict.verdicts(made, list(found.values()))
    assert learning.margins == {"even": pytest.approx(50)}
    assert (learning.word, still.word) == ("reproduced", "not reproduced")
    facts = {"scale": 0.5, "seeds": 2, "command": "unskew", "commit": "c", "date": "d", "machine": "m", "hours": 1.0}
    result = verdict.as_json(made, list(found.values()), [learning, still], runs, facts)
    assert "SCALED: 0.5" in page.plain(result)
    assert r"65.0 $\pm$ 7.1 (50.0)" in page.latex(result)
    assert result["curves"]["even"]["FedAvg"][1] == [[1, 30.0], [2, 40.0], [3, 70.0]]
    assert "Still,,15,7.071,2" in page.as_csv(result)
    assert page.rounds(result) == "3 (0.5 of the paper's)"
    assert page.rounds({**result, "scale": 1}) == "3"


def test_a_claim_may_be_that_a_gain_is_smaller_than_others():
    claim = plan.load("fedrdn-table1").claims[-1]
    score = {"FedAvg": 60.0, "FedAvg+FedRDN": 65.0, "FedBN": 70.0, "FedBN+FedRDN": 71.0}
    assert claim.methods == ("FedBN+FedRDN", "FedBN", "FedAvg+FedRDN", "FedAvg")
    assert claim.margin(score) == pytest.approx(4)
    assert claim.margin(score | {"FedBN+FedRDN": 78.0}) == pytest.approx(-3)
    calm = plan.Claim("calmer", "A", ("B", "C"), measure="stability")
    assert calm.margin({"A": 1.0, "B": 3.0, "C": 2.0}) == 1


def test_a_claim_may_be_along_rows():
    falls = plan.Trend("falls", "A", (("large", "middle", "small"), ("one", "two")))
    scores = {"large": {"A": 80.0, "B": 82.0}, "middle": {"A": 70.0, "B": 78.0}, "small": {"A": 71.0, "B": 77.0}}
    scores |= {"one": {"A": 50.0}, "two": {"A": 40.0, "B": math.nan}}
    margins = falls.margins(scores)
    assert margins == {"large to middle": 10, "middle to small": -1, "one to two": 10}
    assert Verdict(falls, margins, {}).word == "reproduced in 2 of 3 steps"
    less = plan.Trend("falls more than B", "A", (("large", "middle", "small"), ("one", "two")), against="B")
    assert less.margins(scores) == {"large to middle": 6, "middle to small": -2}
    assert falls.margins({k: v for k, v in scores.items() if k != "middle"})["large to small"] == 9
    assert Verdict(falls, falls.margins({}), {}).word == "not run"
    with pytest.raises(UsageError, match="no row 'small'"):
        plan.read("small", SMALL.replace("open:", '  - {text: "falls", falls: FedAvg, along: [[even, small]]}\nopen:'))


MEASURED = """
title: "A measured figure"
paper: "Nobody, 2026"
measure: last
scope: measure
metric: exposure
unit: number
settings: {data: digits, clients: 4, samples: 60, rounds: 3, epochs: 1, measure: "exposure,correlation"}
methods: {FLea: flea}
rows:
  all: {settings: {data: digits, skew: iid}}
  early: {settings: {data: digits, skew: iid}, at: 1}
  late: {settings: {data: digits, skew: iid}, at: 4}
  features: {settings: {data: digits, skew: iid}, metric: correlation, published: {FLea: 0.65}}
claims:
  - {text: "something", better: FLea, than: []}
"""


def test_rows_may_read_measures_and_share_their_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    monkeypatch.setattr(plan, "load", lambda name: plan.read(name, MEASURED))
    words = ["reproduce", "measured", "--seeds", "1", "--folder", str(tmp_path), "--processes", "1"]
    done = CliRunner().invoke(cli.app(), words)
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "reproduce" / "pages" / "measured.json").read_text())
    found = {e["row"]: e["ours"]["mean"] for e in result["entries"]}
    assert found["all"] == 1
    assert found["early"] == 0
    assert found["late"] is None  # the runs end after round 3
    assert 0.5 < found["features"] <= 1
    assert len(list(tmp_path.rglob("model.safetensors"))) == 1
    assert "The number is the measure" in done.output
    assert " in %" not in done.output


def test_the_command_runs_keeps_and_runs_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    monkeypatch.setattr(plan, "load", lambda name: plan.read(name, SMALL))
    words = ["reproduce", "small", "--seeds", "2", "--folder", str(tmp_path), "--keep", str(tmp_path / "docs")]
    done = CliRunner().invoke(cli.app(), [*words, "--processes", "1"])
    assert done.exit_code == 0, done.output
    assert "left    lost: no data (cifar10)" in done.output
    assert "reproduced                  learning helps" in done.output
    assert "not reproduced              standing still helps" in done.output
    result = json.loads((tmp_path / "docs" / "small.json").read_text())
    entry = next(e for e in result["entries"] if e["method"] == "FedAvg")
    assert entry["ours"]["n"] == 2
    assert entry["ours"]["mean"] > 30
    assert entry["gap"] == pytest.approx(entry["ours"]["mean"] - 50, abs=1e-3)
    made = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")}
    assert len(made) == 4
    again = CliRunner().invoke(cli.app(), [*words, "--json"])
    assert json.loads(again.output)["entries"] == result["entries"]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")} == made
    pages = tmp_path / "reproduce" / "pages"
    html = (pages / "small.html").read_text()
    for seen in (
        "A small table. 1 of 2 claims reproduced.",
        "Made up.",
        "standing still",
        "Standing still gets nowhere.",
        "ring: the paper",
    ):
        assert seen in html, seen
    assert "small.html" in (pages / "index.html").read_text()
    assert "[A small table](small.md)" in (tmp_path / "docs" / "README.md").read_text()
    for made_once in (pages / "small.html", pages / "small.md", pages / "index.html"):
        made_once.unlink()
    anew = CliRunner().invoke(cli.app(), ["report", str(pages)])
    assert anew.exit_code == 0, anew.output
    assert (pages / "small.html").read_text() == html
    assert (pages / "small.md").read_text() == (tmp_path / "docs" / "small.md").read_text()
    other = CliRunner().invoke(cli.app(), [*words, "--methods", "FedAvg", "--page", "small-one"])
    assert other.exit_code == 0, other.output
    index = (tmp_path / "docs" / "README.md").read_text()
    assert "[A small table](small.md)" in index
    assert "[A small table](small-one.md)" in index
    assert (pages / "small.html").read_text() == html
    assert "small-one.html" in (pages / "index.html").read_text()
    wrong = CliRunner().invoke(cli.app(), [*words, "--page", "../mine"])
    assert isinstance(wrong.exception, UsageError)
    plain = CliRunner().invoke(cli.app(), [*words[:2], "--dry-run", "--seeds", "3", "--folder", str(tmp_path)])
    assert "6 runs, 4 of them done already" in plain.output


def test_the_list_tells_how_long_every_table_would_take(monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    monkeypatch.setattr(plan, "names", lambda: ["small"])
    monkeypatch.setattr(plan, "load", lambda name: plan.read(name, SMALL))
    monkeypatch.setattr(estimate, "_time", lambda settings, dataset, batch: 0.01)
    monkeypatch.setattr(estimate, "_timed", {})
    plain = CliRunner().invoke(cli.app(), ["list", "experiments"])
    assert "small  A small table; 1 of 2 rows can run here, 2 methods" in plain.output
    assert "--time" in plain.output
    told = CliRunner().invoke(cli.app(), ["list", "experiments", "--time"])
    scored = 360 * 8 / 3  # test samples, every round, at a third of a training sample's cost
    trained = 240 * 3 * 8  # samples of four clients, epochs, rounds
    each = 0.01 * (trained + scored)
    minutes, seconds = divmod(int(3 * 2 * each / min(setup.cores(), 6)), 60)
    assert f"About {minutes}:{seconds:02d} for 3 seeds on {setup.cores()} cores." in told.output
    wrong = CliRunner().invoke(cli.app(), ["list", "data", "--time"])
    assert isinstance(wrong.exception, UsageError)


PRIVATE = """
title: "A noisy table"
paper: "Nobody, 2026"
measure: best
settings: {data: digits, clients: 4, samples: 60, rounds: 2, skew: "classes:3"}
methods: {FedAvg: fedavg, Noisy: "feddpms(alpha=5, width=8)"}
rows: {one: {settings: {data: digits}}}
"""


def test_a_table_tells_epsilon_as_published_beside_the_honest_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "load", lambda name: plan.read(name, PRIVATE))
    words = ["reproduce", "private", "--seeds", "2", "--folder", str(tmp_path), "--processes", "1"]
    done = CliRunner().invoke(cli.app(), [*words, "--keep", str(tmp_path / "docs")])
    assert done.exit_code == 0, done.output
    told = [json.loads(p.read_text())["feddpms"] for p in tmp_path.rglob("privacy.json")]
    added = max(t["epsilons"][1]["epsilon"] for t in told)
    assert len(told) == 2
    assert added == pytest.approx(max(row["added"] for t in told for row in t["each"]))
    result = json.loads((tmp_path / "docs" / "private.json").read_text())
    assert result["privacy"]["one"].keys() == {"Noisy"}
    kept = result["privacy"]["one"]["Noisy"]["feddpms"]["epsilons"]
    assert kept[1]["epsilon"] == pytest.approx(added, rel=1e-4)  # the seed that is protected least
    assert kept[-1]["epsilon"] is None
    number = f"{added:.4g}"
    pages = [tmp_path / "docs" / "private.md", tmp_path / "reproduce" / "pages" / "private.html"]
    run = next(p.parent for p in tmp_path.rglob("privacy.json"))
    alone = CliRunner().invoke(cli.app(), ["report", str(run)])
    assert alone.exit_code == 0, alone.output
    for text in (done.output, *(p.read_text() for p in pages), (run / "report.html").read_text()):
        assert "as published: one coordinate, one release" in text
        assert "infinite" in text
        assert "not guaranteed" in text
    assert all(number in t for t in (done.output, *(p.read_text() for p in pages)))


def test_every_method_is_tuned_with_as_many_trials_and_never_on_the_test_set(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    monkeypatch.setattr(plan, "load", lambda name: plan.read(name, SMALL.replace("{lr: 0.0000001}", "{lr: 0.1}")))
    words = ["reproduce", "small", "--seeds", "1", "--folder", str(tmp_path), "--processes", "1", "--tune", "3"]
    done = CliRunner().invoke(cli.app(), [*words, "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.output)
    assert {m: len(t["trials"]) for m, t in result["tuned"].items()} == {"FedAvg": 3, "Still": 3}
    first = result["tuned"]["Still"]["trials"][0]
    assert (first["lr factor"], first["fedprox.mu"]) == (1.0, 1000000.0)  # what the table says, first
    best = max(result["tuned"]["Still"]["trials"], key=lambda t: t["score"])
    assert best["fedprox.mu"] < 1
    assert f"mu={best['fedprox.mu']}" in result["tuned"]["Still"]["method"]
    settings = [config.load(p) for p in tmp_path.rglob("config.yaml")]
    assert sorted({(s.validation, s.seed) for s in settings}) == [(0.0, 0), (0.2, tune.SEED)]
    assert "--tune 3" in result["command"]
    assert "Tuned with 3 trials a method" in page.note(result)


def test_trials_are_the_grid_without_repetition():
    made = plan.read("small", SMALL)
    space, first = tune.space_of(made, "Still")
    search, seen = tune.Shuffled(space, first), []
    while (point := search.ask()) is not None:
        seen.append(tuple(point.values()))
    assert seen[0] == (1.0, 1000000.0)
    assert len(seen) == len(set(seen)) == 3 * 4


def test_what_cannot_be_tuned_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    made = plan.read("measured", MEASURED)
    for text, sampler in ((MEASURED, "random"), (SMALL, "annealing")):
        made = plan.read("it", text)
        with pytest.raises(UsageError, match="E109"):
            tune.tune(made, made.rows[0], list(made.methods), 2, 1.0, sampler, tmp_path, lambda cells: None)


def test_optunas_sampler_finds_the_best_of_a_grid():
    pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'unskew[sweep]'")
    space = {tune.FACTOR: [1.0, 0.3, 3.0], "part.mu": [0.1, 0.01, 1.0]}
    search, tried = tune.Parzen(space, {tune.FACTOR: 1.0, "part.mu": 0.01}), tune.Tuned()
    for _ in range(15):
        point = search.ask()
        score = -abs(point["part.mu"] - 1.0) - abs(point[tune.FACTOR] - 3.0)
        search.tell(point, score)
        tried.tried.append((point, score))
    assert tried.tried[0][0] == {tune.FACTOR: 1.0, "part.mu": 0.01}
    assert tried.point == {tune.FACTOR: 3.0, "part.mu": 1.0}


def test_the_time_is_told_for_labels_a_sample_and_a_pixel_and_clients_by_column():
    r = np.random.default_rng(0)
    pixels = data.arrays(
        r.random((12, 1, 16, 16), np.float32), r.integers(0, 2, (12, 16, 16)), columns={"domain": np.arange(12) % 3}
    )
    short = Settings(data="p", model="unet(base=4,levels=2)", loss="dice", skew="domain", rounds=2, batch=2)
    assert 0 < estimate.seconds(short, pixels) * 4 < estimate.seconds(short.replace(rounds=10), pixels)
    assert estimate._clients(short, pixels) == 3
    labels = data.arrays(r.random((40, 4), np.float32), np.arange(40) % 2)
    plain = Settings(data="l", model="mlp", skew="iid", clients=4, rounds=4, batch=2)
    assert 0 < estimate.seconds(plain.replace(availability="sample:0.25"), labels) < estimate.seconds(plain, labels)


SHAPES = {
    "cifar10": ((3, 32, 32), 10),
    "cifar100_part": ((3, 32, 32), 100),
    "fashion_mnist": ((1, 28, 28), 10),
    "fundus_vessels(size=160)": ((1, 160, 160), 2),
    "fundus_vessels(size=96)": ((1, 96, 96), 2),
    "office_caltech10(size=64)": ((3, 64, 64), 10),
    "uci_har": ((1, 128, 3), 6),
    "urbansound8k_part": ((1, 64, 87), 10),
}


def small(name):
    """Two clients of a data set's shape and classes."""
    (shape, classes), n = SHAPES[name], 16
    pixels = shape[1:] if name.startswith("fundus") else ()
    y = np.arange(n * math.prod(pixels)).reshape(n, *pixels) % classes
    x = np.ones((n, *shape), np.float32)
    names = [str(c) for c in range(classes)]
    made = data.arrays(x, y, x[:2], y[:2], classes=names)
    return data.build(made, "iid", 2, np.random.default_rng(0), np.random.default_rng(1))


@pytest.mark.parametrize("name", SHAPES)
def test_every_method_of_every_table_fits_its_model_and_data(name):
    federation, seen = small(name), set()
    for made in map(plan.load, plan.names()):
        for row in made.rows:
            for method in made.methods:
                settings = made.settings_of(row, method)
                key = settings.model, settings.method, settings.optimiser, settings.loss
                if settings.data == name and key not in seen:
                    seen.add(key)
                    setup.loop_of(settings, Method.parse(settings.method), federation).trainer.close()
    assert seen
