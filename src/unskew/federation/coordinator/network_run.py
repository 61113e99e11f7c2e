"""A run over a network at the coordinator, from its order to its ending.

The coordinator greets the sites, checks that their data fit together, and conducts the rounds with the
engine's loop. A run's folder has the simulator's form, with two more files: `sites.json` contains the run's
number and the participants, both fixed when the run begins, and `ending.json` the way it ended.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unskew import config, data
from unskew.config import Settings
from unskew.core.trees import Tree
from unskew.data.samples.reading_notes import abbreviate
from unskew.errors import Paused, StateError, Terminated, UnskewError, UsageError, printable
from unskew.federation.coordinator.correspondence import (
    POLL_S,
    UNDECIDED,
    Attendance,
    Channel,
    Contact,
    Correspondence,
)
from unskew.federation.coordinator.outliers import doubtful_counts, weight_lines
from unskew.federation.coordinator.site_exchange import SiteExchange, SiteScores
from unskew.federation.journal import JOURNAL_FILE, Journal
from unskew.federation.protocol.hello import (
    COORDINATOR,
    Hello,
    largest_group,
    version_differences,
    versions,
)
from unskew.federation.protocol.study_rules import (
    ServerView,
    check_noise,
    prepare,
    scaling_remedy,
    study_settings,
)
from unskew.federation.tickets import Coordinator
from unskew.methods import registry
from unskew.records.checkpoints import Checkpoint, State, digest
from unskew.records.private_state import CLIENTS, DiskStore
from unskew.records.record import Record
from unskew.records.rows import Row
from unskew.records.run_lock import RunLock
from unskew.round.loop import Loop, RoundSummary
from unskew.runs.assemble import scoring_of, trainer_of
from unskew.runs.disclosure import disclosure_lines
from unskew.runs.hardware import check_memory
from unskew.runs.resolve import run_on
from unskew.runs.run_folder import RunFolder, Say, Shown
from unskew.scores import latest
from unskew.system import disk
from unskew.system.unexpected_errors import explain

ORDER_FILE, ENDING, LOG = "deploy.json", "ending.json", "server.log"
"""Files of a run's folder: its order, the way it ended, and the lines that it has reported."""
RESUMABLE = ("E203", "E206", "E507")
"""Codes of errors after which a run is resumed as it is."""


@dataclass(frozen=True)
class Terms:
    """A run's terms for its sites.

    min_sites: a round with fewer replies changes nothing. deadline_s: longest wait of an exchange. wait_s:
    longest wait for missing sites before round 1. test: a test set at the server, an .npz or a folder.
    without: excluded sites.
    """

    min_sites: int = 1
    deadline_s: float = 600.0
    wait_s: float = 600.0
    test: str | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """path: the run's folder; federation: the coordinator's folder; settings: the study's."""

    path: Path
    federation: Path
    settings: Mapping[str, Any]
    terms: Terms

    def write(self) -> None:
        """Write the order into the run's folder."""
        places = {"path": str(self.path), "federation": str(self.federation)}
        facts = {**places, "settings": dict(self.settings), "terms": asdict(self.terms)}
        disk.replace(self.path / ORDER_FILE, json.dumps(facts, indent=1))

    @staticmethod
    def read(path: Path) -> Order:
        """The order in the folder of a run. Raises KeyError if something is missing."""
        facts = json.loads((path / ORDER_FILE).read_text())
        terms = Terms(**{**facts["terms"], "without": tuple(facts["terms"]["without"])})
        return Order(Path(facts["path"]), Path(facts["federation"]), facts["settings"], terms)


IN_EVERY_ROUND = ("E108",)
"""Code of a merge that is weaker than specified with few replies, reported in every round."""


@dataclass
class Notices:
    """Reports events: (round, code, sentence). Events that come before the
    record is open are added to it when it opens."""

    say: Callable[[str], None]
    _record: Record | None = None
    _early_events: list[Row] = field(default_factory=list)
    _codes: set[str] = field(default_factory=set)

    def __call__(self, t: int, code: str, text: str) -> None:
        text = printable(text)  # a name that a site chose could hold a line that looks like ours
        event: Row = {"t": t, "code": code, "text": text}
        if self._record:
            self._record.add("events", [event])
        else:
            self._early_events.append(event)
        self.say(f"{code} {text}")

    def on_event(self, t: int, code: str, text: str) -> None:
        """Show an event that the server's loop has recorded.

        Events before round 1 have been shown already, and events of every round are shown once.
        """
        if t and not (code in IN_EVERY_ROUND and code in self._codes):
            self.say(f"{code} {text}")
        self._codes.add(code)

    def open(self, record: Record) -> None:
        """Record all events from now on, and those so far, in this record."""
        self._record = record
        record.add("events", self._early_events)
        self._early_events = []


class RemoteStore(DiskStore):
    """The store of a run with private state at the sites: only the round of each site's counted state."""

    def facts(self) -> dict[str, Any]:
        """Every site with its round."""
        return {CLIENTS: sorted(self.index.items())}

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        return {}

    def sync(self) -> None:
        """Nothing to do, because sites sync their own files."""

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        self.index.update(dict.fromkeys(trees, t))

    def check(self) -> None:
        """Nothing to check, because sites check their own files."""

    def sweep(self) -> None:
        """Nothing to remove, because sites remove their own files."""


@dataclass
class NetworkFolder(RunFolder):
    """The folder of a run over a network. The caller holds its lock, because it also writes the journal."""

    post: Correspondence | None = None
    notices: Notices | None = None
    hellos: Sequence[Hello] = ()
    min_sites: int = 1
    saved_every_s = 0.0  # sites keep the state of few rounds, so the server may not go back by more

    def locked(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def store(self, checkpoint: Checkpoint | None) -> RemoteStore:
        return RemoteStore(self.path / "private", checkpoint[1] if checkpoint else None)

    def opened(self, checkpoint: Checkpoint | None) -> Loop:
        assert self.post is not None
        assert self.notices is not None
        record, store = self.record(checkpoint), self.store(checkpoint)
        self.notices.open(record)
        check_noise(self.run.method, self.run.fed)
        if (part := self.run.method.protector) and self.min_sites > 1:
            text = f"'{part.name}' counts every reply, so a round cannot need {self.min_sites} of them"
            raise UsageError("E506", f"{text}; leave --min-sites at 1.")
        check_memory(self.run.method, self.run.fed)
        local = trainer_of(self.run)
        sites = Attendance(self.post, local, self.hellos, self.run.settings, store, self.min_sites)
        scores = SiteScores(sites, scoring_of(local, self.run.federation), record)
        exchange = SiteExchange(sites, scores)
        if self.run.secure:
            from unskew.federation.coordinator.secure_exchange import SecureExchange  # which needs Flower

            exchange = SecureExchange(sites, scores, run=self.run)
        loop = Loop(self.run, exchange, scores, store, record)
        loop.deliveries = sites.deliveries
        loop.listener = self.notices.on_event
        return loop


ROSTER = "sites.json"
SIGNED_FILES = ("model.safetensors", "metrics.jsonl", "ledger.jsonl", "events.jsonl")
"""Files of a finished run with digests in the last line of its journal."""


def conduct(
    path: Path,
    settings: Settings,
    contact: Contact,
    terms: Terms,
    *,
    say: Say,
    shown: Shown = lambda state, round_: None,
    ready: Callable[[Loop], None] = lambda loop: None,
) -> tuple[Loop, State]:
    """Begin or resume a run over the network and take it to its end.

    say: for sentences; shown: called after every round; ready: called once, before the training. Raises
    UsageError (E504) if the sites do not fit together, Paused (E206) if too few of them answer, StateError
    (E110), without any change, if another process conducts the run.
    """
    path.mkdir(parents=True, exist_ok=True)
    with RunLock(path):  # before the journal is opened: two writers would break its chain
        roster = _read_roster(path)
        journal = Journal(path / JOURNAL_FILE, contact.key)
        try:
            settings = study_settings(settings)
            method = registry.parse(settings.method, settings.set)
            notices, run = Notices(say), roster[0] if roster else f"r{secrets.token_hex(8)}"
            post = Correspondence(run, contact, terms.deadline_s, notices, journal, path.name)
            hellos = _participants(post, settings, terms, roster[1] if roster else [], say)
            test = prepare(data.read(terms.test), settings) if terms.test else None
            federation = ServerView.of("sites", hellos, test)
            settings = settings.replace(clients=len(hellos))
            if not roster:
                for hello in [h for h in hellos if h.unscaled]:
                    text = f"{hello.site}: its samples look unscaled, and the method takes them as they are"
                    remedy = scaling_remedy(method, hello.layout, summed=settings.secure is not None)
                    post.tell(0, "E504", f"{text}; {remedy}.")
                facts = {"run": run, "sites": [h.as_json() for h in hellos]}
                disk.replace(path / ROSTER, json.dumps(facts, indent=1))
            say("\n".join(weight_lines(hellos, method, settings)))
            resolved = run_on(federation, settings, method)
            folder = NetworkFolder(path, resolved, post, notices, hellos, terms.min_sites)
            loop, state = folder.go(say, shown, ready)
            files = {name: disk.sha256(path / name) for name in SIGNED_FILES if (path / name).exists()}
            journal.note("done", rounds=state.t, model=digest(state.weights), files=files)
            return loop, state
        except UnskewError as error:
            with suppress(Paused):  # the error may be that nothing can be written any more
                journal.note("stopped", code=error.code, text=error.text)
            raise
        finally:
            journal.close()


def _read_roster(path: Path) -> tuple[str, list[Hello]] | None:
    """The number of the run in this folder and the sites' first descriptions; None if it has not begun.

    Raises StateError (E201) if a run has lost them, or its journal: under a new number the sites would count
    it as another run, and they refuse serial numbers that they have seen.
    """
    roster, journal = path / ROSTER, path / JOURNAL_FILE
    if not roster.exists() and not any(path.glob("state*.safetensors")):
        return None
    try:
        facts = json.loads(roster.read_text())
        hellos = [Hello.read(h) for h in facts["sites"]]
        if not journal.stat().st_size:
            raise FileNotFoundError(journal)
        return disk.check_name(facts["run"]), hellos
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        text = f"{roster} and {journal.name} do not say which run this is ({type(error).__name__})"
        remedy = "put them back as they were, or start again under another --name."
        raise StateError("E201", f"{text}; {remedy}") from None


def _participants(
    post: Correspondence, settings: Settings, terms: Terms, before: list[Hello], say: Say
) -> list[Hello]:
    """The sites of a run, in the order of client ids. before: those of a resumed run."""
    assert post.journal
    first_note = {"run": post.run, "settings": settings.as_dict(), "sites": list(post.contact.sites)}
    post.journal.note("resumed" if before else "begun", **first_note)
    for site in terms.without:
        post.leave_out(site, "E311", f"{site} is left out of this run from now on, as --without asks.")
    expected = [h.site for h in before] or list(post.contact.sites)
    present = _gather(post, settings, terms, expected, say)
    if not before:
        return _new_sites(post, present, terms)
    _report_versions(post, present.values())
    return before


def _gather(
    post: Correspondence, settings: Settings, terms: Terms, expected: list[str], say: Say
) -> dict[str, Hello]:
    """The descriptions of all sites, or of those present after `wait_s` seconds, in the expected order.

    Raises Paused (E206) if too few sites are present, UsageError with a site's code if too few want to take
    part.
    """
    until, present, reported = time.monotonic() + terms.wait_s, dict[str, Hello](), ""
    end = time.strftime("%H:%M:%S", time.localtime(time.time() + terms.wait_s))
    while True:
        hellos = post.greet(settings.as_dict())
        present |= {s: hello for s, hello in hellos.items() if s in expected and s not in post.left_out}
        undecided = [s for s in expected if s in post.refusals and post.refusals[s].code == UNDECIDED]
        out = post.left_out | post.refusals.keys() - {*undecided} | present.keys()
        missing = [site for site in expected if site not in out]
        away = [site for site in missing if site not in undecided]
        waiting = [f"for {abbreviate(away, 6)}"] if away else []
        waiting += [f"for approval at {abbreviate(undecided, 6)}"] if undecided else []
        text = f"{len(present)}/{len(expected)} sites are there"
        text += f"; waiting {' and '.join(waiting)} until {end} at most" if waiting else ""
        if text != reported:
            reported = text
            say(text)
        if not missing or time.monotonic() >= until:
            break
        time.sleep(POLL_S)
    if len(present) < terms.min_sites or not present:
        absent = [site for site in expected if site not in present]
        text = f"{len(present)} of {len(expected)} sites take part; {terms.min_sites} are needed."
        if missing or absent[0] not in post.refusals:
            raise Paused("E206", f"{text} Missing: {abbreviate(absent, 6)}.")
        refusal = post.refusals[absent[0]]  # waiting is useless, because the absent sites have refused
        raise UsageError(refusal.code, f"{text} {absent[0]} refuses: {refusal.text}")
    if missing:
        say(f"the wait is over; the run goes on without {abbreviate(missing, 6)}")
    return {site: present[site] for site in expected if site in present}


def _new_sites(post: Correspondence, present: Mapping[str, Hello], terms: Terms) -> list[Hello]:
    """The sites of a new run: those that fit together. The others are reported and left out of it."""
    doubted = doubtful_counts(list(present.values()))
    out = {site: ("E305", f"{text}, too few to train with it") for site, text in doubted.items()}
    hellos, misfits = largest_group([h for h in present.values() if h.site not in out])
    out |= {site: ("E504", text) for site, text in misfits.items()}
    _check_enough(len(hellos), out, terms)
    for site, (code, text) in out.items():
        post.leave_out(site, code, f"{text}. {site} is left out of this run.")
    _report_versions(post, hellos)
    return hellos


def _report_versions(post: Correspondence, hellos: Iterable[Hello]) -> None:
    """Report each site with other versions that can change a run's bits."""
    for hello in hellos:
        if text := version_differences(COORDINATOR, versions(), hello.site, hello.versions):
            post.tell(0, "E504", f"{text}.")


def _check_enough(left: int, out: Mapping[str, tuple[str, str]], terms: Terms) -> None:
    """Raises UsageError if too few sites are left. out: (code, reason) by excluded site."""
    needed = max(1, terms.min_sites)
    if out and left < needed:
        code, text = next(iter(out.values()))
        raise UsageError(code, f"{text}. {left} sites would be left, and {needed} are needed.")


@disk.private_files()  # the run's files contain data from sites
def conduct_order(channel: Channel, order: Order, show: Callable[[str], None]) -> None:
    """Conduct a run and write its `ending.json`, which is missing only if this process is killed.

    show: receives the lines of `server.log`. Raises the error that ended the run, as an UnskewError if it is
    of this machine.
    """
    order.path.mkdir(parents=True, exist_ok=True)
    began, state, code, text = time.time(), "stopped", 2, ""
    with open(order.path / LOG, "a", opener=disk.refuse_link) as log:

        def say(text: str) -> None:
            with suppress(OSError):  # neither a full disk under a log nor a closed terminal ends the run
                line = f"{time.strftime('%H:%M:%S')} {text}"
                print(line, file=log, flush=True)
                show(line)

        try:
            _conduct_federation(channel, order, say)
            state, code, text = "done", 0, "done"
            show(text)
        except (UnskewError, OSError) as error:
            known = explain(error)
            if known.code in RESUMABLE:
                known = type(known)(known.code, known.text + _resume_hint(order))
            code, text = known.exit_code, str(known)
            raise known from None
        except (Terminated, KeyboardInterrupt):
            text = "E507 the run ended on request, or because Flower found that the clock jumped; every"
            text += f" finished round is saved.{_resume_hint(order)}"
            raise
        except BaseException as error:
            state, code, text = "failed", 1, f"{type(error).__name__}: {error}"
            raise
        finally:
            with suppress(OSError):
                print(text, file=log, flush=True)
            if not text.startswith("E110"):  # else another process conducts this run, and writes it
                ending = {"state": state, "code": code, "text": text, "began": began}
                with suppress(Paused):
                    disk.replace(order.path / ENDING, json.dumps(ending))


def _resume_hint(order: Order) -> str:
    return f" Resume with: {config.resume_command(order.path, config.build(dict(order.settings)))}"


def _conduct_federation(channel: Channel, order: Order, say: Say) -> None:
    home = Coordinator.open(Path(order.federation))
    contact = Contact.of(home, channel)
    if uninvited := [site for site in home.sites if site not in contact.sites]:
        say(f"not admitted, and not waited for: {abbreviate(uninvited, 6)}")
    settings, loops = config.from_dict(dict(order.settings)), list[Loop]()

    def ready(loop: Loop) -> None:
        loops.append(loop)
        say("\n".join(disclosure_lines(loop)))

    def shown(state: State, done: RoundSummary) -> None:
        dropped = f", {done.dropped} dropped" if done.dropped else ""
        line = f"round {done.t}: {done.answered}/{done.asked} sites{dropped}, {done.seconds:.1f} s"
        scores = latest(loops[0].record.latest, loops[0].fed.task.main_score, done.t)
        say("  ".join([line, *scores]))

    conduct(order.path, settings, contact, order.terms, say=say, shown=shown, ready=ready)
