"""Studies that have asked for a site's data, and what its operator has decided about them: one file each in
`studies/` of its folder.

A site keeps the last twenty runs that have asked and have not begun. A coordinator may ask under as many
numbers as it likes before anybody has approved anything. A number that was removed stays known, because a
run's number stands for the study that its operator has read about.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from unskew.config import Settings
from unskew.errors import UsageError, printable, suggestion
from unskew.federation.site.site_ledger import policy_refusal
from unskew.system import disk

FOLDER = "studies"
SAME_STUDY = {"clients": 2, "workers": 0, "device": "cpu", "lanes": "1"}
"""Settings that another run of the same study may change, and what stands for them in the study's digest."""
ANY_SEED = {"seed": 0, "partition_seed": None}
"""The same for studies in which nothing leaves that is drawn from the samples."""
State = Literal["waiting", "approved", "refused"]
LEAST_KEY = 16
"""Digits of a question's digest that name it."""


@dataclass(frozen=True)
class Request:
    """What an operator is asked. Whatever a coordinator wrote is escaped here, for every place where it is
    printed.

    study: its digest. run: the number of the run that asked last. by: the federation and its coordinator's
    fingerprint.
    leaves: what would leave this site, as lines for its operator, or the error that its coordinator would
    read. at: when it
    first asked, or was decided. name: what the coordinator calls the run. trains: the model and how it is
    trained, in words.
    releases: what a yes lets leave. note: what the policy says of it now.
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
        """A digest of what is released and of the text that says so: a decision counts for this and nothing
        else."""
        shown = [self.releases, self.study, self.by, self.method, self.rounds, self.trains, self.leaves]
        return hashlib.sha256(json.dumps(shown).encode()).hexdigest()

    def text(self) -> str:
        """What the operator decides about."""
        lines = [f"run     {self.run}  ({self.state})"]
        lines += [f"name    {self.name}, as the coordinator calls it"] if self.name else []
        lines += [f"by      {self.by}", f"method  {self.method}, {self.rounds} rounds"]
        lines += [f"trains  {self.trains}"] if self.trains else []
        note = [self.note] if self.note else []
        return "\n".join((*lines, self.leaves, *note, f"digest  {self.key[:LEAST_KEY]}, of this question"))


def digest_of(settings: Settings, draws: bool) -> str:
    """16 hexadecimal digits that runs of one study have in common, whatever their number of sites.

    draws: whether single samples, or averages of some, leave. Other seeds would draw others, run by run all
    of them, so each seed is then a study of its own.
    """
    facts = settings.as_dict() | SAME_STUDY | ({} if draws else ANY_SEED)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def state_of(folder: Path, request: Request) -> State | None:
    """What was decided about exactly this; None if it was not asked yet."""
    known = _read_request(_request_file(folder, request))
    return known.state if known else None


def is_refused(folder: Path, study: str) -> bool:
    """Whether an operator has refused a study, or to have its error told."""
    return any(request.study == study and request.state == "refused" for request in all_requests(folder))


def bind(folder: Path, run: str, study: str) -> bool:
    """Whether a run's number stands for this study: it does for the first that asks under it, and for no
    other."""
    path = _study_file(folder, run)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(path, study)
    return path.read_text() == study


def ask(folder: Path, request: Request) -> bool:
    """Note that a run waits for a decision; whether its operator should be told, because it has not waited
    before."""
    known = _read_request(_request_file(folder, request))
    if known and (known.run == request.run or known.state != "waiting"):
        return False
    _write_request(folder, request)
    return True


def forget(folder: Path, run: str) -> None:
    """Take back the questions of a run that nobody has decided about."""
    for request in all_requests(folder):
        if request.run == run and request.state == "waiting":
            _request_file(folder, request).unlink(missing_ok=True)


def decide(folder: Path, run: str, state: State) -> Request:
    """Approve or refuse what a run asks, by the run's number or its beginning, or by the digest of the
    question.

    An approval is of one question, a refusal of all that the run asks. Raises UsageError (E503) if nothing is
    called that, or too much.
    """
    requests = all_requests(folder)
    bound = _study_file(folder, run).read_text() if run and _study_file(folder, run).exists() else None
    fitting = [replace(r, run=run) for r in requests if r.run == run or (bound and r.study == bound)]
    if not fitting and run:
        keyed = len(run) >= LEAST_KEY
        fitting = [r for r in requests if r.run.startswith(run) or (keyed and r.key.startswith(run))]
    runs = {request.run for request in fitting}
    if len(runs) == 1 and len(fitting) > 1 and state == "approved":
        digests = ", ".join(request.key[:LEAST_KEY] for request in fitting)
        raise UsageError("E503", f"run {run} asks several things; name one by its digest: {digests}.")
    if len(runs) != 1:
        numbers = list(dict.fromkeys(r.run for r in requests))
        listed = f"these have asked: {', '.join(numbers)}." if numbers else "no run has asked yet."
        which = "several runs begin with" if fitting else "no run has asked that is called"
        raise UsageError("E503", f"{which} '{run}'; {listed}{suggestion(run, numbers)}")
    decided = [replace(request, state=state, at=time.time()) for request in fitting]
    for request in decided:
        _write_request(folder, request)
    return decided[0]


def all_requests(folder: Path) -> list[Request]:
    """All studies that have asked, the latest first."""
    requests = [_read_request(path) for path in (folder / FOLDER).glob("*.json")]
    return sorted((r for r in requests if r), key=lambda r: -r.at)


def announce(folder: Path, say: Callable[[str], None], pause: Callable[[float], None] = time.sleep) -> None:
    """Tell the operator of every run that begins to wait, and what became of it, looking every two seconds
    without end."""
    announced: dict[tuple[str, str], Request] = {}
    while True:
        for request in all_requests(folder):
            if request.state == "waiting" and (request.run, request.key) not in announced:
                announced[request.run, request.key] = request
                say(f"a study asks for this site's data\n{request.text()}")
                where = f"{request.run} --folder {shlex.quote(str(folder))}"
                say(f"decide: unskew site approve {where}   or: unskew site refuse {where}")
        for key, request in list(announced.items()):
            if text := outcome(folder, request):
                say(text)
                del announced[key]
        pause(2.0)


def outcome(folder: Path, request: Request) -> str:
    """What became of a study that was waiting, in one line; "" while it waits."""
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
    """None if there is no such file, or if it is damaged: then the study asks anew."""
    try:
        facts: Mapping[str, Any] = json.loads(path.read_text())
        request = Request(**facts)
        return (
            request
            if request.state in ("waiting", "approved", "refused") and path.stem == request.key
            else None
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write_request(folder: Path, request: Request) -> None:
    (folder / FOLDER).mkdir(exist_ok=True, mode=0o700)
    disk.replace_private(_request_file(folder, request), json.dumps(asdict(request), indent=1))


MOST_PENDING = 20
FORGOTTEN_FILE = "forgotten"
"""The numbers of runs that had to make room, one a line."""
MOST_KNOWN = 10_000
"""How many of them are kept."""
_PENDING_FILES = {"serial", "study"}
"""What the folder of a run holds that has only asked."""


def make_room(folder: Path, run: str) -> list[str]:
    """Before a run that is new gets a folder: forget those that asked longest ago. Returns their numbers.

    Raises UsageError (E520) for a number that was forgotten.
    """
    if (folder / "runs" / run).exists():
        return []
    book = folder / FORGOTTEN_FILE
    known = book.read_text().split() if book.exists() else []
    if run in known:
        text = (
            f"run {run} had asked, and had to make room for {MOST_PENDING} later ones that asked; start a"
            " new run"
        )
        raise policy_refusal(text)
    asking = sorted((p for p in (folder / "runs").glob("*") if _is_pending(p)), key=_last_request)
    over = [path.name for path in asking[: max(0, len(asking) + 1 - MOST_PENDING)]]
    if over:
        disk.replace(book, "".join(f"{number}\n" for number in (*known, *over)[-MOST_KNOWN:]))
    for number in over:
        forget(folder, number)
        shutil.rmtree(folder / "runs" / number)
    return over


def _is_pending(path: Path) -> bool:
    return path.is_dir() and {p.name.partition(".")[0] for p in path.iterdir()} <= _PENDING_FILES


def _last_request(path: Path) -> float:
    return max((p.stat().st_mtime for p in path.iterdir()), default=path.stat().st_mtime)
