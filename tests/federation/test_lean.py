"""What Flower's SuperLink is told about its database."""

from __future__ import annotations

import sqlite3
import sys

import pytest

pytestmark = pytest.mark.flower


def test_the_database_is_set_for_large_models_and_its_log_stays_small(tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
    from flwr.supercore import sql_mixin

    from unskew.federation import flower_patches
    from unskew.federation.flower_patches import announced_by_site

    for name in ("flower_superlink", "configure_malloc"):
        monkeypatch.setattr(flower_patches, name, lambda: None)
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    monkeypatch.setattr(flower_patches.object_store_factory, "SqlObjectStore", None)
    monkeypatch.setattr(sys, "argv", ["lean", "flower-superlink"])
    monkeypatch.setattr(flower_patches.fleet_handlers, "push_messages", lambda: announced_by_site.get())
    flower_patches.main()
    assert flower_patches.object_store_factory.SqlObjectStore is flower_patches.PieceStore
    assert sys.argv == ["flower-superlink"]
    assert (flower_patches.fleet_handlers.push_messages(), announced_by_site.get()) == (
        True,
        False,
    )  # by which a site is known
    connection = sqlite3.connect(tmp_path / "state.db")
    sql_mixin._set_sqlite_pragmas(connection, None)
    asked = ("cache_size", "mmap_size", "busy_timeout", "journal_mode")
    told = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
    assert told == [-8000, 0, 60000, "wal"]
    connection.execute("CREATE TABLE poll (n INTEGER)")
    for n in range(3000):  # a transaction each, which writes a whole page
        connection.execute("INSERT INTO poll VALUES (?)", (n,))
        connection.commit()
    assert (tmp_path / "state.db-wal").stat().st_size < 6e6
    connection.close()
