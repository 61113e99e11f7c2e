"""Upgrades: which versions of two ends work together, what both are told, and who must upgrade."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tests.federation import fake
from tests.federation.test_requests import SETUP, answer, first_weights
from unskew.errors import UsageError
from unskew.federation.coordinator import network_run
from unskew.federation.protocol import hello, study_rules
from unskew.federation.protocol import hello as versions_module
from unskew.federation.protocol.hello import (
    COORDINATOR,
    Hello,
    part_versions,
    version_conflict,
    version_differences,
    versions,
)
from unskew.federation.site import run_folder, site
from unskew.methods import catalogue, registry

OTHER = "s1"


def at_one_site(monkeypatch, **other: str) -> None:
    """Let one site say that it runs other versions."""
    honest = Hello.of

    def of(name, data, known):
        said = honest(name, data, known)
        return replace(said, versions={**said.versions, **other}) if name == OTHER else said

    monkeypatch.setattr(hello.Hello, "of", staticmethod(of))


def told(tmp_path, code: str) -> list[str]:
    events = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    return [e["text"] for e in map(json.loads, events) if e["code"] == code]


def run(tmp_path, say=lambda text: None, **terms):
    sites = fake.sites(tmp_path / "sites", fake.federation())
    for one in sites.values():
        one.say = say
    return fake.run(tmp_path / "run", fake.Direct(sites), fake.small("fedavg", rounds=1), **terms)


@pytest.mark.parametrize(
    ("ours", "theirs", "who"),
    [
        ("0.1.0", "0.1.9", ""),
        ("0.1.0", "0.1.0.dev3", ""),
        ("0.1.9", "0.2.0", "a must upgrade to unskew 0.2, as at b"),
        ("0.10.0", "0.9.4", "b must upgrade to unskew 0.10, as at a"),
        ("1.0", "0.9.4", "b must upgrade to unskew 1.0, as at a"),
        ("0.1.0", "new", "b must upgrade to unskew 0.1, as at a"),
        ("0.1.0", "", ""),
    ],
)
def test_the_first_two_numbers_decide_who_must_upgrade(ours, theirs, who):
    text = version_conflict("a", {"unskew": ours}, "b", {"unskew": theirs} if theirs else {})
    assert text.endswith(who)
    assert bool(text) == bool(who)


def test_only_versions_that_decide_about_bits_are_told():
    ours = {"unskew": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}
    assert not version_differences("a", ours, "b", {**ours, "python": "3.12.1"})
    text = version_differences("a", ours, "b", {**ours, "unskew": "0.1.1", "torch": "2.14.0"})
    assert text.startswith(
        "a runs unskew 0.1.0 and torch 2.13.0, b unskew 0.1.1 and torch 2.14.0: the last bits"
    )


def test_a_site_with_another_torch_takes_part_and_the_run_says_so(tmp_path, monkeypatch):
    """It was left out, though nothing but the last bits can differ."""
    at_one_site(monkeypatch, torch="9.9")
    _, state, said = run(tmp_path, min_sites=5)
    (text,) = told(tmp_path, "E504")
    assert text.startswith(f"{COORDINATOR} runs torch {versions()['torch']}, {OTHER} torch 9.9: ")
    assert any(text in line for line in said)
    assert state.t == 1


@pytest.mark.usefixtures("installed")
def test_a_part_of_an_installed_package_that_differs_is_told_at_both_ends(tmp_path, monkeypatch):
    """Each end runs its own code of it, under one name, and nobody heard of that."""
    here = part_versions(registry.parse("myproto+scaffold"))
    assert here.keys() == {"myproto"}
    assert re.fullmatch(r"1\.0 \([0-9a-f]{8}\)", here["myproto"])
    at_one_site(monkeypatch, myproto="1.1 (12345678)")
    said: list[str] = []
    sites = fake.sites(tmp_path / "sites", fake.federation())
    for one in sites.values():
        one.say = said.append
    monkeypatch.setattr(network_run, "part_versions", lambda method: {"myproto": "1.2 (87654321)"})
    fake.run(tmp_path / "run", fake.Direct(sites), fake.small("myproto", rounds=1))
    assert (
        f"{COORDINATOR} runs myproto 1.2 (87654321), s1 myproto 1.1 (12345678): the run may differ"
        in "".join(told(tmp_path, "E504"))
    )
    assert any(
        f"E504 s0 runs myproto {here['myproto']}, the coordinator myproto 1.2" in line for line in said
    )


def test_a_module_beside_a_part_is_part_of_its_version(tmp_path, monkeypatch):
    """Only the Part's own file was: a constant in a module beside it could differ between sites, and nobody
    heard of it."""
    package = tmp_path / "split_package"
    package.mkdir()
    here = (
        "from split_package.inner import constants\nfrom .beside import WIDE\nfrom dataclasses import"
        " dataclass\n"
    )
    part = (
        "import torch\nfrom unskew import Part\n\n@dataclass(frozen=True)\nclass Mine(Part):\n    name ="
        " 'mine'\n"
    )
    hook = (
        "    def loss(self, w, out, b, c):\n        return constants.PULL *"
        " b.mean(out.features.pow(2).sum(1))\n"
    )
    (package / "method.py").write_text(here + part + hook)
    (package / "__init__.py").write_text("")
    (package / "beside.py").write_text("WIDE = 3\n")
    (package / "other.py").write_text("NOT_READ = 3\n")
    (package / "inner").mkdir()
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "constants.py").write_text("PULL = 0.1\n")
    info = tmp_path / "split_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: split-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[unskew.methods]\nmine = split_package.method:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.installed.cache_clear()
    method = registry.parse("mine")
    digests = []
    for file, text in (
        ("beside.py", "WIDE = 4\n"),
        ("inner/constants.py", "PULL = 0.2\n"),
        ("inner/__init__.py", "A = 1\n"),
        ("other.py", "NOT_READ = 4\n"),
    ):
        versions_module._part_version.cache_clear()
        digests.append(part_versions(method)["mine"])
        (package / file).write_text(text)
    versions_module._part_version.cache_clear()
    digests.append(part_versions(method)["mine"])
    registry.installed.cache_clear()
    versions_module._part_version.cache_clear()
    assert len({*digests[:4]}) == 4
    assert digests[3] == digests[4], "what the Part does not import does not count"


def test_a_part_that_was_changed_while_a_run_went_on_is_named():
    before = Hello("a", 5, 5, (2,), ("x", "y"), versions={**versions(), "myproto": "1.0 (12345678)"})
    now = replace(before, versions={**before.versions, "myproto": "1.0 (87654321)", "python": "4.0"})
    text = (
        "a runs another version of myproto than when the run began: it had 1.0 (12345678), now 1.0 (87654321)"
    )
    assert hello.data_change(before, now) == text
    assert not hello.data_change(before, before)


@pytest.mark.parametrize(("package", "name"), [(True, "myproto"), (False, "torch")])
@pytest.mark.usefixtures("installed")
def test_a_site_that_was_restarted_in_a_run_with_other_code_says_so(tmp_path, monkeypatch, package, name):
    """It came back within seconds at the node that the coordinator knew, which asked nothing, and trained on
    with new code."""
    site, *_ = fake.sites(tmp_path, fake.federation()).values()
    settings = fake.small("myproto", rounds=5)
    w = first_weights(site, "myproto")
    header = {"settings": settings.as_dict(), **SETUP}
    assert answer(site, "setup", {"w": w}, **header) == ("", "")
    here = {**versions(), **part_versions(registry.parse("myproto"))}
    then = here[name]
    if package:
        monkeypatch.setattr(run_folder, "part_versions", lambda method: {"myproto": "1.0 (87654321)"})
    else:
        monkeypatch.setattr(run_folder, "versions", lambda: {**versions(), "torch": "9.9"})
    since = "1.0 (87654321)" if package else "9.9"
    text = f"site s0 runs another version of {name} than when the run began: it had {then}, now {since}"
    mend = "bring that version back, or leave the site out."
    assert answer(site, "setup", {"w": w}, **header) == ("E504", f"{text}; {mend}")
    site._run = None  # as after a restart
    assert answer(site, "train", {"w": w}, t=1, lr=settings.lr) == ("E504", f"{text}; {mend}")
    assert answer(site, "setup", {"w": w}, **header, run="r2") == ("", ""), "another run may begin"


def test_a_site_of_another_minor_is_left_out_and_told_who_must_upgrade(tmp_path, monkeypatch):
    at_one_site(monkeypatch, unskew="0.0.7")
    run(tmp_path, min_sites=4)
    (text,) = told(tmp_path, "E504")
    assert (
        f"{OTHER} must upgrade to unskew 0.1, as at {COORDINATOR}. {OTHER} is left out of this run." in text
    )
    with pytest.raises(
        UsageError, match=r"E504 s1 runs unskew 0\.0\.7 .* 4 sites would be left, and 5 are needed"
    ):
        fake.run(
            tmp_path / "all", fake.Direct(fake.sites(tmp_path / "more", fake.federation())),
            fake.small("fedavg", rounds=1), min_sites=5,
        )  # fmt: skip


def test_a_site_tells_its_operator_once_and_refuses_a_coordinator_of_another_minor(tmp_path, monkeypatch):
    """What only the coordinator's screen says, nobody at the site reads."""
    said = []
    monkeypatch.setattr(site, "versions", lambda: {**versions(), "torch": "9.9"})
    run(tmp_path, said.append, min_sites=5)
    assert sum("E504 s1 runs torch 9.9, the coordinator torch" in line for line in said) == 1
    monkeypatch.setattr(site, "versions", lambda: {**versions(), "unskew": "7.3.0"})
    with pytest.raises(
        UsageError,
        match=r"E504 .* refuses: s\d runs unskew 7\.3\.0 and the coordinator .* must upgrade to unskew 7\.3",
    ):
        fake.run(
            tmp_path / "new", fake.Direct(fake.sites(tmp_path / "newer", fake.federation())),
            fake.small("fedavg", rounds=1),
        )  # fmt: skip


@pytest.mark.parametrize(
    "nasty", ["0.1", {"unskew": 1}, {"a" * 101: "1"}, {"unskew": "\x1b[2J"}, {str(i): "1" for i in range(11)}]
)
def test_versions_that_are_none_are_refused(nasty):
    """A stolen key could write to the operator's terminal by them."""
    with pytest.raises(UsageError, match="E310 the request's 'versions' is"):
        site.check_values({"versions": nasty})


def test_a_site_without_the_package_of_a_method_says_what_to_install(tmp_path, monkeypatch):
    """It guessed another method's name, as if somebody had mistyped."""
    entries = catalogue.entries()
    without = {name: entry for name, entry in entries.items() if name != "fedprox"}
    sites = fake.sites(tmp_path / "sites", fake.federation())
    settings = fake.small("fedprox", rounds=1)
    monkeypatch.setattr(catalogue, "entries", lambda: without)
    with pytest.raises(UsageError) as caught:
        study_rules.site_method(settings.method)
    text = "there is no method 'fedprox' at this site; if a package brings 'fedprox', install it here, too"
    assert caught.value.text.startswith(text)
    said = answer(sites[1000], "hello", settings=settings.as_dict())
    assert said == ("E102", caught.value.text)
