"""Replies that nothing can read: they are dropped, their site is named, and the run goes on with the
others."""

from __future__ import annotations

import pytest
import torch

from tests.federation import fake
from tests.federation.test_bad import BAD, WIDE, again, meddling, opened
from tests.federation.test_messages import HELLO, posted
from unskew.federation.coordinator import correspondence, site_exchange
from unskew.federation.protocol.hello import Hello
from unskew.federation.protocol.wire_format import MOST_LEVELS, WireError, seal, unseal


def events(tmp_path, change) -> list[tuple[str, str]]:
    """What a run of three rounds says of its replies. change: what BAD answers to training in round 2."""
    channel = fake.Direct(fake.sites(tmp_path / "sites", fake.federation()), meddling(change))
    loop, state, _ = fake.run(tmp_path / "run", channel, fake.small("scaffold"))
    assert state.t == 3
    return [(e["code"], e["text"]) for e in loop.record.rows["events"] if e["code"] != "round"]


def honest_reply(asked, honest):
    return honest


def test_a_name_of_more_levels_than_any_tree_has_is_refused(tmp_path):
    """N14: what walks through a tree calls itself at every level, so that 1,600 slashes ended the run of
    all."""
    for where in ("w", "shares", "score", "early"):

        def deep(asked, honest, where=where):
            packet = opened(honest)
            packet.tree[where] = {"/".join("a" * 1600): torch.zeros(1)}
            return again(packet)

        assert events(tmp_path / where, deep) == [
            ("E310", f"{BAD}: a tensor's name has more than 16 levels. Reply dropped.")
        ]
    key = fake.KEYS[BAD]
    unseal(seal({}, {"/".join("a" * MOST_LEVELS): torch.zeros(1)}, key), key.public, WIDE)
    with pytest.raises(WireError):
        unseal(seal({}, {"/".join("a" * (MOST_LEVELS + 1)): torch.zeros(1)}, key), key.public, WIDE)


@pytest.mark.parametrize("error", [RecursionError, MemoryError, RuntimeError, AssertionError])
def test_whatever_reading_a_reply_raises_concerns_its_site_alone(tmp_path, monkeypatch, error):
    """N14: the run of all ended, and nobody was named."""
    read, reply_of, bad = correspondence._read_reply, site_exchange.reply_of, int(BAD[1:])

    def failing(site, key, request, reply, limits):
        if site == BAD and '"kind": "train"' in request.text and '"t": 2' in request.text:
            raise error
        return read(site, key, request, reply, limits)

    def failing_later(k, packet, *names):
        if (k, packet.header["t"]) == (bad, 2):
            raise error
        return reply_of(k, packet, *names)

    text = f"its reply cannot be read ({error.__name__}). Reply dropped."
    with monkeypatch.context() as patched:
        patched.setattr(correspondence, "_read_reply", failing)
        assert events(tmp_path / "post", honest_reply) == [("E310", f"{BAD}: {text}")]
    monkeypatch.setattr(site_exchange, "reply_of", failing_later)
    assert events(tmp_path / "remote", honest_reply) == [("E310", f"{BAD} round 2: {text}")]


def test_what_a_site_says_of_an_error_is_cut(tmp_path):
    """N6: a node's text of any length went into the journal, the events and the terminal."""
    ((code, text),) = events(tmp_path, lambda asked, honest: "x" * 100_000)
    assert code == "E311"
    assert len(text) < 550
    post_, _, told = posted(lambda request: "x" * 100_000)
    post_.nodes.clear()
    post_.greet({})
    assert len(told[0][2]) < 600


@pytest.mark.parametrize(
    "changes", [{"shape": [1] * 9}, {"pixels": [1] * 9}, {"versions": {str(i): "1" for i in range(11)}}]
)
def test_a_site_describes_its_data_briefly(changes):
    """N6: shapes of 300,000 axes and thousands of versions were kept and compared."""
    with pytest.raises(ValueError, match="more than 8 axes or 10 versions"):
        Hello.read({**HELLO, "site": "s0", **changes})
    said = Hello.read({**HELLO, "site": "s0", "versions": {"p" * 500: "v" * 500}})
    assert said.versions == {"p" * 100: "v" * 100}


@pytest.mark.parametrize("loss", [1e299, -1e13, float("inf"), float("nan"), "x", None])
def test_a_loss_that_is_no_reasonable_number_is_refused(tmp_path, loss):
    """N7: it was written into the run's metrics as Infinity."""

    def lossy(asked, honest):
        return again(opened(honest), loss=loss)

    ((code, text),) = events(tmp_path, lossy)
    assert code == "E301"
    assert text.startswith(f"{BAD} round 2: the loss is no number")
    assert "Infinity" not in "".join(p.read_text() for p in (tmp_path / "run").glob("*.jsonl"))
