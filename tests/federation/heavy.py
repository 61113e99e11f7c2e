"""Programs that `test_large` starts: one side of a run of two rounds, and its peak memory in bytes.

    python -m tests.federation.heavy server FOLDER WIDTH
    python -m tests.federation.heavy site FOLDER WIDTH

WIDTH: of the model's 10 layers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from tests.federation import fake
from unskew import config
from unskew.data.samples.dataset import Dataset
from unskew.federation.coordinator.correspondence import NodeAnswers
from unskew.federation.programs import configure_malloc
from unskew.federation.protocol.hello import Hello, versions
from unskew.federation.protocol.signed_messages import SignedMessage, StoredBytes, blocks
from unskew.federation.protocol.study_rules import study_settings
from unskew.federation.protocol.wire_format import PackedTree, seal
from unskew.federation.site.site import Site, SiteIdentity

LAYERS, ROUNDS = 10, 2
WIDTH = int(sys.argv[3]) if len(sys.argv) > 3 else 8
BYTES = 4 * (17 * WIDTH + LAYERS * WIDTH * (WIDTH + 1) + 2 * (WIDTH + 1))
MODEL = f"""from torch import nn


def build(shape, classes):
    layers = [nn.Flatten(), nn.Linear(16, {WIDTH})]
    for _ in range({LAYERS}):
        layers += [nn.ReLU(), nn.Linear({WIDTH}, {WIDTH})]
    return nn.Sequential(*layers, nn.Linear({WIDTH}, classes))
"""


def settings(folder: Path):
    (folder / "model.py").write_text(MODEL)
    facts = {
        "method": "fedavg+clip_median",
        "model": f"{folder / 'model.py'}:build",
        "rounds": ROUNDS,
        "batch": 8,
    }
    return study_settings(
        config.build({**facts, "epochs": 1, "lr": 0.01, "eval_every": ROUNDS, "clients": 3, "data": "digits"})
    )


def stored(folder: Path, sealed: SignedMessage) -> SignedMessage:
    """The message as it arrives, its tensors in a file."""
    file = StoredBytes(folder)
    for block in blocks(sealed.blob):
        file.add(block)
    return SignedMessage(sealed.text, sealed.signature, file)


class Echo:
    """Three sites that send back the weights they were sent."""

    def __init__(self, folder: Path):
        self.folder = folder

    def nodes(self) -> list[int]:
        return [0, 1, 2]

    def ask(
        self, requests: Mapping[int, SignedMessage], kind: str, t: int, deadline_s: float, most: int
    ) -> NodeAnswers:
        return {node: self._answer(node, kind, request) for node, request in requests.items()}

    def _answer(self, node: int, kind: str, request: SignedMessage) -> SignedMessage:
        header, site = json.loads(request.text), f"s{node}"
        fixed = {n: header[n] for n in ("run", "serial", "kind", "t")} | {"re": request.digest, "site": site}
        if kind == "train":
            text = json.dumps({**fixed, "n": 8, "loss": 0.5, "sha256": header["sha256"]})
            return stored(self.folder, SignedMessage(text, fake.KEYS[site].sign(text.encode()), request.blob))
        hello = Hello(site, 8, 0, (16,), ("a", "b"), (), versions()).as_json()
        return seal(fixed | ({"hello": hello} if kind == "hello" else {"ready": True}), {}, fake.KEYS[site])


def server(folder: Path) -> None:
    fake.run(folder / "run", Echo(folder), settings(folder), min_sites=3)


def site(folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    data = Dataset("s0", x, np.arange(8) % 2, x[:0], np.zeros(0, np.int64), ("a", "b"))
    fake.OPEN.write(folder)
    member = SiteIdentity("s0", folder, fake.KEYS["s0"], fake.COORDINATOR.public)
    answering = Site(member, lambda: data, model=f"{folder / 'model.py'}:build", approve="all")
    facts = {"run": "r1", "site": "s0", "lr": 0.01, "settings": settings(folder).as_dict()}
    facts |= {"k": 0, "clients": 3, "largest": 8}
    sent = stored(
        folder, seal({}, {"w": weights()}, fake.COORDINATOR)
    )  # before training: what it frees is kept
    packed = PackedTree(sent.blob, {"sha256": json.loads(sent.text)["sha256"]})
    for serial, kind in enumerate(["hello", "setup", *["train"] * ROUNDS], 1):
        header = {**facts, "serial": serial, "kind": kind, "t": max(0, serial - 2)}
        answer = answering.answer(seal(header, {} if kind == "hello" else packed, fake.COORDINATOR))
        assert "code" not in json.loads(answer.text), answer.text
        assert kind != "train" or len(answer.blob) > BYTES
        del answer


def weights() -> dict[str, torch.Tensor]:
    """Of the model, by name; made before the peak is looked at."""
    sizes = [(16, WIDTH), *[(WIDTH, WIDTH)] * LAYERS, (WIDTH, 2)]
    names = [1, *range(3, 2 * LAYERS + 2, 2), 2 * LAYERS + 2]
    w = {f"{i}.weight": torch.zeros(b, a) for i, (a, b) in zip(names, sizes)}
    return w | {f"{i}.bias": torch.zeros(b) for i, (_, b) in zip(names, sizes)}


def peak() -> int:
    """The most bytes of resident pages that this process has ever had."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]


if __name__ == "__main__":
    configure_malloc()
    {"server": server, "site": site}[sys.argv[1]](Path(sys.argv[2]))
    print(peak(), BYTES)
