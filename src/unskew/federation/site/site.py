"""A site answers signed requests with the results of the engine for its single client.

Data, labels and private state stay in the site's folder. Every header is checked before any of it is used:
the coordinator signs its requests, but its key may have been stolen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import TypedDict

from unskew import config
from unskew.config import Settings
from unskew.core import gate
from unskew.core.replies import Reply
from unskew.core.trees import Weights
from unskew.data.samples.dataset import Dataset
from unskew.errors import UnskewError, UsageError, printable
from unskew.federation.protocol.hello import COORDINATOR, Hello, version_conflict, versions
from unskew.federation.protocol.roster import MOST_SEALED, MOST_SIGNATURE
from unskew.federation.protocol.signed_messages import PrivateKey, PublicKey, SignedMessage
from unskew.federation.protocol.study_rules import prepare, scaling_remedy, site_method, site_settings
from unskew.federation.protocol.wire_format import (
    Limits,
    Packet,
    WireError,
    seal,
    tree_of,
    unseal,
    without_empty,
)
from unskew.federation.site import guard
from unskew.federation.site.guard import Approve, Guard
from unskew.federation.site.local_run import HELD, HeldSlices, SiteRun, SiteRunFolder, build_run, form_text
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.site_ledger import (
    NOT_WRITTEN_TEXT,
    AnsweredRequest,
    note_statement,
    policy_refusal,
)
from unskew.federation.site.study_review import (
    Study,
    disclosure_lines,
    forecast_settings,
    looks_unscaled,
    study_of,
)
from unskew.federation.site.sum_answers import Answer, SiteSums
from unskew.privacy.secure_aggregation import LEAST_SITES
from unskew.round.clients import Broadcast
from unskew.system import disk

MOST_CLIENTS, MOST_SAMPLES, MOST_ROUNDS = 10_000, 1 << 40, 1_000_000
MOST_RUNS = 10_000
"""Numbers of runs that may ask at a site; each leaves two small files there."""
SILENT_CODES = ("E522", "E205")
"""Refusals that need no line: a waiting study shows itself, and a run that this site has forgotten is set up
again."""
REQUESTS = Limits(4 << 30, 100_000)
"""Size limits of a request with a valid signature."""
PLACE = ("k", "clients", "largest")
"""Fields of a header: a site's client number, the number of clients, and the largest client's samples."""
NEEDED = {
    "hello": ("settings",),
    "setup": ("settings", *PLACE),
    "train": ("lr",),
    "visit": ("lr", "part", "trip"),
    "score": ("lr",),
    "share": ("roster",),
    "mask": ("dealt",),
    "agree": ("came", "left"),
    "open": ("came", "left"),
}
"""Required fields of a header by kind of request, in addition to run, serial, site, kind and t."""

Round = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
Place = Annotated[int, Field(ge=0, le=1000)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Version = Annotated[str, Field(pattern="^[ -~]{0,100}$")]
Sites = Annotated[list[str], Field(max_length=MOST_CLIENTS)]


class Header(TypedDict, total=False):
    """The values that a request's header may have. An unknown field is ignored."""

    __pydantic_config__ = ConfigDict(strict=True, extra="ignore")  # type: ignore[misc]
    name: Annotated[str, Field(pattern=r"^[\w.-]{0,64}$")]
    run: str
    t: Required[Round]
    clients: Annotated[int, Field(ge=1, le=MOST_CLIENTS)]
    k: Annotated[int, Field(ge=0, lt=MOST_CLIENTS)]
    largest: Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
    base: Round
    trip: Place
    lr: Rate
    score: Rate
    part: str
    settings: dict[str, Any]
    early: list[Annotated[tuple[str, Place], Field(strict=False)]]
    slices: dict[Annotated[str, Field(pattern="^[^/]+/.")], Annotated[int, Field(ge=0)]]
    versions: Annotated[dict[Version, Version], Field(max_length=10)]
    roster: Annotated[list[Any], Field(max_length=MOST_CLIENTS)]
    dealt: dict[str, Annotated[str, Field(max_length=MOST_SEALED)]]
    came: Sites
    left: Sites
    signatures: dict[str, Annotated[str, Field(max_length=MOST_SIGNATURE)]]


_HEADER = TypeAdapter(Header)


def check_header(header: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Raises UsageError (E310) for a value that no honest request of this kind has, or lacks."""
    try:
        _HEADER.validate_python(header)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = first["loc"][0]
        text = f"the request's '{name}' is {_excerpt(header.get(str(name)))}: {first['msg']}."
        raise UsageError("E310", text) from None
    if "k" in header and header["k"] >= header.get("clients", MOST_CLIENTS):
        text = f"the request's 'k' is {header['k']}, expected a number below its {header['clients']} clients."
        raise UsageError("E310", text)
    missing = [name for name in NEEDED[header["kind"]] if name not in header]
    if header["kind"] == "setup" and not isinstance(tree.get("w"), Mapping):
        missing.append("w")
    if missing:
        raise UsageError("E310", f"the request lacks '{missing[0]}', which every '{header['kind']}' has.")


def check_scored(header: Mapping[str, Any], settings: Settings, may_end_early: bool) -> None:
    """Raises UsageError (E520) if scores are requested for a round in which the study does not score.

    Otherwise the coordinator could have weights of its choice scored more often than was approved. Any
    round may be the last one, which is always scored, if `may_end_early`.
    """
    t = header["t"] if header["kind"] == "score" else header["t"] - 1
    asked, every = header["kind"] == "score" or "score" in header, settings.eval_every
    if asked and t % every and t != settings.rounds and not may_end_early:
        text = f"scores of round {t} are asked for, and the study scores every {every} rounds"
        raise policy_refusal(text)


def check_rates(header: Mapping[str, Any], settings: Settings) -> None:
    """Raises UsageError (E520) if a learning rate differs from the approved study's."""
    t = header["t"]
    for name, round_number in (("lr", t), ("score", t - 1)):
        if name in header and not math.isclose(
            header[name], settings.lr_in(round_number), rel_tol=1e-6, abs_tol=1e-12
        ):
            text = f"round {round_number} is asked for with the learning rate {header[name]:g}"
            raise policy_refusal(f"{text}, and the study says {settings.lr_in(round_number):g}")


def check_weights(weights: Any, first: Mapping[str, Tensor]) -> None:
    """Check a request's weights against the weights that the run was set up with.

    Raises UsageError (E310), which names the first weight with an unknown name, another shape or another
    type.
    """
    if not isinstance(weights, Mapping):
        raise UsageError("E310", "the request's weights are one tensor, expected one for each name.")
    for name, tensor in weights.items():
        if name not in first:
            text = f"the request's weights hold {_excerpt(name)}, which the run's model has not."
            raise UsageError("E310", text)
        if (form := form_text(tensor)) != (expected := form_text(first[name])):
            text = f"the request's '{name}' is {form}, expected {expected} as in the run's model."
            raise UsageError("E310", text)


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


@dataclass(frozen=True)
class SiteIdentity:
    """coordinator: the coordinator's key, which must have signed every request."""

    name: str
    folder: Path
    key: PrivateKey
    coordinator: PublicKey

    @staticmethod
    def of(joined: SiteFolder) -> SiteIdentity:
        """The identity of the site in a folder."""
        key = PublicKey.parse(joined.ticket.coordinator)
        return SiteIdentity(joined.ticket.site, joined.folder, joined.key, key)


class Site:
    """Answers the requests of one coordinator. A refusal is an answer too, so that the server can report the
    reason.

    load: loads the data; called once. model: FILE.py:FUNCTION that builds the model, as the site's operator
    allows it. approve: "ask" if a study without an approved run waits for the operator, "all" if every
    study may begin.
    """

    def __init__(
        self,
        member: SiteIdentity,
        load: Callable[[], Dataset],
        model: str | None = None,
        device: str = "cpu",
        say: Callable[[str], None] = lambda _: None,
        approve: Approve = "ask",
    ):
        self.member, self.load, self.model, self.device, self.say = member, load, model, device, say
        by = f"the coordinator with the key {member.coordinator.fingerprint}"
        self.guard = Guard(member.folder, by, approve, lambda text: self.say(text))
        self._demands: tuple[Settings, tuple[Study, list[str]]] | None = None
        """Settings of the latest study, and its demands on this site as a study and as lines of text."""
        self._data: Dataset | None = None
        self._run: tuple[str, str, SiteRun] | None = None
        """The one run that is kept warm, its number before it, and the digest of the study that was
        judged."""
        self._slices: HeldSlices | None = None
        self.sums = SiteSums(member.name, member.folder, lambda text: self.say(text), self.guard.check_sum)
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
        """The site's data, loaded at the first use."""
        if self._data is None:
            self._data = self.load()
        return self._data

    def answer(self, sealed: SignedMessage) -> SignedMessage:
        """The sealed reply to a request. Never raises, for any content of the request."""
        member = self.member
        fixed: dict[str, Any] = {"re": sealed.digest, "site": member.name}
        try:
            request = unseal(sealed, member.coordinator, REQUESTS)
            self._check(request.header, request.tree)
        except Exception as problem:  # a bad request must not end the site
            error = problem if isinstance(problem, WireError) else guard.answerable(problem, self.say)
            return seal(fixed | self._error(error, {}), {}, member.key)
        del sealed  # with the request's tensors its bytes can be freed before those of the answer are made
        fixed |= {n: request.header[n] for n in ("run", "serial", "kind", "t")}
        try:
            self.guard.check_request(fixed["run"], fixed["kind"], fixed["t"])
            header, tree = self._answers[request.header["kind"]](request)
            request.tree.clear()
            self.guard.note(fixed["run"], AnsweredRequest.of(request.header), tree, header)
        except Exception as error:  # errors of Parts and loaders must reach the coordinator as sentences
            reported = guard.answerable(error, self.say)
            header, tree = self._error(reported, request.header), {}
        return seal(fixed | header, tree, member.key)

    def _error(self, error: UnskewError | WireError, asked: Mapping[str, Any]) -> dict[str, Any]:
        """An error's code and redacted text, recorded before it is sent. asked: the request's header."""
        run, kind = str(asked.get("run", "?")), str(asked.get("kind", "?"))
        if error.code not in SILENT_CODES:
            self.say(printable(f"run {run}: '{kind}' was not answered: {error.code} {error.text}"))
        files = [f"{self.member.folder}/"] + ([self.model.partition(":")[0]] if self.model else [])
        what = {"code": error.code, "text": guard.redact(error, files, asked)}
        is_recorded = note_statement(self.member.folder, run, kind, what)
        return what if is_recorded else {"code": error.code, "text": NOT_WRITTEN_TEXT}

    def _check(self, header: dict[str, Any], tree: Mapping[str, Any]) -> None:
        """Raises UsageError for a request for others (E310), or a repetition of an earlier one (E307)."""
        name, kind, addressee = self.member.name, header.get("kind"), header.get("site")
        is_for_all = kind == "hello" and addressee == "*"
        known = isinstance(kind, str) and kind in self._answers
        if not known or "t" not in header or not (addressee == name or is_for_all):
            raise UsageError("E310", f"the request is not for site {name}.")
        check_header(header, tree)
        run = disk.check_name(str(header.get("run")))
        path = self.member.folder / "runs" / run
        if not path.exists() and len(list(path.parent.glob("*"))) >= MOST_RUNS:
            raise policy_refusal(f"{MOST_RUNS:,} runs have asked, and a site keeps no more; let it join anew")
        path.mkdir(parents=True, exist_ok=True)
        SiteRunFolder(path, name).check_new(header.get("serial"))

    def _hello(self, request: Packet) -> Answer:
        """Describe this site's data for the study, once the operator has approved the study."""
        name, theirs = self.member.name, request.header.get("versions", {})
        if text := version_conflict(name, versions(), COORDINATOR, theirs):
            raise UsageError("E504", f"{text}.")  # before another version's settings are read
        settings = config.from_dict(request.header["settings"])
        site_method(site_settings(settings, self.model).method)
        study, _ = self._approved(request, settings)
        data = prepare(self.data, settings)
        if why := looks_unscaled(data, study):
            remedy = scaling_remedy(study.method, data.layout, study.summed)
            self.say(f"E504 this study takes samples as they are: {why}; {remedy}")
        return {"hello": replace(Hello.of(name, data, versions()), unscaled=bool(why)).as_json()}, {}

    def _approved(self, request: Packet, settings: Settings) -> tuple[Study, str]:
        """The study's minimal demands on this site, and their text, both as approved by the operator.

        Raises UsageError: E520 if the policy does not allow the study, E522 and E523 as in
        `Guard.check_study`.
        """
        fewest = 2 if settings.secure_aggregation == "off" else LEAST_SITES
        here = site_settings(settings, self.model).replace(device="cpu", clients=fewest)
        self.guard.check_hello(here)
        run, name = request.header["run"], request.header.get("name", "")
        if self._demands is None or self._demands[0] != here:
            with self.guard.withheld_errors(run, settings, name):
                self._demands = here, forecast_settings(self.data, here)
        study, lines = self._demands[1]
        study, text = replace(study, settings=settings), "\n".join(lines)
        self.guard.check_study(run, study, text, name)
        return study, text

    def _setup(self, request: Packet) -> Answer:
        """Build and store the run, and report to the operator what leaves this site in it.

        The study is approved before anything is built, in the form that a greeting shows, because a
        coordinator may skip the greeting.
        """
        facts = {n: request.header[n] for n in ("settings", *PLACE)}
        folder, number = self._folder(request), request.header["run"]
        settings = config.from_dict(dict(facts["settings"]))
        if (t := request.header["t"]) > settings.rounds:
            text = f"the request's 't' is {t}, expected at most the study's {settings.rounds} rounds."
            raise UsageError("E310", text)
        _, demands = self._approved(request, settings)
        folder.check_same(self.data)
        with self._new_run(facts, request.tree["w"]) as (run, study):
            approved = self.guard.check_study(number, study, demands)
            least = self.guard.least_samples
            lines = disclosure_lines(run.method, run.trainer, self.data, run.secure)
            if names := run.withheld(least):
                why = f"because a class or label has fewer than {least} test samples (least_samples)"
                lines.append(f"{'':<20}stays here: {', '.join(names)}, {why}")
            text = "\n".join(lines)
            self.guard.ledger.begin(number, replace(approved, place={n: facts[n] for n in PLACE}))
            disk.replace(folder.path / "leaves.txt", f"{run.method}\n{text}\n")
            # nothing else of the tree, to leave the disk its room
            folder.write_setup({"w": request.tree["w"]}, facts, self.data)
            self._keep(number, study, run)
        self._demands = None  # which holds a model of its own
        self.say(f"run {number} begins: {study.title}, {run.settings.rounds} rounds\n{text}")
        return {"ready": True}, {}

    def _train(self, request: Packet) -> Answer:
        """Train for one round; answer early trips and score the received model if the request asks for it."""
        run, start = self._open_run(request)
        folder = self._folder(request)
        folder.write_received(request, run, start.t - 1)
        private, extra = run.to_device(folder.read_private(request)), {}
        if lr := request.header.get("score"):
            before = replace(start, t=start.t - 1, lr=lr)
            extra["score"] = run.scores(before, private, self.guard.least_samples)

        def train() -> list[Reply]:
            return run.trainer.train(start, [run.k], {run.k: private} if private else {})

        replies = folder.noisy_replies(request, train) if run.method.samples_apart else train()
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
            for early in folder.visit_replies(run, request, start, (name, place), reply.private):
                extra["early"] |= early.shares
        tree = tree_of(reply.weights, reply.shares) | without_empty(extra)
        return {"n": reply.size, "loss": float(reply.loss)}, tree

    def _visit(self, request: Packet) -> Answer:
        """Answer a trip of a Part."""
        run, start = self._open_run(request)
        name, place, folder = request.header["part"], request.header["trip"], self._folder(request)
        private = run.to_device(folder.read_private(request)) if run.trainer.kept else {}
        replies = folder.visit_replies(run, request, start, (name, place), private)
        if not replies:
            return {"n": 0}, {}
        self.say(f"after round {start.t}: answered {name}")
        return {"n": replies[0].size}, tree_of({}, replies[0].shares)

    def _score(self, request: Packet) -> Answer:
        """Score the received model on this site's test samples."""
        run, start = self._open_run(request)
        folder = self._folder(request)
        folder.write_received(request, run, start.t)
        scores = run.scores(start, run.to_device(folder.read_private(request)), self.guard.least_samples)
        if start.t == run.settings.rounds:
            text = f"after round {start.t}: the model is here, too: unskew predict {folder.path} INPUT"
            self.say(f"{text}, unskew export {folder.path} OUT")
        return {"n": len(run.scoring.test[run.k])}, scores

    def _folder(self, request: Packet) -> SiteRunFolder:
        return SiteRunFolder(self.member.folder / "runs" / request.header["run"], self.member.name)

    def _open_run(self, request: Packet) -> tuple[SiteRun, Broadcast]:
        """The run, from its folder if this process does not hold it, and the round's broadcast."""
        number = request.header["run"]
        if self._run and self._run[0] == number:
            _, digest, run = self._run
            self.guard.ledger.check_same(number, digest)
        else:
            tree, facts = self._folder(request).read_setup()
            self._folder(request).check_same(self.data)
            with self._new_run(facts, tree["w"]) as (run, study):
                self.guard.ledger.check_same(number, study.digest)
                self._keep(number, study, run)
        check_weights(request.tree.get("w", {}), run.first)
        check_rates(request.header, run.settings)
        check_scored(request.header, run.settings, run.method.protector is not None)
        self._held(request).complete(request, run)
        tree = run.to_device(request.tree)
        return run, run.start(request.header["t"], request.header["lr"], tree)

    def _held(self, request: Packet) -> HeldSlices:
        """The slices that are held of the request's run, from its folder if another run's are in memory."""
        path = self._folder(request).path / HELD
        if self._slices is None or self._slices.path != path:
            self._slices = HeldSlices.read(path)
        return self._slices

    @contextmanager
    def _new_run(self, facts: dict[str, Any], first: Weights) -> Iterator[tuple[SiteRun, Study]]:
        """A run and its study, for a check before the run is stored. An error closes the run."""
        settings = config.from_dict(dict(facts["settings"]))
        here = site_settings(settings, self.model).replace(device=self.device)
        run = build_run(self.member.name, here, self.data, facts, first)
        try:
            yield run, study_of(settings, run.method, run.trainer, self.data)
        except BaseException:
            run.trainer.close()
            raise

    def _keep(self, number: str, study: Study, run: SiteRun) -> None:
        if self._run:
            self._run[2].trainer.close()
        self._run, self._slices = (number, study.digest, run), None
