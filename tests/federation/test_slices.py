"""Slices over a network: what the ledger counts is what travels, and sites that lost theirs are sent all again.

Likely mistakes: a restarted site trains on zeros; a message that leaves out what the site holds counts as another
order than one that does not, so that a guarantee refuses the second.
"""

from __future__ import annotations

import pytest
import torch

from tests.federation import fake
from unskew.core.trees import size_in_bytes
from unskew.errors import StateError
from unskew.federation.protocol.wire_format import Limits, Packet, unseal
from unskew.federation.site.local_run import HELD, HeldSlices
from unskew.records import client_lists
from unskew.records.checkpoints import digest

METHOD = "fedmix+feddpms(alpha=5, width=8)"
pytestmark = pytest.mark.usefixtures("few_attempts")


def trained(tmp_path, name: str, meddle=None, method: str = METHOD, **settings):
    """A run, its last state, what it said, and the bytes of tensors of each request by kind and round."""
    sent: list[tuple[str, int, str, int]] = []

    def seen(site, request, honest):
        packet = unseal(request, fake.COORDINATOR.public, Limits(1 << 30, 10_000))
        sent.append((packet.header["kind"], packet.header["t"], site, size_in_bytes(packet.tree)))
        return meddle(channel, site, packet, honest) if meddle else honest

    channel = fake.Direct(fake.sites(tmp_path / f"{name}-sites", fake.federation()), seen)
    small = fake.small(method, **{"rounds": 5, "eval_every": 1, **settings})
    return *fake.run(tmp_path / name, channel, small), [
        one for one in sent if one[0] not in ("hello", "setup")
    ]


def down(loop) -> int:
    return sum(client_lists.total_bytes(r) for r in loop.record.rows["ledger"] if r["way"] == "down")


@pytest.mark.parametrize("availability", ["full", "sample:0.6"])
def test_the_ledger_counts_every_byte_that_sites_are_sent(tmp_path, availability):
    loop, _, _, sent = trained(tmp_path, "run", availability=availability)
    assert down(loop) == sum(size for *_, size in sent)
    first = [(kind, size) for kind, t, _, size in sent if (kind, t) == ("visit", 0)]
    assert first == [("visit", 8)] * 5, "averages of inputs need no weights; 8 bytes are FedDPMS's match"


def restarting(remove: bool):
    """All sites restart after their answers of round 3, and lose their slices."""

    def meddle(channel, site, packet, honest):
        if (packet.header["kind"], packet.header["t"]) == ("train", 3):
            for node, other in fake.sites(channel.folder, fake.federation()).items():
                if other.member.name == site:
                    channel.sites[node] = other
            for file in (channel.folder / site).rglob(HELD) if remove else ():
                file.unlink()
        return honest

    return meddle


@pytest.mark.parametrize("remove", [False, True])
def test_a_restarted_site_needs_nothing_again_unless_its_slices_are_gone(tmp_path, monkeypatch, remove):
    monkeypatch.setattr(fake.Direct, "folder", tmp_path / "again-sites", raising=False)
    whole, state, _, _ = trained(tmp_path, "whole")
    loop, again, said, sent = trained(tmp_path, "again", restarting(remove))
    assert down(loop) == sum(size for *_, size in sent)
    lost = [text for text in said if text.startswith("E205")]
    if remove:
        assert len(lost) == 5
        assert "the site does not hold 'feddpms/asked'; it has to be set up again." in lost[0]
        assert down(loop) > down(whole)
        assert again.t == 5
    else:
        assert not lost
        assert digest(again.weights) == digest(state.weights)
        assert down(loop) == down(whole)


def test_a_round_that_is_asked_for_again_is_the_same_order_whatever_of_it_travels(tmp_path):
    """The server goes back a round, so sites are set up again and sent what they held when they first answered
    it; with a guarantee they repeat that answer, and refuse any other order."""

    class Stop(Exception):
        pass

    def shown(state, told):
        if told.t == 3:
            raise Stop

    settings = fake.small("fedrdn+dpsgd", rounds=4)
    folder, path = tmp_path / "sites", tmp_path / "run"
    with pytest.raises(Stop):
        fake.run(path, fake.Direct(fake.sites(folder, fake.federation())), settings, shown=shown)
    state = path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    _, _, said = fake.run(path, fake.Direct(fake.sites(folder, fake.federation())), settings)
    assert any("E201" in text for text in said)
    assert not [text for text in said if "E520" in text]


def test_a_slice_of_an_earlier_content_is_never_taken_for_the_present_one(tmp_path):
    held = HeldSlices(tmp_path / HELD, {"part": {"z": torch.ones(2)}}, {"part/z": 1})
    with pytest.raises(StateError, match="E205"):
        held.complete(Packet({"slices": {"part/z": 2}}, {"down": {}}), None)
