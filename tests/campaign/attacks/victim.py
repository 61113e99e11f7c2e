"""A real worker process of a site whose operator decides, and the coordinator's true key in the wrong hands.

The worker is reached through its socket, as the site's connection reaches it.
"""

from __future__ import annotations

import itertools
from typing import Any

from tests.campaign.cases import check
from tests.campaign.ground import Ground
from unskew import config
from unskew.config import Settings
from unskew.core.trees import Tree
from unskew.federation.protocol.signed_messages import SOCKET, SignedMessage, ask_worker
from unskew.federation.protocol.study_rules import SiteView, prepare, study_settings
from unskew.federation.protocol.wire_format import Limits, Packet, seal, unseal
from unskew.federation.site.policy import Policy
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site_data import load
from unskew.methods import registry
from unskew.runs.resolve import run_on

SITE, NAME = "b", "victim"
WIDE = Limits(1 << 30, 1 << 20)
PLACE: dict[str, Any] = {"k": 0, "clients": 2, "largest": 5000}
"""Which client the site is, and among how many."""
ANSWERS_S = 60


class Victim:
    """The worker of a site whose operator decides, and the coordinator's key in the wrong hands."""

    def __init__(self, ground: Ground):
        self.ground, self.folder = ground, ground.root / NAME
        self.joined = SiteFolder.make(self.folder, ground.home.ticket(SITE))
        self.key, self.socket = ground.home.key, ground.root / "tmp" / NAME
        self.serial, self.runs = itertools.count(1), itertools.count(1)
        arguments = [NAME, f"{SITE}.npz"]
        ground.start_module(NAME, "unskew.federation.site.worker", *arguments, **{SOCKET: str(self.socket)})

    @property
    def pid(self) -> int:
        return self.ground.running[NAME].pid

    def new_run(self) -> str:
        return f"r{next(self.runs):016x}"

    def ask(self, kind: str, run: str, t: int = 0, tree: Tree | None = None, **header: Any) -> Packet:
        """The site's answer to a request that the coordinator has signed."""
        fixed = {"run": run, "serial": next(self.serial), "site": SITE, "kind": kind, "t": t}
        return self.send(seal(fixed | header, tree or {}, self.key))

    def send(self, request: SignedMessage) -> Packet:
        return unseal(ask_worker(self.socket, request, ANSWERS_S), self.joined.key.public, WIDE)

    def refuses(
        self, code: str, kind: str, run: str, t: int = 0, tree: Tree | None = None, **header: Any
    ) -> str:
        """Raises Wrong unless the site refuses with this code, and sends no tensor. Returns what it says."""
        return refused(self.ask(kind, run, t, tree, **header), code)

    def hello(self, run: str, settings: Settings) -> Packet:
        return self.ask("hello", run, settings=settings.as_dict())

    def approve(self, run: str) -> None:
        self.ground.do("site", "approve", run, "--folder", NAME)

    def allow(self, **limits: Any) -> None:
        """Write the site's policy, as its operator would."""
        Policy(**limits).write(self.folder)

    def weights(self, settings: Settings) -> Tree:
        data = prepare(load(str(self.ground.root / f"{SITE}.npz"), []), settings)
        view = SiteView.of(data, PLACE["k"], PLACE["clients"], PLACE["largest"])
        return run_on(view, settings, registry.parse(settings.method)).fed.net.weights()

    def begun(self, settings: Settings) -> tuple[str, Tree]:
        """A run that the operator has approved and that is set up, with its weights."""
        run, w = self.new_run(), self.weights(settings)
        if self.hello(run, settings).header.get("code") == "E522":
            self.approve(run)
            answer = self.hello(run, settings).header
            check("hello" in answer, f"approved, and still refused: {answer.get('text')}")
        answer = self.ask("setup", run, tree={"w": w}, settings=settings.as_dict(), **PLACE).header
        check(answer.get("ready") is True, f"cannot be set up: {answer.get('text')}")
        return run, w


def refused(answer: Packet, code: str) -> str:
    check(
        answer.header.get("code") == code,
        f"answered {answer.header.get('code')} {answer.header.get('text', answer.tree.keys())}",
    )
    check(not answer.tree, f"tensors came with the refusal: {list(answer.tree)}")
    return f"{code} {answer.header['text']}"


def settings(method: str = "fedavg", **changes: Any) -> Settings:
    """A study as the coordinator sends it."""
    return study_settings(
        config.build(
            {"method": method, "model": "mlp", "rounds": 2, "epochs": 1, "batch": 32, "seed": 0} | changes
        )
    ).replace(clients=2)
