"""The studies that have asked for a site's data, and the operator's decisions: one file each in `studies/` of
the site's folder.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from unskew.config import Settings
from unskew.errors import UsageError, printable, suggestion
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


def digests_of(settings: Settings) -> list[str]:
    """The digests of a study whose samples do not leave, and of one whose samples do."""
    return [digest_of(settings, draws) for draws in (False, True)]


def state_of(folder: Path, request: Request) -> State | None:
    """The decision about exactly this request; None if it is new."""
    previous = _read_request(_request_file(folder, request))
    return previous.state if previous else None


def is_refused(folder: Path, study: str) -> bool:
    """True if an operator has refused a study or the release of its error."""
    return any(request.study == study and request.state == "refused" for request in all_requests(folder))


def bind(folder: Path, run: str, settings: Settings) -> bool:
    """Bind a run's number to the first study that uses it. False if the number belongs to another study."""
    path, study = _study_file(folder, run), " ".join(digests_of(settings))
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
    request or several fit, also where a coordinator has named a run like the digest of another's request.
    """
    requests = all_requests(folder)
    file = _study_file(folder, run)
    studies = file.read_text().split() if file.is_file() else []
    by_digest = [r for r in requests if len(run) >= LEAST_KEY and r.key.startswith(run)]
    by_run = [replace(r, run=run) for r in requests if r.run == run or r.study in studies]
    by_run = by_run or [r for r in requests if run and r.run.startswith(run)]
    matches = list({request.key: request for request in (*by_digest, *by_run)}.values())
    runs = {request.run for request in matches}
    if len(runs) == 1 and len(matches) > 1 and state == "approved":
        digests = ", ".join(request.key[:LEAST_KEY] for request in matches)
        raise UsageError("E503", f"run {run} asks several things; name one by its digest: {digests}.")
    if len(runs) != 1:
        numbers = list(dict.fromkeys(r.run for r in requests))
        all_runs = f"these have asked: {', '.join(numbers)}." if numbers else "no run has asked yet."
        which = "several runs can be meant by" if matches else "no run has asked that is called"
        raise UsageError("E503", f"{which} '{run}'; {all_runs}{'' if matches else suggestion(run, numbers)}")
    decided = [replace(request, state=state, at=time.time()) for request in matches]
    for request in decided:
        _write_request(folder, request)
    return decided[0]


def all_requests(folder: Path) -> list[Request]:
    """All requests, the latest first."""
    requests = [_read_request(path) for path in (folder / FOLDER).glob("*.json")]
    return sorted((r for r in requests if r), key=lambda r: -r.at)


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
