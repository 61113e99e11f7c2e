"""A site's side: it answers signed requests with what the engine computes for its one client.

Data, labels and private state stay in the site's folder. What is kept after round t lies in `private-<t>.safetensors`;
a request names the round whose state the server has counted, so that an answer that came too late, or a server that
went back to its checkpoint, changes nothing.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unskew import config, disk
from unskew.config import Settings
from unskew.core.account import number
from unskew.core.client import Fed
from unskew.core.method import Method
from unskew.core.replies import Reply
from unskew.core.trees import Tree, Weights, flat, tree_map
from unskew.data.dataset import Dataset
from unskew.deploy.identity import Private, Public
from unskew.deploy.roster import Hello, Own
from unskew.deploy.sealed import Sealed
from unskew.deploy.wire import Limits, Packet, WireError, seal, unseal
from unskew.engine import leaves, resolve
from unskew.engine.client.trainer import Trainer
from unskew.engine.client.values import Start
from unskew.engine.disk import state
from unskew.engine.disk.folder import check_name
from unskew.engine.server.scores import Evaluation
from unskew.errors import StateError, UnskewError, UsageError
from unskew.methods import registry
from unskew.version import __version__

REQUESTS = Limits(4 << 30, 100_000)
"""What a site takes from its coordinator, whose signature it has checked."""


def versions() -> dict[str, str]:
    return {"unskew": __version__, "torch": torch.__version__.split("+")[0], "python": platform.python_version()}


@dataclass
class Run:
    """One run as this site takes part in it: everything built once and kept warm."""

    settings: Settings
    k: int
    method: Method
    trainer: Trainer
    scoring: Evaluation
    first: Weights
    """The weights before round 1; those that never leave are read from here."""


@dataclass
class Site:
    """Answers requests of one coordinator. `load` brings the data, once; `model` is a builder the site's operator allows.

    Every refusal is an answer too, so that the server can name the site and the reason.
    """

    name: str
    folder: Path
    key: Private
    coordinator: Public
    load: Callable[[], Dataset]
    model: str | None = None
    device: str = "cpu"
    say: Callable[[str], None] = lambda _: None
    _data: Dataset | None = None
    _runs: dict[str, Run] = field(default_factory=dict)

    @property
    def data(self) -> Dataset:
        if self._data is None:
            self._data = self.load()
        return self._data

    def answer(self, asked: Sealed) -> Sealed:
        """Never raises for what a request holds."""
        try:
            request = unseal(asked, self.coordinator, REQUESTS)
            self._check(request.header)
        except (WireError, UnskewError) as error:
            self.say(f"refused a request: {error.code} {error.text}")
            return seal({"re": asked.digest, "site": self.name, "code": error.code, "text": error.text}, {}, self.key)
        head = {n: request.header[n] for n in ("run", "serial", "kind", "t")} | {"re": asked.digest, "site": self.name}
        try:
            more, tree = getattr(self, "_" + request.header["kind"])(request)
        except UnskewError as error:
            more, tree = {"code": error.code, "text": error.text}, {}
        except Exception as error:  # whatever a Part or a loader raises must reach the coordinator as a sentence
            self.say(f"{type(error).__name__}: {error}")
            more, tree = {"code": "E312", "text": f"{type(error).__name__}: {error}"[:500]}, {}
        return seal(head | more, tree, self.key)

    def _check(self, h: dict[str, Any]) -> None:
        """Raises UsageError for what is not for this site, or was asked before."""
        kinds = ("hello", "setup", "train", "visit", "score")
        meant = h.get("site") == self.name or (h.get("kind"), h.get("site")) == ("hello", "*")
        if not meant or h.get("kind") not in kinds or not isinstance(h.get("t"), int):
            raise UsageError("E310", f"the request is not for site {self.name}.")
        place = self.folder / "runs" / check_name(str(h.get("run")))
        place.mkdir(parents=True, exist_ok=True)
        seen, serial = place / "serial", h.get("serial")
        before = int(seen.read_text() or 0) if seen.exists() else 0
        if not isinstance(serial, int) or serial <= before:
            raise UsageError("E307", "the request was made before one that is answered already.")
        disk.replace(seen, str(serial))

    # --- one method for each kind of request: (what the header says, what is sent)

    def _hello(self, request: Packet) -> tuple[dict[str, Any], Tree]:
        settings = config.build(request.header["settings"])
        allowed(settings, self.model)
        return {"hello": Hello.of(self.name, prepared(self.data, settings), versions()).as_json()}, {}

    def _setup(self, request: Packet) -> tuple[dict[str, Any], Tree]:
        facts = {n: request.header[n] for n in ("settings", "k", "clients", "largest")}
        place = self._place(request)
        run = self._hold(request.header["run"], facts, request.tree["w"])
        told = "\n".join(leaving(run.method, run.trainer))
        disk.replace(place / "leaves.txt", f"{run.method}\n{told}\n")
        self.say(f"run {request.header['run']} begins: {run.method}, {run.settings.rounds} rounds\n{told}")
        state.write(place / "setup.safetensors", request.tree, facts)
        return {"ready": True}, {}

    def _train(self, request: Packet) -> tuple[dict[str, Any], Tree]:
        """One round's training; on the way scores of the model that came, and what early trips ask for."""
        run, start = self._opened(request)
        private, more = self._private(request), {}
        if scored := request.header.get("score"):
            more["score"] = _scores(run, replace(start, t=start.t - 1, lr=scored), private)
        replies = run.trainer.train(start, [run.k], {run.k: private} if private else {})
        if not replies:
            return {"n": 0}, _grown(more)
        (reply,) = replies
        if reply.private:
            state.write(self._place(request) / f"private-{start.t}.safetensors", reply.private, {"t": start.t})
        self._sweep(request)
        more["early"] = {}
        for name, place in request.header.get("early", ()):
            for found in _visited(run, start, name, place, reply.private):
                more["early"] |= found.shares
        self.say(f"round {start.t}: trained on {reply.size:.0f} samples")
        return {"n": reply.size, "loss": float(reply.loss)}, _tree(reply.weights, reply.shares) | _grown(more)

    def _visit(self, request: Packet) -> tuple[dict[str, Any], Tree]:
        run, start = self._opened(request)
        name, place = request.header["part"], request.header["trip"]
        replies = _visited(run, start, name, place, self._private(request) if run.trainer.kept else {})
        if not replies:
            return {"n": 0}, {}
        self.say(f"after round {start.t}: answered {name}")
        return {"n": replies[0].size}, _tree({}, replies[0].shares)

    def _score(self, request: Packet) -> tuple[dict[str, Any], Tree]:
        run, start = self._opened(request)
        found = _scores(run, start, self._private(request))
        return {"n": len(run.scoring.test[run.k])}, found

    # ---

    def _opened(self, request: Packet) -> tuple[Run, Start]:
        """The run, from its folder if this process does not hold it; raises StateError (E205) if it is not known."""
        name = request.header["run"]
        if name not in self._runs:
            try:
                tree, facts = state.read(self._place(request) / "setup.safetensors")
            except (FileNotFoundError, StateError):
                raise StateError("E205", f"site {self.name} has not been set up for this run.") from None
            self._hold(name, facts, tree["w"])
        run = self._runs[name]
        tree = _moved(request.tree, run)
        start = Start(request.header["t"], request.header["lr"], run.first | tree.get("w", {}), tree.get("down", {}))
        return run, start

    def _hold(self, name: str, facts: Mapping[str, Any], first: Weights) -> Run:
        """One run at a time is kept warm."""
        made = self._build(facts, first)
        for before in self._runs.values():
            before.trainer.close()
        self._runs = {name: made}
        return made

    def _build(self, facts: Mapping[str, Any], first: Weights) -> Run:
        settings = config.build(dict(facts["settings"]))
        settings = allowed(settings, self.model).replace(device=self.device)
        method = registry.parse(settings.method, settings.set)
        own = Own.of(prepared(self.data, settings), facts["k"], facts["clients"], facts["largest"])
        fed = resolve.fed_of(settings, method, own)
        check_noise(method, fed)
        here = {n: tuple(t.shape) for n, t in fed.net.weights().items()}
        if here != {n: tuple(t.shape) for n, t in first.items()}:
            raise UsageError("E504", f"site {self.name} builds another model from '{settings.model}' than the server.")
        trainer = resolve.trainer_of(settings, method, own, fed)
        first = {n: first[n].to(trainer.device) for n in here}
        return Run(settings, facts["k"], method, trainer, resolve.scoring_of(trainer, own), first)

    def _place(self, request: Packet) -> Path:
        return self.folder / "runs" / request.header["run"]

    def _private(self, request: Packet) -> Tree:
        """What this site kept after the round the server counts as its last; {} before that."""
        t = request.header.get("base", 0)
        path = self._place(request) / f"private-{t}.safetensors"
        if not t or not path.exists():
            if t and any(self._place(request).glob("private-*")):
                raise StateError("E204", f"site {self.name} has lost its private state of round {t}.")
            return {}
        return _moved(state.read(path)[0], self._runs[request.header["run"]])

    def _sweep(self, request: Packet) -> None:
        """Of the rounds before the one the server counts, the last stays: its checkpoint may go back by one."""
        kept = sorted(self._place(request).glob("private-*.safetensors"), key=_round_of)
        older = [p for p in kept if _round_of(p) < request.header.get("base", 0)]
        for path in older[:-1]:
            path.unlink()


def leaving(method: Method, trainer: Trainer) -> list[str]:
    """What a study takes from this site, by its own data. What noise amounts to holds against others only."""
    lines = leaves.told(method, trainer.fed, trainer.sent, trainer.samples.counts_KC)
    if leaves.accounts(method, trainer.fed, trainer.samples.counts_KC):
        reading = "against the coordinator: it knows the study's seed, from which the noise is drawn"
        lines.append(f"{'':<20}  epsilon {number(math.inf):>9}  {reading}")
    return lines


def _scores(run: Run, start: Start, private: Tree) -> Tree:
    """Scores on this site's own test rows, by whose weights: scope -> [M], a few numbers each.

    "global": as they came; "kept": with what stays here; "personal": with what Parts make for this site.
    """
    k, rows = run.k, run.scoring.test[run.k]
    if not len(rows):
        return {}
    stays = bool(run.trainer.kept and private)
    whose = {"kept": private} if stays else {"global": {}} if run.trainer.sent else {}
    if run.scoring.own_weights and (stays or not run.trainer.kept):
        whose["personal"] = private

    def score(scope: str) -> torch.Tensor:
        guess = run.scoring._predict(rows, k, start, whose[scope], own=scope == "personal")
        return torch.tensor(list(run.scoring._brief(k, guess).values()))

    return dict(zip(whose, run.trainer.each(score, list(whose))))


def _visited(run: Run, start: Start, name: str, place: int, private: Tree) -> list[Reply]:
    """What a trip brings. private: what this site keeps, if weights are among it."""
    part = next(p for p in run.method.parts if p.name == name)
    return run.trainer.visit(part.trips[place], part, start, [run.k], {run.k: private} if run.trainer.kept else {})


def _grown(tree: Tree) -> Tree:
    """Without the empty branches."""
    return {name: branch for name, branch in tree.items() if flat(branch)}


def _round_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _moved(tree: Tree, run: Run) -> Tree:
    return tree_map(lambda t: t.to(run.trainer.device), tree)


def _tree(weights: Weights, shares: dict[str, Tree]) -> Tree:
    """Without the empty branches, which have no form on the wire."""
    made: Tree = {"w": weights} if weights else {}
    shared = {part: tree for part, tree in shares.items() if flat(tree)}
    return made | ({"shares": shared} if shared else {})


def allowed(settings: Settings, model: str | None) -> Settings:
    """Settings as this site runs them: one lane, and its own file for a model from a file.

    Raises UsageError (E506): a coordinator must not name the Python file that a site loads.
    """
    check_named(settings.method)
    if ":" in settings.model:
        if model is None:
            text = (
                f"the study's model is {settings.model}; start the site with --model FILE.py:FUNCTION to allow yours."
            )
            raise UsageError("E506", text)
        settings = settings.replace(model=model)
    return settings.replace(lanes="1", workers=1)


def check_named(method: str) -> None:
    """Raises UsageError (E506) for a method from a file, before it is parsed: that would run the file."""
    if ".py" in method:  # wherever it stands: what no reading of the text can take for a file
        text = f"the study's method {method!r} is in a file, and no site loads a file that a coordinator names"
        raise UsageError(
            "E506", f"{text}; install it everywhere as a package that declares it as an entry point of unskew.methods."
        )


def check_noise(method: Method, fed: Fed) -> None:
    """Raises UsageError (E506) for a Share said to be private by its noise: that is drawn from the study's seed.

    The seed makes a run repeatable, and the server knows it; noise that the reader can draw again protects nothing.
    """
    for part in method.parts:
        shares = part.shares(fed) | {n: s for trip in part.trips for n, s in trip.shares(fed).items()}
        if dp := [name for name, share in shares.items() if share.guarantee == "dp"]:
            text = f"'{part.name}/{dp[0]}' is protected by noise from the study's seed, which the server knows"
            raise UsageError("E506", f"{text}: over a network that guarantee would be false.")


def prepared(data: Dataset, settings: Settings) -> Dataset:
    """Standardised by the set's own constants where the study wants that and the set has such."""
    method = registry.parse(settings.method, settings.set)
    wants = settings.normalise == "dataset" or (settings.normalise == "auto" and not method.normalises)
    return data.standardised() if wants and data.mean is not None else data
