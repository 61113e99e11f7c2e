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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from unskew import config, data
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.trees import Tree
from unskew.data.samples.dataset import Dataset
from unskew.errors import Paused, StateError, UnskewError, UsageError, printable
from unskew.federation import admission
from unskew.federation.admission import AdmittedKeys
from unskew.federation.coordinator.correspondence import (
    POLL_S,
    UNDECIDED,
    Attendance,
    Channel,
    Contact,
    Correspondence,
    list_names,
)
from unskew.federation.coordinator.orders import ENDING, Order, Terms
from unskew.federation.coordinator.outliers import doubtful_counts, weight_lines
from unskew.federation.coordinator.site_exchange import SiteExchange, SiteScores
from unskew.federation.journal import JOURNAL_FILE, Journal, file_sha256
from unskew.federation.protocol.hello import (
    COORDINATOR,
    Hello,
    data_change,
    largest_group,
    part_versions,
    version_conflict,
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
from unskew.round.run import Run
from unskew.runs.assemble import scoring_of, trainer_of
from unskew.runs.disclosure import disclosure_lines
from unskew.runs.hardware import check_memory
from unskew.runs.resolve import run_on
from unskew.runs.run_folder import RunFolder, Say, Shown
from unskew.scores import latest
from unskew.system import disk
from unskew.system.failures import explain

IN_EVERY_ROUND = ("E108",)
"""Code of a merge that is weaker than specified with few replies, reported in every round."""


@dataclass
class Notices:
    """Reports events, called with (round, code, sentence). Events before the record is open are recorded when
    it opens.
    """

    say: Callable[[str], None]
    _record: Record | None = None
    _early_events: list[Row] = field(default_factory=list)
    _codes: set[str] = field(default_factory=set)

    def __call__(self, t: int, code: str, text: str) -> None:
        text = printable(
            text
        )  # a site names its tensors, and a name may hold a line that looks like another of ours
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
    """The store of a run with private state at the sites: it contains only the round of each site's counted
    state.
    """

    def facts(self) -> dict[str, Any]:
        """Every site with its round."""
        return {CLIENTS: sorted(self.index.items())}

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        return {}

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        self.index.update(dict.fromkeys(trees, t))

    def check(self) -> None:
        """Nothing to check, because sites check their own files."""

    def sweep(self) -> None:
        """Nothing to remove, because sites remove their own files."""


@dataclass
class NetworkFolder(RunFolder):
    """The folder of a run over a network. The caller already holds its lock, because it also writes the
    journal.
    """

    post: Correspondence | None = None
    notices: Notices | None = None
    hellos: Sequence[Hello] = ()
    min_sites: int = 1

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
            text = (
                f"'{part.name}' counts every reply whatever the others do, so a round cannot need"
                f" {self.min_sites} of them"
            )
            raise UsageError("E506", f"{text}; leave --min-sites at 1.")
        check_memory(self.run.method, self.run.fed)
        local = trainer_of(self.run)
        sites = Attendance(self.post, local, self.hellos, self.run.settings, store, self.min_sites)
        scores = SiteScores(sites, scoring_of(local, self.run.federation), record)
        loop = Loop(self.run, self._exchange(sites, scores), scores, store, record)
        loop.listener = self.notices.on_event
        return loop

    def _exchange(self, sites: Attendance, scores: SiteScores) -> SiteExchange:
        """The exchange with the sites, for single replies or for sums of them."""
        if not self.run.secure:
            return SiteExchange(sites, scores)
        from unskew.federation.coordinator.secure_exchange import SecureExchange  # which needs Flower

        return SecureExchange(sites, scores, run=self.run)


ROSTER = "sites.json"
_PUT_BACK = "put the file back as it was, or start again under another --name."
SIGNED_FILES = ("model.safetensors", "metrics.jsonl", "ledger.jsonl", "events.jsonl")
"""Files of a finished run with digests in the last line of its journal."""


@dataclass(frozen=True)
class Listeners:
    """Callbacks of a run. say: for sentences; shown: after every round; ready: once, before the training."""

    say: Say
    shown: Shown = lambda state, round_: None
    ready: Callable[[Loop], None] = lambda loop: None


def conduct(
    path: Path, settings: Settings, contact: Contact, terms: Terms, listeners: Listeners
) -> tuple[Loop, State]:
    """Begin or resume a run over the network and take it to its end.

    Raises UsageError (E504) if the sites do not fit together, Paused (E206) if too few of them answer,
    StateError (E110), without any change, if another process conducts the run.
    """
    path.mkdir(parents=True, exist_ok=True)
    with RunLock(path):  # before the journal is opened: two writers would break its chain
        _check_records(path)
        journal = Journal(path / JOURNAL_FILE, contact.key)
        try:
            return _conduct(
                path,
                study_settings(settings),
                Correspondence("new", contact, terms.deadline_s, journal=journal),
                terms,
                listeners,
            )
        except UnskewError as error:
            with suppress(Paused):  # the error may be that nothing can be written any more
                journal.note("stopped", code=error.code, text=error.text)
            raise
        finally:
            journal.close()


def _conduct(
    path: Path, settings: Settings, post: Correspondence, terms: Terms, listeners: Listeners
) -> tuple[Loop, State]:
    assert post.journal is not None
    notices = Notices(listeners.say)
    post.tell, post.name = notices, path.name
    method = registry.parse(settings.method, settings.set)
    post.versions = versions() | part_versions(method)
    roster = _read_roster(path)
    post.run, hellos = roster or (f"r{secrets.token_hex(8)}", [])
    expected = [h.site for h in hellos] or list(post.contact.sites)
    first_note = {"run": post.run, "settings": settings.as_dict(), "sites": list(post.contact.sites)}
    post.journal.note("resumed" if roster else "begun", **first_note)
    for site in terms.without:
        post.leave_out(site, "E311", f"{site} is left out of this run from now on, as --without asks.")
    present = _gather(post, settings, terms, expected, listeners.say)
    hellos = (
        _known_sites(post, hellos, present, terms) if roster else _new_sites(post, expected, present, terms)
    )
    test = prepare(_test_set(terms.test), settings) if terms.test else None
    federation = ServerView.of("sites", hellos, test)
    settings = settings.replace(clients=len(hellos))
    if not roster:
        _report_unscaled(post, hellos, method, settings)
        facts = {"run": post.run, "sites": [h.as_json() for h in hellos]}
        disk.replace(path / ROSTER, json.dumps(facts, indent=1))
    listeners.say("\n".join(weight_lines(hellos, method, settings, post.contact.bounds)))
    folder = NetworkFolder(path, _build(federation, settings, method), post, notices, hellos, terms.min_sites)
    loop, state = folder.go(listeners.say, listeners.shown, listeners.ready)
    files = {name: file_sha256(path / name) for name in SIGNED_FILES if (path / name).exists()}
    post.journal.note("done", rounds=state.t, model=digest(state.weights), files=files)
    return loop, state


def _build(federation: ServerView, settings: Settings, method: Method) -> Run:
    """The run. Raises UsageError, which names a site, if the model does not fit the sites' samples."""
    try:
        return run_on(federation, settings, method)
    except UsageError as error:
        if not federation.layout or error.code != "E123":
            raise
        site = federation.names[0] if federation.names else "sites"
        raise UsageError(
            error.code, f"the model here does not fit the samples of {site}: {error.text}"
        ) from None


def _read_roster(path: Path) -> tuple[str, list[Hello]] | None:
    """The number of the run in this folder and the sites' first descriptions; None if it has not begun.

    Raises StateError (E201) for a damaged file.
    """
    if not (path / ROSTER).exists():
        return None
    try:
        facts = json.loads((path / ROSTER).read_text())
        return disk.check_name(facts["run"]), [Hello.read(h) for h in facts["sites"]]
    except (ValueError, KeyError, TypeError, AttributeError, UsageError):
        raise StateError("E201", f"{path / ROSTER} does not say which run this is; {_PUT_BACK}") from None


def _check_records(path: Path) -> None:
    """Raises StateError if a run has lost its number (E201) or the serial numbers of its requests (E201).

    Under a new number the sites would count the run as another one.
    """
    first_note, journal = (path / ROSTER).exists(), path / JOURNAL_FILE
    if not first_note and any(path.glob("state*.safetensors")):
        raise StateError(
            "E201",
            f"{path / ROSTER} is gone, which holds the number by which sites know the run; {_PUT_BACK}",
        )
    if first_note and not (journal.exists() and journal.stat().st_size):
        text = (
            f"{journal} is gone, from which requests are numbered, and sites refuse numbers that they have"
            " seen"
        )
        raise StateError("E201", f"{text}; {_PUT_BACK}")


def _gather(
    post: Correspondence, settings: Settings, terms: Terms, expected: list[str], say: Say
) -> dict[str, Hello]:
    """The descriptions of all sites, or of those present after `wait_s` seconds.

    Raises Paused (E206) if too few sites are present, UsageError with a site's code if too few want to take
    part.
    """
    until, present, reported = time.monotonic() + terms.wait_s, {}, (-1, list[str]())
    while True:
        hellos = post.greet(settings.as_dict())
        present |= {s: hello for s, hello in hellos.items() if s in expected and s not in post.left_out}
        undecided = [s for s in expected if s in post.refusals and post.refusals[s].code == UNDECIDED]
        out = post.left_out | post.refusals.keys() - {*undecided} | present.keys()
        missing = [site for site in expected if site not in out]
        if missing and reported[0] < 0:
            end = time.strftime("%H:%M:%S", time.localtime(time.time() + terms.wait_s))
            say(f"missing sites are waited for until {end} at most")
        if (len(missing), undecided) != reported:
            reported = len(missing), undecided
            say(f"{len(present)}/{len(expected)} sites are there{_waiting(missing, undecided)}")
        if not missing or time.monotonic() >= until:
            break
        time.sleep(POLL_S)
    if len(present) < terms.min_sites or not present:
        absent = [site for site in expected if site not in present]
        text = f"{len(present)} of {len(expected)} sites take part; {terms.min_sites} are needed."
        if missing or absent[0] not in post.refusals:
            raise Paused("E206", f"{text} Missing: {list_names(absent)}.")
        refusal = post.refusals[absent[0]]  # waiting is useless, because the absent sites have refused
        raise UsageError(refusal.code, f"{text} {absent[0]} refuses: {refusal.text}")
    if missing:
        say(f"the wait is over; the run goes on without {list_names(missing)}")
    return present


def _new_sites(
    post: Correspondence, expected: Sequence[str], present: Mapping[str, Hello], terms: Terms
) -> list[Hello]:
    """The sites of a new run: those that fit together. The others are reported and left out of it."""
    present_hellos = [present[site] for site in expected if site in present]
    doubted = doubtful_counts(present_hellos, post.contact.bounds)
    _check_enough(len(present_hellos) - len(doubted), "E305", doubted, terms)
    for site, text in doubted.items():
        remedy = f"If the number is right, admit {site}.pub again with --samples N."
        post.leave_out(site, "E305", f"{text}. It is left out of this run. {remedy}")
    too_old = {
        h.site: text
        for h in present_hellos
        if (text := version_conflict(h.site, h.versions, COORDINATOR, versions()))
    }
    hellos, misfits = largest_group(
        [h for h in present_hellos if h.site not in doubted and h.site not in too_old]
    )
    _check_enough(len(hellos), "E504", too_old | misfits, terms)
    for site, text in (too_old | misfits).items():
        post.leave_out(site, "E504", f"{text}. {site} is left out of this run.")
    _report_versions(post, hellos)
    return hellos


def _known_sites(
    post: Correspondence, before: list[Hello], present: Mapping[str, Hello], terms: Terms
) -> list[Hello]:
    """The sites of a resumed run. A site with other data than at the begin is not asked until it has its data
    back.
    """
    differing = {h.site: text for h in before if (text := data_change(h, present.get(h.site, h)))}
    _check_enough(len(present) - len(differing), "E504", differing, terms)
    for site, text in differing.items():
        post.set_aside(site, text)
    _report_versions(post, present.values())
    return before


def _report_versions(post: Correspondence, hellos: Iterable[Hello]) -> None:
    """Report each site with other versions that can change a run's bits."""
    for hello in hellos:
        if text := version_differences(COORDINATOR, post.versions, hello.site, hello.versions):
            post.tell(0, "E504", f"{text}.")


def _report_unscaled(
    post: Correspondence, hellos: Iterable[Hello], method: Method, settings: Settings
) -> None:
    """Report sites with samples that look unscaled, with a remedy for this study."""
    summed = settings.secure is not None
    for hello in hellos:
        if hello.unscaled:
            text = f"{hello.site}: its samples look unscaled, and the method takes them as they are"
            post.tell(0, "E504", f"{text}; {scaling_remedy(method, hello.layout, summed)}.")


def _check_enough(left: int, code: str, out: Mapping[str, str], terms: Terms) -> None:
    """Raises UsageError if too few sites are left without the excluded ones. out: reasons by excluded
    site.
    """
    if out and left < max(1, terms.min_sites):
        text = (
            f"{next(iter(out.values()))}. {left} sites would be left, and {max(1, terms.min_sites)} are"
            " needed."
        )
        raise UsageError(code, text)


def _waiting(missing: list[str], undecided: list[str]) -> str:
    away = [site for site in missing if site not in undecided]
    what: list[str] = []
    if away:
        what.append(f"for {list_names(away)}")
    if undecided:
        what.append(f"for approval at {list_names(undecided)}")
    return f"; waiting {' and '.join(what)}" if what else ""


def _test_set(text: str) -> Dataset:
    return data.read(text)


ENDED = "E507"
"""Code of an end from outside, after which the run can be resumed."""


def conduct_order(channel: Channel, order: Order) -> None:
    """Conduct a run and write its `ending.json`, which is missing only if this process is killed."""
    with disk.private_files():  # the run's files contain data from sites
        order.path.mkdir(parents=True, exist_ok=True)
        _conduct_with_ending(channel, order)


def _conduct_with_ending(channel: Channel, order: Order) -> None:
    began = time.time()
    ending: dict[str, Any] = {"state": "done", "code": 0}
    with open(order.path / "server.log", "a", opener=disk.refuse_link) as log:
        try:
            _conduct_federation(channel, order, log)
        except UnskewError as error:
            text = f"{error} Resume with: unskew resume {order.path}" if error.code == ENDED else str(error)
            ending = {"state": "stopped", "code": error.exit_code, "text": text}
        except OSError as error:
            explained = explain(error)
            ending = {"state": "stopped", "code": explained.exit_code, "text": str(explained)}
        except (SystemExit, KeyboardInterrupt) as error:
            ending = {
                "state": "stopped",
                "code": 2,
                "text": f"{_end_text(error)} Resume with: unskew resume {order.path}",
            }
            raise
        except BaseException as error:
            ending = {"state": "failed", "code": 1, "text": f"{type(error).__name__}: {error}"}
            raise
        finally:
            text = ending.get("text", "done")
            _say(log, text)
            if not text.startswith(
                "E110"
            ):  # else another process conducts this run, and will say how it ends
                with suppress(Paused):  # a follower of the run then reports the full disk
                    disk.replace(order.path / ENDING, json.dumps({**ending, "began": began}))


def _end_text(end: SystemExit | KeyboardInterrupt) -> str:
    """The cause of a run's early end: SystemExit from this machine, or KeyboardInterrupt from Flower's
    server.
    """
    if isinstance(end, SystemExit):
        return "E507 the run's process was told to end; every finished round is saved."
    text = (
        "E507 Flower's server has ended the run: somebody has stopped it, or this machine's clock has jumped."
    )
    return f"{text} Every finished round is saved."


def _conduct_federation(channel: Channel, order: Order, log: TextIO) -> None:
    home = Coordinator.open(Path(order.federation))
    admitted = home.admitted()
    sites = tuple(site for site in home.sites if site in admitted) or home.sites
    if uninvited := [site for site in home.sites if site not in sites]:
        is_, it = ("is", "it") if len(uninvited) == 1 else ("are", "them")
        _say(log, f"{list_names(uninvited)} {is_} not admitted, and nobody waits for {it}.")
    contact = Contact(channel, sites, home.key, AdmittedKeys(home), admission.read_bounds(home))
    loops: list[Loop] = []

    def ready(loop: Loop) -> None:
        loops.append(loop)
        _say(log, "\n".join(disclosure_lines(loop)))

    listeners = Listeners(
        lambda text: _say(log, text),
        lambda state, done: _say(log, round_line(done, loops[0])),
        ready,
    )
    conduct(order.path, config.build(dict(order.settings)), contact, order.terms, listeners)


def round_line(done: RoundSummary, loop: Loop) -> str:
    """The line of a finished round: the counted sites and the latest scores."""
    dropped = f", {done.dropped} dropped" if done.dropped else ""
    scores = latest(loop.record.latest, loop.fed.task.main_score, done.t)
    return "  ".join(
        [f"round {done.t}: {done.answered}/{done.asked} sites{dropped}, {done.seconds:.1f} s", *scores]
    )


def _say(log: TextIO, text: str) -> None:
    with suppress(OSError):  # a full disk under a log must not end the run
        print(text)
        print(time.strftime("%H:%M:%S"), text, file=log, flush=True)
