"""Studies that have asked for a site's data, and what its operator has decided: one file each in `studies/` of its folder."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from unskew import disk
from unskew.config import Settings
from unskew.errors import UsageError, suggestion

FOLDER = "studies"
SAME_STUDY = {"clients": 2, "workers": 0, "device": "cpu", "lanes": "1"}
"""Settings that another run of the same study may change, and what stands for them in the study's digest."""
ANY_SEED = {"seed": 0, "partition_seed": None}
"""The same for studies in which nothing leaves that is drawn from the samples."""
State = Literal["waiting", "approved", "refused"]


@dataclass(frozen=True)
class Request:
    """A study that asks. run: the number of the run that asked last. by: the federation and its coordinator's fingerprint.

    leaves: what would leave this site, as lines for its operator. at: when it first asked, or was decided. name: what the
    coordinator calls the run. trains: the model and how it is trained, in words.
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

    def text(self) -> str:
        """What the operator decides about."""
        lines = [f"run     {self.run}  ({self.state})"]
        lines += [f"name    {self.name}, as the coordinator calls it"] if self.name else []
        lines += [f"by      {self.by}", f"method  {self.method}, {self.rounds} rounds"]
        lines += [f"trains  {self.trains}"] if self.trains else []
        return "\n".join((*lines, self.leaves))


def digest_of(settings: Settings, draws: bool) -> str:
    """16 hexadecimal digits that runs of one study have in common, whatever their number of sites.

    draws: whether single samples, or averages of some, leave. Other seeds would draw others, run by run all of them, so
    each seed is then a study of its own.
    """
    facts = settings.as_dict() | SAME_STUDY | ({} if draws else ANY_SEED)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def state_of(folder: Path, study: str) -> State | None:
    """What was decided about a study; None if it has not asked yet."""
    request = _read(_path(folder, study))
    return request.state if request else None


def bind(folder: Path, run: str, study: str) -> bool:
    """Whether a run's number stands for this study: it does for the first that asks under it, and for no other."""
    path = _bound(folder, run)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(path, study)
    return path.read_text() == study


def ask(folder: Path, request: Request) -> bool:
    """Note that a run waits for a decision; whether its operator should be told, because it has not waited before."""
    known = _read(_path(folder, request.study))
    if known and (known.run == request.run or known.state != "waiting"):
        return False
    _write(folder, request)
    return True


def forget(folder: Path, run: str) -> None:
    """Take back the question of a run that nobody has decided about."""
    for request in everything(folder):
        if request.run == run and request.state == "waiting":
            _path(folder, request.study).unlink(missing_ok=True)


def decide(folder: Path, run: str, state: State) -> Request:
    """Approve or refuse the study of a run, by the run's number or, if no run is called that, its beginning.

    Raises UsageError (E503) if no such run has asked, or several have.
    """
    requests = everything(folder)
    bound = _bound(folder, run).read_text() if run and _bound(folder, run).exists() else None
    exact = [replace(r, run=run) for r in requests if (r.study == bound if bound else r.run == run)]
    begin = [r for r in requests if r.run.startswith(run)] if run and not bound else []
    fitting = exact or begin
    if len(fitting) != 1:
        numbers = [r.run for r in requests]
        listed = f"these have asked: {', '.join(numbers)}." if numbers else "no run has asked yet."
        which = "several runs begin with" if fitting else "no run has asked that is called"
        raise UsageError("E503", f"{which} '{run}'; {listed}{suggestion(run, numbers)}")
    request = replace(fitting[0], state=state, at=time.time())
    _write(folder, request)
    return request


def everything(folder: Path) -> list[Request]:
    """All studies that have asked, the latest first."""
    requests = [_read(path) for path in (folder / FOLDER).glob("*.json")]
    return sorted((r for r in requests if r), key=lambda r: -r.at)


def announce(folder: Path, say: Callable[[str], None], pause: Callable[[float], None] = time.sleep) -> None:
    """Tell the operator of every run that begins to wait, and what became of it, looking every two seconds without end."""
    announced: dict[tuple[str, str], Request] = {}
    while True:
        for request in everything(folder):
            if request.state == "waiting" and (request.run, request.study) not in announced:
                announced[request.run, request.study] = request
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
    state = state_of(folder, request.study)
    if state == "waiting":
        return ""
    if state is None:
        return f"run {request.run} waits no more: later runs have asked, and nobody had decided about it"
    what = "begins when the coordinator asks again" if state == "approved" else "gets nothing from this site"
    return f"{state}: run {request.run} {what} ({request.method}, {request.rounds} rounds)"


def _bound(folder: Path, run: str) -> Path:
    return folder / "runs" / run / "study"


def _path(folder: Path, study: str) -> Path:
    return folder / FOLDER / f"{study}.json"


def _read(path: Path) -> Request | None:
    """None if there is no such file, or if it is damaged: then the study asks anew."""
    try:
        facts: Mapping[str, Any] = json.loads(path.read_text())
        request = Request(**facts)
        return request if request.state in ("waiting", "approved", "refused") and path.stem == request.study else None
    except (OSError, ValueError, TypeError):
        return None


def _write(folder: Path, request: Request) -> None:
    (folder / FOLDER).mkdir(exist_ok=True, mode=0o700)
    disk.replace_private(_path(folder, request.study), json.dumps(asdict(request), indent=1))
