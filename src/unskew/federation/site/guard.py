"""Refusal of requests that a site's policy or operator does not allow, before anything is computed for them;
and the redaction of errors.

A redacted error contains no path of the site, because paths reveal users, projects and sometimes patients,
and no details of errors in the data, which would quote them.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from unskew.config import Settings
from unskew.core.trees import Tree, flat_tree
from unskew.errors import DataError, Paused, UnskewError, UsageError, printable
from unskew.federation.protocol.study_rules import score_names
from unskew.federation.protocol.wire_format import WireError
from unskew.federation.site import approvals, site_ledger
from unskew.federation.site.policy import Policy
from unskew.federation.site.site_ledger import (
    KEPT_ROUNDS,
    SAID_FILE,
    AnsweredRequest,
    RunLedger,
    SiteLedger,
    policy_refusal,
)
from unskew.federation.site.study_review import Study, check_run, check_settings, check_study
from unskew.methods import registry
from unskew.system import unexpected_errors
from unskew.system.disk import is_full

PATH_PLACEHOLDER = "a file of the site"
DATA_ERROR_TEXT = "its data cannot be used as they are now; the site's log says more."
MOST_TEXT = 500
"""Characters of an error's text that may leave a site."""
_REST = r"[^\s'\",;:()]*"
_ABSOLUTE = re.compile(rf"(?<![\w/.])(?:(?:~|\.{{1,2}})?/|[A-Za-z]:\\)[^\s'\",;:()]{_REST}")


def without_paths(text: str, files: Iterable[str], asked: Iterable[str] = ()) -> str:
    """The text without paths.

    files: beginnings of the site's paths that may be relative or contain spaces, such as `site/`. asked:
    texts of the coordinator; paths in them are left in place.
    """
    for path in sorted(files, key=len, reverse=True):
        text = re.sub(rf"(?<![\w/.]){re.escape(path)}{_REST}", PATH_PLACEHOLDER, text)
    named = " ".join(asked)
    return _ABSOLUTE.sub(lambda match: match[0] if match[0] in named else PATH_PLACEHOLDER, text)


def redact(error: UnskewError | WireError, files: Iterable[str], asked: Mapping[str, Any]) -> str:
    """The text of an error for the coordinator, without details of this site's files and data.

    files: beginnings of the site's paths. asked: the header of the request.
    """
    if isinstance(error, DataError):
        return DATA_ERROR_TEXT
    settings = asked.get("settings", {})
    named = [str(settings.get(name)) for name in ("model", "method")]
    return without_paths(error.text, files, named)[:MOST_TEXT]


def answerable(error: Exception, say: Callable[[str], None]) -> UnskewError:
    """The error to answer with.

    Only the type of an unexpected error is answered, because its text may quote this site's files or data;
    the operator is shown the rest.
    """
    if isinstance(error, UnskewError) or is_full(error):
        return unexpected_errors.explain(error)
    say(printable(f"a request failed: {type(error).__name__}: {error}"[:MOST_TEXT]))
    return UnskewError("E311", f"{type(error).__name__}; the site's log says more.")


T = TypeVar("T")
Approve = Literal["ask", "all"]
WAITING = "E522"
MOST_MODEL = 200
"""Characters of a model's name that an operator is shown; of one from a file the coordinator writes what it
likes."""


@dataclass
class Guard:
    """Checks requests and studies against a site's policy, ledger and approvals.

    folder: the site's folder. by: the coordinator, in words. approve: "ask" if new studies wait for the
    operator. say: shows text to the operator.
    """

    folder: Path
    by: str
    approve: Approve = "ask"
    say: Callable[[str], None] = lambda _: None

    def check_request(self, number: str, kind: str, t: int) -> None:
        """Raises UsageError (E520, E521, E523) if no study of this site allows the request now."""
        policy = self._read(Policy.read)
        if kind in ("hello", "setup"):
            return
        spent = self.ledger
        run = spent.runs.get(number)
        if run is None:
            raise UsageError("E205", "the run was not begun at this site.")
        self._check_not_refused(run.study)
        check_run(policy, run)
        if t <= run.t - KEPT_ROUNDS:  # its orders are no longer recorded
            raise policy_refusal(f"the run has come to round {run.t} here, and round {t} is over")
        if t > run.rounds:
            raise policy_refusal(f"the study was to take {run.rounds} rounds, and this is round {t}")

    def check_hello(self, settings: Settings) -> None:
        """Check a study's settings before its model is built. Raises UsageError (E520, E521).

        Only the settings, and never the site's data, decide about this refusal, which needs no approval.
        """
        method, summed = registry.parse(settings.method, settings.set), settings.secure is not None
        check_settings(self._read(Policy.read), method, settings.batch, settings.rounds, summed)

    def check_study(self, number: str, study: Study, leaves: str, name: str = "") -> RunLedger:
        """Check a study before the site describes its data, and again when a run is set up. Returns the run's
        ledger entry.

        leaves: what would leave, for the operator. name: the coordinator's name of the run. Raises
        UsageError: E520 if the policy does not allow the study, E522 if it waits for the operator's
        decision, E523 if it was refused.
        """
        policy = self._read(Policy.read)
        spent = self.ledger
        digest = study.digest
        self._bind(number, study.settings)
        if number not in spent.runs and len(spent.runs) >= policy.most_runs:
            raise policy_refusal(f"{policy.most_runs} runs have begun at this site (most_runs)")
        self._check_not_refused(digest)
        question = replace(self._request(digest, number, study.settings, leaves, name), method=study.title)
        try:  # what follows depends on the site's samples: it is kept until its operator has decided
            check_study(policy, study)
            check_budgets(policy, spent, study, number)
        except UsageError as error:
            note = f"{'':<20}the policy as it is now will refuse: {error.text}"
            self._check_approved(replace(question, note=note))
            raise
        self._check_approved(question)
        now, settings = time.time(), study.settings
        return RunLedger(
            digest,
            study.title,
            settings.rounds,
            began=now,
            last=now,
            epsilon=study.epsilon,
            delta=study.delta,
            kinds=study.kinds,
            metrics=list(score_names(study.fed)),
            batch=settings.batch,
            fewest=study.fewest_of_all,
            summed=study.summed,
            draws=study.draws,
        )

    @contextlib.contextmanager
    def withheld_errors(self, number: str, settings: Settings, name: str = "") -> Iterator[None]:
        """Report errors of a study on this site's data to the coordinator only after the operator has
        approved that.

        Otherwise each error or its absence would tell the coordinator something about the data. Such an
        approval is not an approval of the study. Raises UsageError (E520, E522, E523).
        """
        try:
            yield
        except Paused:  # this machine's disk is full
            raise
        except Exception as error:
            self._bind(number, settings)
            digests = approvals.digests_of(settings)
            for digest in digests:
                self._check_not_refused(digest)
            lines = (
                f"{'':<20}the study cannot run here as it is: {answerable(error, lambda _: None).text}\n"
                f"{'':<20}a yes lets the coordinator read this error, and nothing else leaves"
            )
            question = self._request(digests[-1], number, settings, lines, name)
            self._check_approved(replace(question, releases="error"))
            raise

    def check_sum(self, sites: Iterable[str], fewest: int) -> None:
        """Check the sites of a secure sum. fewest: sites without which the sum is not opened.

        Raises UsageError (E520) if one of the policy's `peers` is missing, or `least_sites` are not assured.
        """
        policy = self._read(Policy.read)
        if missing := set(policy.peers) - set(sites):
            raise policy_refusal(f"the sum is without {', '.join(sorted(missing))} (peers)")
        if fewest < policy.least_sites:
            text = f"a sum with the numbers of {fewest} sites may be opened (least_sites)"
            raise policy_refusal(f"{text}; a higher threshold of secure_aggregation assures more")

    @property
    def ledger(self) -> SiteLedger:
        """The record of what has left this site. Raises UsageError (E521) if it cannot be read."""
        return self._read(SiteLedger.read)

    def note(self, number: str, asked: AnsweredRequest, tree: Tree, header: Mapping[str, Any]) -> None:
        """Count an answer before it is sent. header: its header.

        Raises UsageError (E520) for undeclared contents, for too many orders in a round, and for statements
        that cannot be recorded.
        """
        if asked.kind == "hello":
            if not site_ledger.note_statement(self.folder, number, asked.kind, header):
                text = f"what the site says of its data could not be written down there, in {SAID_FILE}"
                raise policy_refusal(text)
            return
        spent = self.ledger
        tensors = flat_tree({"score": tree} if asked.kind == "score" else tree)
        spent.check_declared(number, tensors)
        spent.add(number, asked, tensors, header)

    @property
    def least_samples(self) -> int:
        """The policy's minimum of samples behind a number that leaves. Raises as `check_request`."""
        return self._read(Policy.read).least_samples

    def _read(self, read: Callable[[Path], T]) -> T:
        """The contents of a file of the folder. Details of a failure are reported to the operator only."""
        try:
            return read(self.folder)
        except UsageError as error:
            self.say(str(error))
            text = "what the site allows cannot be read there, so it refuses everything"
            raise UsageError(error.code, f"{text}; `unskew site policy` says why.") from None

    def _bind(self, number: str, settings: Settings) -> None:
        if not approvals.bind(self.folder, number, settings):
            raise policy_refusal(f"run {number} has asked with another study; start a new run for this one")

    def _check_not_refused(self, study: str) -> None:
        if approvals.is_refused(self.folder, study):
            raise UsageError("E523", "the site's operator has refused the study.")

    def _request(
        self, study: str, number: str, settings: Settings, leaves: str, name: str
    ) -> approvals.Request:
        """The question about a study for the operator. leaves: lines of text."""
        epochs = "1 epoch" if settings.epochs == 1 else f"{settings.epochs} epochs"
        epochs += f" a round, {settings.first_epochs} in the first" if settings.first_epochs else " a round"
        method, model = str(registry.parse(settings.method, settings.set)), settings.model[:MOST_MODEL]
        trains = f"{model}, {epochs}, batches of {settings.batch}, learning rate {settings.lr:g}"
        if settings.class_weights != "none":  # of 0 for all classes but one, that one's samples train alone
            trains += f", weights of the classes {settings.class_weights[:MOST_MODEL]}"
        facts = study, number, method, settings.rounds, self.by, leaves, time.time()
        return approvals.Request(*facts, name=name, trains=trains)

    def _check_approved(self, request: approvals.Request) -> None:
        """Raises UsageError (E522) until the operator has approved exactly this request."""
        if self.approve == "all" or approvals.state_of(self.folder, request) == "approved":
            return
        if approvals.ask(self.folder, request):
            where = f"{request.run} --folder {shlex.quote(str(self.folder))}"
            decide = f"decide: unskew site approve {where}   or: unskew site refuse {where}"
            what = "a study asks for this site's data and waits for its operator"
            self.say(f"{what}\n{request.text()}\n{decide}")
        text = f"the study waits for the site's operator: unskew site approve {request.run}"
        raise UsageError(WAITING, text)


def check_budgets(policy: Policy, spent: SiteLedger, study: Study, number: str) -> None:
    """Raises UsageError (E520) if too little of the policy's epsilon or delta is left for a new run."""
    epsilon = study.epsilon
    if policy.epsilon is None or not epsilon or number in spent.runs:
        return
    if spent.epsilon + epsilon > policy.epsilon:
        raise policy_refusal(f"too little of the budget {policy.epsilon:g} is left for the study (epsilon)")
    if spent.delta + study.delta > policy.delta * (1 + 1e-9):
        text = "its epsilon holds at a delta for which too little of the budget"
        raise policy_refusal(f"{text} {policy.delta:g} is left (delta)")
