"""Sites that measure in other units are named (E504), and hospitals whose patients differ are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.federation import fake  # skips where cryptography is missing
from unskew.core.replies import Reply
from unskew.data.samples.dataset import Dataset
from unskew.federation import site_data
from unskew.federation.coordinator.outliers import UNIT_REMEDY, unit_remarks
from unskew.federation.protocol.hello import Hello
from unskew.federation.site.site import Site, SiteIdentity


def patients(seed: int, older: float = 0.0, smokers: float = 0.3, n: int = 60) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "age": rng.normal(60 + older, 12, n).round(),
        "sex": np.array(["f", "m"])[np.arange(n) % 2],
        "weight": rng.normal(75, 12, n).round(1),
        "heat": rng.normal(37, 0.8, n).round(2),
        "ward": np.array(["one", "two", "three"])[np.arange(n) % 3],
        "smoker": (rng.random(n) < smokers).astype(int),
    }


def table(path, columns: dict[str, np.ndarray]) -> Dataset:
    labels = ["no", "yes"] * (len(columns["age"]) // 2)
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), labels)]
    path.write_text("\n".join([",".join([*columns, "label"]), *rows]) + "\n")
    return site_data.load(str(path), ["no", "yes"])


def told(tmp_path, *given: dict[str, np.ndarray]) -> dict[str, str]:
    """What is said of sites with these patients, by the statistics that they would send."""
    sets = [table(tmp_path / f"{k}.csv", columns) for k, columns in enumerate(given)]
    hellos = [Hello.read(Hello.of(f"s{k}", data, {}).as_json()) for k, data in enumerate(sets)]
    replies = []
    for k, data in enumerate(sets):
        x = torch.as_tensor(np.asarray(data.x))
        shares = {"standardise": {"mu": x.mean(0), "sigma": x.std(0, correction=0)}}
        replies.append(Reply(k, float(len(x)), {}, shares, {}))
    return unit_remarks(hellos, replies, "standardise")


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("weight", lambda kg: 2.2046 * kg),
        ("weight", lambda kg: 1000 * kg),
        ("heat", lambda celsius: 1.8 * celsius + 32),
        ("age", lambda age: np.where(np.arange(len(age)) % 20, age, -999)),
        ("age", lambda age: age / 12),
        ("weight", lambda kg: 75 + (kg - 75) / 10),
    ],
)
def test_a_column_in_other_units_is_named_with_its_site(tmp_path, column, change):
    """Nobody could see it: the constants that all sites scaled by fitted none of them, and the run ended as
    if all were well."""
    other = patients(2)
    texts = told(tmp_path, patients(0), patients(1), {**other, column: change(other[column])})
    assert list(texts) == ["s2"]
    assert texts["s2"].startswith(f"column '{column}' has ")
    assert texts["s2"].endswith(f"; {UNIT_REMEDY}")
    assert texts["s2"].count("column") == 1


def test_hospitals_whose_patients_differ_are_not_named(tmp_path):
    """Older by two deviations, hardly anybody smokes, everybody does, few patients."""
    many = patients(2, smokers=0.005, n=2000)
    assert told(tmp_path, patients(0), patients(1, older=24), many, patients(3, smokers=1.0)) == {}
    few = patients(4, n=8)
    assert told(tmp_path, patients(0), patients(1), {**few, "weight": 2.2046 * few["weight"]}) == {}
    assert told(tmp_path, patients(0)) == {}


def test_of_two_sites_either_may_be_the_odd_one(tmp_path):
    other = patients(1)
    assert list(told(tmp_path, patients(0), {**other, "weight": 1000 * other["weight"]})) == ["s0", "s1"]


def test_the_run_says_so_and_goes_on(tmp_path):
    sites, odd = {}, patients(2)
    for k, columns in enumerate((patients(0), patients(1), {**odd, "heat": 1.8 * odd["heat"] + 32})):
        (tmp_path / f"s{k}").mkdir()
        fake.OPEN.write(tmp_path / f"s{k}")
        member = SiteIdentity(f"s{k}", tmp_path / f"s{k}", fake.KEYS[f"s{k}"], fake.COORDINATOR.public)
        data = table(tmp_path / f"{k}.csv", columns)
        sites[1000 - k] = Site(member, lambda data=data: data, approve="all")
    settings = fake.small("fedavg", rounds=1).replace(method="standardise", model="mlp", clients=3)
    loop, state, _ = fake.run(tmp_path / "run", fake.Direct(sites), settings)
    (text,) = [e["text"] for e in loop.record.rows["events"] if e["code"] == "E504"]
    assert text.startswith("s2: column 'heat' has a mean ")
    assert (state.t, [e["code"] for e in loop.record.rows["events"]]) == (1, ["E504", "round"])
