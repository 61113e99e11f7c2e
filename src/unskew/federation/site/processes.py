"""The processes of `unskew site run`: this process has the connection, and a worker has the data.

The worker may hang, be killed or take minutes to load its data without a loss of the connection.
`SiteMetrics` counts every exchange for Prometheus.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unskew.errors import UnskewError, UsageError, code_pages, printable
from unskew.federation import programs
from unskew.federation.programs import Program, RareSay, Say, configure_malloc, stop_at_end
from unskew.federation.prometheus import Metric, counter, gauge
from unskew.federation.protocol.signed_messages import SOCKET, SignedMessage, ask_worker
from unskew.federation.site import approvals
from unskew.federation.site.site_checks import rejection
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.site.site_ledger import SPENT_FILE, SiteLedger
from unskew.version import __version__

if TYPE_CHECKING:
    from unskew.federation.site.connection import AnswerLoop

CONNECTED = "connected to the server"
SILENT_CODES = ("E522", "E205")
"""A study that waits is announced by itself; a run that this site has forgotten is set up again by itself."""
KINDS = ("hello", "setup", "train", "visit", "score", "share", "mask", "agree", "open")
OTHER = "other"
"""Label for an unknown kind or code, so that the coordinator cannot add labels to a site's figures."""
Answer = Callable[[SignedMessage, float], SignedMessage]


def terminal_line(folder: Path, answer: SignedMessage) -> str:
    """The result of a request for the site's operator; "" if there is none. folder: the site's."""
    try:
        header = json.loads(answer.text)
        run, t, kind = (header.get(name) for name in ("run", "t", "kind"))
        if code := header.get("code"):
            where = f"run {run}" if "run" in header else "a request"
            text = printable(f"{where} was not answered: {code} {header.get('text', '')}")
            return "" if code in SILENT_CODES else text
        if kind == "hello":
            return f"run {run} was told how many samples this site holds, their shape and the classes"
        facts = json.loads((folder / SPENT_FILE).read_text())[run]
        rounds = f"round {t} of {facts['rounds']}"
        if kind == "setup":
            return f"run {run} begins: {facts['method']}, {facts['rounds']} rounds"
        if kind == "train":
            loss = header.get("loss")  # 0 replaces a loss that is withheld because no noise covers it
            text = f", mean loss {loss:.4g}" if isinstance(loss, int | float) and loss else ""
            return f"run {run}, {rounds}: trained on {header['n']:,.0f} samples{text}"
        if kind == "visit":
            return f"run {run}, after {rounds}: sent what the method shares beside the weights"
        if kind == "mask":
            return f"run {run}, {rounds}: sent masked numbers, of which only the sum over sites can be read"
        if kind != "score":
            return ""  # steps of a sum between the training and the next round
        if t == facts["rounds"]:
            return f"run {run} is over: {rounds} scored, {facts['bytes'] / 1e6:,.1f} MB have left in all"
        return f"run {run}, {rounds}: scored on this site's test samples"
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        return ""  # a report must not stop an answer


@dataclass
class SiteMetrics:
    """Counts of a site since its start. folder: the site's. last: end of its last round; 0 for never."""

    folder: Path
    last: float = 0.0
    requests: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    seconds: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict(float, dict.fromkeys(KINDS, 0.0))
    )
    bytes: Counter[str] = field(default_factory=lambda: Counter({"in": 0, "out": 0}))
    refusals: Counter[str] = field(default_factory=Counter[str])
    failures: int = 0
    answering: AnswerLoop | None = None
    worker: Program | None = None

    def with_counts(self, answer: Answer) -> Answer:
        """The function `answer`, with a count of every request and reply."""

        def count_exchange(request: SignedMessage, budget_s: float) -> SignedMessage:
            start = time.monotonic()
            self.bytes["in"] += request.size
            try:
                reply = answer(request, budget_s)
            except OSError:
                self.failures += 1
                raise
            self.bytes["out"] += reply.size
            self._count(json.loads(reply.text), time.monotonic() - start)
            return reply

        return count_exchange

    def metrics(self) -> list[Metric]:
        waiting = sum(request.state == "waiting" for request in approvals.all_requests(self.folder))
        connected, losses = False, 0
        if self.answering:
            connected, losses = self.answering.connected, self.answering.losses
        restarts = {"worker": self.worker.restarts if self.worker else 0}
        said = "Answers that refuse, or say that something failed, by code."
        failed = "Requests without an answer: the worker was killed or too slow."
        trained = "When it last trained; 0 before the first time."
        figures = [
            gauge("build_info", "The version of unskew.", {__version__: 1}, "version"),
            gauge("connected", "Whether the server is connected.", connected),
            counter("connection_losses", "Connections that were lost.", losses),
            counter("requests", "Requests that were answered, by kind.", self.requests, "kind"),
            counter("request_seconds", "Seconds that these requests took.", self.seconds, "kind"),
            counter("refusals", said, self.refusals, "code"),
            counter("failures", failed, self.failures),
            counter("rounds", "Rounds in which this site has trained.", self.requests["train"]),
            gauge("last_round_timestamp_seconds", trained, self.last),
            counter("message_bytes", "Bytes of requests (in) and answers (out).", self.bytes, "direction"),
            counter("restarts", "Programs that were started again.", restarts, "program"),
            gauge("studies_waiting", "Studies that wait for the operator.", waiting),
        ]
        with suppress(UnskewError):  # an unreadable ledger shows in the count of refusals (E521)
            ledger = SiteLedger.read(self.folder)
            figures += [
                gauge("runs_begun", "Runs that have begun at this site, ever.", len(ledger.runs)),
                gauge("epsilon_spent", "Differential privacy spent in all runs, ever.", ledger.epsilon),
                gauge("delta_spent", "The sum of the deltas at which that holds.", ledger.delta),
            ]
        return figures

    def problem(self) -> str:
        """The program that is not running; "" if all run. An unreachable server is no problem of this."""
        return "" if self.worker is None or self.worker.is_running else "not running: the worker"

    def _count(self, header: dict[str, object], seconds: float) -> None:
        """Count a reply by the header of this site's own answer."""
        kind, code = (str(header.get(name, "")) for name in ("kind", "code"))
        if code:
            self.refusals[code if code in code_pages() else OTHER] += 1
            return
        kind = kind if kind in KINDS else OTHER
        self.requests[kind] += 1
        self.seconds[kind] += seconds
        if kind == "train":
            self.last = time.time()


HOPELESS = (2, 3)
"""Exit codes of a worker with invalid arguments or data, which a restart cannot fix."""
GOODBYE_S = 5.0
"""Longest time in seconds to sign off at the server."""


@dataclass
class SiteProcesses:
    """The programs of `unskew site run`."""

    joined: SiteFolder
    data: str
    classes: str = ""
    model: str | None = None
    device: str = "cpu"
    say: Say = print
    approve: str = "ask"
    form: programs.LogForm = "text"
    figures: SiteMetrics = field(default_factory=lambda: SiteMetrics(Path()))

    def __post_init__(self) -> None:
        self.say = RareSay(self.say, always=CONNECTED)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Answer the server's requests until stopped.

        Raises UsageError (E503) if the server will never accept this site, the worker's own UnskewError if
        it rejects its arguments or its data, which a restart cannot fix, and UnskewError (E507) if the
        connection's thread has ended.
        """
        configure_malloc()
        ticket = self.joined.ticket
        if reason := rejection(self.joined):
            raise UsageError("E503", f"{ticket.place}: {reason}")
        with tempfile.TemporaryDirectory(prefix="unskew-") as private:
            path = Path(private) / "worker"
            worker = self._worker(path)
            self.figures.worker = worker
            with stop_at_end(worker):
                while not path.exists():  # the server sees this site once it has its data
                    self._tend(worker)
                    if until():
                        return
                self._take_part(path, worker, until)

    def _take_part(self, path: Path, worker: Program, until: Callable[[], bool]) -> None:
        from unskew.federation.site.connection import AnswerLoop, Fleet

        site = self.joined.ticket.site
        answer = partial(self._answer, path)
        answering = AnswerLoop(Fleet(self.joined), self.figures.with_counts(answer), self.say, site)
        self.figures.answering = answering
        thread = threading.Thread(target=answering.run, daemon=True)
        thread.start()
        try:
            while not until():
                if not thread.is_alive():
                    text = "this site's connection ended unexpectedly; start `unskew site run` again."
                    raise UnskewError("E507", text)
                self._tend(worker)
        finally:
            answering.over.set()
            worker.stop()  # or a request that it works on would keep the connection
            thread.join(GOODBYE_S)

    def _answer(self, path: Path, request: SignedMessage, within_s: float) -> SignedMessage:
        """The worker's answer, which is reported to the operator. Raises OSError if there is none."""
        answer = ask_worker(path, self.joined.folder, request, within_s)
        if text := terminal_line(self.joined.folder, answer):
            self.say(text)
        return answer

    def _tend(self, worker: Program) -> None:
        """Keep the worker running. Raises its own UnskewError if a restart cannot help."""
        code = worker.tend(self.say)
        if code in HOPELESS:
            error = UnskewError(*(programs.last_error(worker.log) or ("E507", "the worker ended.")))
            error.exit_code = code
            raise error
        time.sleep(0.2)

    def _worker(self, address: Path) -> Program:
        folder = self.joined.folder
        env = programs.environment(folder / "flower", **{SOCKET: str(address)})
        options = ["--classes", self.classes] if self.classes else []
        options += ["--model", self.model] if self.model else []
        options += ["--device", self.device, "--approve", self.approve]
        module = ["-P", "-m", "unskew.federation.site.worker"]
        command = [sys.executable, *module, str(folder), self.data, *options]
        return Program("the worker", command, env, folder / "worker.log", self.form, hopeless=HOPELESS)
