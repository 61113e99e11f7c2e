"""What users write that no option means: one sentence of ours, with what to write, in place of the
parser's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import call

TABLE = "a,b,hospital,label\n" + "".join(
    f"{i % 7},{i % 3},{'xy'[i % 2]},{'no' if i % 5 else 'yes'}\n" for i in range(60)
)


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "t.csv").write_text(TABLE)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("run", "fedavg", "--site", "hospital"),
            '--site is no option of unskew run; .* --data "table.csv(site=hospital)".',
        ),
        (("compare", "fedavg", "--label", "label"), '--data "table.csv(label=label)".'),
        (("run", "fedavg", "--skew", "dirichlet=0.1", "--data", "digits"), "Did you mean 'dirichlet:0.1'?"),
        (
            ("run", "fedavg", "--availability", "sample = 0.5", "--data", "digits"),
            "Did you mean 'sample:0.5'?",
        ),
        (("run", "fedavg", "--lr-decay", "0.9"), "--lr-decay is no option .*write --set lr_decay=0.9."),
        (("run", "fedavg", "--no-clip"), "write --set clip=false."),
        (("run", "fedavg+fedprox", "--mu", "0.01"), 'in brackets: "fedprox(mu=0.01)".'),
        (("run", "fedprox", "--mu=0.5"), 'in brackets: "fedprox(mu=0.5)".'),
        (("run", "fedprox", "--mu"), 'in brackets: "fedprox(mu=VALUE)".'),
        (("compare", "fedavg,fedprox(mu=1)"), "spaces: unskew compare fedavg fedprox(mu=1)."),
        (("run", "fedavg", "--set", "lrdecay=1"), "Did you mean 'lr_decay'?"),
        (("run", "fedavg", "--set", "lr_decay=x"), "E109 lr_decay must be a number, .*got 'x'"),
        (("run", "fedavg", "--data", "t.csv,site=hospital"), 'E402 .*brackets: "t.csv(site=hospital)"'),
    ],
)
def test_one_sentence_says_what_to_write(folder, words, says):
    import re

    done = call(*words, cwd=folder)
    assert done.code == 2, done.text
    assert done.out == ""
    assert len(done.err.strip().splitlines()) == 1
    pattern = re.escape(says).replace(re.escape(".*"), ".*").replace(r"\ .*", " .*")
    assert re.search(pattern, done.err), done.err
    assert not (folder / "runs").exists()


def test_what_it_says_to_write_is_taken(folder):
    done = call("run", "fedavg", "--data", "t.csv(site=hospital,label=label)", "--dry-run", cwd=folder)
    assert done.code == 0, done.err
    assert "2 clients" in done.out or "hospital" in done.out


def test_options_of_these_names_stay_what_they_are(folder):
    """Other commands have them, and behind -- nothing is an option."""
    assert "No such option" in call("run", "--sites", "a", cwd=folder).err
    assert call("diagnose", "t.csv", "--label", "label", "--site", "hospital", cwd=folder).code == 0
    assert "--site is no option" not in call("run", "--", "--site", cwd=folder).err
