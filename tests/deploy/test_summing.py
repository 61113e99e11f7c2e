"""One sum, phase by phase, with all sites in this process: who may leave when, and who is refused what."""

from __future__ import annotations

import contextlib

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from unskew.deploy.summing import primitives
from unskew.deploy.summing.member import Member
from unskew.deploy.summing.opening import Opening, Unopened
from unskew.deploy.summing.roster import Listed, Roster
from unskew.errors import UsageError
from unskew.privacy.secure import SecureAggregation

pytestmark = pytest.mark.flower
N, SITES = 40, "abcdef"


class Sum:
    """Six sites, of which four are needed, as far as a phase; they sum numbers that are in the range of 32 bits."""

    def __init__(self, bits: int = 64, sites: str = SITES):
        self.secure = SecureAggregation(bits=bits)  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(0)
        self.q = {s: torch.randint(-(2**20), 2**20, (N,), generator=generator) for s in sites}
        self.members = {s: Member(s, 10.0, self.secure, lambda p, s=s: self.q[s]) for s in sites}
        self.rows = [Listed(s, 10.0, *m.keys).as_json() for s, m in self.members.items()]
        self.dealt, self.seeds, self.y = {}, {}, {}

    def deal(self, without: str = "") -> Sum:
        for s, member in self.members.items():
            if s not in without:
                self.dealt[s], self.seeds[s] = member.deal(self.rows)
        return self

    def boxes(self, site: str) -> dict[str, str]:
        return {o: self.dealt[o][site] for o in self.dealt if o != site}

    def mask(self, without: str = "") -> Sum:
        self.y = {s: self.members[s].masked(self.boxes(s)) for s in self.dealt if s not in without}
        return self

    @property
    def left(self) -> list[str]:
        return sorted(set(self.dealt) - set(self.y))

    def shares(self, without: str = "") -> dict[str, dict[str, bytes]]:
        return {s: self.members[s].opened(list(self.y), self.left) for s in self.y if s not in without}

    def opening(self) -> Opening:
        needed = self.secure.needed(len(self.rows))
        return Opening(
            Roster.read(self.rows),
            needed,
            self.secure.bits,
            self.members["a"].context,
            self.seeds,
            self.y,
            tuple(self.left),
        )


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(
    ("dealing", "masking", "opening"), [("", "", ""), ("f", "", ""), ("", "bf", ""), ("", "", "ac"), ("c", "e", "")]
)
def test_the_sum_of_those_that_stayed_is_exact_whoever_leaves_in_which_phase(dealing, masking, opening, bits):
    one = Sum(bits).deal(dealing).mask(masking)
    given = one.shares(opening)
    total = one.opening().total(given)
    assert torch.equal(total, sum(one.q[s] for s in SITES if s not in dealing + masking))


@pytest.mark.parametrize(
    ("dealing", "masking", "opening"), [("abc", "", ""), ("", "abc", ""), ("a", "bc", ""), ("", "", "abc")]
)
def test_with_too_few_sites_nothing_is_opened(dealing, masking, opening):
    """Four of six are needed. Sites refuse by themselves, whatever the coordinator says; the last phase lacks shares."""
    one = Sum().deal(dealing)
    if opening:
        given = one.mask(masking).shares(opening)
        with pytest.raises(
            Unopened, match=r"3 sites gave shares, and 4 are needed to open the sum. Nothing was opened"
        ):
            one.opening().total(given)
        return
    with pytest.raises(UsageError, match=r"E525 .*3 sites have (dealt shares|sent their numbers), and 4 are needed"):
        one.mask(masking).shares()


def test_what_a_site_sends_tells_nothing_of_its_numbers():
    """Every masked number is uniform, differs from the number, and is another one in the next sum."""
    one, two = Sum().deal().mask(), Sum().deal().mask()
    for s in SITES:
        assert not (one.y[s] == one.q[s]).any()
        assert not (one.y[s] == two.y[s]).any()
    ones = torch.stack([(y >> k) & 1 for y in one.y.values() for k in range(64)]).double()
    assert abs(float(ones.mean()) - 0.5) < 5 * 0.5 / len(ones.flatten()) ** 0.5


def test_masks_have_all_the_bits_of_their_keys():
    """Flower's own masks have 32: two keys whose words add up to the same, bit by bit, have the same mask there."""
    key = bytes(range(32))
    twin = key[4:8] + key[:4] + key[8:]
    assert not (primitives.mask(key, 100, 64) == primitives.mask(twin, 100, 64)).any()


def test_fewer_shares_than_are_needed_do_not_give_a_secret_back():
    secret = primitives.seed()
    shares = primitives.shared_out(secret, 4, 6)
    assert primitives.put_together(shares[1:5]) == secret
    with contextlib.suppress(ValueError):
        assert primitives.put_together(shares[:3]) != secret


def test_nobody_gets_both_shares_of_a_site():
    """The worst that a coordinator could ask: with seed and key it takes every mask off."""
    one = Sum().deal().mask()
    with pytest.raises(
        UsageError, match=r"E525 .*'b' is said to have sent its numbers and not: both shares would show"
    ):
        one.members["a"].opened(list("abcdef"), ["b"])
    assert set(one.members["a"].opened(list("abcdef"), [])) == set(SITES)
    with pytest.raises(UsageError, match=r"E525 .*asked to open the sum, and it is at 'opened'"):
        one.members["a"].opened(list("acdef"), ["b"])


def test_two_different_stories_to_halves_of_the_sites_do_not_open_anything():
    """Of six sites, four are needed: no two sets of four have no site in common, and a site tells one story."""
    one = Sum().deal().mask()
    of_seed = {s: one.members[s].opened(list("abcdef"), [])["a"] for s in "def"}
    of_key = {s: one.members[s].opened(list("bcdef"), ["a"])["a"] for s in "bc"}
    assert len(of_seed) < 4
    assert len(of_key) < 4


@pytest.mark.parametrize("told", ["list", "weights"])
def test_sites_that_were_told_different_things_add_up_to_nothing(told):
    """The worst that needs no other site: a list in which one site alone has weight, or weights that all but one site cannot
    change, make the sum that site's own."""
    one = Sum()
    if told == "weights":
        one.members["a"].context = "other weights"
    for s, member in one.members.items():
        listed = [[site, 1e-9 if site != s else n, *keys] for site, n, *keys in one.rows]
        one.dealt[s], one.seeds[s] = member.deal(listed if (s, told) == ("a", "list") else one.rows)
    one.mask()
    opening = one.opening()
    total = opening.total(one.shares())
    assert not (total == sum(one.q.values())).any()
    assert not (total == one.q["a"]).any()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows, own: rows[:2], "2 sites are on the list, and 3 are needed"),
        (lambda rows, own: rows[1:], "this site is not on the list"),
        (lambda rows, own: [*rows, rows[1]], "names one twice"),
        (lambda rows, own: [["a", 10.0, rows[1][2], own[3]], *rows[2:]], "other keys or another number"),
        (lambda rows, own: [[*own[:1], 11.0, *own[2:]], *rows[1:]], "other keys or another number"),
        (lambda rows, own: [[*own[:1], 1e-9, *own[2:]], *rows[1:]], "other keys or another number"),
        (lambda rows, own: [own, [*rows[1][:2], "no key", rows[1][3]], *rows[2:]], None),
        (lambda rows, own: [own, [*rows[1][:3], "no key"], *rows[2:]], "'b': a public key cannot be used"),
        (lambda rows, own: [own, ["b", -1, "x", "y"]], "cannot be read"),
        (lambda rows, own: {"a": own}, "cannot be read"),
    ],
)
def test_a_list_that_no_honest_coordinator_sends_is_refused(change, why):
    one = Sum()
    rows = change(one.rows, one.rows[0])
    if why is None:  # the masking key is used a phase later
        one.rows = rows
        one.members["a"].deal(rows)
        return
    with pytest.raises(UsageError, match="E525") as refused:
        one.members["a"].deal(rows)
    assert why in str(refused.value)


def test_shares_that_were_changed_or_are_anothers_are_refused():
    """The worst that somebody between the sites could do."""
    one = Sum().deal()
    for boxes, why in (
        ({**one.boxes("a"), "b": one.boxes("a")["b"][:-9] + "AAAAAAAA="}, "the shares of 'b' cannot be read"),
        ({**one.boxes("a"), "b": one.boxes("c")["b"]}, "the shares of 'b' cannot be read"),
        (
            {**one.boxes("a"), "b": primitives.packed(one.members["b"]._common["a"], 2, 0, b"s", b"k")},
            "by or for another site",
        ),
        ({**one.boxes("a"), "x": one.boxes("a")["b"]}, "'x', which is not among the sites"),
        ({"b": one.boxes("a")["b"]}, "2 sites have dealt shares, and 4 are needed"),
    ):
        with pytest.raises(UsageError, match="E525") as refused:
            one.members["a"].masked(boxes)
        assert why in str(refused.value)
    assert len(one.members["a"].masked(one.boxes("a"))) == N


def test_a_false_share_is_left_out_and_its_giver_named():
    one = Sum().deal().mask("f")
    given = one.shares()
    given["b"] = {site: share[:-1] + bytes([share[-1] ^ 1]) for site, share in given["b"].items()}
    opening = one.opening()
    assert torch.equal(opening.total(given), sum(one.q[s] for s in "abcde"))
    assert opening.liars == {"b"}


def test_a_site_that_deals_false_shares_spoils_the_sum_and_is_named():
    one = Sum().deal().mask()
    one.seeds["c"] = primitives.commitment(b"another")
    with pytest.raises(Unopened, match="the shares of c do not give back what it has published"):
        one.opening().total(one.shares())


def test_a_site_that_left_is_in_no_sum_even_if_its_numbers_come_late():
    """What it sent cannot be opened: its seed stays unknown, and its key is for the masks of others alone."""
    one = Sum().deal().mask()
    late = one.y.pop("b")
    total = one.opening().total(one.shares())
    assert torch.equal(total, sum(one.q[s] for s in "acdef"))
    assert not (late - total == one.q["b"]).any()
