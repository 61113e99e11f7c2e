"""A run over a network at the coordinator, from its order to its ending: it greets the sites, checks that
their data fit together, and conducts the rounds with the engine's loop.

A run's folder is the simulator's, with `sites.json`, which holds the run's number and who takes part, both
fixed when it begins, and with `ending.json`, which says how it ended.
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
from unskew.records.private_state import DiskStore
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

IN_EVERY_ROUND = ("E315",)
"""A merge that does less than it promises with so few replies says so of each round."""


@dataclass
class Notices:
    """Called with a round, the code of an error and a sentence. What is said before the record is open
    follows then."""

    say: Callable[[str], None]
    _record: Record | None = None
    _before: list[Row] = field(default_factory=list)
    _heard: set[str] = field(default_factory=set)

    def __call__(self, t: int, code: str, text: str) -> None:
        text = printable(
            text
        )  # a site names its tensors, and a name may hold a line that looks like another of ours
        event: Row = {"t": t, "code": code, "text": text}
        if self._record:
            self._record.add("events", [event])
        else:
            self._before.append(event)
        self.say(f"{code} {text}")

    def heard(self, t: int, code: str, text: str) -> None:
        """Say what the server's loop has written into the record. What it wrote before round 1 has been
        shown, and what holds in every round is said in the first."""
        if t and not (code in IN_EVERY_ROUND and code in self._heard):
            self.say(f"{code} {text}")
        self._heard.add(code)

    def open(self, record: Record) -> None:
        """From now on, keep everything as events of this record."""
        self._record = record
        record.add("events", self._before)
        self._before = []


class RemoteStore(DiskStore):
    """The store of a run whose private state stays at the sites: only the round of each one's counted state
    is here."""

    def facts(self) -> dict[str, Any]:
        """Every site with its round: sites are few, and nothing of theirs is in this folder."""
        return {"private": sorted(self.index.items()), "private_files": []}

    def fetch(self, clients: Iterable[int]) -> dict[int, Tree]:
        return {}

    def put(self, t: int, trees: Mapping[int, Tree]) -> None:
        self.index.update(dict.fromkeys(trees, t))

    def check(self) -> None:
        """Sites check their own files."""

    def sweep(self) -> None:
        """Sites remove their own files."""


@dataclass
class NetworkFolder(RunFolder):
    """The caller holds the folder's lock already, because it also writes the journal."""

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
        loop.listener = self.notices.heard
        return loop

    def _exchange(self, sites: Attendance, scores: SiteScores) -> SiteExchange:
        """What asks the sites: for their replies, or for the sum of them."""
        if not self.run.secure:
            return SiteExchange(sites, scores)
        from unskew.federation.coordinator.secure_exchange import SecureExchange  # which needs Flower

        return SecureExchange(sites, scores, run=self.run)


ROSTER = "sites.json"
_PUT_BACK = "put the file back as it was, or start again under another --name."
SIGNED_FILES = ("model.safetensors", "metrics.jsonl", "ledger.jsonl", "events.jsonl")
"""Files of a finished run whose digests are in the last line of its journal."""


@dataclass(frozen=True)
class Listeners:
    """Who is told how a run goes: say: sentences; shown: after every round; ready: once, before anything
    trains."""

    say: Say
    shown: Shown = lambda state, round_: None
    ready: Callable[[Loop], None] = lambda loop: None


def conduct(
    path: Path, settings: Settings, contact: Contact, terms: Terms, listeners: Listeners
) -> tuple[Loop, State]:
    """Begin or resume a run over the network and take it to its end.

    Raises UsageError (E504) if the sites do not fit together, Paused (E206) if too few of them answer,
    StateError (E110) if another process conducts the run, in which case nothing is touched.
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
    begun = {"run": post.run, "settings": settings.as_dict(), "sites": list(post.contact.sites)}
    post.journal.note("resumed" if roster else "begun", **begun)
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
        _tell_unscaled(post, hellos, method, settings)
        facts = {"run": post.run, "sites": [h.as_json() for h in hellos]}
        disk.replace(path / ROSTER, json.dumps(facts, indent=1))
    listeners.say("\n".join(weight_lines(hellos, method, settings, post.contact.bounds)))
    folder = NetworkFolder(path, _build(federation, settings, method), post, notices, hellos, terms.min_sites)
    loop, state = folder.go(listeners.say, listeners.shown, listeners.ready)
    files = {name: file_sha256(path / name) for name in SIGNED_FILES if (path / name).exists()}
    post.journal.note("done", rounds=state.t, model=digest(state.weights), files=files)
    return loop, state


def _build(federation: ServerView, settings: Settings, method: Method) -> Run:
    """The run, or the UsageError of a model that does not take what sites hold, which then names one of
    them."""
    try:
        return run_on(federation, settings, method)
    except UsageError as error:
        if not federation.layout or error.code not in ("E122", "E123"):
            raise
        site = federation.names[0] if federation.names else "sites"
        raise UsageError(
            error.code, f"the model here does not fit the samples of {site}: {error.text}"
        ) from None


def _read_roster(path: Path) -> tuple[str, list[Hello]] | None:
    """The number of the run in this folder and what its sites said when it began; None if it has not begun.

    Raises StateError (E208) for a file that does not say that.
    """
    if not (path / ROSTER).exists():
        return None
    try:
        facts = json.loads((path / ROSTER).read_text())
        return disk.check_name(facts["run"]), [Hello.read(h) for h in facts["sites"]]
    except (ValueError, KeyError, TypeError, AttributeError, UsageError):
        raise StateError("E208", f"{path / ROSTER} does not say which run this is; {_PUT_BACK}") from None


def _check_records(path: Path) -> None:
    """Raises StateError where a run has lost what its sites know it by: its number (E208), or the numbers of
    its requests (E207). Under a new number sites would take it for another run, of which they train what is
    left out of their budgets."""
    begun, journal = (path / ROSTER).exists(), path / JOURNAL_FILE
    if not begun and any(path.glob("state*.safetensors")):
        raise StateError(
            "E208",
            f"{path / ROSTER} is gone, which holds the number by which sites know the run; {_PUT_BACK}",
        )
    if begun and not (journal.exists() and journal.stat().st_size):
        text = (
            f"{journal} is gone, from which requests are numbered, and sites refuse numbers that they have"
            " seen"
        )
        raise StateError("E207", f"{text}; {_PUT_BACK}")


def _gather(
    post: Correspondence, settings: Settings, terms: Terms, expected: list[str], say: Say
) -> dict[str, Hello]:
    """What the sites say, once all have come or `wait_s` is over.

    Raises Paused (E206) if too few have, UsageError with a site's own code if too few want to take part.
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
        refusal = post.refusals[
            absent[0]
        ]  # to wait is of no use: whoever is absent does not want to take part
        raise UsageError(refusal.code, f"{text} {absent[0]} refuses: {refusal.text}")
    return present


def _new_sites(
    post: Correspondence, expected: Sequence[str], present: Mapping[str, Hello], terms: Terms
) -> list[Hello]:
    """The sites of a run that begins: those that fit together. The others are named and left out of it."""
    there = [present[site] for site in expected if site in present]
    doubted = doubtful_counts(there, post.contact.bounds)
    _check_enough(len(there) - len(doubted), "E505", doubted, terms)
    for site, text in doubted.items():
        remedy = f"If the number is right, admit {site}.pub again with --samples N."
        post.leave_out(site, "E505", f"{text}. It is left out of this run. {remedy}")
    too_old = {
        h.site: text for h in there if (text := version_conflict(h.site, h.versions, COORDINATOR, versions()))
    }
    hellos, apart = largest_group([h for h in there if h.site not in doubted and h.site not in too_old])
    _check_enough(len(hellos), "E504", too_old | apart, terms)
    for site, text in (too_old | apart).items():
        post.leave_out(site, "E504", f"{text}. {site} is left out of this run.")
    _tell_versions(post, hellos)
    return hellos


def _known_sites(
    post: Correspondence, before: list[Hello], present: Mapping[str, Hello], terms: Terms
) -> list[Hello]:
    """The sites of a run that goes on. One that holds other data now is not asked until it holds those of
    then."""
    differing = {h.site: text for h in before if (text := data_change(h, present.get(h.site, h)))}
    _check_enough(len(present) - len(differing), "E504", differing, terms)
    for site, text in differing.items():
        post.set_aside(site, text)
    _tell_versions(post, present.values())
    return before


def _tell_versions(post: Correspondence, hellos: Iterable[Hello]) -> None:
    """Say which versions that decide about bits differ, a line a site."""
    for hello in hellos:
        if text := version_differences(COORDINATOR, post.versions, hello.site, hello.versions):
            post.tell(0, "E524", f"{text}.")


def _tell_unscaled(post: Correspondence, hellos: Iterable[Hello], method: Method, settings: Settings) -> None:
    """Say whose samples look as if somebody should have scaled them, and what this study can do about it."""
    summed = settings.secure is not None
    for hello in hellos:
        if hello.unscaled:
            text = f"{hello.site}: its samples look unscaled, and the method takes them as they are"
            post.tell(0, "E527", f"{text}; {scaling_remedy(method, hello.layout, summed)}.")


def _check_enough(left: int, code: str, out: Mapping[str, str], terms: Terms) -> None:
    """Raises UsageError if too few sites are left without those that cannot take part. out: why, by site."""
    if out and left < max(1, terms.min_sites):
        text = (
            f"{next(iter(out.values()))}. {left} sites would be left, and {max(1, terms.min_sites)} are"
            " needed."
        )
        raise UsageError(code, text)


def _waiting(missing: list[str], undecided: list[str]) -> str:
    away = [site for site in missing if site not in undecided]
    what = [f"for {list_names(away)}"] * bool(away) + [f"for approval at {list_names(undecided)}"] * bool(
        undecided
    )
    return f"; waiting {' and '.join(what)}" if what else ""


def _test_set(text: str) -> Dataset:
    return data.read(text)


ENDED = "E507"
"""What ended is not the study: the run can go on."""


def conduct_order(channel: Channel, order: Order) -> None:
    """Conduct the run. However it ends, `ending.json` says how, unless this process is killed."""
    with disk.private_files():  # what sites send stands in the run's files
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
            known = explain(error)
            ending = {"state": "stopped", "code": known.exit_code, "text": str(known)}
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
                with suppress(Paused):  # then whoever follows the run sees that the disk is full
                    disk.replace(order.path / ENDING, json.dumps({**ending, "began": began}))


def _end_text(end: SystemExit | KeyboardInterrupt) -> str:
    """Who ended a run's process: `unskew serve` or somebody else on this machine, or Flower's server
    (KeyboardInterrupt)."""
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
    """A finished round: which sites counted, and what was scored last."""
    dropped = f", {done.dropped} dropped" if done.dropped else ""
    scores = latest(loop.record.latest, loop.fed.task.main_score, done.t)
    return "  ".join(
        [f"round {done.t}: {done.answered}/{done.asked} sites{dropped}, {done.seconds:.1f} s", *scores]
    )


def _say(log: TextIO, text: str) -> None:
    with suppress(OSError):  # a full disk under a log must not end the run
        print(text)
        print(time.strftime("%H:%M:%S"), text, file=log, flush=True)
