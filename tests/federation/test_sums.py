"""One secure sum, phase by phase: who may leave when, who is refused what, and what was summed before."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")
pytest.importorskip("cryptography", reason="pip install 'unskew[flower]'")

import contextlib
import os

import torch

from unskew.errors import UsageError
from unskew.federation.protocol import masked_sums as primitives
from unskew.federation.protocol.masked_sums import Member, Opening, SumNotOpened
from unskew.federation.protocol.roster import Roster, RosterEntry
from unskew.federation.site import sum_answers
from unskew.federation.site.sum_answers import SumLog
from unskew.privacy.secure_aggregation import SecureAggregation

pytestmark = pytest.mark.flower

N, SITES = 40, "abcdef"


class Sum:
    """Six sites, of which four are needed, as far as a phase; they sum numbers that are in the range of 32
    bits."""

    def __init__(self, bits: int = 64, sites: str = SITES, threshold: float = 0.66):
        self.secure = SecureAggregation(bits=bits, threshold=threshold)  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(0)
        self.q = {s: torch.randint(-(2**20), 2**20, (N,), generator=generator) for s in sites}
        self.members = {s: Member(s, 10.0, self.secure, lambda p, s=s: self.q[s]) for s in sites}
        self.rows = [RosterEntry(s, 10.0, *m.keys).as_json() for s, m in self.members.items()]
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
        came, left = list(self.y), self.left
        signed = {s: self.members[s].signed(came, left) for s in came} if left else {}
        return {s: self.members[s].opened(came, left, signed) for s in self.y if s not in without}

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
    ("dealing", "masking", "opening"),
    [("", "", ""), ("f", "", ""), ("", "bf", ""), ("", "", "ac"), ("c", "e", "")],
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
    """Four of six are needed. Sites refuse by themselves, whatever the coordinator says; the last phase lacks
    shares."""
    one = Sum().deal(dealing)
    if opening:
        given = one.mask(masking).shares(opening)
        with pytest.raises(
            SumNotOpened, match=r"3 sites gave shares, and 4 are needed to open the sum. Nothing was opened"
        ):
            one.opening().total(given)
        return
    with pytest.raises(
        UsageError, match=r"E525 .*3 sites have (dealt shares|sent their numbers), and 4 are needed"
    ):
        one.mask(masking).shares()


def test_what_a_site_sends_tells_nothing_of_its_numbers():
    """Every masked number is uniform, differs from the number, and is another one in the next sum."""
    one, two = Sum().deal().mask(), Sum().deal().mask()
    for s in SITES:
        assert not (one.y[s] == one.q[s]).any()
        assert not (one.y[s] == two.y[s]).any()
    ones = torch.stack([(y >> k) & 1 for y in one.y.values() for k in range(64)]).double()
    assert abs(float(ones.mean()) - 0.5) < 5 * 0.5 / len(ones.flatten()) ** 0.5


def test_a_mask_is_the_published_key_stream_of_aes_in_counter_mode():
    """Blocks 0 and 1 of the zero key, as in case 13 of the GCM specification: one block over and over would
    hide nothing."""
    stream = "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738b"
    for bits in (32, 64):
        assert primitives.mask(bytes(32), 256 // bits, bits).numpy().tobytes().hex() == stream


def test_fewer_shares_than_are_needed_do_not_give_a_secret_back():
    secret = os.urandom(primitives.SEED)
    shares = primitives.create_shares(secret, 4, 6)
    assert primitives.combine_shares(shares[1:5]) == secret
    with contextlib.suppress(ValueError):
        assert primitives.combine_shares(shares[:3]) != secret


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
    """Of six sites, four are needed: no two sets of four have no site in common, and a site tells one
    story."""
    one = Sum().deal().mask()
    assert len({s: one.members[s].opened(list("abcdef"), [])["a"] for s in "def"}) < 4
    signed = {s: one.members[s].signed(list("bcdef"), ["a"]) for s in "bc"}
    for s in "bc":
        with pytest.raises(UsageError, match=r"E525 .*2 sites have signed who left, and 4 are needed"):
            one.members[s].opened(list("bcdef"), ["a"], signed)
        with pytest.raises(UsageError, match=r"E525 .*has signed that other sites came and left"):
            one.members[s].opened(list("abcdef"), [])


def test_every_site_its_own_story_of_who_left_gives_no_key_away():
    """The worst of a coordinator whom nobody helps: each site is told that others left, and together that
    every partner of `a` did. Ten sites and the least threshold; before, it read `a` alone."""
    one = Sum(sites="abcdefghij", threshold=0.51).deal()
    partners, others = "bcdef", "ghij"
    boxes = {s: one.boxes(s) for s in one.members}
    boxes["a"] = {o: boxes["a"][o] for o in partners}
    one.y = {s: member.masked(boxes[s]) for s, member in one.members.items()}
    stories = {s: partners.replace(s, "") for s in partners}
    stories |= {s: partners.replace(partners[k], "") for k, s in enumerate(others)}
    signed = {
        s: one.members[s].signed([o for o in one.q if o not in left], list(left))
        for s, left in stories.items()
    }
    for s, left in stories.items():
        with pytest.raises(UsageError, match=r"E525 .*[12] sites have signed who left, and 6 are needed"):
            one.members[s].opened([o for o in one.q if o not in left], list(left), signed)


def test_a_site_with_a_list_of_its_own_finds_nobody_in_it():
    """The worst with the default threshold: `a` is told of three sites, the rest of nine, by which both of
    its partners have left. Before, it read `a` alone."""
    one = Sum(sites="abcdefghi")
    for s, member in one.members.items():
        one.dealt[s], _ = member.deal(one.rows[:3] if s == "a" else one.rows)
    with pytest.raises(UsageError, match=r"E525 .*the shares of 'b' cannot be read"):
        one.members["a"].masked({o: one.dealt[o]["a"] for o in "bc"})
    with pytest.raises(UsageError, match=r"E525 .*the shares of 'a' cannot be read"):
        one.members["b"].masked(one.boxes("b"))


@pytest.mark.parametrize("told", ["list", "weights"])
@pytest.mark.parametrize("read", [False, True])
def test_sites_that_were_told_different_things_add_up_to_nothing(told, read, monkeypatch):
    """The worst that needs no other site: a list in which one site alone has weight, or weights that all but
    one site cannot change, make the sum that site's own. read: as if they could read each other's shares."""
    if read:
        monkeypatch.setattr(primitives, "encryption_key", lambda common, context: common)
    one = Sum()
    if told == "weights":
        one.members["a"].context = "other weights"
    for s, member in one.members.items():
        listed = [[site, 1e-9 if site != s else n, *keys] for site, n, *keys in one.rows]
        one.dealt[s], one.seeds[s] = member.deal(listed if (s, told) == ("a", "list") else one.rows)
    if not read:
        with pytest.raises(UsageError, match=r"E525 .*the shares of '.' cannot be read"):
            one.mask()
        return
    one.mask()
    total = one.opening().total(one.shares())
    assert not (total == sum(one.q.values())).any()
    assert not (total == one.q["a"]).any()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows, own: rows[:2], "2 sites are on the list, and 3 are needed"),
        (lambda rows, own: rows[1:], "this site is not on the list"),
        (lambda rows, own: [*rows, rows[1]], "names one twice"),
        (lambda rows, own: [[*own[:1], 1e-9, *own[2:]], *rows[1:]], "other keys or another number"),
        (
            lambda rows, own: [own, [*rows[1][:3], "no key", rows[1][4]], *rows[2:]],
            "'b': a public key cannot be used",
        ),
        (lambda rows, own: [own, ["b", -1, "x", "y"]], "cannot be read"),
        (lambda rows, own: [own, ["b\n\x1b[2J", *rows[1][1:]], *rows[2:]], "cannot be read"),
        (lambda rows, own: {"a": own}, "cannot be read"),
    ],
)
def test_a_list_that_no_honest_coordinator_sends_is_refused(change, why):
    one = Sum()
    rows = change(one.rows, one.rows[0])
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
            {
                **one.boxes("a"),
                "b": primitives.encrypt_shares(one.members["b"]._common["a"], 2, 0, b"s", b"k"),
            },
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
    assert opening.false.keys() == {"b"}


def test_a_site_that_deals_a_false_share_to_one_other_does_not_make_that_one_the_liar():
    """Which of the two has falsified it nobody can tell. What the other gives of further sites is still good,
    and needed where no more shares than enough have come."""
    one = Sum().deal()
    common = one.members["c"]._common["b"]
    giver, taker, of_seed, of_key = primitives.decrypt_shares(common, one.dealt["c"]["b"])
    false = of_seed[:-1] + bytes([of_seed[-1] ^ 1])
    one.dealt["c"]["b"] = primitives.encrypt_shares(common, giver, taker, false, of_key)
    given = one.mask().shares(without="f")
    opening = one.opening()
    assert torch.equal(opening.total(given), sum(one.q.values()))
    assert opening.false == {"b": "c"}
    needed = {site: given[site] for site in "abde"}
    given["b"]["c"] = of_seed
    opening = one.opening()
    opening.false = {"b": "c"}
    assert torch.equal(opening.total(needed), sum(one.q.values()))


def test_a_site_that_deals_false_shares_spoils_the_sum_and_is_named():
    one = Sum().deal().mask()
    one.seeds["c"] = primitives.commitment(b"another")
    with pytest.raises(SumNotOpened, match="the shares of c do not give back what it has published"):
        one.opening().total(one.shares())


@pytest.fixture
def opened(tmp_path):
    """What a site remembers of a study."""
    return lambda study="7": SumLog(tmp_path, study)


def test_a_round_is_summed_over_one_set_of_sites(opened):
    opened().note(3, "one", ["b", "a"])
    opened().check(3, "one", ["a", "b"])
    opened().check(3, "other", ["a", "b"])
    opened().check(4, "other", ["a", "b", "c"])
    for came in (["a", "b", "c"], ["a"], ["a", "c"]):
        with pytest.raises(
            UsageError, match=r"E525 .*round 3 was summed over a, b, and what differs would be one site's"
        ):
            opened().check(3, "other", came)


def test_no_number_of_further_sums_makes_a_site_forget_a_round(opened, monkeypatch):
    monkeypatch.setattr(sum_answers, "MOST_NUMBERS", 4)
    opened().note(3, "one", ["a", "b"])
    for again in range(3):
        for t in (1, 2, 4, 5):
            opened().note(t, f"{again} {t}", ["a", "b"])
    with pytest.raises(UsageError, match="E525"):
        opened().check(3, "other", ["a", "b", "c"])


def test_the_same_numbers_are_summed_over_one_set_of_sites_in_every_study(opened):
    """A second study of the same seed asks for the same numbers."""
    opened("7").note(3, "same", ["a", "b"])
    opened("8").check(3, "same", ["b", "a"])
    opened("8").check(3, "other", ["a", "b", "c"])
    for t in (3, 5):
        with pytest.raises(UsageError, match=r"E525 .*summed before, over a, b, .*needs another seed"):
            opened("8").check(t, "same", ["a", "b", "c"])


@pytest.mark.parametrize("content", ["", "[", "[1]", '{"3": 1}', '{"3": null}'])
@pytest.mark.parametrize("place", ["opened.json", "sums/7.json"])
def test_a_site_that_cannot_read_what_it_opened_takes_part_in_nothing(content, place, opened, tmp_path):
    opened().note(3, "one", ["a", "b"])
    (tmp_path / place).write_text(content)
    with pytest.raises(UsageError, match=rf"E521 .*cannot be read from .*{place}"):
        opened().check(9, "two", ["a", "b"])
