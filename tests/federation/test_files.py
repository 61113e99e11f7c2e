"""The files of deploy/: every command line is one of ours, and every sandbox is as closed as its page
says."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.federation import fake
from tests.federation.test_metrics import Simple
from unskew import cli
from unskew.federation.prometheus import Endpoint
from unskew.federation.tickets import DEFAULT_PORT, Ticket

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE = sorted((DEPLOY / "docker").glob("*.yaml"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DOCKERFILE = (DEPLOY / "docker/Dockerfile").read_text()
ANALYZE = shutil.which("systemd-analyze") or ""
MOST_EXPOSED = 3.0
WRITTEN = re.compile(r"(?:^|[\s/])unskew ((?:serve|join|run|site|federation|attach|resume|watch) .*)")
KNOWN = {
    "Unit": "Description After Wants StartLimitIntervalSec",
    "Service": (
        """Type ExecStart EnvironmentFile User Group StateDirectory StateDirectoryMode WorkingDirectory UMask KillMode
        TimeoutStopSec SuccessExitStatus Restart RestartSec NoNewPrivileges CapabilityBoundingSet
        AmbientCapabilities ProtectSystem ProtectHome PrivateTmp PrivateDevices DevicePolicy PrivateUsers
        ProtectKernelTunables ProtectKernelModules ProtectKernelLogs ProtectControlGroups ProtectClock ProtectHostname
        ProtectProc RestrictAddressFamilies RestrictNamespaces RestrictRealtime RestrictSUIDSGID LockPersonality RemoveIPC
        SystemCallArchitectures SystemCallFilter SystemCallErrorNumber"""
    ),
    "Install": "WantedBy",
}
"""Directives of systemd that the units may use. One that is misspelt would be ignored, and its protection
missing."""


def unit(path: Path) -> dict[str, list[tuple[str, str]]]:
    """The directives of a unit by section, in order; one may occur several times."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            sections[line.strip("[]")] = []
        elif line and line[0] not in "#;":
            name, _, value = line.partition("=")
            sections[list(sections)[-1]].append((name, value))
    return sections


def pods(path: Path) -> Iterator[dict[str, Any]]:
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] == "StatefulSet":
            yield document["spec"]


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    pod = spec["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def filled(text: str) -> str:
    """With a value for every variable of a shell, of systemd or of compose."""
    text = re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)
    return re.sub(r"\$\{[A-Z_]+(:\?[^}]*)?\}", "x", text).replace("%i", "lung")


def in_text(text: str) -> Iterator[list[str]]:
    """The command lines in comments, scripts and prose."""
    for line in text.splitlines():
        if match := WRITTEN.search(line):
            words = shlex.split(filled(match[1].rstrip("`)").partition(" #")[0]), comments=False)
            yield words


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every command line of ours in these files: where it stands, and its words without `unskew`."""
    for path in sorted(p for p in DEPLOY.rglob("*") if p.is_file()):
        for words in in_text(path.read_text()):
            yield path.name, words
    for path in COMPOSE:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            yield f"{path.name}: {name}", [filled(word) for word in service["command"]]
        for match in re.finditer(r"run --rm \w+ (federation .*)", path.read_text()):
            yield path.name, shlex.split(match[1])
    for path in MANIFESTS:
        for spec in pods(path):
            for one in containers(spec):
                if "command" not in one:
                    yield f"{path.name}: {one['name']}", one["args"]


LINES = list(command_lines())


def calls(command: Any) -> Iterator[Any]:
    """This command and all below it."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from calls(inner)


def test_every_file_gives_command_lines():
    assert len(LINES) >= 18
    places = {place.partition(":")[0] for place, _ in LINES}
    assert places >= {path.name for path in (*UNITS, *COMPOSE, *MANIFESTS)}
    assert {place for place, _ in LINES if ": " in place} == {
        "coordinator.yaml: coordinator",
        "site.yaml: site",
        "coordinator.yaml: serve",
    }
    assert {"serve", "run", "join"} < {words[0] for _, words in LINES}


@pytest.mark.parametrize(("place", "words"), LINES, ids=[f"{place}-{' '.join(w[:2])}" for place, w in LINES])
def test_every_command_line_is_one_of_ours(place, words):
    """Read by our own parser, which refuses options and choices that do not exist; nothing is run."""
    read = []
    command = typer.main.get_command(cli.app())
    for one in calls(command):
        if not getattr(one, "commands", None):
            one.callback = lambda **values: read.append(values)
    command.main(list(words), prog_name="unskew", standalone_mode=False)
    assert len(read) == 1, place


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_units_hold_known_directives_once_and_close_what_can_be_closed(path):
    sections = unit(path)
    assert sections.keys() == KNOWN.keys()
    for section, directives in sections.items():
        assert {name for name, _ in directives} <= set(KNOWN[section].split()), section
        names = [name for name, _ in directives if name != "SystemCallFilter"]
        assert len(names) == len(set(names))
    service = dict(sections["Service"])
    assert service["User"] == "unskew" != "root"
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == ""
    assert (service["ProtectSystem"], service["UMask"], service["NoNewPrivileges"]) == (
        "strict",
        "0077",
        "yes",
    )
    assert f"/var/lib/{service['StateDirectory']}" == service["WorkingDirectory"]
    assert configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True).read(path)


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_units_do_not_break_training(path):
    """Under the first torch cannot train a convolution; under the second it computes to other bits."""
    assert not {"MemoryDenyWriteExecute", "ProcSubset"} & {name for name, _ in unit(path)["Service"]}


@pytest.mark.skipif(not ANALYZE, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.name)
def test_systemd_itself_finds_the_units_closed_and_without_a_mistake(path, tmp_path):
    done = subprocess.run(
        [ANALYZE, "security", "--offline=true", f"--threshold={MOST_EXPOSED * 10:g}", str(path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert exposure
    assert float(exposure[1]) < MOST_EXPOSED
    program = tmp_path / "unskew"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copied = tmp_path / path.name.replace("@", "@lung")
    copied.write_text(path.read_text().replace("/opt/unskew/bin/unskew", str(program)))
    checked = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(copied)], capture_output=True, text=True, timeout=60
    )
    assert path.name.partition("@")[0] not in checked.stderr, checked.stderr


def test_the_image_runs_as_nobody_special_and_takes_its_base_from_whoever_builds_it():
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if line.startswith(("ARG", "FROM"))] == [
        "ARG BASE", "FROM ${BASE} AS build", "FROM ${BASE}"
    ]  # fmt: skip
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["10001:10001"]
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M)
    assert copied
    assert all((ROOT / source).exists() for line in copied for source in line.split())
    assert 'ENTRYPOINT ["unskew"]' in lines
    assert "/opt/unskew/bin" in next(line for line in lines if line.startswith("ENV PATH="))


def test_the_health_check_of_the_image_is_one_that_fails_and_passes():
    words = ast.literal_eval(re.search(r"HEALTHCHECK .*\\\n\s+CMD (\[.*\])", DOCKERFILE)[1])  # type: ignore[index]
    figures = Simple()
    served = Endpoint("0", figures)
    served.start()
    check = [sys.executable, *(word.replace("9464", str(served.port)) for word in words[1:])]
    assert words[0] == "python"
    assert subprocess.run(check, capture_output=True, timeout=30).returncode == 0
    figures.wrong = "not running: the front"
    assert subprocess.run(check, capture_output=True, timeout=30).returncode != 0


@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.name)
def test_compose_gives_a_container_nothing_that_it_does_not_need(path):
    project = yaml.safe_load(path.read_text())
    (service,) = project["services"].values()
    assert service["user"] == "10001:10001"
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "network_mode", "devices", "cap_add", "pid"} & service.keys()
    assert service["build"]["args"] == {"BASE": "${BASE:-}"}
    assert (path.parent / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).exists()
    assert (
        service["command"][service["command"].index("--metrics") + 1] == "9464"
    )  # where the image's check looks
    assert service.get("ports", []) in ([], [f"{DEFAULT_PORT}:{DEFAULT_PORT}"])
    for volume in service["volumes"]:
        name, _, rest = volume.rpartition("}:") if "}:" in volume else volume.partition(":")
        assert name in project["volumes"] or rest.endswith(":ro"), volume
    assert set(service.get("secrets", [])) == set(project.get("secrets", {}))


@pytest.mark.parametrize("path", [*COMPOSE, *MANIFESTS], ids=lambda p: f"{p.parent.name}-{p.name}")
def test_no_registry_is_chosen_for_anybody(path):
    images = re.findall(r"image: (\S+)", path.read_text())
    assert images
    assert all(re.fullmatch(r"unskew:[\d.]+", image) for image in images)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_pods_are_locked_and_what_they_name_exists(path):
    (spec,) = pods(path)
    pod = spec["template"]["spec"]
    security = pod["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001)
    assert security["fsGroupChangePolicy"] == "OnRootMismatch"
    assert (pod["automountServiceAccountToken"], spec["replicas"]) == (False, 1)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    volumes = claims | {volume["name"] for volume in pod["volumes"]}
    workdir = re.search(r"^WORKDIR (/var\S+)", DOCKERFILE, re.M)[1]  # type: ignore[index]
    for one in containers(spec):
        locked = one["securityContext"]
        assert (locked["allowPrivilegeEscalation"], locked["readOnlyRootFilesystem"]) == (False, True)
        assert locked["capabilities"] == {"drop": ["ALL"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
        assert mounts.keys() <= volumes
        assert mounts["state"] == workdir
        assert mounts["tmp"] == "/tmp"
    (main,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    assert f"0.0.0.0:{ports['metrics']}" == main["args"][main["args"].index("--metrics") + 1]
    probes = [probe for name, probe in main.items() if name.endswith("Probe")]
    assert len(probes) >= 2
    assert all(probe["httpGet"] == {"path": "/healthz", "port": "metrics"} for probe in probes)
    assert "limits" in main["resources"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_network_policies_let_nothing_in_but_sites_and_the_monitoring(path):
    documents = list(yaml.safe_load_all(path.read_text()))
    (spec,) = pods(path)
    (policy,) = [d["spec"] for d in documents if d["kind"] == "NetworkPolicy"]
    labels = spec["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == spec["selector"]["matchLabels"] == labels
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    open_ = [port["port"] for rule in policy["ingress"] if "from" not in rule for port in rule["ports"]]
    assert open_ == ([DEFAULT_PORT] if path.name == "coordinator.yaml" else [])
    for service in (d["spec"] for d in documents if d["kind"] == "Service"):
        assert service["selector"] == labels
        assert [port["port"] for port in service["ports"]] == [DEFAULT_PORT]
    out = {port["port"] for rule in policy["egress"] for port in rule.get("ports", [])}
    assert out == (set() if path.name == "coordinator.yaml" else {53, DEFAULT_PORT})


def test_the_fingerprint_in_the_example_has_the_form_of_one():
    (spec,) = pods(DEPLOY / "kubernetes/site.yaml")
    arguments = containers(spec)[0]["args"]
    example = arguments[arguments.index("--coordinator") + 1]
    ticket = Ticket("lung", "h", 1, "a", fake.COORDINATOR.public.text, "")
    assert len(example) == len(ticket.fingerprints["coordinator"])
    assert re.fullmatch(r"[0-9A-F]{2}(:[0-9A-F]{2}){15}", example)


def test_nginx_passes_tls_through_unopened():
    text = re.sub(r"#.*", "", (DEPLOY / "nginx/stream.conf").read_text())
    assert text.split()[0] == "stream"
    assert not re.search(r"\bssl|\bhttp\b|proxy_protocol", text)
    assert re.search(r"proxy_pass\s+unskew;", text)
    assert text.count("{") == text.count("}")
