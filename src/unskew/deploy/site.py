"""A site's side: it answers signed requests with what the engine computes for its one client.

Data, labels and private state stay in the site's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew import config, disk
from unskew.config import Settings
from unskew.core import gate
from unskew.core.replies import Reply
from unskew.core.trees import Weights
from unskew.data.dataset import Dataset
from unskew.deploy import outward, requests, unbegun
from unskew.deploy.guard import Approve, Guard
from unskew.deploy.hello import Hello, versions
from unskew.deploy.identity import Private, Public
from unskew.deploy.judging import Study
from unskew.deploy.leaving import forecast_of, judged, leaving
from unskew.deploy.noisy import Noisy, visited
from unskew.deploy.replies import tree_of, without_empty
from unskew.deploy.said import UNSAID
from unskew.deploy.scales import told_unscaled
from unskew.deploy.sealed import Sealed
from unskew.deploy.shelf import put_away
from unskew.deploy.site_folder import RunFolder
from unskew.deploy.site_run import SiteRun, build
from unskew.deploy.spent import Asked
from unskew.deploy.studies import allowed, known_here, prepared
from unskew.deploy.summing.at_site import Answer, Sums
from unskew.deploy.versions import COORDINATOR, differing, of_parts, refusal
from unskew.deploy.wire import Limits, Packet, WireError, seal, unseal
from unskew.engine.client.values import Start
from unskew.errors import UnskewError, UsageError
from unskew.privacy.secure import LEAST

REQUESTS = Limits(4 << 30, 100_000)
"""The most a site accepts from its coordinator, whose signature it has checked."""
PLACE = ("k", "clients", "largest")
"""Which client a site is in a run, and among how many."""


@dataclass(frozen=True)
class Membership:
    """Who a site is. folder: the site's; key: its own; coordinator: the key that must have signed every request."""

    name: str
    folder: Path
    key: Private
    coordinator: Public


class Site:
    """Answers the requests of one coordinator. Every refusal is an answer too, so that the server can name the reason.

    load: brings the data; called once. model: FILE.py:FUNCTION that builds the model, which the site's operator allows.
    approve: whether a study of which no run has been approved yet waits for the operator ("ask") or not ("all").
    """

    def __init__(
        self,
        member: Membership,
        load: Callable[[], Dataset],
        model: str | None = None,
        device: str = "cpu",
        say: Callable[[str], None] = lambda _: None,
        approve: Approve = "ask",
    ):
        self.member, self.load, self.model, self.device, self.say = member, load, model, device, say
        by = f"the coordinator with the key {member.coordinator.fingerprint}"
        self.guard = Guard(member.folder, by, approve, lambda text: self.say(text))
        self._forecast: tuple[Settings, tuple[Study, list[str]]] | None = None
        """What the study that asked last would take from this site."""
        self._differing = ""
        """Which versions differ from the coordinator's, as the operator was told."""
        self._data: Dataset | None = None
        self._run: tuple[str, str, SiteRun] | None = None
        """The one run that is kept warm, its number before it, and the digest of the study that was judged."""
        self.sums = Sums(member.name, member.folder, lambda text: self.say(text))
        self._answers: dict[str, Callable[[Packet], Answer]] = {
            "hello": self._hello,
            "setup": self._setup,
            "train": self._train,
            "visit": self._visit,
            "score": self._score,
            **self.sums.answers,
        }

    @property
    def data(self) -> Dataset:
        if self._data is None:
            self._data = self.load()
        return self._data

    def answer(self, sealed: Sealed) -> Sealed:
        """A sealed reply. Whatever the request holds, this raises nothing."""
        member = self.member
        try:
            request = unseal(sealed, member.coordinator, REQUESTS)
            self._check(request.header)
        except Exception as problem:  # whatever a request holds concerns that request alone
            return self.refusal(sealed.digest, problem)
        fixed = {n: request.header[n] for n in ("run", "serial", "kind", "t")}
        fixed |= {"re": sealed.digest, "site": member.name}
        try:
            self.guard.check_request(fixed["run"], fixed["kind"], fixed["t"])
            requests.check_complete(request.header, request.tree)
            header, tree = self._answers[request.header["kind"]](request)
            self.guard.note(fixed["run"], Asked.of(request.header), tree, header)
        except Exception as error:  # whatever a Part or a loader raises must reach the coordinator as a sentence
            known = outward.explained(self._of_slices(error, request), self.say)
            self.guard.trouble(fixed, known.code, known.text)
            header, tree = self._error(known, request.header), {}
        return seal(fixed | header, tree, member.key)

    def _of_slices(self, error: Exception, request: Packet) -> Exception:
        run = self._run[2] if self._run and self._run[0] == request.header["run"] else None
        with suppress(KeyError, UsageError):  # of a request that names no trip, which is what `error` says
            if run:
                return run.slices.explained(error, request.tree.get("down", {}), run.reads(request.header))
        return error

    def refusal(self, digest: str, problem: Exception) -> Sealed:
        """The reply to a request that cannot be taken. digest: of its text."""
        error = problem if isinstance(problem, WireError) else outward.explained(problem, self.say)
        self.say(f"refused a request: {error.code} {error.text}")
        self.guard.trouble({}, error.code, error.text)
        return seal({"re": digest, "site": self.member.name, **self._error(error, {})}, {}, self.member.key)

    def _error(self, error: UnskewError | WireError, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the coordinator reads of an error, once that is on record. asked: the request's header."""
        files = [f"{self.member.folder}/"] + ([self.model.partition(":")[0]] if self.model else [])
        what = {"code": error.code, "text": outward.told(error, files, asked)}
        on_record = self.guard.said.note(str(asked.get("run", "?")), str(asked.get("kind", "?")), what)
        return what if on_record else {"code": error.code, "text": UNSAID}

    def _check(self, header: dict[str, Any]) -> None:
        """Raises UsageError for a request that is not for this site (E310), or was made before (E307)."""
        addressed = header.get("site") == self.member.name or (header.get("kind"), header.get("site")) == ("hello", "*")
        kind = header.get("kind")
        if not addressed or not isinstance(kind, str) or kind not in self._answers or "t" not in header:
            raise UsageError("E310", f"the request is not for site {self.member.name}.")
        requests.check_values(header)
        folder, run = self.member.folder, disk.check_name(str(header.get("run")))
        for forgotten in unbegun.make_room(folder, run):
            self.say(f"run {forgotten} is forgotten: it never began, and {unbegun.MOST_ASKING} later ones have asked")
        RunFolder.of(folder, self.member.name, run).check_new(header.get("serial"))

    def _hello(self, request: Packet) -> Answer:
        """How much data this site holds for the study, and of what form, once it may take part in it."""
        theirs = request.header.get("versions", {})
        if text := refusal(
            self.member.name, versions(), COORDINATOR, theirs
        ):  # before another version's settings are read
            raise UsageError("E504", f"{text}.")
        settings = config.build(request.header["settings"])
        runs = versions() | of_parts(known_here(allowed(settings, self.model).method))
        self._tell_versions(runs, theirs)
        study, _ = self._approved(request, settings)
        data = prepared(self.data, settings)
        why = told_unscaled(data, study, self.say)
        hello = replace(Hello.of(self.member.name, data, runs), unscaled=why)
        return {"hello": hello.as_json()}, {}

    def _approved(self, request: Packet, settings: Settings) -> tuple[Study, str]:
        """What a study would take from this site at least, and as text; both as its operator has approved them.

        Raises UsageError: E520 if the policy does not allow it, E522 and E523 as the guard does.
        """
        fewest = 2 if settings.secure_aggregation == "off" else LEAST
        here = allowed(settings, self.model).replace(device="cpu", clients=fewest)
        self.guard.check_hello(here)
        run, name = request.header["run"], request.header.get("name", "")
        if self._forecast is None or self._forecast[0] != here:
            with self.guard.untold(run, settings, name):
                self._forecast = here, forecast_of(self.data, here)
            net = self._forecast[1][0].fed.net
            net.hold(put_away(net.weights(), self.member.folder))
        study, lines = self._forecast[1]
        study, text = replace(study, settings=settings), "\n".join(lines)
        self.guard.check_study(run, study, text, name)
        return study, text

    def _tell_versions(self, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
        """Tell the operator, once, which versions differ from the coordinator's."""
        if (text := differing(self.member.name, ours, COORDINATOR, theirs)) != self._differing:
            self._differing = text
            self.say(f"E524 {text}." if text else "the coordinator runs the same versions now")

    def _setup(self, request: Packet) -> Answer:
        """Build the run, keep what it was built from, and tell the operator what leaves this site in it.

        Nothing is built before the study is approved as a greeting shows it: nobody need have sent one.
        """
        facts = {n: request.header[n] for n in ("settings", *PLACE)}
        folder, number = self._folder(request), request.header["run"]
        settings = config.build(dict(facts["settings"]))
        requests.check_round(request.header["t"], settings.rounds)
        _, shown = self._approved(request, settings)
        folder.check_same(self.data, facts)
        with self._built(facts, request.tree["w"]) as (run, study):
            agreed = self.guard.check_study(number, study, shown)
            text = "\n".join(
                leaving(run.method, run.trainer, self.data, run.secure) + run.stays(self.guard.least_samples)
            )
            self.guard.begin(number, replace(agreed, place={n: facts[n] for n in PLACE}))
            folder.write_leaves(f"{run.method}\n{text}\n")
            folder.write_setup({"w": request.tree["w"]}, facts, self.data)  # nothing else, to leave the disk its room
            self._keep(number, study, run)
        self.say(f"run {number} begins: {study.title}, {run.settings.rounds} rounds\n{text}")
        return {"ready": True}, {}

    def _train(self, request: Packet) -> Answer:
        """One round's training; with it the scores of the model that came, and what early trips ask for."""
        run, start = self._opened(request)
        folder = self._folder(request, run)
        folder.write_received(request, run, start.t - 1)
        private, extra = run.moved(folder.read_private(request)), {}
        if lr := request.header.get("score"):
            extra["score"] = run.scores(replace(start, t=start.t - 1, lr=lr), private, self.guard.least_samples)

        def train() -> list[Reply]:
            return run.trainer.train(start, [run.k], {run.k: private} if private else {})

        replies = Noisy(folder).replies(request, train) if run.method.samples_apart else train()
        if not replies:
            return {"n": 0}, without_empty(extra)
        (reply,) = replies
        if problem := gate.state_problem(reply.private):  # the server cannot see it, so the site must look
            raise UsageError(*problem)
        folder.keep(request, reply.private)
        self.say(f"round {start.t}: trained on {reply.size:.0f} samples")
        if run.secure:
            return self.sums.begin(request, run, run.secure, start, reply), without_empty(extra)
        extra["early"] = {}
        for name, place in request.header.get("early", ()):
            for early in visited(run, folder, request, start, (name, place), reply.private):
                extra["early"] |= early.shares
        return {"n": reply.size, "loss": float(reply.loss)}, tree_of(reply.weights, reply.shares) | without_empty(extra)

    def _visit(self, request: Packet) -> Answer:
        """The client side of a trip."""
        run, start = self._opened(request)
        name, place, folder = request.header["part"], request.header["trip"], self._folder(request, run)
        private = run.moved(folder.read_private(request)) if run.trainer.kept else {}
        replies = visited(run, folder, request, start, (name, place), private)
        if not replies:
            return {"n": 0}, {}
        self.say(f"after round {start.t}: answered {name}")
        return {"n": replies[0].size}, tree_of({}, replies[0].shares)

    def _score(self, request: Packet) -> Answer:
        """Scores of the model that came, on this site's test samples."""
        run, start = self._opened(request)
        folder = self._folder(request, run)
        folder.write_received(request, run, start.t)
        scores = run.scores(start, run.moved(folder.read_private(request)), self.guard.least_samples)
        if start.t == run.settings.rounds:
            text = f"after round {start.t}: the model is here, too: unskew predict {folder.path} INPUT"
            self.say(f"{text}, unskew export {folder.path} OUT")
        return {"n": len(run.scoring.test[run.k])}, scores

    def _folder(self, request: Packet, run: SiteRun | None = None) -> RunFolder:
        method = run.settings.method if run else ""
        return RunFolder(self.member.folder / "runs" / request.header["run"], self.member.name, method)

    def _opened(self, request: Packet) -> tuple[SiteRun, Start]:
        """The run, from its folder if this process does not hold it, and what the request's round starts from."""
        number = request.header["run"]
        if self._run and self._run[0] == number:
            _, digest, run = self._run
            self.guard.check_same(number, digest)
        else:
            tree, facts = self._folder(request).read_setup()
            self._folder(request).check_same(self.data, facts)
            with self._built(facts, tree["w"]) as (run, study):
                self.guard.check_same(number, study.digest)
                self._keep(number, study, run)
        requests.check_weights(request.tree.get("w", {}), run.first)
        requests.check_rates(request.header, run.settings)
        requests.check_scored(request.header, run.settings, run.method.protector is not None)
        run.slices.check(request.tree.get("down", {}), run.reads(request.header))
        tree = run.moved(request.tree)
        return run, run.start(request.header["t"], request.header["lr"], tree)

    @contextmanager
    def _built(self, facts: dict[str, Any], first: Weights) -> Iterator[tuple[SiteRun, Study]]:
        """A run and the study to judge before anything keeps the run. Where the judgement is no, nothing is left of it."""
        settings = config.build(dict(facts["settings"]))
        here = allowed(settings, self.model).replace(device=self.device)
        run = build(self.member.name, here, self.data, facts, first)
        net = run.trainer.fed.net
        net.hold(put_away(net.weights(), self.member.folder))
        try:
            yield run, judged(settings, run.method, run.trainer, self.data)
        except BaseException:
            run.trainer.close()
            raise

    def _keep(self, number: str, study: Study, run: SiteRun) -> None:
        """Keep a run warm in place of the one before."""
        if self._run:
            self._run[2].trainer.close()
        self._run = number, study.digest, run
