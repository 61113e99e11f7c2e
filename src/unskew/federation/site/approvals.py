"""The studies that have asked for a site's data, and the operator's decisions: one file each in `studies/` of
the site's folder.

A site keeps the last twenty runs that have asked and have not begun, because a coordinator may ask under
any number of run numbers before anything is approved. The number of a removed run stays recorded, because
the operator has read about it together with one study.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shlex
import shutil
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from unskew.config import Settings
from unskew.errors import UsageError, printable, suggestion
from unskew.federation.site.site_ledger import policy_refusal
from unskew.system import disk

FOLDER = "studies"
SAME_STUDY = {"clients": 2, "workers": 0, "device": "cpu", "lanes": "1"}
"""Settings that may differ between runs of a study, with their values in the study's digest."""
ANY_SEED = {"seed": 0, "partition_seed": None}
"""Further such settings for studies in which no selected samples and no secure sums leave."""
State = Literal["waiting", "approved", "refused"]
LEAST_KEY = 16


@dataclass(frozen=True)
class Request:
    """A question for the operator. All text from the coordinator is escaped here, for every place where it is
    printed.

    study: the study's digest. run: number of the latest run that asked. by: the federation and its
    coordinator's fingerprint. leaves: what would leave this site, as lines for its operator, or the error
    that its coordinator would read. at: time of the first request or of the decision. name: the
    coordinator's name of the run. trains: the model and its training, in words. releases: what an approval
    releases. note: the policy's current verdict.
    """

    study: str
    run: str
    method: str
    rounds: int
    by: str
    leaves: str
    at: float
    state: State = "waiting"
    name: str = ""
    trains: str = ""
    releases: Literal["study", "error"] = "study"
    note: str = ""

    def __post_init__(self) -> None:
        for field in ("run", "method", "by", "name", "trains", "note"):
            object.__setattr__(self, field, printable(getattr(self, field)))
        object.__setattr__(self, "leaves", "\n".join(map(printable, self.leaves.split("\n"))))

    @property
    def key(self) -> str:
        """A digest of what an approval releases and of the text shown; a decision counts for exactly this."""
        shown = [self.releases, self.study, self.by, self.method, self.rounds, self.trains, self.leaves]
        return hashlib.sha256(json.dumps(shown).encode()).hexdigest()

    def text(self) -> str:
        """The request as lines for the operator."""
        lines = [f"run     {self.run}  ({self.state})"]
        lines += [f"name    {self.name}, as the coordinator calls it"] if self.name else []
        lines += [f"by      {self.by}", f"method  {self.method}, {self.rounds} rounds"]
        lines += [f"trains  {self.trains}"] if self.trains else []
        note = [self.note] if self.note else []
        return "\n".join((*lines, self.leaves, *note, f"digest  {self.key[:LEAST_KEY]}, of this question"))


def digest_of(settings: Settings, draws: bool) -> str:
    """16 hexadecimal digits that the runs of one study have in common for any number of sites.

    draws: single samples, or averages of some, leave. Each seed is then a study of its own, because runs
    with other seeds would release other samples until all had left. So it is with secure aggregation: a
    site guards the sums of one seed, and those of another seed over other sites would show what it sent.
    """
    any_seed = {} if draws or settings.secure else ANY_SEED
    facts = settings.as_dict() | SAME_STUDY | any_seed
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def state_of(folder: Path, request: Request) -> State | None:
    """The decision about exactly this request; None if it is new."""
    previous = _read_request(_request_file(folder, request))
    return previous.state if previous else None


def is_refused(folder: Path, study: str) -> bool:
    """True if an operator has refused a study or the release of its error."""
    return any(request.study == study and request.state == "refused" for request in all_requests(folder))


def bind(folder: Path, run: str, study: str) -> bool:
    """Bind a run's number to the first study that uses it. False if the number belongs to another study."""
    path = _study_file(folder, run)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(path, study)
    return path.read_text() == study


def ask(folder: Path, request: Request) -> bool:
    """Record that a run waits. True if it was not waiting, so that its operator should be notified."""
    previous = _read_request(_request_file(folder, request))
    if previous and (previous.run == request.run or previous.state != "waiting"):
        return False
    _write_request(folder, request)
    return True


def decide(folder: Path, run: str, state: State) -> Request:
    """Approve or refuse a run's request, found by the run's number or its beginning, or by the request's
    digest.

    An approval covers one request, a refusal all requests of the run. Raises UsageError (E503) if no
    request or several fit.
    """
    requests = all_requests(folder)
    study = _study_file(folder, run).read_text() if run and _study_file(folder, run).exists() else None
    matches = [replace(r, run=run) for r in requests if r.run == run or (study and r.study == study)]
    if not matches and run:
        is_digest = len(run) >= LEAST_KEY
        matches = [r for r in requests if r.run.startswith(run) or (is_digest and r.key.startswith(run))]
    runs = {request.run for request in matches}
    if len(runs) == 1 and len(matches) > 1 and state == "approved":
        digests = ", ".join(request.key[:LEAST_KEY] for request in matches)
        raise UsageError("E503", f"run {run} asks several things; name one by its digest: {digests}.")
    if len(runs) != 1:
        numbers = list(dict.fromkeys(r.run for r in requests))
        all_runs = f"these have asked: {', '.join(numbers)}." if numbers else "no run has asked yet."
        which = "several runs begin with" if matches else "no run has asked that is called"
        raise UsageError("E503", f"{which} '{run}'; {all_runs}{suggestion(run, numbers)}")
    decided = [replace(request, state=state, at=time.time()) for request in matches]
    for request in decided:
        _write_request(folder, request)
    return decided[0]


def all_requests(folder: Path) -> list[Request]:
    """All requests, the latest first."""
    requests = [_read_request(path) for path in (folder / FOLDER).glob("*.json")]
    return sorted((r for r in requests if r), key=lambda r: -r.at)


def outcome(folder: Path, request: Request) -> str:
    """The outcome of a waiting study in one line; "" while it waits."""
    state = state_of(folder, request)
    if state == "waiting":
        return ""
    if state is None:
        return f"run {request.run} waits no more: later runs have asked, and nobody had decided about it"
    what = "begins when the coordinator asks again" if state == "approved" else "gets nothing from this site"
    if request.releases == "error" and state == "approved":
        what = "has its error told when the coordinator asks again, and does not begin"
    return f"{state}: run {request.run} {what} ({request.method}, {request.rounds} rounds)"


def _study_file(folder: Path, run: str) -> Path:
    return folder / "runs" / run / "study"


def _request_file(folder: Path, request: Request) -> Path:
    return folder / FOLDER / f"{request.key}.json"


def _read_request(path: Path) -> Request | None:
    """The request in a file; None if the file is missing or damaged, so that the study asks again."""
    try:
        request = Request(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    is_valid = request.state in get_args(State) and path.stem == request.key
    return request if is_valid else None


def _write_request(folder: Path, request: Request) -> None:
    (folder / FOLDER).mkdir(exist_ok=True, mode=0o700)
    disk.replace_private(_request_file(folder, request), json.dumps(asdict(request), indent=1))


MOST_PENDING = 20
FORGOTTEN_FILE = "forgotten"
MOST_KNOWN = 10_000


def make_room(folder: Path, run: str) -> list[str]:
    """Remove the oldest pending runs before a new run gets a folder. Returns their numbers.

    Raises UsageError (E520) if this run was removed before.
    """
    if (folder / "runs" / run).exists():
        return []
    book = folder / FORGOTTEN_FILE
    previous = book.read_text().split() if book.exists() else []
    if run in previous:
        text = f"run {run} had asked, and had to make room for {MOST_PENDING} later ones that asked"
        raise policy_refusal(f"{text}; start a new run")
    pending = sorted((p for p in (folder / "runs").glob("*") if _is_pending(p)), key=_last_request)
    removed = [path.name for path in pending[: max(0, len(pending) + 1 - MOST_PENDING)]]
    if removed:
        disk.replace(book, "".join(f"{number}\n" for number in (*previous, *removed)[-MOST_KNOWN:]))
    for request in all_requests(folder):
        if request.run in removed and request.state == "waiting":
            _request_file(folder, request).unlink(missing_ok=True)
    for number in removed:
        shutil.rmtree(folder / "runs" / number)
    return removed


def _is_pending(path: Path) -> bool:
    return path.is_dir() and {p.name.partition(".")[0] for p in path.iterdir()} <= {"serial", "study"}


def _last_request(path: Path) -> float:
    return max((p.stat().st_mtime for p in path.iterdir()), default=path.stat().st_mtime)


LOOK_S = 2.0
DECISIONS: dict[str, State] = {"yes": "approved", "no": "refused"}


class Terminal:
    """Standard input in the foreground; reading in the background would stop the site."""

    def __init__(self) -> None:
        self._open = True

    def line(self, within_s: float) -> str | None:
        """The next line; None without one, in the background, and once the terminal is closed."""
        if not (self._open and _in_foreground()):
            time.sleep(within_s)
            return None
        if not select.select([sys.stdin], [], [], within_s)[0] or not _in_foreground():
            return None
        text = sys.stdin.readline()
        self._open = bool(text)
        return text or None

    def forget(self) -> None:
        """Discard what was typed before the question."""
        if _in_foreground():
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def has_terminal() -> bool:
    """Whether this process reads from and writes to a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def watch(
    folder: Path,
    say: Callable[[str], None],
    operator: Terminal | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Report each study that begins to wait, and later its outcome, until the end.

    operator: a person at a keyboard, who is asked about one study after another; an answer applies only to
    the study shown last. Without one every study is reported with the commands that decide about it.
    """
    shown: list[Request] = []
    while not until():
        for request in list(shown):
            if text := outcome(folder, request):  # it was decided elsewhere, or makes room
                say(text)
                shown.remove(request)
        for request in reversed(all_requests(folder)):
            is_known = any((request.run, request.key) == (r.run, r.key) for r in shown)
            if request.state != "waiting" or is_known or (operator and shown):
                continue
            shown.append(request)
            where = f"{request.run} --folder {shlex.quote(str(folder))}"
            say(f"a study asks for this site's data\n{request.text()}")
            if operator is None:
                say(f"decide: unskew site approve {where}   or: unskew site refuse {where}")
            else:
                say(f"approve it? type yes or no, and Enter (later: unskew site approve {where})")
                operator.forget()  # input before the question does not answer it
        if operator is None:
            time.sleep(LOOK_S)
            continue
        typed = operator.line(LOOK_S)
        if not shown or typed is None:
            continue
        state = DECISIONS.get(typed.strip().lower())
        if state is None:
            say("type yes or no, and Enter")
            continue
        request = shown.pop()
        try:
            decide(folder, request.key, state)
            say(f"{state}  {request.run}")
        except UsageError as error:
            say(str(error))
