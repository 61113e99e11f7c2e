"""No file of a site is named to its coordinator, whatever goes wrong there."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from tests.federation import fake  # skips where cryptography is missing
from tests.federation.test_policy import answer, begun, hello
from unskew.errors import DataError
from unskew.federation.site import site_ledger
from unskew.federation.site.guard import DATA_ERROR_TEXT, without_paths
from unskew.federation.site.site import Site


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("cannot write /home/ann/lung/site/runs/r1/serial (3 bytes free).", "cannot write X (3 bytes free)."),
        ("E401 '../scans/patient-7.png', or ~/x: no", "E401 'X', or X: no"),
        ("see /tmp/unskew-error-1.log.", "see X"),
        (r"C:\Users\ann\scans.npz is no archive", "X is no archive"),
        ("the model net.py:make, of site/runs/r1", "the model X:make, of X"),
        (
            "site b holds 'rebafl/sums' of 38.4 KB/s and/or 1/2",
            "site b holds 'rebafl/sums' of 38.4 KB/s and/or 1/2",
        ),
        ("(read: each / sum)", "(read: each / sum)"),
    ],
)
def test_paths_are_taken_out_and_names_of_shares_are_not(text, left):
    """E203: the coordinator read where a site keeps its runs."""
    assert without_paths(text, ["site/", "net.py"]).replace("a file of the site", "X") == left


@pytest.fixture
def site(tmp_path):
    return fake.sites(tmp_path / "sites", fake.federation())[998]


def told(site) -> str:
    return "\n".join(str(row["text"]) for row in site_ledger.latest_troubles(site.member.folder))


def test_a_damaged_serial_names_no_file_to_the_coordinator(site):
    hello(site)
    (site.member.folder / "runs/r1/serial").write_text("?")
    refused = hello(site)
    assert refused["code"] == "E307"
    assert "(a file of the site), so that it gets no answers here; start a new run." in refused["text"]
    assert str(site.member.folder) in told(site)


def test_a_full_disk_names_no_file_to_the_coordinator(site, monkeypatch):
    train = begun(site)
    real = os.fsync

    def full(handle: int) -> None:
        if str(site.member.folder) in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    refused = train(1)
    assert refused["code"] == "E203"
    assert refused["text"].startswith("disk full: cannot write a file of the site (needs ")


def test_neither_data_nor_a_model_of_the_sites_own_are_named(site, tmp_path):
    def load():
        raise DataError("E401", f"{tmp_path}/patients/data.npz has no array y.")

    broken = Site(site.member, load, approve="all")
    assert "patients" not in hello(broken)["text"]
    own = Site(replace(site.member), site.load, model="secret/net.py:make", approve="all")
    assert "secret" not in str(
        answer(own, "hello", settings=fake.small("fedavg", model="x.py:make").as_dict())
    )


@pytest.mark.parametrize(
    "text",
    [
        "E413 scans of anna/7.parquet has changed since it was checked; leave data alone.",  # relative, with spaces
        "E413 /data/scans of anna/7.png has changed since it was checked.",
        "E404 lung: the label of sample 17 is 'hiv positive', which is none of the classes.",
        "E405 lung: column 'weight of anna' holds 7e39 at line 3.",
    ],
)
def test_an_error_in_the_data_is_told_to_the_sites_operator_alone(site, text):
    """The coordinator read names of files, of columns and of patients, and values."""
    said = []

    def load():
        raise DataError(text[:4], text[5:])

    here = Site(site.member, load, approve="all", say=said.append)
    refused = hello(here)
    assert (refused["code"], refused["text"]) == (text[:4], DATA_ERROR_TEXT)
    assert text in said
    assert text[5:] in told(here)


def test_a_set_is_not_called_by_the_name_of_its_file(site):
    """A coordinator that asked for normalise=dataset read what the site's file is called."""
    here = Site(site.member, lambda: replace(site.data, name="hiv-patients-2019"), approve="all")
    refused = hello(here, normalise="dataset")
    assert refused["code"] == "E506"
    assert "hiv" not in refused["text"]


def test_a_coordinator_reads_again_what_it_has_named_itself(site):
    """It read of "a file of the site" where the file was its own."""
    refused = answer(site, "hello", settings=fake.small("fedavg", model="/home/me/net.py:make").as_dict())
    assert "the study's model is /home/me/net.py:make; to allow your own" in refused["text"]
    asked = fake.small("fedavg", model=f"{site.member.folder}/runs/x.py:make").as_dict()
    assert str(site.member.folder) not in answer(site, "hello", settings=asked)["text"], (
        "which would confirm a guess"
    )


def test_a_trip_that_the_method_does_not_have_is_refused_in_a_sentence(site):
    begun(site)
    for part, trip in (("feddata", 0), ("fedavg", 3)):
        refused = answer(site, "visit", part=part, trip=trip, lr=0.05)
        assert refused["text"] == f"the study's method has no trip {trip} of '{part}'."
        assert refused["code"] == "E310"


def test_a_trip_without_a_name_is_refused_in_a_sentence(site):
    """What explains an error read the trip's name, and raised in place of an answer."""
    begun(site)
    assert (
        answer(site, "visit", lr=0.05, trip=0)["text"] == "the request lacks 'part', which every 'visit' has."
    )
