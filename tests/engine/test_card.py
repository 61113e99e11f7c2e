"""The model card of a finished run."""

from __future__ import annotations

import numpy as np

import unskew
from unskew.engine.disk.state import digest

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


def test_names_of_somebody_elses_do_not_become_markup(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    y = np.array(["![x](http://e.org/p.png)", "a|b"])[np.arange(40) % 2]
    unskew.run("fedavg", (x, y), name="r", folder=tmp_path, **SETTINGS)  # type: ignore[arg-type]
    text = (tmp_path / "r" / "model.md").read_text()
    assert r"\!\[x\](http://e.org/p.png), a\|b" in text
    assert "not known to unskew" in text
