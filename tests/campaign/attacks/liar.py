"""A site that lies: the key, the connection and the answers of an admitted site, changed as a file says.

    python -m tests.campaign.attacks.liar FOLDER DATA LIE

LIE is a file that holds the name of a lie, or nothing: then the site is honest.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unskew.core.trees import tree_map
from unskew.federation.protocol.signed_messages import PrivateKey, PublicKey, SignedMessage
from unskew.federation.protocol.wire_format import Limits, Packet, seal, unseal
from unskew.federation.site.connection import AnswerLoop, Fleet
from unskew.federation.site.site import Site, SiteIdentity
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site_data import load

WIDE = Limits(4 << 30, 1 << 20)
Changed = SignedMessage | str | None
PICKLED = b"\x80\x04cos\nsystem\n(S'touch was-here'\ntR."
"""Would run a command where somebody unpickles it."""


@dataclass
class Honest:
    """An honest answer, about to be changed. key: the site's own. before: earlier answers, the last one
    last."""

    sealed: SignedMessage
    key: PrivateKey
    before: list[SignedMessage] = field(default_factory=list)

    @property
    def packet(self) -> Packet:
        return unseal(self.sealed, self.key.public, WIDE)

    def saying(self, **facts: Any) -> SignedMessage:
        """With other facts in its header, signed again."""
        packet = self.packet
        kept = {n: v for n, v in packet.header.items() if n not in ("sha256", "axes")}
        return seal(kept | facts, packet.tree, self.key)

    def holding(self, **branches: Any) -> SignedMessage:
        """With other tensors, signed again."""
        packet = self.packet
        kept = {n: v for n, v in packet.header.items() if n not in ("sha256", "axes")}
        return seal(kept, packet.tree | branches, self.key)

    def weights(self, change: Callable[[torch.Tensor], torch.Tensor]) -> SignedMessage:
        """With other weights, signed again."""
        return self.holding(
            w=tree_map(lambda t: change(t) if t.is_floating_point() else t, self.packet.tree["w"])
        )

    def raw(self, blob: bytes, **facts: Any) -> SignedMessage:
        """With any bytes in the place of its tensors, and a digest and signature that fit."""
        header = json.loads(self.sealed.text) | facts | {"sha256": hashlib.sha256(blob).hexdigest()}
        return self.text(json.dumps(header), blob)

    def text(self, text: str, blob: bytes) -> SignedMessage:
        return SignedMessage(text, self.key.sign(text.encode()), blob)


def hello(honest: Honest, **facts: Any) -> SignedMessage:
    """What a site says of itself, with other facts."""
    return honest.saying(hello=json.loads(honest.sealed.text)["hello"] | facts)


TRAIN: dict[str, Callable[[Honest], Changed]] = {
    "tensors of other sizes": lambda h: h.weights(lambda t: torch.zeros(3)),
    "tensors of another type": lambda h: h.weights(lambda t: t.half()),
    "complex numbers": lambda h: h.weights(lambda t: t.to(torch.complex64)),
    "NaN": lambda h: h.weights(lambda t: t * float("nan")),
    "weights times 1e12": lambda h: h.weights(lambda t: t * 1e12),
    "more than was declared": lambda h: h.holding(more={"secret": torch.zeros(2)}),
    "a count of 1e15": lambda h: h.saying(n=10**15),
    "a count of -5": lambda h: h.saying(n=-5),
    "a count that is no number": lambda h: h.raw(h.sealed.blob, n="many"),
    "a loss of 1e299": lambda h: h.saying(loss=1e299),
    "the answer to an earlier request": lambda h: h.before[-2] if len(h.before) > 1 else h.sealed,
    "the answer to another run": lambda h: h.before[0],
    "another site's name": lambda h: h.saying(site="a"),
    "another's signature": lambda h: replace(
        h.sealed, signature=PrivateKey.make().sign(h.sealed.text.encode())
    ),
    "tensors changed after signing": lambda h: replace(h.sealed, blob=bytes(len(h.sealed.blob))),
    "a body of 60 MB": lambda h: h.raw(bytes(60 << 20)),
    "100,000 tensors": lambda h: h.holding(w={f"t{k}": torch.zeros(1) for k in range(100_000)}),
    "names of 1,500 levels": lambda h: h.holding(w={"/".join("a" * 1500): torch.zeros(1)}),
    "a pickle": lambda h: h.raw(PICKLED),
    "axes that do not fit": lambda h: h.raw(h.sealed.blob, axes={"w/head.bias": [7, 7]}),
    "JSON of 100,000 levels": lambda h: h.text(
        h.sealed.text[:-1] + ', "q":' + "[" * 10**5 + "]" * 10**5 + "}", h.sealed.blob
    ),
    "an error that moves the cursor": lambda h: "\x1b[2J\x1b[31m" * 1000,
    "nothing in time": lambda h: None,
}
"""What it answers to training instead."""
HELLO: dict[str, Callable[[Honest], Changed]] = {
    "more samples than are plausible": lambda h: hello(h, train=10**9),
    "a count beyond all counts": lambda h: hello(h, train=1 << 60),
    "another site": lambda h: hello(h, site="a"),
    "another site's name in hello": lambda h: h.saying(site="a"),
    "data of another shape": lambda h: hello(h, shape=[3, 32, 32]),
    "100,000 classes": lambda h: hello(h, classes=[str(k) for k in range(100_000)]),
    "classes that move the cursor": lambda h: hello(h, classes=["\x1b[2Jno", "yes\u202e"]),
    "a shape of 300,000 axes": lambda h: hello(h, shape=[1] * 300_000),
}
"""What it answers when it is asked who it is."""
KINDS = {"train": TRAIN, "hello": HELLO}


def main(folder: Path, data: str, lie: Path) -> None:
    joined, dataset = SiteFolder.open(folder), load(data, [])
    member = SiteIdentity(joined.ticket.site, folder, joined.key, PublicKey.parse(joined.ticket.coordinator))
    site, before = Site(member, lambda: dataset, approve="all"), list[SignedMessage]()

    def answer(request: SignedMessage, budget_s: float) -> SignedMessage:
        honest, kind = site.answer(request), json.loads(request.text)["kind"]
        change = KINDS.get(kind, {}).get(lie.read_text())
        if kind == "train":
            before.append(honest)
        if change is None:
            return honest
        changed = change(Honest(honest, joined.key, before))
        print(f"lies: {lie.read_text()}", flush=True)
        if changed is None:
            wait_for_another(lie)
            raise TimeoutError
        return changed  # pyright: ignore[reportReturnType]  a text is sent as an error, as the worker's own would be

    AnswerLoop(Fleet(joined), answer, lambda text: print(text, flush=True), member.name).run()


def wait_for_another(lie: Path) -> None:
    """Stay silent until something else is to be said."""
    held = lie.read_text()
    while lie.read_text() == held:
        time.sleep(0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
