"""Bad replies are dropped and named, and the run goes on; bad requests are refused by the site."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from tests.federation import fake
from unskew.errors import Paused, UsageError
from unskew.federation.protocol.signed_messages import PrivateKey, SignedMessage
from unskew.federation.protocol.wire_format import MOST_LEVELS, Limits, Packet, WireError, seal, unseal
from unskew.records.checkpoints import digest

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
    undeclared: "E303",
    a_tree_for_a_tensor: "E303",
    tampered: "E310",
    tampered_header: "E310",
    another_signs: "E310",
    huge: "E303",
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


def test_too_few_sites_skip_the_round_and_then_pause(tmp_path):
    def lost(site, asked, honest):
        return None if json.loads(asked.text)["kind"] == "train" and site != "s0" else honest

    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), lost)
    with pytest.raises(Paused, match="E206 1 of 5 sites answered; 3 are needed"):
        fake.run(tmp_path / "run", channel, fake.small("fedavg", rounds=9), min_sites=3)
    rows = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    assert {row["t"] for row in rows if row["code"] == "E309"} == {1, 2}


def test_a_stranger_is_not_let_in(tmp_path):
    """A node with a key of its own that says it is s1: the run waits for the true one and goes on without."""
    sites = fake.sites(tmp_path / "sites", fake.federation())
    sites[999].member = replace(sites[999].member, key=PrivateKey.make())
    loop, _, said = fake.run(tmp_path / "run", fake.Direct(sites), fake.small("fedavg"))
    assert any("E310 a node (999) says it is 's1' without that site's signature." in text for text in said)
    assert not any("E310 s1" in text for text in said), "the true s1 has done nothing"
    assert loop.run.federation.names == ("s0", "s2", "s3", "s4")


def test_a_site_refuses_what_its_coordinator_did_not_sign_or_sends_twice(tmp_path):
    site = fake.sites(tmp_path / "sites", fake.federation())[1000]
    header = {"run": "r1", "serial": 5, "site": "s0", "kind": "train", "t": 1, "lr": 0.1}
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
    """Every byte of text, signature and tensors counts: 1,000 random changes, no other error than ours."""
    import random

    key, rng = PrivateKey.make(), random.Random(0)
    whole = seal({"run": "r", "t": 1}, {"w": {"a": torch.randn(20), "b": torch.zeros(2, 3).T}}, key)
    assert torch.equal(unseal(whole, key.public, WIDE).tree["w"]["b"], torch.zeros(3, 2))
    for _ in range(1000):
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


def events(tmp_path, change) -> list[tuple[str, str]]:
    """What a run of three rounds says of its replies. change: what BAD answers to training in round 2."""
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), meddling(change))
    loop, state, _ = fake.run(tmp_path / "run", channel, fake.small("scaffold"))
    assert state.t == 3
    return [(e["code"], e["text"]) for e in loop.record.rows["events"] if e["code"] != "round"]


def test_a_name_of_more_levels_than_any_tree_has_is_refused():
    """What walks through a tree calls itself at every level, so that 1,600 slashes ended the run of
    all."""
    key = fake.KEYS[BAD]
    unseal(seal({}, {"/".join("a" * MOST_LEVELS): torch.zeros(1)}, key), key.public, WIDE)
    for levels in (MOST_LEVELS + 1, 1600):
        with pytest.raises(WireError, match="a tensor's name has more than 16 levels"):
            unseal(seal({}, {"/".join("a" * levels): torch.zeros(1)}, key), key.public, WIDE)


@pytest.mark.parametrize("loss", [-1e13, float("nan"), "x"])
def test_a_loss_that_is_no_reasonable_number_is_refused(tmp_path, loss):

    def lossy(asked, honest):
        return again(opened(honest), loss=loss)

    ((code, text),) = events(tmp_path, lossy)
    assert code == "E301"
    assert text.startswith(f"{BAD} round 2: the loss is no number")
    assert "Infinity" not in "".join(p.read_text() for p in (tmp_path / "run").glob("*.jsonl"))


def nowhere(tree):
    return tree | {"indices": tree["indices"] + 10**8}


def not_a_number(tree):
    return tree | {"values": tree["values"] * float("nan")}


def far_too_large(tree):
    return tree | {"values": tree["values"] + 10}


def a_bomb(tree):
    return tree | {"values": torch.zeros(10**6)}


WORSE = {
    nowhere: "E303",
    not_a_number: "E301",
    far_too_large: "E318",
    a_bomb: "E303",
}


def test_a_site_that_encodes_nonsense_is_named_in_each_round_and_the_run_goes_on(tmp_path):
    """One kind of nonsense a round; honest replies are a fraction of what the weights would take."""
    sizes, kinds = {}, list(WORSE)

    def meddle(site: str, asked: SignedMessage, honest: SignedMessage):
        told = json.loads(asked.text)
        if told["kind"] != "train":
            return honest
        sizes[told["t"], site] = len(asked.blob), len(honest.blob)
        if site != BAD:
            return honest
        packet = opened(honest)
        shares = packet.tree["shares"]["topk"]
        shares["encoded"] = kinds[told["t"] - 1](shares["encoded"])
        return again(packet)

    settings = fake.small("topk", rounds=len(WORSE), eval_every=99)
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), meddle)
    loop, state, _ = fake.run(tmp_path / "run", channel, settings)
    events = [e for e in loop.record.rows["events"] if e["code"] != "round"]
    assert [e["code"] for e in events] == list(WORSE.values())
    assert all(BAD in e["text"] for e in events)
    assert "it changes the model's weights by " in events[list(WORSE).index(far_too_large)]["text"]
    used = [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"]
    assert used == [[0, 1, 3, 4]] * len(WORSE)
    assert all(bool(t.isfinite().all()) for t in state.weights.values())
    assert all(up < 0.12 * down for down, up in sizes.values())
    charged = [
        r["bytes"] for r in loop.record.rows["ledger"] if r["way"] == "up" and r.get("encoded") == "topk"
    ]
    assert 0 <= sizes[2, "s0"][1] - charged[0] < 512, "beside them only the tensors' names travel"
