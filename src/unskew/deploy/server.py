"""The server's side of a run: greet the sites, check that their data fit together, then conduct the rounds.

A run's folder is the simulator's, plus `sites.json`, which holds the run's number and who takes part, both fixed when
it begins.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unskew import data, disk
from unskew.config import Settings
from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.deploy.deployed import Deployed
from unskew.deploy.federations import ServersView
from unskew.deploy.hello import Hello, changed, fitting, versions
from unskew.deploy.journal import FILE, Journal, file_sha256
from unskew.deploy.notices import Notices
from unskew.deploy.orders import Terms
from unskew.deploy.post import POLL_S, UNDECIDED, Contact, Post, names
from unskew.deploy.scales import remedy
from unskew.deploy.studies import prepared, study
from unskew.deploy.versions import COORDINATOR, differing, of_parts, refusal
from unskew.deploy.weighing import boasts, weighing
from unskew.engine.disk.folder import Say, Shown
from unskew.engine.disk.lock import Lock
from unskew.engine.disk.state import State, digest
from unskew.engine.resolve import Run, run_on
from unskew.engine.server.loop import Loop
from unskew.errors import Paused, StateError, UnskewError, UsageError
from unskew.methods import registry
from unskew.privacy import secure

ROSTER = "sites.json"
_PUT_BACK = "put the file back as it was, or start again under another --name."
VOUCHED_FOR = ("model.safetensors", "metrics.jsonl", "ledger.jsonl", "events.jsonl")
"""Files of a finished run whose digests are in the last line of its journal."""


@dataclass(frozen=True)
class Listeners:
    """Who is told how a run goes: say: sentences; shown: after every round; ready: once, before anything trains."""

    say: Say
    shown: Shown = lambda state, round_: None
    ready: Callable[[Loop], None] = lambda loop: None


def conduct(path: Path, settings: Settings, contact: Contact, terms: Terms, listeners: Listeners) -> tuple[Loop, State]:
    """Begin or resume a run over the network and take it to its end.

    Raises UsageError (E504) if the sites do not fit together, Paused (E206) if too few of them answer, StateError (E110)
    if another process conducts the run, in which case nothing is touched.
    """
    path.mkdir(parents=True, exist_ok=True)
    with Lock(path):  # before the journal is opened: two writers would break its chain
        _check_records(path)
        journal = Journal(path / FILE, contact.key)
        try:
            return _conduct(
                path, study(settings), Post("new", contact, terms.deadline_s, journal=journal), terms, listeners
            )
        except UnskewError as error:
            with suppress(Paused):  # the error may be that nothing can be written any more
                journal.note("stopped", code=error.code, text=error.text)
            raise
        finally:
            journal.close()


def _conduct(path: Path, settings: Settings, post: Post, terms: Terms, listeners: Listeners) -> tuple[Loop, State]:
    assert post.journal is not None
    notices = Notices(listeners.say)
    post.tell, post.name = notices, path.name
    method = registry.parse(settings.method, settings.set)
    post.versions = versions() | of_parts(method)
    roster = _roster(path)
    post.run, hellos = roster or (f"r{secrets.token_hex(8)}", [])
    expected = [h.site for h in hellos] or list(post.contact.sites)
    begun = {"run": post.run, "settings": settings.as_dict(), "sites": list(post.contact.sites)}
    post.journal.note("resumed" if roster else "begun", **begun)
    for site in terms.without:
        post.leave_out(site, "E311", f"{site} is left out of this run from now on, as --without asks.")
    present = _gathered(post, settings, terms, expected, listeners.say)
    hellos = _known(post, hellos, present, terms) if roster else _new(post, expected, present, terms)
    test = prepared(_test_set(terms.test), settings) if terms.test else None
    federation = ServersView.of("sites", hellos, test)
    settings = settings.replace(clients=len(hellos))
    if not roster:
        _tell_unscaled(post, hellos, method, settings)
        facts = {"run": post.run, "sites": [h.as_json() for h in hellos]}
        disk.replace(path / ROSTER, json.dumps(facts, indent=1))
    listeners.say("\n".join(weighing(hellos, method, settings, post.contact.bounds)))
    folder = Deployed(path, _built(federation, settings, method), post, notices, hellos, terms.min_sites)
    loop, state = folder.go(listeners.say, listeners.shown, listeners.ready)
    files = {name: file_sha256(path / name) for name in VOUCHED_FOR if (path / name).exists()}
    post.journal.note("done", rounds=state.t, model=digest(state.weights), files=files)
    return loop, state


def _built(federation: ServersView, settings: Settings, method: Method) -> Run:
    """The run, or the UsageError of a model that does not take what sites hold, which then names one of them."""
    try:
        return run_on(federation, settings, method)
    except UsageError as error:
        if not federation.layout or error.code not in ("E122", "E123"):
            raise
        site = federation.names[0] if federation.names else "sites"
        raise UsageError(error.code, f"the model here does not fit the samples of {site}: {error.text}") from None


def _roster(path: Path) -> tuple[str, list[Hello]] | None:
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
    """Raises StateError where a run has lost what its sites know it by: its number (E208), or the numbers of its requests
    (E207). Under a new number sites would take it for another run, of which they train what is left out of their budgets."""
    begun, journal = (path / ROSTER).exists(), path / FILE
    if not begun and any(path.glob("state*.safetensors")):
        raise StateError(
            "E208", f"{path / ROSTER} is gone, which holds the number by which sites know the run; {_PUT_BACK}"
        )
    if begun and not (journal.exists() and journal.stat().st_size):
        text = f"{journal} is gone, from which requests are numbered, and sites refuse numbers that they have seen"
        raise StateError("E207", f"{text}; {_PUT_BACK}")


def _gathered(post: Post, settings: Settings, terms: Terms, expected: list[str], say: Say) -> dict[str, Hello]:
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
            raise Paused("E206", f"{text} Missing: {names(absent)}.")
        refusal = post.refusals[absent[0]]  # to wait is of no use: whoever is absent does not want to take part
        raise UsageError(refusal.code, f"{text} {absent[0]} refuses: {refusal.text}")
    return present


def _new(post: Post, expected: Sequence[str], present: Mapping[str, Hello], terms: Terms) -> list[Hello]:
    """The sites of a run that begins: those that fit together. The others are named and left out of it."""
    there = [present[site] for site in expected if site in present]
    doubted = boasts(there, post.contact.bounds)
    _check_enough(len(there) - len(doubted), "E505", doubted, terms)
    for site, text in doubted.items():
        remedy = f"If the number is right, admit {site}.pub again with --samples N."
        post.leave_out(site, "E505", f"{text}. It is left out of this run. {remedy}")
    too_old = {h.site: text for h in there if (text := refusal(h.site, h.versions, COORDINATOR, versions()))}
    hellos, apart = fitting([h for h in there if h.site not in doubted and h.site not in too_old])
    _check_enough(len(hellos), "E504", too_old | apart, terms)
    for site, text in (too_old | apart).items():
        post.leave_out(site, "E504", f"{text}. {site} is left out of this run.")
    _tell_versions(post, hellos)
    return hellos


def _known(post: Post, before: list[Hello], present: Mapping[str, Hello], terms: Terms) -> list[Hello]:
    """The sites of a run that goes on. One that holds other data now is not asked until it holds those of then."""
    differing = {h.site: text for h in before if (text := changed(h, present.get(h.site, h)))}
    _check_enough(len(present) - len(differing), "E504", differing, terms)
    for site, text in differing.items():
        post.set_aside(site, text)
    _tell_versions(post, present.values())
    return before


def _tell_versions(post: Post, hellos: Iterable[Hello]) -> None:
    """Say which versions that decide about bits differ, a line a site."""
    for hello in hellos:
        if text := differing(COORDINATOR, post.versions, hello.site, hello.versions):
            post.tell(0, "E524", f"{text}.")


def _tell_unscaled(post: Post, hellos: Iterable[Hello], method: Method, settings: Settings) -> None:
    """Say whose samples look as if somebody should have scaled them, and what this study can do about it."""
    summed = secure.parse(settings.secure_aggregation) is not None
    for hello in hellos:
        if hello.unscaled:
            text = f"{hello.site}: its samples look unscaled, and the method takes them as they are"
            post.tell(0, "E527", f"{text}; {remedy(method, hello.layout, summed)}.")


def _check_enough(left: int, code: str, out: Mapping[str, str], terms: Terms) -> None:
    """Raises UsageError if too few sites are left without those that cannot take part. out: why, by site."""
    if out and left < max(1, terms.min_sites):
        text = f"{next(iter(out.values()))}. {left} sites would be left, and {max(1, terms.min_sites)} are needed."
        raise UsageError(code, text)


def _waiting(missing: list[str], undecided: list[str]) -> str:
    away = [site for site in missing if site not in undecided]
    what = [f"for {names(away)}"] * bool(away) + [f"for approval at {names(undecided)}"] * bool(undecided)
    return f"; waiting {' and '.join(what)}" if what else ""


def _test_set(text: str) -> Dataset:
    return data.read(text)
