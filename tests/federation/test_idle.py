"""When a node last had nothing to do, as the front notes it and a run's process reads it at any moment."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("cryptography", reason="pip install 'unskew[flower]'")

from unskew.federation import signals
from unskew.federation.signals import IdleNodes


@pytest.fixture
def noted(tmp_path):
    return IdleNodes(tmp_path / "idle")


def test_the_time_of_the_last_question_is_read_by_another_process(noted, tmp_path):
    assert noted.last(7) == -1.0
    noted.note(7, 12.5)
    noted.note(8, 3.0)
    assert [IdleNodes(tmp_path / "idle").last(node) for node in (7, 8, 9)] == [12.5, 3.0, -1.0]
    noted.note(7, 13.25)
    assert noted.last(7) == 13.25
    assert sorted(os.listdir(tmp_path / "idle")) == ["7", "8"]


def test_nobody_reads_the_time_of_day_while_a_question_is_noted(noted, monkeypatch):
    """A message that was sent in that moment passed for lost, and its site was asked a second time."""
    seen, real = [], os.utime

    def slow(path, times):
        seen.append(noted.last(7))
        real(path, times)
        seen.append(noted.last(7))

    monkeypatch.setattr(signals.os, "utime", slow)
    for asked in (12.5, 13.5, 14.5):
        noted.note(7, asked)
        assert noted.last(7) == asked
    assert max(seen) <= 14.5


def test_a_clock_that_has_begun_anew_finds_nothing(noted):
    noted.note(7, 1e6)
    noted.note(8, 1e6)
    noted.forget()
    assert [noted.last(node) for node in (7, 8)] == [-1.0, -1.0]
    noted.note(7, 2.0)
    assert noted.last(7) == 2.0


def test_only_this_user_reads_it_and_a_folder_that_cannot_be_made_silences_nobody(noted, tmp_path):
    noted.note(7, 1.0)
    assert (tmp_path / "idle").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "idle/7").stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").touch()
    lost = IdleNodes(tmp_path / "file" / "idle")
    lost.note(7, 1.0)
    lost.forget()
    assert lost.last(7) == -1.0


def test_its_clock_is_one_that_nobody_sets(monkeypatch):
    monkeypatch.setattr(signals.time, "time", lambda: 0.0)
    before = IdleNodes.now()
    assert 0 < before <= IdleNodes.now() < 1e9
