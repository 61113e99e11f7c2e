"""A file of another run, site or method in a site's folder is never taken for this site's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import unskew
from tests.federation import fake
from tests.federation.test_bits import simulated
from unskew.errors import StateError
from unskew.federation.site.run_folder import Owner
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator, Ticket
from unskew.records import checkpoints
from unskew.records.checkpoints import digest

PRIVATE, RECEIVED, SETUP = "private-3.safetensors", "received.safetensors", "setup.safetensors"


def federated(folder: Path, method: str = "fedper") -> Path:
    fake.run(folder / "run", fake.Direct(fake.sites(folder / "sites", fake.federation())), fake.small(method))
    return folder / "sites"


def of(sites: Path, site: str) -> Path:
    """The one run of a site."""
    (run,) = (sites / site / "runs").iterdir()
    return run


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, Path]:
    """The sites after a run, and the same sites after another."""
    return federated(tmp_path_factory.mktemp("one")), federated(tmp_path_factory.mktemp("other"))


def own(two, tmp_path) -> Path:
    """The run at s2, to be changed."""
    return of(Path(shutil.copytree(two[0], tmp_path / "sites")), "s2")


@pytest.mark.parametrize("name", [PRIVATE, RECEIVED, SETUP])
def test_a_file_of_another_run_is_not_predicted_with(tmp_path, two, name):
    shutil.copy(of(two[1], "s2") / name, (run := own(two, tmp_path)) / name)
    with pytest.raises(
        StateError, match=rf"E201 {name} in the folder of run {run.name} at site s2 is of another run; put"
    ):
        unskew.load(run)


@pytest.mark.parametrize("name", [PRIVATE, RECEIVED, SETUP])
@pytest.mark.parametrize("said", [{}, {"owner": "s2"}])
def test_a_file_that_does_not_say_whose_it_is_is_not_predicted_with(tmp_path, two, name, said):
    tree, facts = checkpoints.read((run := own(two, tmp_path)) / name)
    checkpoints.write(run / name, tree, {n: v for n, v in facts.items() if n != "owner"} | said)
    with pytest.raises(
        StateError, match=rf"E201 {name} in the folder of run {run.name} at site s2 does not say whose"
    ):
        unskew.load(run)


def test_a_file_of_another_site_is_not_predicted_with(tmp_path, two):
    shutil.copy(of(two[0], "s0") / PRIVATE, (run := own(two, tmp_path)) / PRIVATE)
    with pytest.raises(StateError, match=rf"E201 {PRIVATE} .* at site s2 is of another site"):
        unskew.load(run)


def test_a_whole_folder_of_another_site_or_run_is_not_predicted_with(tmp_path, two):
    run = own(two, tmp_path)
    Coordinator.make(tmp_path / "lung", "lung", "127.0.0.1:9", ["s2"], True)
    SiteFolder.make(run.parent.parent, Ticket.read(tmp_path / "lung/tickets/s2.ticket"))
    assert unskew.load(run).own.site == "s2"
    other = Path(shutil.copytree(run, run.with_name("r1")))
    with pytest.raises(StateError, match=r"E201 .* of run r1 at site s2 is of another run"):
        unskew.load(other)
    shutil.rmtree(run)
    shutil.copytree(of(two[0], "s0"), run)
    with pytest.raises(StateError, match=r"E201 .* at site s2 is of another site"):
        unskew.load(run)


def test_a_copy_elsewhere_is_read_as_what_it_says(tmp_path, two):
    copied = unskew.load(shutil.copytree(of(two[0], "s2"), tmp_path / "of-the-clinic"))
    assert (copied.own.site, copied.own.kept) == ("s2", 3)


def test_a_file_says_whose_it_is_and_of_which_method(two):
    run = of(two[0], "s2")
    said = {"run": run.name, "site": "s2", "method": "fedper"}
    assert [checkpoints.read(run / name)[1]["owner"] for name in (PRIVATE, RECEIVED, SETUP)] == [said] * 3
    with pytest.raises(StateError, match=r"E201 .* is of another method"):
        Owner(run.name, "s2", "fedbn").of(run / PRIVATE)


@pytest.mark.parametrize("theirs", ["s0", None])
def test_the_next_round_does_not_begin_with_another_sites_state(tmp_path, theirs):
    """The coordinator ends after round 2, and goes on; meanwhile somebody copies a file. Without that nothing
    changes."""

    class Stop(Exception):
        pass

    def shown(_, told):
        if told.t == 2:
            raise Stop

    def channel():
        return fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))

    settings = fake.small("scaffold+fedbn")
    with pytest.raises(Stop):
        fake.run(tmp_path / "run", channel(), settings, shown=shown)
    if theirs:
        name = "private-2.safetensors"
        shutil.copy(of(tmp_path / "sites", theirs) / name, of(tmp_path / "sites", "s2") / name)
    _, end, said = fake.run(tmp_path / "run", channel(), settings)
    told = [text for text in said if "E201" in text]
    assert bool(told) == bool(theirs)
    assert all("at site s2 is of another site" in text for text in told)
    assert (digest(end.weights) == simulated("scaffold+fedbn").digest) == (not theirs)
