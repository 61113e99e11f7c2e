"""Sites in this process: their real code, reached through the real Flower apps where Flower is installed."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip(
    "cryptography", reason="a deployment's tests need the extra: pip install 'unskew[flower]'"
)


from unskew.config import Settings
from unskew.data.clients.federation import Federation
from unskew.data.clients.partition import Index
from unskew.data.samples.dataset import Dataset
from unskew.federation.coordinator.correspondence import Contact
from unskew.federation.coordinator.network_run import Terms, conduct
from unskew.federation.protocol.hello import Hello
from unskew.federation.protocol.signed_messages import PrivateKey, SignedMessage
from unskew.federation.site.policy import KINDS, Policy
from unskew.federation.site.site import Site, SiteIdentity
from unskew.methods import registry
from unskew.runs import conformance

COORDINATOR = PrivateKey.make()
KEYS = {f"s{k}": PrivateKey.make() for k in range(8)}
Meddle = Callable[[str, SignedMessage, SignedMessage], SignedMessage | str | None]
"""(site, request, honest reply) -> what arrives"""


OPEN = Policy(shares=KINDS, least_samples=1, least_batch=1, handing_on="allowed")
"""A policy that allows everything."""
SIZES = (40, 1, 33, 2, 17)
"""The first client has one class, the second a single sample."""


def federation() -> Federation:
    """Five small clients of 8x8 colour images in three classes; every one has test samples of its own."""
    rng = np.random.default_rng(7)
    y = rng.integers(0, 3, sum(SIZES))
    y[: SIZES[0]] = 1
    x = (0.2 * rng.random((len(y), 3, 8, 8)) + 0.2 * y[:, None, None, None]).astype(np.float32)
    rows = [np.arange(a, b) for a, b in itertools.pairwise(np.cumsum([0, *SIZES]))]
    test = [np.arange(k, 60, len(SIZES)) for k in range(len(SIZES))]
    return Federation("five", x, y, x[:60], y[:60], ("a", "b", "c"), Index.of(rows), Index.of(test), "iid")


def data_of(federation: Federation, k: int) -> Dataset:
    """What client k of a federation holds, as a site's own set."""
    train, test = federation.train[k], federation.test[k]
    x, y = np.asarray(federation.x)[train], federation.y[train]
    return Dataset(f"site {k}", x, y, federation.x_test[test], federation.y_test[test], federation.classes)


def sites(folder: Path, federation: Federation) -> dict[int, Site]:
    """One a client, at nodes whose numbers do not follow the order of names."""
    return sites_with(folder, [data_of(federation, k) for k in range(federation.clients)])


def sites_with(folder: Path, sets: list[Dataset], **more) -> dict[int, Site]:
    """Sites that hold these sets, by node. more: for each `Site`."""
    by_node = {}
    for k, data in enumerate(sets):
        name = f"s{k}"
        (folder / name).mkdir(parents=True, exist_ok=True)
        member = SiteIdentity(name, folder / name, KEYS[name], COORDINATOR.public)
        OPEN.write(folder / name)
        by_node[1000 - k] = Site(member, lambda data=data: data, approve="all", **more)
    return by_node


def claim(monkeypatch, site: str, **facts) -> None:
    """Let a site say other facts of itself."""
    honest = Hello.of

    def of(name, data, versions):
        said = honest(name, data, versions)
        if name != site:
            return said
        return replace(said, **{n: v(said) if callable(v) else v for n, v in facts.items()})

    monkeypatch.setattr(Hello, "of", staticmethod(of))


def events(path: Path) -> list[dict]:
    """What a run's folder records beside who answered."""
    rows = map(json.loads, (path / "events.jsonl").read_text().splitlines())
    return [row for row in rows if row["code"] != "round"]


class Direct:
    """A Channel that calls the sites' code. `meddle` may change, replace or lose what a site answers."""

    def __init__(self, sites: dict[int, Site], meddle: Meddle | None = None):
        self.sites, self.meddle = sites, meddle or (lambda site, asked, honest: honest)
        self.asked: list[tuple[str, str, int]] = []

    def nodes(self) -> list[int]:
        return sorted(self.sites)

    def ask(self, requests, kind, t, deadline_s, most):
        replies = {}
        for node, sealed in requests.items():
            site = self.sites[node]
            self.asked.append((site.member.name, kind, t))
            if (reply := self.meddle(site.member.name, sealed, site.answer(sealed))) is not None:
                replies[node] = reply
        return replies


def run(path: Path, channel, settings: Settings, **terms):
    """A whole run; its last state and what it said."""
    said: list[str] = []
    order = tuple(KEYS)[: settings.clients]
    keys = terms.pop("keys", {name: KEYS[name].public for name in order})
    shown = terms.pop("shown", lambda *_: None)
    agreed = Terms(**{"min_sites": 1, "deadline_s": 0.2, "wait_s": 0.2, **terms})
    contact = Contact(channel, order, COORDINATOR, lambda: keys)
    loop, state = conduct(path, settings, contact, agreed, say=said.append, shown=shown)
    return loop, state, said


def grid_of(sites: dict[int, Site]):
    """A mailbox without processes: messages in Flower's form go to the sites and come back."""
    from flwr.app import Message
    from flwr.supercore.task_identity import TaskIdentity

    from unskew.federation.coordinator.mailbox import Mailbox
    from unskew.federation.protocol.flower_messages import pack_message, unpack_message

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (
        1,
        0,
        1,
    )  # which Flower sets in its processes

    class InProcess(Mailbox):
        def __init__(self) -> None:
            self.count, self.replies = itertools.count(1), {}

        def nodes(self):
            return sorted(sites)

        def push_messages(self, messages):
            ids = []
            for message in messages:
                number = f"m{next(self.count)}"
                message.metadata.__dict__["_message_id"] = number
                answer = sites[message.metadata.dst_node_id].answer(unpack_message(message.content))
                self.replies[number] = Message(pack_message(answer), reply_to=message)
                ids.append(number)
            return ids

        def pull_messages(self, numbers):
            there = [number for number in numbers if number in self.replies]
            return {number: unpack_message(self.replies.pop(number).content) for number in there}

        def lost(self, numbers):
            return []

        def rest(self, seconds):
            pass

    return InProcess()


def unread(method: str) -> Settings:
    """Settings of a method that nobody here has read."""
    return conformance.short_settings(method=method, lanes="1", clients=len(SIZES))


@functools.cache
def small(method: str, **changes) -> Settings:
    chosen = {"lanes": "1", "clients": len(SIZES), **changes, "method": method}
    if "model" in chosen:  # which may be a file of another folder
        return conformance.short_settings(**chosen)
    return conformance.run_for(registry.parse(method), **chosen).settings
