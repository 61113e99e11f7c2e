"""No site outweighs the others by what it says of itself: numbers that are doubted, a cap on weight, equal
weights."""

from __future__ import annotations

import pytest

from tests.federation import fake
from tests.federation.test_bits import problems, simulated
from unskew.errors import UsageError
from unskew.federation.coordinator.outliers import doubtful_counts
from unskew.federation.protocol.hello import Hello
from unskew.records.checkpoints import digest

BAD = "s1"


"""The site with a single training sample."""


def run(tmp_path, settings, **terms):
    return fake.run(
        tmp_path / "run", fake.Direct(fake.sites(tmp_path / "sites", fake.federation())), settings, **terms
    )


@pytest.mark.parametrize("name", ["flea"])
def test_a_false_number_stops_nobody_else(tmp_path, monkeypatch, name):
    """Bounds on what is shared follow the largest number, so all honest sites refused because of one
    liar."""
    fake.claim(monkeypatch, BAD, train=1 << 39, test=12)
    loop, _, _ = run(tmp_path, fake.small(name), min_sites=3)
    assert loop.run.federation.names == ("s0", "s2", "s3", "s4")
    told = [e["text"] for e in loop.record.rows["events"] if e["code"] == "E305"]
    claim = "s1 says it holds 549,755,813,888 training samples, the other sites 25 (median)"
    assert told == [f"{claim}, too few to train with it. s1 is left out of this run."]
    assert [e["answered"] for e in loop.record.rows["events"] if e["code"] == "round"] == [[0, 1, 2, 3]] * 3
    with pytest.raises(UsageError, match=r"E305 s1 says .* 4 sites would be left, and 5 are needed"):
        fake.run(
            tmp_path / "all",
            fake.Direct(fake.sites(tmp_path / "others", fake.federation())),
            fake.small(name),
            min_sites=5,
        )


def doubted(*numbers: tuple[int, int]) -> set[str]:
    """Which sites are doubted that say they hold so many samples for training and for testing."""
    hellos = [Hello(f"s{k}", train, test, (1, 8, 8), ("a", "b")) for k, (train, test) in enumerate(numbers)]
    return set(doubtful_counts(hellos))


def test_only_numbers_out_of_all_proportion_are_doubted():
    assert doubted((100, 10), (100, 10), (100_001, 10)) == {"s2"}
    assert doubted((100, 10), (100, 10), (100_000, 10)) == set(), "a thousand times"
    assert doubted((1, 1), (1, 1), (99_999, 99_999)) == set(), "a size that is common"
    assert doubted((500, 9), (500, 9), (300_000, 9)) == set()
    assert doubted((100, 10), (100, 10), (100, 200_000)) == {"s2"}
    assert doubted((100, 10), (1 << 39, 10), (100, 10), (100, 10), (1 << 39, 10)) == {"s1", "s4"}
    assert doubted((0, 10), (100_000, 10)) == {"s1"}
    assert doubted((1 << 39, 10)) == set(), "nobody to compare with"


@pytest.mark.parametrize("changes", [{"cap": 0.3}, {"weighting": "equal"}])
@pytest.mark.parametrize("name", ["fednova", "fedavg+multi_krum", "scaffold"])
def test_cap_and_equal_weights_end_with_the_simulators_bits(tmp_path, name, changes):
    loop, state, _ = run(tmp_path, fake.small(name, **changes))
    assert digest(state.weights) == simulated(name, **changes).digest
    assert not [text for text in problems(loop) if "E108" not in text and "multi_krum" not in text]
