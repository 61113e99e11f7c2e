"""Tickets in the wrong hands: used twice, altered on their way, replaced, expired, or another site's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tests.campaign.cases import Case, check
from tests.campaign.ground import Ground
from tests.cli.calling import Called, call
from unskew.federation.protocol.identity import PrivateKey
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Ticket

FAMILY = "tickets"


def cases(ground: Ground, rng: random.Random) -> Iterator[Case]:
    for name, attack in rng.sample(sorted(ATTACKS.items()), len(ATTACKS)):
        yield Case(FAMILY, name, partial(attack, ground, f"t{rng.randrange(10**9)}"), 90)


def unskew(ground: Ground, *arguments: str) -> Called:
    return call(*arguments, cwd=ground.root)


def invited(ground: Ground, site: str) -> Ticket:
    """A new site's ticket."""
    done = unskew(ground, "federation", "add", "lung", site)
    check(done.code == 0, done.text)
    return Ticket.read(ground.home.ticket_file(site))


def refused(done: Called, why: str) -> str:
    check(
        done.code == 2 and done.err.startswith("E50") and why in done.err,
        f"exit code {done.code}: {done.text}",
    )
    return done.err.strip()


def without(ground: Ground, site: str, text: str) -> str:
    """Take the site out again, which must not have been admitted by the attack."""
    check(site not in ground.home.admitted(), f"{site} is admitted")
    unskew(ground, "federation", "remove", "lung", site)
    return text


def twice(ground: Ground, site: str) -> str:
    """Two keys made with one ticket: the second is refused, and the first stays admitted."""
    path = str(ground.home.ticket_file(site))
    invited(ground, site)
    copy = ground.root / f"{site}.copy"
    copy.write_text((ground.home.ticket_file(site)).read_text())
    for folder, ticket in ((f"{site}-1", path), (f"{site}-2", str(copy))):
        check(unskew(ground, "join", ticket, "--folder", folder).code == 0, "the ticket cannot be used")
    check(
        unskew(ground, "federation", "admit", "lung", "--compared", f"{site}-1/{site}.pub").code == 0,
        "the first key is refused",
    )
    text = refused(
        unskew(ground, "federation", "admit", "lung", "--compared", f"{site}-2/{site}.pub"), "another key"
    )
    check(unskew(ground, "federation", "revoke", "lung", site).code == 0, "the first key is not admitted")
    again = refused(
        unskew(ground, "federation", "admit", "lung", "--compared", f"{site}-2/{site}.pub"), "ticket"
    )
    return without(ground, site, f"{text} | {again}")


def altered(ground: Ground, site: str) -> str:
    """Another address in it."""
    ticket = invited(ground, site)
    replace(ticket, host="evil.example.org").write(ground.root / f"{site}.altered")
    done = unskew(ground, "join", f"{site}.altered", "--folder", f"{site}-altered")
    check(not (ground.root / f"{site}-altered").exists(), "a key was made with it")
    return without(ground, site, refused(done, "altered"))


def replaced(ground: Ground, site: str) -> str:
    """Another coordinator's key in it, and that key's signature: both ends see other fingerprints, and its
    key is refused."""
    key, ticket = PrivateKey.make(), invited(ground, site)
    replace(ticket, coordinator=key.public.text).signed(key).write(ground.root / f"{site}.replaced")
    done = unskew(ground, "join", f"{site}.replaced", "--folder", f"{site}-replaced", "--json")
    seen = json.loads(done.out)
    check(seen["coordinator"] != ground.home.fingerprints["coordinator"], "the fingerprint is the true one")
    text = refused(
        unskew(ground, "federation", "admit", "lung", "--compared", f"{site}-replaced/{site}.pub"), "ticket"
    )
    return without(ground, site, text)


def expired(ground: Ground, site: str) -> str:
    """Used after its last day, and a key made in time that is sent too late."""
    invited(ground, site)
    late = ground.home.ticket(site, days=-1)
    late.write(ground.home.ticket_file(site))
    text = refused(
        unskew(ground, "join", str(ground.home.ticket_file(site)), "--folder", f"{site}-late"), "expired"
    )
    key = PrivateKey.make().public
    (ground.root / f"{site}.pub").write_text(f"{key.text} unskew-ticket={late.proof(key)}\n")
    again = refused(unskew(ground, "federation", "admit", "lung", "--compared", f"{site}.pub"), "expired")
    return without(ground, site, f"{text} | {again}")


def unproven(ground: Ground, site: str) -> str:
    """A key of somebody who has never seen the ticket."""
    invited(ground, site)
    (ground.root / f"{site}.pub").write_text(PrivateKey.make().public.text + "\n")
    return without(
        ground,
        site,
        refused(unskew(ground, "federation", "admit", "lung", "--compared", f"{site}.pub"), "ticket"),
    )


def of_another(ground: Ground, site: str) -> str:
    """A key made with one site's ticket that is sent as another's."""
    other = f"{site}x"
    invited(ground, site)
    invited(ground, other)
    SiteFolder.make(ground.root / f"{site}-other", Ticket.read(ground.home.ticket_file(site)))
    done = unskew(
        ground, "federation", "admit", "lung", "--compared", f"{site}-other/{site}.pub", "--site", other
    )
    return without(ground, site, without(ground, other, refused(done, "ticket")))


def outdated(ground: Ground, site: str) -> str:
    """A key made with a ticket in whose place there is a newer one."""
    SiteFolder.make(ground.root / f"{site}-old", invited(ground, site))
    check(unskew(ground, "federation", "ticket", "lung", site).code == 0, "no new ticket")
    done = unskew(ground, "federation", "admit", "lung", "--compared", f"{site}-old/{site}.pub")
    return without(ground, site, refused(done, "ticket"))


ATTACKS: dict[str, Callable[[Ground, str], str]] = {
    "used twice": twice,
    "altered in the mail": altered,
    "replaced in the mail": replaced,
    "expired": expired,
    "never seen": unproven,
    "another site's": of_another,
    "replaced by a newer one": outdated,
}
