"""The model card of a finished run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import unskew
from unskew.records.checkpoints import digest

SETTINGS = {"rounds": 1, "epochs": 1, "workers": 1, "clients": 3, "model": "mlp", "skew": "iid", "lanes": "1"}


def test_a_card_says_what_the_run_wrote(tmp_path):
    ours = unskew.run("rebafl", "digits", samples=20, name="r", folder=tmp_path, **SETTINGS)  # type: ignore[arg-type]
    text = (tmp_path / "r" / "model.md").read_text()
    assert text.startswith("# rebafl on digits\n")
    assert f"| weights | SHA-256 {digest(ours.weights)} |" in text
    assert f"| global | accuracy | {ours.scores()['last']:.4f} |" in text
    sent = {row["share"]: 0 for row in ours.record.rows["ledger"] if row["way"] == "up"}
    for share in sent:
        assert f"\n| {'weights' if share == 'w' else share.replace('_', chr(92) + '_')} | " in text
    assert "| source and licence | " in text
    assert "not known" not in text
    assert str(tmp_path) not in text
    unskew.run("rebafl", "digits", samples=20, name="again", folder=tmp_path, **SETTINGS)  # type: ignore[arg-type]
    assert (tmp_path / "again" / "model.md").read_text() == text


@pytest.mark.parametrize(
    ("method", "unit", "reader", "beyond"),
    [
        (
            "dp(epsilon=0, noise_multiplier=1.0, delta=1e-3)",
            "one client more or less",
            "whoever reads them",
            "of the scores, losses and cohorts in the run's files",
        ),
        (
            "dpsgd(noise_multiplier=1.2, delta=1e-3)",
            "one sample more or less",
            "whoever reads it",
            "of test scores, and of training losses",
        ),
    ],
)
def test_a_guarantee_has_its_unit_its_reader_its_delta_and_the_source_of_its_noise(
    method, unit, reader, beyond, tmp_path
):
    """With the seed anybody can compute the noise again and subtract it, so the card does not publish it."""
    chosen: dict[str, Any] = {**SETTINGS, "samples": 20, "seed": 4711}
    ours = unskew.run(method, "digits", name="r", folder=tmp_path, **chosen)
    unskew.run(method, "digits", **chosen).export(tmp_path / "of memory")
    ours.export(tmp_path / "e")
    privacy = json.loads((tmp_path / "r" / "privacy.json").read_text())
    first = next(iter(privacy.values()))["epsilons"][0]
    report = ours.report().read_text()
    assert first["reading"].replace("'", "&#39;") in report
    for folder in ("r", "e", "of memory"):
        text = (tmp_path / folder / "model.md").read_text()
        (line,) = [line for line in text.splitlines() if f"epsilon {first['epsilon']:.4g}, " in line]
        for piece in (unit, reader, "delta 0.001", "study's seed", "simulation only"):
            assert piece in line
        (line,) = [line for line in text.splitlines() if "epsilon infinite" in line]
        assert beyond in line
        assert "4711" not in text


def test_scores_of_the_untrained_model_alone_are_none_of_the_card(tmp_path):
    """Where clients keep weights, round 0 alone has a macro-F1; the card gave it as that of the last
    evaluated round."""
    kept = unskew.run("fedper", "digits", samples=20, name="r", folder=tmp_path, **SETTINGS)  # type: ignore[arg-type]
    assert ("global", "macro_f1", 0) in {
        (row["scope"], row["metric"], row["t"]) for row in kept.record.rows["metrics"]
    }
    text = (tmp_path / "r" / "model.md").read_text()
    assert f"| global | accuracy | {kept.scores()['last']:.4f} |" in text
    assert "macro" not in text


MINE = '''"""A Part that changes nothing."""
from dataclasses import dataclass
from typing import ClassVar
from unskew.core import Part

@dataclass(frozen=True)
class Mine(Part):
    name: ClassVar[str] = "mine"
'''


def test_folders_of_the_machine_stay_out_of_what_is_handed_on(tmp_path):
    """A method's file, a trace and data of the user's own are named without the folders that they lie in."""
    home = tmp_path / "marked home"
    home.mkdir()
    (home / "my.py").write_text(MINE)
    (home / "who.csv").write_text("round,client\n1,0\n1,1\n1,2\n")
    np.savez(home / "rows.npz", x=np.random.default_rng(0).normal(size=(40, 4)), y=np.arange(40) % 2)
    ours = unskew.run(
        str(home / "my.py"),
        str(home / "rows.npz"),
        folder=home,
        name="r",
        availability=f"trace:{home / 'who.csv'}",
        **SETTINGS,  # type: ignore[arg-type]
    )
    ours.export(tmp_path / "e")
    told = [home / "r" / "model.md", *(tmp_path / "e").iterdir()]
    assert len(told) >= 4
    for file in told:
        assert b"marked" not in file.read_bytes(), file.name
    text = told[0].read_text()
    assert text.startswith("# my.py on rows\n")
    assert "| who answers | trace:who.csv |" in text
