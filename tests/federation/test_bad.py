"""Bad replies are dropped and named, and the run goes on; bad requests are refused by the site."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from safetensors.torch import save

from tests.federation import fake
from unskew.core import gate
from unskew.core.method import Method
from unskew.core.part import Part, Trip
from unskew.core.trees import tree_map
from unskew.errors import Paused, UsageError
from unskew.federation.coordinator.correspondence import Contact, Correspondence
from unskew.federation.protocol import hello, study_rules
from unskew.federation.protocol.identity import PrivateKey
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.protocol.wire_format import Limits, Packet, WireError, seal, unseal
from unskew.federation.site import study_review
from unskew.methods import registry
from unskew.records.checkpoints import digest
from unskew.system import machine

BAD = "s2"
WIDE = Limits(1 << 30, 1 << 20)


def opened(sealed: SignedMessage, site: str = BAD) -> Packet:
    return unseal(sealed, fake.KEYS[site].public, WIDE)


def again(packet: Packet, **changes) -> SignedMessage:
    """An honest site's reply, changed and signed by the site itself: the attacker is the site."""
    header = {n: v for n, v in packet.header.items() if n not in ("sha256", "axes")}
    return seal({**header, **changes}, packet.tree, fake.KEYS[BAD])


def meddling(change):
    """Change what BAD answers to training in round 2."""

    def meddle(site: str, asked: SignedMessage, honest: SignedMessage):
        told = json.loads(asked.text)
        return change(asked, honest) if (site, told["kind"], told["t"]) == (BAD, "train", 2) else honest

    return meddle


def nan(asked, honest):
    packet = opened(honest)
    packet.tree["w"]["head.bias"][0] = float("nan")
    return again(packet)


def shape(asked, honest):
    packet = opened(honest)
    packet.tree["w"]["head.bias"] = packet.tree["w"]["head.bias"][:1]
    return again(packet)


def dtype(asked, honest):
    packet = opened(honest)
    packet.tree["w"] = tree_map(lambda t: t.half(), packet.tree["w"])
    return again(packet)


def undeclared(asked, honest):
    packet = opened(honest)
    packet.tree["more"] = {"secret": torch.zeros(2)}
    return again(packet)


def a_tree_for_a_tensor(asked, honest):
    packet = opened(honest)
    packet.tree["w"]["head.bias"] = {"x": torch.zeros(3)}
    return again(packet)


def tampered(asked, honest):
    blob = bytearray(honest.blob)
    blob[-1] ^= 1
    return replace(honest, blob=bytes(blob))


def tampered_header(asked, honest):
    return replace(honest, text=honest.text.replace('"n": ', '"n": 9'))


def another_signs(asked, honest):
    packet = opened(honest)
    return seal(packet.header, packet.tree, PrivateKey.make())


def huge(asked, honest):
    return replace(honest, blob=b"\0" * 50_000_000)


def many_tensors(asked, honest):
    packet = opened(honest)
    return again(Packet(packet.header, {"w": {f"t{i}": torch.zeros(1) for i in range(100_000)}}))


def lying_header(asked, honest):
    head = json.loads(honest.text)
    packet = Packet(head)
    made = again(packet)
    blob = (10**12).to_bytes(8, "little") + b"{}"
    import hashlib

    text = json.dumps({**json.loads(made.text), "sha256": hashlib.sha256(blob).hexdigest()})
    return SignedMessage(text, fake.KEYS[BAD].sign(text.encode()), blob)


def stale(asked, honest):
    return again(opened(honest), re="0" * 64)


def silence(asked, honest):
    return None


def fails(asked, honest):
    return "ModuleNotFoundError"


CASES = {
    nan: "E301",
    shape: "E303",
    dtype: "E303",
    undeclared: "E303",
    a_tree_for_a_tensor: "E303",
    tampered: "E310",
    tampered_header: "E310",
    another_signs: "E310",
    huge: "E303",
    many_tensors: "E303",
    lying_header: "E303",
    stale: "E307",
    silence: "E311",
    fails: "E311",
}


@pytest.mark.parametrize(("change", "code"), CASES.items(), ids=lambda v: getattr(v, "__name__", v))
def test_a_bad_reply_is_dropped_and_named_and_the_run_goes_on(tmp_path, change, code):
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), meddling(change))
    loop, state, said = fake.run(tmp_path / "run", channel, fake.small("scaffold"))
    events = [e for e in loop.record.rows["events"] if e["code"] != "round"]
    assert [e["code"] for e in events] == [code]
    assert BAD in events[0]["text"]
    assert said.count(f"{code} {events[0]['text']}") == 1  # when it happens, on the coordinator's screen
    assert state.t == 3
    assert all(bool(torch.isfinite(t).all()) for t in state.weights.values())
    answered = [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]
    assert answered == [[0, 1, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4]]


def test_a_merge_with_too_few_replies_is_said_once_and_written_of_every_round(tmp_path):
    settings = fake.small("multi_krum(share=0.4)")
    loop, _, said = fake.run(
        tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", fake.federation())), settings
    )
    events = [e for e in loop.record.rows["events"] if e["code"] == "E108"]
    assert [e["t"] for e in events] == [1, 2, 3]
    assert sum("E108" in text for text in said) == 1


def test_a_dropped_reply_leaves_the_bits_of_a_run_in_which_the_site_was_away(tmp_path):
    """Its private state goes back to the round the server counted."""
    ends = []
    for name, change in (("late", silence), ("torn", tampered)):
        channel = fake.Direct(fake.sites(tmp_path / name, fake.federation()), meddling(change))
        ends.append(digest(fake.run(tmp_path / f"run-{name}", channel, fake.small("scaffold"))[1].weights))
    assert ends[0] == ends[1]


def test_a_site_whose_private_state_is_not_finite_answers_nothing_and_keeps_the_one_before(
    tmp_path, monkeypatch
):
    """M2: over a network a site went on from its NaN file, which the server cannot see."""

    def spoilt(private):
        return (
            ("E301", "'private state scaffold/c' has 1 non-finite value.") if len(calls) in (4, 5) else None
        )

    calls: list[int] = []
    monkeypatch.setattr(gate, "state_problem", lambda private: (calls.append(0), spoilt(private))[1])
    sites = fake.sites(tmp_path / "sites", fake.federation())
    loop, _, _ = fake.run(tmp_path / "run", fake.Direct(sites), fake.small("scaffold"))
    texts = [e["text"] for e in loop.record.rows["events"] if "private state scaffold/c" in e.get("text", "")]
    assert len(texts) == 2


def test_a_million_examples_count_as_those_registered(tmp_path):
    def claim(asked, honest):
        return again(opened(honest), n=1e6)

    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), meddling(claim))
    loop, state, _ = fake.run(tmp_path / "run", channel, fake.small("fedavg"))
    honest = fake.Direct(fake.sites(tmp_path / "honest", fake.federation()))
    assert digest(state.weights) == digest(
        fake.run(tmp_path / "run2", honest, fake.small("fedavg"))[1].weights
    )
    (event,) = [e for e in loop.record.rows["events"] if e["code"] == "E305"]
    assert "registered 33" in event["text"]


def test_yesterdays_reply_is_refused(tmp_path):
    """A recorded answer to an earlier round, with its true signature."""
    kept = {}

    def meddle(site, asked, honest):
        told = json.loads(asked.text)
        if site == BAD and told["kind"] == "train":
            kept[told["t"]] = honest
            return kept[1] if told["t"] == 2 else honest
        return honest

    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), meddle)
    loop, _, _ = fake.run(tmp_path / "run", channel, fake.small("fedavg"))
    assert [e["code"] for e in loop.record.rows["events"] if e["code"] != "round"] == ["E307"]


def test_too_few_sites_skip_the_round_and_then_pause(tmp_path):
    def lost(site, asked, honest):
        return None if json.loads(asked.text)["kind"] == "train" and site != "s0" else honest

    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), lost)
    with pytest.raises(Paused, match="E206 1 of 5 sites answered; 3 are needed"):
        fake.run(tmp_path / "run", channel, fake.small("fedavg", rounds=9), min_sites=3)
    codes = [
        json.loads(line)["code"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    ]
    assert codes.count("E309") == 2


def test_a_run_is_resumed_under_another_python_but_not_another_torch(tmp_path, monkeypatch):
    """N5: a site's Python 3.11.x to 3.11.y, and nobody could resume, ever."""
    whole = fake.federation()
    fake.run(tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", whole)), fake.small("fedavg"))
    monkeypatch.setattr(hello.platform, "python_version", lambda: "3.99.1")
    fake.run(tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", whole)), fake.small("fedavg"))
    monkeypatch.setattr(hello, "version", lambda package: "9.9")
    with pytest.raises(
        UsageError, match=r"E504 s0 runs another version of torch than when the run began: .* now 9\.9"
    ):
        fake.run(tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", whole)), fake.small("fedavg"))


def test_a_stranger_is_not_let_in(tmp_path):
    """A node with a key of its own that says it is s1: the run waits for the true one and goes on without."""
    sites = fake.sites(tmp_path / "sites", fake.federation())
    sites[999].member = replace(sites[999].member, key=PrivateKey.make())
    loop, _, said = fake.run(tmp_path / "run", fake.Direct(sites), fake.small("fedavg"))
    assert any("E310 a node (999) says it is 's1' without that site's signature." in text for text in said)
    assert not any("E310 s1" in text for text in said), "the true s1 has done nothing"
    assert loop.run.federation.names == ("s0", "s2", "s3", "s4")


def test_methods_that_want_samples_at_the_server_are_refused(tmp_path):
    with pytest.raises(UsageError, match="E506 'fedavg_ft' holds back"):
        fake.run(tmp_path / "run", fake.Direct({}), fake.small("fedavg_ft"))


@dataclass(frozen=True)
class Twice(Part):
    """Two trips of one factory, which a site knows by what they run: the second would have run as the
    first."""

    name: ClassVar[str] = "twice"

    @property
    def trips(self) -> tuple[Trip, ...]:
        return tuple(
            Trip(lambda t, rounds: True, _sharing(k), lambda *all: all[:2], lambda fed: {}) for k in (1, 2)
        )


def _sharing(k: int):
    return lambda w, c: {"k": k}


def test_trips_that_sites_could_not_tell_apart_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "parse", lambda *text: Method(Twice()))
    with pytest.raises(
        UsageError, match="E506 'twice' cannot run over a network: 2 of its trips run the function"
    ):
        study_rules.study_settings(fake.small("fedavg"))


def test_what_is_measured_where_samples_are_is_refused(tmp_path):
    with pytest.raises(UsageError, match="E506 'diversity' is measured on the samples"):
        fake.run(tmp_path / "run", fake.Direct({}), fake.small("fedavg").replace(measure="diversity"))


def test_a_guarantee_by_noise_that_the_server_can_draw_is_refused(tmp_path):
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    with pytest.raises(UsageError, match="E506 'feddpms/z' is protected by noise from the study's seed"):
        fake.run(tmp_path / "run", channel, fake.small("feddpms(alpha=5, width=8, mechanism=single)"))


def test_what_the_coordinator_could_not_hold_is_refused_before_any_site_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 1)
    for room_at_a_site in ("check_model", "check_memory"):
        monkeypatch.setattr(study_review, room_at_a_site, lambda *given: None)
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()))
    with pytest.raises(UsageError, match=r"E108 'ccvr' cannot run here.*from each of 5 clients"):
        fake.run(tmp_path / "run", channel, fake.small("ccvr"))
    assert {kind for _, kind, _ in channel.asked} == {"hello"}


def test_a_site_refuses_what_its_coordinator_did_not_sign_or_sends_twice(tmp_path):
    site = fake.sites(tmp_path / "sites", fake.federation())[1000]
    header = {"run": "r1", "serial": 5, "site": "s0", "kind": "train", "t": 1}
    forged = seal(header, {}, PrivateKey.make())
    assert json.loads(site.answer(forged).text)["code"] == "E310"
    true = seal(header, {}, fake.COORDINATOR)
    assert json.loads(site.answer(true).text)["code"] == "E205"  # heard, but never set up
    assert json.loads(site.answer(true).text)["code"] == "E307"
    for run in ("../../etc", "", ".."):
        assert (
            json.loads(site.answer(seal(header | {"run": run}, {}, fake.COORDINATOR)).text)["code"] == "E109"
        )
    elsewhere = seal(header | {"serial": 9, "site": "s1"}, {}, fake.COORDINATOR)
    assert json.loads(site.answer(elsewhere).text)["code"] == "E310"


def test_a_coordinator_cannot_name_a_file_for_sites_to_load(tmp_path):
    site = fake.sites(tmp_path / "sites", fake.federation())[1000]
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")

    def answer(serial, kind, settings):
        facts = {"k": 0, "clients": 1, "largest": 9, "settings": settings.as_dict()}
        header = {"run": "r1", "serial": serial, "site": "s0", "kind": kind, "t": 0} | facts
        told = json.loads(site.answer(seal(header, {"w": {"a": torch.zeros(1)}}, fake.COORDINATOR)).text)
        assert told["code"] == "E506"
        return told["text"]

    assert "--model" in answer(1, "hello", fake.small("fedavg", model=f"{trap}:make"))
    methods = (str(trap), f"fedprox+{trap}:A(x=1)", f"fedprox + {trap}\n")
    for serial, method in enumerate(methods, 2):
        for i, kind in enumerate(("hello", "setup")):
            assert "no site loads a file" in answer(10 * serial + i, kind, fake.unread(method))
        with pytest.raises(UsageError, match=r"E506 .*no site loads a file"):
            fake.run(tmp_path / f"run{serial}", fake.Direct({}), fake.unread(method))
    assert not (tmp_path / "sprung").exists()


def test_no_mutated_message_is_read(tmp_path):
    """Every byte of text, signature and tensors counts: 3,000 random changes, no other error than ours."""
    import random

    key, rng = PrivateKey.make(), random.Random(0)
    whole = seal({"run": "r", "t": 1}, {"w": {"a": torch.randn(20), "b": torch.zeros(2, 3).T}}, key)
    assert torch.equal(unseal(whole, key.public, WIDE).tree["w"]["b"], torch.zeros(3, 2))
    for _ in range(3000):
        what = rng.choice(("text", "signature", "blob"))
        part = bytearray(getattr(whole, what).encode() if what == "text" else getattr(whole, what))
        if rng.random() < 0.3:
            part = part[: rng.randrange(len(part))]
        else:
            part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
        bad = replace(whole, **{what: part.decode("latin1") if what == "text" else bytes(part)})
        with pytest.raises(WireError):
            unseal(bad, key.public, WIDE)


def test_signed_nonsense_is_an_error_of_ours():
    """A site that signs garbage: bytes that are no safetensors, axes that do not fit, names inside names."""
    import hashlib

    key = PrivateKey.make()
    for blob, more in (
        (b"12345678garbage", {}),
        (b"\x02\0\0\0\0\0\0\0{}", {"axes": {"a": [0]}}),
        (save({"a": torch.zeros(2)}), {"axes": {"a": [5]}}),
        (save({"a": torch.zeros(2)}), {"axes": [1]}),
        (save({"a": torch.zeros(2), "a/b": torch.zeros(2)}), {}),
    ):
        text = json.dumps({"sha256": hashlib.sha256(blob).hexdigest(), **more})
        with pytest.raises(WireError):
            unseal(SignedMessage(text, key.sign(text.encode()), blob), key.public, WIDE)
    for text in ("[]", "{", "[" * 100_000, "null"):
        with pytest.raises(WireError):
            unseal(SignedMessage(text, key.sign(text.encode()), b""), key.public, WIDE)


def test_post_asks_nobody_it_does_not_know():
    told = []
    contact = Contact(fake.Direct({}), ("s9",), PrivateKey.make(), {"s9": PrivateKey.make().public})
    post = Correspondence("r", contact, 0.1, lambda *what: told.append(what))
    assert post.ask("train", 1, {"s9": ({}, {})}, WIDE) == {}
    assert told == [(1, "E311", "s9 is not connected and was not asked.")]
