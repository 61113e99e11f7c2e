"""The command: it runs a table, keeps what it ran, runs nothing twice, and makes its pages anew."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import unskew
from tests.attacks.test_code import METHOD
from tests.experiments.tables import PRIVATE, SMALL, written
from unskew import cli
from unskew.errors import UsageError
from unskew.version import revision


def test_the_command_runs_keeps_and_runs_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    words = ["reproduce", written(tmp_path, "small", SMALL), "--seeds", "2", "--folder", str(tmp_path)]
    words += ["--keep", str(tmp_path / "docs")]
    done = CliRunner().invoke(cli.app(), [*words, "--processes", "1"])
    assert done.exit_code == 0, done.output
    assert "skipped lost: its data (cifar10) are not here" in done.output
    assert "agrees so far: 2 seeds, all rounds        learning helps" in done.output
    assert "disagrees so far: 2 seeds, all rounds     standing still helps" in done.output
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
    page = (pages / "small.md").read_text()
    assert "| learning helps | agrees so far: 2 seeds, all rounds | even +" in page
    assert (tmp_path / "docs" / "small.md").read_text() == page
    assert "[small](small.md) | A small table |" in (tmp_path / "docs" / "README.md").read_text()
    (tmp_path / "docs" / "mine.md").write_text("# What I found\n\nNothing.\n")
    other = CliRunner().invoke(cli.app(), [*words, "--methods", "FedAvg", "--page", "small-one"])
    assert other.exit_code == 0, other.output
    index = (tmp_path / "docs" / "README.md").read_text()
    assert "Read first: [What I found](mine.md)." in index
    assert "[small](small.md)" in index
    assert "[small-one](small-one.md)" in index
    assert (pages / "small.md").read_text() == page
    wrong = CliRunner().invoke(cli.app(), [*words, "--page", "../mine"])
    assert isinstance(wrong.exception, UsageError)
    plain = CliRunner().invoke(
        cli.app(), [*words[:2], "--dry-run", "--seeds", "3", "--folder", str(tmp_path)]
    )
    assert "6 runs, 4 of them already done" in plain.output


def test_python_runs_a_table_as_the_command_line_does(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    table = written(tmp_path, "small", SMALL)
    lines, watched = [], []
    options = {
        "rows": ["even"],
        "seeds": 1,
        "scale": 0.25,
        "processes": 1,
        "folder": tmp_path,
        "page": "mine",
    }
    planned = unskew.reproduce(table, add=["fedprox(mu=0.5)"], dry_run=True, say=lines.append, **options)
    assert (planned.result, planned.page, planned.table(), planned.verdicts()) == (None, None, "", {})
    assert len(planned.runs) == 3
    assert "3 runs, 0 of them already done; 0.25 of the rounds" in "\n".join(lines)
    assert not list(tmp_path.rglob("model.safetensors"))
    done = unskew.reproduce(table, methods=["Still"], watch=watched.append, keep=tmp_path / "docs", **options)
    assert [entry["method"] for entry in done.result["entries"]] == ["Still"]
    assert (
        done.result["command"]
        == f"unskew reproduce {table} --rows even --methods Still --seeds 1 --scale 0.25 --page mine"
    )
    assert done.verdicts() == {"learning helps": "not run", "standing still helps": "not run"}
    assert done.page == tmp_path / "reproduce" / "pages" / "mine.md"
    assert done.page.exists()
    assert (tmp_path / "docs" / "mine.md").exists()
    assert watched[-1][0].t == 2
    for wrong in ({"seeds": 0}, {"scale": 1.5}):
        with pytest.raises(UsageError, match=f"E109 .*{next(iter(wrong))} must be"):
            unskew.reproduce(table, **{**options, **wrong})


def test_python_imports_only_the_files_of_a_table_that_its_caller_names(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    part, mark = tmp_path / "method.py", tmp_path / "mark"
    part.write_text(f"open({str(mark)!r}, 'w')\n{METHOD}")
    table = written(tmp_path, "small", SMALL.replace("FedAvg: fedavg", f"FedAvg: {part}"))
    with pytest.raises(UsageError, match=r"E506 .*method\.py is named in a document and not by you"):
        unskew.reproduce(table, seeds=1, dry_run=True, folder=tmp_path)
    assert not mark.exists()
    unskew.reproduce(table, seeds=1, dry_run=True, folder=tmp_path, file=[str(part)])
    assert mark.exists()


def test_runs_of_another_version_are_told_of_and_run_again_when_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    words = ["reproduce", written(tmp_path, "small", SMALL), "--seeds", "1", "--folder", str(tmp_path)]
    first = CliRunner().invoke(cli.app(), words)
    assert first.exit_code == 0, first.output
    assert "older" not in first.output
    page = tmp_path / "reproduce" / "pages" / "small.md"
    assert f"Made with unskew {revision()} on" in page.read_text()
    assert "Runs by version" not in page.read_text()
    old, other = sorted(tmp_path.rglob("env.json"))
    old.write_text(json.dumps({**json.loads(old.read_text()), "unskew": "0.0.9"}))
    began = {p: p.stat().st_mtime_ns for p in (old, other)}
    kept = CliRunner().invoke(cli.app(), words)
    assert "2 runs, 2 of them already done" in kept.output
    assert (
        "older   1 by 0.0.9; these are kept, and continued if unfinished; --anew runs them again"
        in kept.output
    )
    assert f"Runs by version: 1 by 0.0.9, 1 by {revision()}." in page.read_text()
    looked = CliRunner().invoke(cli.app(), [*words, "--anew", "--dry-run"])
    assert "2 runs, 1 of them already done" in looked.output
    assert old.stat().st_mtime_ns == began[old]
    anew = CliRunner().invoke(cli.app(), [*words, "--anew"])
    assert "older   1 by 0.0.9; these are run again" in anew.output
    assert json.loads(old.read_text())["unskew"] == revision()
    assert other.stat().st_mtime_ns == began[other]
    assert "Runs by version" not in page.read_text()


@pytest.mark.usefixtures("few_attempts")
def test_a_table_tells_epsilon_as_published_beside_the_honest_ones(tmp_path):
    words = ["reproduce", written(tmp_path, "private", PRIVATE), "--seeds", "2", "--folder", str(tmp_path)]
    words += ["--processes", "1"]
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
    page = (tmp_path / "docs" / "private.md").read_text()
    run = next(p.parent for p in tmp_path.rglob("privacy.json"))
    alone = CliRunner().invoke(cli.app(), ["report", str(run)])
    assert alone.exit_code == 0, alone.output
    for text in (done.output, page, (run / "report.html").read_text()):
        assert "as published: one coordinate, one release" in text
        assert "infinite" in text
        assert "not guaranteed" in text
    assert number in done.output
    assert number in page
