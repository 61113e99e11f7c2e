"""A run whose server would need more memory than there is, refused before it trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from unskew.core.method import Method
from unskew.core.part import Part
from unskew.core.shares import Share
from unskew.core.trip import Trip
from unskew.errors import UsageError
from unskew.runs import conformance, hardware
from unskew.system import machine


@dataclass(frozen=True)
class Heavy(Part):
    """Brings 800 bytes from each client, and rows whose number differs by client."""

    everyone: bool = True
    name: ClassVar[str] = "heavy"

    @property
    def trips(self):
        def shares(fed):
            return {"a": Share((10, 10)), "b": Share((100,)), "rows": Share((None, 1000), rows=1000)}

        return (
            Trip(lambda t, T: t == T, lambda w, c: {}, lambda w, s, ups, fed: (w, s), shares, self.everyone),
        )


@pytest.fixture
def fed():
    run = conformance.loop_for(Method())
    return run.fed  # of eight clients, so 6,400 bytes


def test_the_server_holds_the_replies_of_all_clients_at_once(fed):
    hardware.check_memory(Method(Heavy()), fed, has=6400)
    with pytest.raises(UsageError, match=r"E108 'heavy'.*would hold 6\.4 KB at once, 800 B from each"):
        hardware.check_memory(Method(Heavy()), fed, has=6399)


def test_the_replies_of_a_rounds_cohort_are_not_counted(fed):
    hardware.check_memory(Method(Heavy(everyone=False)), fed, has=1)


def test_a_run_asks_for_the_memory_of_this_machine(monkeypatch):
    monkeypatch.setattr(machine.os, "sysconf", lambda name: {"SC_PAGE_SIZE": 64, "SC_PHYS_PAGES": 99}[name])
    with pytest.raises(UsageError, match="E108 'heavy'"):
        conformance.loop_for(Method(Heavy()))
    monkeypatch.setattr(machine.os, "sysconf", lambda name: {"SC_PAGE_SIZE": 64, "SC_PHYS_PAGES": 100}[name])
    conformance.loop_for(Method(Heavy()))
