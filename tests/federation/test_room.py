"""What a site and a coordinator keep out before it costs anything: models without room, other users' eyes."""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew import config
from unskew.cli import remote_run
from unskew.data.samples.dataset import Dataset
from unskew.errors import UsageError
from unskew.federation import coordinator
from unskew.federation.protocol.study_rules import study_settings
from unskew.federation.site import study_review
from unskew.federation.tickets import Coordinator


def own_data() -> Dataset:
    x, y = np.zeros((12, 1, 8, 8), np.float32), np.arange(12) % 2
    return Dataset("own", x, y, x[:2], y[:2], ("no", "yes"))


def test_n1_a_model_without_room_is_refused_before_its_weights_are_made(monkeypatch):
    """Attack: a study that nobody approved names a model of many gigabytes, and its greeting kills the
    site."""
    made = []
    monkeypatch.setattr(study_review, "run_on", lambda *a: made.append(a))
    asked = study_settings(config.build({"model": "mlp(hidden=[2000000000])"})).replace(clients=2)
    with pytest.raises(
        UsageError, match=r"E108 the study's model 'mlp\(hidden=\[2000000000\]\)' has 536 GB of weights"
    ):
        study_review.forecast_settings(own_data(), asked)
    assert not made
    with pytest.raises(UsageError, match=r"and this site has 1 KB of memory"):
        study_review.check_model(
            study_settings(config.build({"model": "mlp"})), own_data(), memory_bytes=1000
        )


def test_a_model_of_too_many_layers_is_refused_before_they_are_made(monkeypatch):
    """Attack: a question that nobody approved names 4,000 layers, and the site computes for half a minute."""
    made = []
    monkeypatch.setattr(study_review, "run_on", lambda *a: made.append(a))
    asked = study_settings(config.build({"model": f"mlp(hidden=[{'1,' * 4000}1])"})).replace(clients=2)
    with pytest.raises(UsageError, match=r"E108 the study's model .* has more than 2,000 layers"):
        study_review.forecast_settings(own_data(), asked)
    assert not made


def test_only_its_user_reads_what_a_run_over_a_network_leaves(tmp_path, monkeypatch):
    home = SimpleNamespace(name="lung", sites={"a": ""}, admitted=lambda: {"a": ""})
    monkeypatch.setattr(Coordinator, "open", lambda folder: home)
    monkeypatch.setattr(remote_run, "conduct", lambda path, as_json: None)
    terms = {"min_sites": 1, "deadline": "1m", "wait": "1m", "test": None, "without": ()}
    before = os.umask(0o022)
    try:
        remote_run.run_on(tmp_path / "lung", tmp_path / "r", config.build({}), terms, as_json=True)
        ended = {"state": "done", "code": 0, "text": ""}
        monkeypatch.setattr("unskew.federation.coordinator.orders.follow", lambda *a: ended)
        monkeypatch.setitem(
            sys.modules, "unskew.federation.coordinator.submission", submit := ModuleType("submit")
        )
        monkeypatch.setattr(coordinator, "submission", submit, raising=False)
        monkeypatch.setattr(
            remote_run, "_show_result", lambda path, as_json: (path / "report.html").write_text("")
        )
        remote_run.show(home, tmp_path / "r", SimpleNamespace(number="1"), as_json=True)
    finally:
        os.umask(before)
    assert (tmp_path / "r").stat().st_mode & 0o077 == 0
    files = {f.name: f.stat().st_mode & 0o077 for f in (tmp_path / "r").iterdir()}
    assert {"deploy.json", "report.html"} <= set(files)
    assert not any(files.values()), files
    assert json.loads((tmp_path / "r/deploy.json").read_text())["path"]
