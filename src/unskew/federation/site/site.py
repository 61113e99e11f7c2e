"""A site answers signed requests with the results of the engine for its single client.

Data, labels and private state stay in the site's folder. Every header is checked before any of it is used:
the coordinator signs its requests, but its key may have been stolen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from unskew import config
from unskew.config import Settings
from unskew.core import gate
from unskew.core.replies import Reply
from unskew.core.trees import Weights
from unskew.data.samples.dataset import Dataset
from unskew.errors import UnskewError, UsageError
from unskew.federation.protocol.hello import (
    COORDINATOR,
    Hello,
    part_versions,
    version_conflict,
    version_differences,
    versions,
)
from unskew.federation.protocol.identity import PrivateKey, PublicKey
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.protocol.study_rules import prepare, site_method, site_settings
from unskew.federation.protocol.wire_format import (
    Limits,
    Packet,
    WireError,
    seal,
    store_if_large,
    tree_of,
    unseal,
    without_empty,
)
from unskew.federation.site import approvals, guard
from unskew.federation.site.guard import Approve, Guard
from unskew.federation.site.local_run import SiteRun, build_run
from unskew.federation.site.run_folder import NoisyReplies, RunFolder, visit_replies
from unskew.federation.site.site_ledger import NOT_WRITTEN_TEXT, AnsweredRequest, policy_refusal
from unskew.federation.site.study_review import (
    Study,
    disclosure_lines,
    forecast_settings,
    study_of,
    warn_unscaled,
)
from unskew.federation.site.sum_answers import Answer, SiteSums
from unskew.federation.sums.roster import MOST_SEALED, MOST_SIGNATURE, is_texts
from unskew.privacy.secure_aggregation import LEAST_SITES
from unskew.round.clients import Broadcast
from unskew.system import disk

MOST_CLIENTS, MOST_SAMPLES, MOST_ROUNDS = 10_000, 1 << 40, 1_000_000
NEEDED = {
    "hello": ("settings",),
    "setup": ("settings", "k", "clients", "largest"),
    "train": ("lr",),
    "visit": ("lr", "part", "trip"),
    "score": ("lr",),
    "share": ("roster",),
    "mask": ("dealt",),
    "agree": ("came", "left"),
    "open": ("came", "left"),
}
"""Required fields of a header by kind of request, in addition to run, serial, site, kind and t."""


def check_values(header: Mapping[str, Any]) -> None:
    """Check the values of a request's header that are present.

    Raises UsageError (E310), which names the first value that no honest request has.
    """
    clients = header.get("clients", MOST_CLIENTS)
    for name, (fits, expected) in _VALUES.items():
        if name in header and not fits(header[name]):
            raise UsageError(
                "E310", f"the request's '{name}' is {_excerpt(header[name])}, expected {expected}."
            )
    if header.get("k", 0) >= clients:
        raise UsageError(
            "E310", f"the request's 'k' is {header['k']}, expected a number below its {clients} clients."
        )


def check_complete(header: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Raises UsageError (E310) for the first field that a request of this kind lacks."""
    missing = [name for name in NEEDED[header["kind"]] if name not in header]
    if header["kind"] == "setup" and not isinstance(tree.get("w"), Mapping):
        missing.append("w")
    if missing:
        raise UsageError("E310", f"the request lacks '{missing[0]}', which every '{header['kind']}' has.")


def check_round(t: int, rounds: int) -> None:
    """Raises UsageError (E310) if round t lies beyond the study's last round."""
    if t > rounds:
        raise UsageError("E310", f"the request's 't' is {t}, expected at most the study's {rounds} rounds.")


def check_scored(header: Mapping[str, Any], settings: Settings, may_end_early: bool) -> None:
    """Raises UsageError (E520) if scores are requested for a round in which the study does not score.

    Otherwise the coordinator could have weights of its choice scored more often than was approved. Any
    round may be the last one, which is always scored, if `may_end_early`.
    """
    t = header["t"] if header["kind"] == "score" else header["t"] - 1
    asked = header["kind"] == "score" or "score" in header
    if asked and t % settings.eval_every and t != settings.rounds and not may_end_early:
        raise policy_refusal(
            f"scores of round {t} are asked for, and the study scores every {settings.eval_every} rounds"
        )


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
            raise UsageError(
                "E310", f"the request's weights hold {_excerpt(name)}, which the run's model has not."
            )
        if (form := _form(tensor)) != (expected := _form(first[name])):
            raise UsageError(
                "E310", f"the request's '{name}' is {form}, expected {expected} as in the run's model."
            )


def _form(tensor: Any) -> str:
    """The shape and type of a tensor, as text."""
    return f"{list(tensor.shape)} of {str(tensor.dtype)[6:]}" if isinstance(tensor, Tensor) else "no tensor"


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _integer_range(least: int, most: int) -> tuple[Callable[[Any], bool], str]:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return fits, f"a whole number from {least} to {most:,}"


def _is_name(value: Any) -> bool:
    """True for a valid name of a run's folder, and for the empty name."""
    return isinstance(value, str) and re.fullmatch(r"[\w.-]{0,64}", value) is not None


def _is_rate(value: Any) -> bool:
    """True for a valid learning rate."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= 1e300


def _are_trips(value: Any) -> bool:
    """True for a list of pairs [name of a Part, number of its trip]."""
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and _PLACE[0](pair[1])
        for pair in value
    )


def _are_versions(value: Any) -> bool:
    """True for a dictionary of at most ten short version texts by package."""
    return (
        isinstance(value, dict)
        and len(value) <= 10
        and all(
            isinstance(text, str) and text.isprintable() and len(text) <= 100
            for pair in value.items()
            for text in pair
        )
    )


def _are_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MOST_CLIENTS
        and all(isinstance(name, str) for name in value)
    )


_PLACE, _RATE = _integer_range(0, 1_000), (_is_rate, "a number from 0 to 1e300")
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_name, "the name of a run"),
    "run": (lambda value: isinstance(value, str), "the number of a run"),
    "t": _integer_range(0, MOST_ROUNDS),
    "clients": _integer_range(1, MOST_CLIENTS),
    "k": _integer_range(0, MOST_CLIENTS - 1),
    "largest": _integer_range(0, MOST_SAMPLES),
    "base": _integer_range(0, MOST_ROUNDS),
    "trip": _PLACE,
    "lr": _RATE,
    "score": _RATE,
    "part": (lambda value: isinstance(value, str), "the name of a Part"),
    "settings": (lambda value: isinstance(value, dict), "the settings of a study"),
    "early": (_are_trips, "a list of trips"),
    "versions": (_are_versions, "versions by package"),
    "roster": (lambda value: isinstance(value, list) and len(value) <= MOST_CLIENTS, "a list of sites"),
    "dealt": (lambda value: is_texts(value, MOST_SEALED), "sealed shares by site"),
    "came": (_are_names, "a list of sites"),
    "left": (_are_names, "a list of sites"),
    "signatures": (lambda value: is_texts(value, MOST_SIGNATURE), "signatures by site"),
}


REQUESTS = Limits(4 << 30, 100_000)
"""Size limits of a request with a valid signature."""
PLACE = ("k", "clients", "largest")
"""Fields of a header: a site's client number, the number of clients, and the largest client's samples."""


@dataclass(frozen=True)
class SiteIdentity:
    """A site's name, folder and private key, and the coordinator's key, which must have signed every
    request.
    """

    name: str
    folder: Path
    key: PrivateKey
    coordinator: PublicKey


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
        self._reported_versions = ""
        """The difference from the coordinator's versions that was last reported to the operator."""
        self._data: Dataset | None = None
        self._run: tuple[str, str, SiteRun] | None = None
        """The one run that is kept warm, its number before it, and the digest of the study that was
        judged."""
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
        if self._data is None:
            self._data = self.load()
        return self._data

    def answer(self, sealed: SignedMessage) -> SignedMessage:
        """The sealed reply to a request. Never raises, for any content of the request."""
        member = self.member
        try:
            request = unseal(sealed, member.coordinator, REQUESTS)
            self._check(request.header)
        except Exception as problem:  # a bad request must not end the site
            return self.refusal(sealed.digest, problem)
        fixed = {n: request.header[n] for n in ("run", "serial", "kind", "t")}
        fixed |= {"re": sealed.digest, "site": member.name}
        try:
            self.guard.check_request(fixed["run"], fixed["kind"], fixed["t"])
            check_complete(request.header, request.tree)
            header, tree = self._answers[request.header["kind"]](request)
            self.guard.note(fixed["run"], AnsweredRequest.of(request.header), tree, header)
        except Exception as error:  # errors of Parts and loaders must reach the coordinator as sentences
            reported = guard.answerable(self._explain(error, request), self.say)
            self.guard.trouble(fixed, reported.code, reported.text)
            header, tree = self._error(reported, request.header), {}
        return seal(fixed | header, tree, member.key)

    def _explain(self, error: Exception, request: Packet) -> Exception:
        """The error, or a clearer one if slices of the model in the request explain it."""
        run = self._run[2] if self._run and self._run[0] == request.header["run"] else None
        with suppress(KeyError, UsageError):  # of a request that names no trip, which is what `error` says
            if run:
                return run.slices.explain(error, request.tree.get("down", {}), run.reads(request.header))
        return error

    def refusal(self, digest: str, problem: Exception) -> SignedMessage:
        """The reply to a request that cannot be read or is not for this site. digest: SHA-256 of the
        request's text.
        """
        error = problem if isinstance(problem, WireError) else guard.answerable(problem, self.say)
        self.say(f"refused a request: {error.code} {error.text}")
        self.guard.trouble({}, error.code, error.text)
        return seal({"re": digest, "site": self.member.name, **self._error(error, {})}, {}, self.member.key)

    def _error(self, error: UnskewError | WireError, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The code and redacted text of an error for the coordinator, recorded in the ledger first. asked:
        the request's header.
        """
        files = [f"{self.member.folder}/"] + ([self.model.partition(":")[0]] if self.model else [])
        what = {"code": error.code, "text": guard.redact(error, files, asked)}
        is_recorded = self.guard.disclosures.note(
            str(asked.get("run", "?")), str(asked.get("kind", "?")), what
        )
        return what if is_recorded else {"code": error.code, "text": NOT_WRITTEN_TEXT}

    def _check(self, header: dict[str, Any]) -> None:
        """Raises UsageError for a request that is not for this site (E310) or that repeats an earlier one
        (E307).
        """
        addressed = header.get("site") == self.member.name or (header.get("kind"), header.get("site")) == (
            "hello",
            "*",
        )
        kind = header.get("kind")
        if not addressed or not isinstance(kind, str) or kind not in self._answers or "t" not in header:
            raise UsageError("E310", f"the request is not for site {self.member.name}.")
        check_values(header)
        folder, run = self.member.folder, disk.check_name(str(header.get("run")))
        for old_run in approvals.make_room(folder, run):
            self.say(
                f"run {old_run} is forgotten: it never began, and {approvals.MOST_PENDING} later ones have"
                " asked"
            )
        RunFolder.of(folder, self.member.name, run).check_new(header.get("serial"))

    def _hello(self, request: Packet) -> Answer:
        """Describe this site's data for the study, once the operator has approved the study."""
        coordinator_versions = request.header.get("versions", {})
        if text := version_conflict(
            self.member.name, versions(), COORDINATOR, coordinator_versions
        ):  # before another version's settings are read
            raise UsageError("E504", f"{text}.")
        settings = config.build(request.header["settings"])
        site_versions = versions() | part_versions(site_method(site_settings(settings, self.model).method))
        self._report_versions(site_versions, coordinator_versions)
        study, _ = self._approved(request, settings)
        data = prepare(self.data, settings)
        why = warn_unscaled(data, study, self.say)
        hello = replace(Hello.of(self.member.name, data, site_versions), unscaled=why)
        return {"hello": hello.as_json()}, {}

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
            net = self._demands[1][0].fed.net
            net.hold(store_if_large(net.weights(), self.member.folder))
        study, lines = self._demands[1]
        study, text = replace(study, settings=settings), "\n".join(lines)
        self.guard.check_study(run, study, text, name)
        return study, text

    def _report_versions(self, ours: Mapping[str, str], coordinator_versions: Mapping[str, str]) -> None:
        """Report once to the operator the versions that differ from the coordinator's."""
        if (
            text := version_differences(self.member.name, ours, COORDINATOR, coordinator_versions)
        ) != self._reported_versions:
            self._reported_versions = text
            self.say(f"E504 {text}." if text else "the coordinator runs the same versions now")

    def _setup(self, request: Packet) -> Answer:
        """Build and store the run, and report to the operator what leaves this site in it.

        The study is approved before anything is built, in the form that a greeting shows, because a
        coordinator may skip the greeting.
        """
        facts = {n: request.header[n] for n in ("settings", *PLACE)}
        folder, number = self._folder(request), request.header["run"]
        settings = config.build(dict(facts["settings"]))
        check_round(request.header["t"], settings.rounds)
        _, demands = self._approved(request, settings)
        folder.check_same(self.data, facts)
        with self._new_run(facts, request.tree["w"]) as (run, study):
            approved = self.guard.check_study(number, study, demands)
            text = "\n".join(
                disclosure_lines(run.method, run.trainer, self.data, run.secure)
                + run.stays(self.guard.least_samples)
            )
            self.guard.begin(number, replace(approved, place={n: facts[n] for n in PLACE}))
            folder.write_leaves(f"{run.method}\n{text}\n")
            folder.write_setup(
                {"w": request.tree["w"]}, facts, self.data
            )  # nothing else, to leave the disk its room
            self._keep(number, study, run)
        self.say(f"run {number} begins: {study.title}, {run.settings.rounds} rounds\n{text}")
        return {"ready": True}, {}

    def _train(self, request: Packet) -> Answer:
        """Train for one round; answer early trips and score the received model if the request asks for it."""
        run, start = self._open_run(request)
        folder = self._folder(request, run)
        folder.write_received(request, run, start.t - 1)
        private, extra = run.to_device(folder.read_private(request)), {}
        if lr := request.header.get("score"):
            extra["score"] = run.scores(
                replace(start, t=start.t - 1, lr=lr), private, self.guard.least_samples
            )

        def train() -> list[Reply]:
            return run.trainer.train(start, [run.k], {run.k: private} if private else {})

        replies = NoisyReplies(folder).replies(request, train) if run.method.samples_apart else train()
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
            for early in visit_replies(run, folder, request, start, (name, place), reply.private):
                extra["early"] |= early.shares
        return {"n": reply.size, "loss": float(reply.loss)}, tree_of(
            reply.weights, reply.shares
        ) | without_empty(extra)

    def _visit(self, request: Packet) -> Answer:
        """Answer a trip of a Part."""
        run, start = self._open_run(request)
        name, place, folder = request.header["part"], request.header["trip"], self._folder(request, run)
        private = run.to_device(folder.read_private(request)) if run.trainer.kept else {}
        replies = visit_replies(run, folder, request, start, (name, place), private)
        if not replies:
            return {"n": 0}, {}
        self.say(f"after round {start.t}: answered {name}")
        return {"n": replies[0].size}, tree_of({}, replies[0].shares)

    def _score(self, request: Packet) -> Answer:
        """Score the received model on this site's test samples."""
        run, start = self._open_run(request)
        folder = self._folder(request, run)
        folder.write_received(request, run, start.t)
        scores = run.scores(start, run.to_device(folder.read_private(request)), self.guard.least_samples)
        if start.t == run.settings.rounds:
            text = f"after round {start.t}: the model is here, too: unskew predict {folder.path} INPUT"
            self.say(f"{text}, unskew export {folder.path} OUT")
        return {"n": len(run.scoring.test[run.k])}, scores

    def _folder(self, request: Packet, run: SiteRun | None = None) -> RunFolder:
        method = run.settings.method if run else ""
        return RunFolder(self.member.folder / "runs" / request.header["run"], self.member.name, method)

    def _open_run(self, request: Packet) -> tuple[SiteRun, Broadcast]:
        """The run, read from its folder if this process does not hold it, and the broadcast that the
        request's round starts from.
        """
        number = request.header["run"]
        if self._run and self._run[0] == number:
            _, digest, run = self._run
            self.guard.check_same(number, digest)
        else:
            tree, facts = self._folder(request).read_setup()
            self._folder(request).check_same(self.data, facts)
            with self._new_run(facts, tree["w"]) as (run, study):
                self.guard.check_same(number, study.digest)
                self._keep(number, study, run)
        check_weights(request.tree.get("w", {}), run.first)
        check_rates(request.header, run.settings)
        check_scored(request.header, run.settings, run.method.protector is not None)
        run.slices.check(request.tree.get("down", {}), run.reads(request.header))
        tree = run.to_device(request.tree)
        return run, run.start(request.header["t"], request.header["lr"], tree)

    @contextmanager
    def _new_run(self, facts: dict[str, Any], first: Weights) -> Iterator[tuple[SiteRun, Study]]:
        """A run and its study, for a check before the run is stored. The run is closed if the check raises an
        error.
        """
        settings = config.build(dict(facts["settings"]))
        here = site_settings(settings, self.model).replace(device=self.device)
        run = build_run(self.member.name, here, self.data, facts, first)
        net = run.trainer.fed.net
        net.hold(store_if_large(net.weights(), self.member.folder))
        try:
            yield run, study_of(settings, run.method, run.trainer, self.data)
        except BaseException:
            run.trainer.close()
            raise

    def _keep(self, number: str, study: Study, run: SiteRun) -> None:
        """Keep a run in memory in place of the previous one."""
        if self._run:
            self._run[2].trainer.close()
        self._run = number, study.digest, run
