"""What is kept for operators: the last troubles of a site, and what a run has said before its record was
open."""

from __future__ import annotations

from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from unskew.federation.coordinator.network_run import Notices
from unskew.federation.site import site_ledger
from unskew.records.record import Record


def test_the_last_fifty_troubles_are_kept_and_a_repeated_one_is_counted(tmp_path):
    for n in range(60):
        site_ledger.note_trouble(tmp_path, "r1", "train", "E520", f"text {n}")
    for _ in range(2):
        site_ledger.note_trouble(tmp_path, "r1", "train", "E520", "text 59")
    kept = site_ledger.latest_troubles(tmp_path)
    assert [row["text"] for row in kept] == [f"text {n}" for n in range(10, 60)]
    assert [row["times"] for row in kept[-2:]] == [1, 3]
    site_ledger.note_trouble(tmp_path, "r2", "train", "E520", "text 59")  # of another run
    assert [row["times"] for row in site_ledger.latest_troubles(tmp_path)[-2:]] == [3, 1]
    site_ledger.note_trouble(tmp_path, "r2", "train", "E520", "x" * 900)
    assert len(site_ledger.latest_troubles(tmp_path)[-1]["text"]) == 500
    assert (tmp_path / site_ledger.TROUBLES_FILE).stat().st_mode & 0o077 == 0


def test_damaged_troubles_are_none(tmp_path):
    for text in ("{", "3", "null", '["x"]'):
        (tmp_path / site_ledger.TROUBLES_FILE).write_text(text)
        assert site_ledger.latest_troubles(tmp_path) == []
    site_ledger.note_trouble(tmp_path, "r1", "train", "E520", "text")
    assert len(site_ledger.latest_troubles(tmp_path)) == 1


def test_what_was_said_before_the_record_was_open_stands_in_it_once_and_first():
    said, record = [], Record()
    notices = Notices(said.append)
    notices(0, "E504", "early")
    notices.open(record)
    notices(1, "E305", "late")
    assert said == ["E504 early", "E305 late"]
    assert [(e["t"], e["code"], e["text"]) for e in record.rows["events"]] == [
        (0, "E504", "early"),
        (1, "E305", "late"),
    ]
    again = Record()
    notices.open(again)
    assert again.rows["events"] == []
