"""What a site's policy and its operator do not allow is refused before anything is computed; and errors are
redacted before the coordinator reads them.

A redacted error names no file of the site, whose path tells of users, projects and sometimes patients, and
says nothing of an error in its data, which would quote them.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from unskew.config import Settings
from unskew.core.trees import Tree, flat_tree
from unskew.errors import DataError, Paused, UnskewError, UsageError
from unskew.federation.protocol.study_rules import score_names
from unskew.federation.protocol.wire_format import WireError
from unskew.federation.site import approvals, site_ledger
from unskew.federation.site.policy import Policy
from unskew.federation.site.site_ledger import (
    SAID_FILE,
    AnsweredRequest,
    DisclosureLog,
    RunLedger,
    SiteLedger,
    policy_refusal,
)
from unskew.federation.site.study_review import Study, check_run, check_samples, check_settings, check_study
from unskew.methods import registry
from unskew.system import failures
from unskew.system.disk import is_full

PATH_PLACEHOLDER = "a file of the site"
DATA_ERROR_TEXT = "its data cannot be used as they are now; the site's log says more."
MOST_TEXT = 500
"""Characters of an error that leave a site at most."""
_REST = r"[^\s'\",;:()]*"
_ABSOLUTE = re.compile(rf"(?<![\w/.])(?:(?:~|\.{{1,2}})?/|[A-Za-z]:\\)[^\s'\",;:()]{_REST}")


def without_paths(text: str, known: Iterable[str], asked: Iterable[str] = ()) -> str:
    """The text without paths. known: how paths of the site begin that may be relative or hold spaces, such as
    `site/`.

    asked: what the coordinator itself has named, which it may read again.
    """
    for path in sorted(known, key=len, reverse=True):
        text = re.sub(rf"(?<![\w/.]){re.escape(path)}{_REST}", PATH_PLACEHOLDER, text)
    named = " ".join(asked)
    return _ABSOLUTE.sub(lambda match: match[0] if match[0] in named else PATH_PLACEHOLDER, text)


def redact(error: UnskewError | WireError, files: Iterable[str], asked: Mapping[str, Any]) -> str:
    """A text for the coordinator. What it says of this site's files and data, only this site's operator
    reads.

    files: how paths of the site begin. asked: the header of the request.
    """
    if isinstance(error, DataError):
        return DATA_ERROR_TEXT
    settings = asked.get("settings", {})
    named = [str(settings.get(name)) for name in ("model", "method")]
    return without_paths(error.text, files, named)[:MOST_TEXT]


def answerable(error: Exception, say: Callable[[str], None]) -> UnskewError:
    """The error to answer with. What this site's operator has to mend is said to them as well.

    Of an error that nobody expected only its type is answered: its text may quote this site's files or data.
    """
    if isinstance(error, DataError):
        say(str(error))
        return error
    if isinstance(error, UnskewError) and error.code != "E203":
        return error
    if is_full(error) or isinstance(error, UnskewError):
        known = failures.explain(error)
        say(known.text)
        return known
    say(f"a request failed: {type(error).__name__}: {error}"[:MOST_TEXT])
    return UnskewError("E312", f"{type(error).__name__}; the site's log says more.")


T = TypeVar("T")
Approve = Literal["ask", "all"]
WAITING = "E522"
MOST_MODEL = 200
"""Characters of a model's name that an operator is shown; of one from a file the coordinator writes what it
likes."""
ANSWERS_A_ROUND = 3
"""How often a run may ask for the same in a round: after a crash the server repeats one."""


@dataclass
class Guard:
    """folder: the site's. by: whose requests it answers, in words. approve: whether new studies wait for the
    operator.

    clock: the local time. say: tells the operator.
    """

    folder: Path
    by: str
    approve: Approve = "ask"
    say: Callable[[str], None] = lambda _: None
    clock: Callable[[], time.struct_time] = time.localtime

    def __post_init__(self) -> None:
        self.said = DisclosureLog(self.folder)

    def check_request(self, number: str, kind: str, t: int) -> None:
        """Refuse a request that no study of this site allows now. Raises UsageError (E520, E521, E523)."""
        policy = self._policy()
        if kind in ("hello", "setup"):
            return
        spent = self._read(SiteLedger.read)
        run = spent.runs.get(number)
        if run is None:
            raise UsageError("E205", "the run was not begun at this site.")
        self._check_not_refused(run.study)
        check_run(policy, run)
        run.check_round(t)
        if t > run.rounds:
            raise policy_refusal(f"the study was to take {run.rounds} rounds, and this is round {t}")
        if run.answers.get(kind, 0) >= ANSWERS_A_ROUND * (run.rounds + 1) * MOST_TRIPS.get(kind, 1):
            raise policy_refusal(
                f"the run has asked for '{kind}' more often than its {run.rounds} rounds need"
            )
        if run.bytes >= policy.most_megabytes * 1e6:
            raise policy_refusal(f"the run has taken {policy.most_megabytes:,g} MB (most_megabytes)")

    def check_hello(self, settings: Settings) -> None:
        """Before a study's model is built: what it says of itself. Raises UsageError (E520, E521)."""
        method = registry.parse(settings.method, settings.set)
        summed = settings.secure is not None
        check_settings(self._policy(), method, settings.batch, settings.rounds, summed)

    def check_study(self, number: str, study: Study, leaves: str, name: str = "") -> RunLedger:
        """Before a site says anything of its data, and again when a run is set up. Returns what the run would
        count as.

        leaves: what would leave, for the operator. name: what the coordinator calls the run. Raises
        UsageError: E520 if the policy does not allow it, E522 if it waits for the operator's decision, E523
        if that was no.
        """
        policy = self._policy()
        check_study(policy, study)
        spent = self._read(SiteLedger.read)
        digest = study.digest
        spent.check_same(number, digest)
        if not approvals.bind(self.folder, number, digest):
            raise policy_refusal(f"run {number} has asked with another study; start a new run for this one")
        if number not in spent.runs and len(spent.runs) >= policy.most_runs:
            raise policy_refusal(f"{policy.most_runs} runs have begun at this site (most_runs)")
        self._check_not_refused(digest)
        asks = replace(self._request(digest, number, study.settings, leaves, name), method=study.title)
        try:  # these texts depend on the site's samples: they are kept until its operator has decided
            check_samples(policy, study)
            check_budgets(policy, spent, study, number)
        except UsageError as error:
            note = f"{'':<20}the policy as it is now will refuse: {error.text}"
            self._check_approved(replace(asks, note=note))
            raise
        self._check_approved(asks)
        now, settings = time.time(), study.settings
        run = RunLedger(
            digest,
            study.title,
            settings.rounds,
            now,
            study.epsilon,
            last=now,
            batch=settings.batch,
            summed=study.summed,
        )
        run.draws = study.draws
        run.delta = study.delta
        run.kinds, run.metrics, run.fewest = study.kinds, list(score_names(study.fed)), study.fewest_of_all
        return run

    @contextlib.contextmanager
    def untold(self, number: str, settings: Settings, name: str = "") -> Iterator[None]:
        """Inside, what goes wrong with a study on this site's data is told to its operator, and to the
        coordinator only once they
        have approved that: from each yes or no it could read a figure of the data. Such a yes is no approval
        of the study. Raises UsageError (E522, E523)."""
        try:
            yield
        except Paused:  # this machine's disk is full
            raise
        except Exception as error:
            digests = [approvals.digest_of(settings, draws) for draws in (False, True)]
            for digest in digests:
                self._check_not_refused(digest)
            text = f"the study cannot run here as it is: {answerable(error, lambda _: None).text}"
            yes = "a yes lets the coordinator read this error, and nothing else leaves"
            lines = f"{'':<20}{text}\n{'':<20}{yes}"
            asks = self._request(digests[-1], number, settings, lines, name)
            self._check_approved(replace(asks, releases="error"))
            raise

    def begin(self, number: str, run: RunLedger) -> None:
        """Count a run that this site has agreed to. Raises UsageError (E520) if it began otherwise."""
        self._read(SiteLedger.read).begin(number, run)

    def check_same(self, number: str, study: str) -> None:
        """Refuse to compute anything for a run by another study than it began with. Raises UsageError
        (E520)."""
        self._read(SiteLedger.read).check_same(number, study)

    def note(self, number: str, asked: AnsweredRequest, tree: Tree, header: Mapping[str, Any]) -> None:
        """Count an answer before it goes out. header: what it says beside its tensors.

        Raises UsageError (E520) for what the run's study has not declared, or was sent for too many orders of
        a round, and for what a site cannot write down that it says.
        """
        if asked.kind == "hello":
            if not self.said.note(number, asked.kind, header):
                raise policy_refusal(
                    f"what the site says of its data could not be written down there, in {SAID_FILE}"
                )
            return
        spent = self._read(SiteLedger.read)
        tensors = flat_tree({"score": tree} if asked.kind == "score" else tree)
        spent.check_declared(number, tensors)
        spent.add(number, asked, tensors, header)

    @property
    def least_samples(self) -> int:
        """How many samples must stand behind a number that leaves, as the policy says now. Raises UsageError
        as a request does."""
        return self._policy().least_samples

    def trouble(self, request: Mapping[str, object], code: str, text: str) -> None:
        """Keep for the operator that a request was refused or failed. That must not fail itself."""
        if code != WAITING:
            with contextlib.suppress(OSError, UnskewError):
                site_ledger.note_trouble(
                    self.folder, str(request.get("run", "?")), str(request.get("kind", "?")), code, text
                )

    def _policy(self) -> Policy:
        """The policy as it is now. Raises UsageError: E521 if it cannot be read, E520 outside its hours."""
        policy = self._read(Policy.read)
        if not policy.answers_at(self.clock()):
            raise policy_refusal(f"this site answers from {policy.hours.replace('-', ' to ')} (hours)")
        return policy

    def _read(self, read: Callable[[Path], T]) -> T:
        """What a file of the folder says. The coordinator is not told why it cannot be read."""
        try:
            return read(self.folder)
        except UsageError as error:
            self.say(str(error))
            text = (
                "what the site allows cannot be read there, so it refuses everything; `unskew site policy`"
                " says why."
            )
            raise UsageError(error.code, text) from None

    def _check_not_refused(self, study: str) -> None:
        if approvals.is_refused(self.folder, study):
            raise UsageError("E523", "the site's operator has refused the study.")

    def _request(
        self, study: str, number: str, settings: Settings, leaves: str, name: str
    ) -> approvals.Request:
        """What the operator is asked about a study. leaves: lines of text."""
        epochs = "1 epoch" if settings.epochs == 1 else f"{settings.epochs} epochs"
        epochs += f" a round, {settings.first_epochs} in the first" if settings.first_epochs else " a round"
        method, model = str(registry.parse(settings.method, settings.set)), settings.model[:MOST_MODEL]
        trains = f"{model}, {epochs}, batches of {settings.batch}, learning rate {settings.lr:g}"
        return approvals.Request(
            study, number, method, settings.rounds, self.by, leaves, time.time(), name=name, trains=trains
        )

    def _check_approved(self, request: approvals.Request) -> None:
        """Raises UsageError (E522) until the operator has approved exactly this."""
        if self.approve == "all" or approvals.state_of(self.folder, request) == "approved":
            return
        if approvals.ask(self.folder, request):
            self.say(f"a study asks for this site's data and waits for its operator\n{request.text()}")
        raise UsageError(
            WAITING, f"the study waits for the site's operator: unskew site approve {request.run}"
        )


MOST_TRIPS = {"visit": 4, "score": 2}
"""How many requests of a kind one round may hold; one of the others."""


def check_budgets(policy: Policy, spent: SiteLedger, study: Study, number: str) -> None:
    """Raises UsageError (E520) if too little of the policy's epsilon or delta is left for a run that begins
    with this number."""
    epsilon = study.epsilon
    if policy.epsilon is None or not epsilon or number in spent.runs:
        return
    if spent.epsilon + epsilon > policy.epsilon:
        raise policy_refusal(f"too little of the budget {policy.epsilon:g} is left for the study (epsilon)")
    if spent.delta + study.delta > policy.delta * (1 + 1e-9):
        text = (
            f"its epsilon holds at a delta for which too little of the budget {policy.delta:g} is left"
            " (delta)"
        )
        raise policy_refusal(text)
