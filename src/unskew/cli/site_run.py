"""`unskew site run`: join a federation if necessary, and answer the coordinator until stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unskew.cli import join
from unskew.cli.join import SITE
from unskew.cli.serve import LOG_FORMAT, METRICS, publish

if TYPE_CHECKING:
    from unskew.federation.programs import Log
    from unskew.federation.site.site_checks import Finding
    from unskew.federation.site.site_folder import SiteFolder

Data = Annotated[
    str,
    typer.Option(
        help=(
            "a folder, an .npz, .csv or .parquet file, or FILE.py:FUNCTION; how it is read may follow in"
            " brackets"
        )
    ),
]
Classes = Annotated[str, typer.Option(help="all class names, separated by commas; the same at every site")]
Folder = Annotated[Path, typer.Option(help="the site's folder")]
Model = Annotated[
    str | None,
    typer.Option(help="FILE.py:FUNCTION that builds the model, for studies with a model from a file"),
]
APPROVALS = {
    "ask": "new ones wait for `unskew site approve`",
    "all": "ALL that the policy allows begin without asking",
}
LOCAL_ADDRESS = "new ones are asked about here"
LATER_CHECKS = ("network", "handshake", "admission")
"""Checks that a new site need not pass yet: the server may not run, and the site's key is not admitted."""


def command(
    data: Data,
    folder: Folder = SITE,
    ticket: Annotated[
        Path | None, typer.Option(help="join with this ticket first, unless the site has; may be given again")
    ] = None,
    coordinator: join.Fingerprint = "",
    classes: Classes = "",
    model: Model = None,
    device: Annotated[str, typer.Option(help="where this site trains: cpu, cuda, cuda:1, auto")] = "cpu",
    approve: Annotated[
        Literal["ask", "all"],
        typer.Option(
            help=(
                "ask: a new study waits for the operator, here or by `unskew site approve`; all: whatever the"
                " policy "
                "allows may begin"
            )
        ),
    ] = "ask",
    metrics: Annotated[str, typer.Option(metavar="[HOST:]PORT", help=METRICS)] = "",
    log_format: Annotated[Literal["text", "json"], typer.Option(help=LOG_FORMAT)] = "text",
) -> None:
    """Connect to the server and answer its requests until stopped."""
    from unskew.federation.programs import Log
    from unskew.federation.site.processes import SiteMetrics, SiteProcesses
    from unskew.federation.site.site_folder import SiteFolder, check_fingerprint, site_lock

    head = Log(log_format, {"program": "site run"})
    with head.to_the_end():
        joined = (
            _join(folder, ticket, coordinator, data, classes, head) if ticket else SiteFolder.open(folder)
        )
        if coordinator:
            check_fingerprint(joined.ticket, coordinator)  # also for a site that joined without this option
        site = joined.ticket
        tls = "TLS enabled" if site.authority else "TLS DISABLED"
        head(f"site {site.site} of {site.federation} → {site.place}  {tls}")
        head(f"logs    {folder / 'worker.log'}")
        say = Log(
            log_format, {"program": "site run", "federation": site.federation, "site": site.site}, timed=True
        )
        with site_lock(folder, site.site):
            figures = SiteMetrics(folder)
            if metrics:
                publish(metrics, figures, head)
            _announce_studies(folder, approve, say)
            SiteProcesses(joined, data, classes, model, device, say, approve, log_format, figures).run()


def _join(folder: Path, ticket: Path, coordinator: str, data: str, classes: str, say: Log) -> SiteFolder:
    """The site in this folder; it joins first if it has not yet. Raises SystemExit if a check then fails."""
    from unskew.federation.site import site_checks, site_folder

    joined, now = site_folder.join(
        folder, ticket, join.fingerprint_source(coordinator, asks=say.form == "text")
    )
    join.show(joined, now, say)
    if now:
        findings = site_checks.check_site(folder, data, names(classes))
        show_findings(findings, say, LATER_CHECKS)
        if wrong := [f.what for f in findings if not f.ok and f.what not in LATER_CHECKS]:
            say(
                "The site has joined and has connected to nobody. Mend this, then give the same command"
                " again."
            )
            raise SystemExit(3 if wrong == ["data"] else 2)
    return joined


def _announce_studies(folder: Path, approve: str, say: Log) -> None:
    """Announce studies that wait for approval, and ask about them if a person is at the terminal."""
    from unskew.federation.site import approvals

    here = approve == "ask" and say.form == "text" and approvals.has_terminal()
    text = LOCAL_ADDRESS if here else APPROVALS[approve]
    replace(say, timed=False)(f"studies {text}; policy: {folder / 'policy.yaml'}")
    operator = approvals.Terminal() if here else None
    threading.Thread(target=approvals.watch, args=(folder, say, operator), daemon=True).start()


def names(classes: str) -> list[str]:
    """The class names in the text of --classes."""
    return [c.strip() for c in classes.split(",") if c.strip()]


def show_findings(
    findings: Sequence[Finding], say: Callable[[str], None] = print, not_yet: Container[str] = ()
) -> None:
    """Print one line per check. not_yet: checks that need not pass yet."""
    for f in findings:
        failed = "wait" if f.what in not_yet else "FAIL"
        say(f"{'ok  ' if f.ok else failed}  {f.what:<12} {f.text}")
