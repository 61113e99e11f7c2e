"""A site's policy: what a study may ask of the site. Only the site's operator writes it, in `policy.yaml` of
its folder.

A site without a readable policy refuses everything.
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Gt, Lt, MinLen

from unskew.core.shares import Kind
from unskew.errors import UnskewError, UsageError, excerpt, suggestion
from unskew.formats import arguments, documents
from unskew.methods import catalogue, registry
from unskew.privacy.secure_aggregation import LEAST_SITES
from unskew.system import disk

POLICY_FILE = "policy.yaml"
ALL = "all"
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Policy:
    """The limits of a site. Every study is checked against them before anything is computed for it."""

    methods: Annotated[
        tuple[str, ...],
        MinLen(1),
        "methods and Parts that a study may use, by name; all: every one that is installed. Rules that only"
        " the server applies to replies need not be named; fedavg must be, for studies without any other"
        " method",
    ] = (ALL,)
    shares: Annotated[
        tuple[Kind, ...],
        MinLen(1),
        "kinds of Shares that may leave: weights, sums, statistics, features, labels, inputs. Features come"
        " from weights that the coordinator chooses, and can show inputs",
    ] = ("weights", "sums", "statistics")
    least_samples: Annotated[
        int,
        Ge(1),
        "samples that must stand behind every number that leaves; a score that is a mean over classes stays"
        " here where one of them has fewer test samples",
    ] = 5
    least_batch: Annotated[int, Ge(1), "samples that a study's training batches must have"] = 4
    most_rounds: Annotated[int, Ge(1), "rounds of one study"] = 1000
    most_runs: Annotated[int, Ge(1), "runs that may begin at this site, all studies together"] = 100
    epsilon: Annotated[
        Annotated[float, Gt(0)] | None,
        "budget of differential privacy, all runs together, for methods that account for one (their largest"
        " finite figure counts, in full when a run begins); none: no budget. Studies that account for none,"
        " such as plain fedavg, are not stopped by it: name methods to allow no others",
    ] = None
    delta: Annotated[
        float,
        Ge(0),
        Lt(1),
        "budget of the deltas at which the figures of epsilon hold, all runs together: the chance that more"
        " has leaked than epsilon says. It counts where epsilon is set",
    ] = 1e-4
    secure_aggregation: Annotated[
        Literal["optional", "required"],
        "required: only studies in which the coordinator sees the sum over sites alone, and no reply of this"
        " site",
    ] = "optional"
    peers: Annotated[
        tuple[str, ...],
        "sites, by name, that must be in every secure sum that holds numbers of this site",
    ] = ()
    least_sites: Annotated[
        int,
        Ge(LEAST_SITES),
        "sites that every secure sum must hold numbers of, this one among them: a study's threshold of"
        " secure_aggregation has to assure it",
    ] = LEAST_SITES
    handing_on: Annotated[
        Literal["allowed", "refused"],
        "refused: no study in which other sites are sent the model of a single site, or a mixture made for"
        " one of them",
    ] = "refused"

    def __post_init__(self) -> None:
        """Raises UsageError (E521) for an unknown method."""
        known = (ALL, "fedavg", *catalogue.entries(), *registry.installed())
        for name in self.methods:
            if name not in known:
                text = f"methods: there is no method {excerpt(name)}.{suggestion(name, known)}"
                raise UsageError("E521", text)

    @staticmethod
    def of(values: Mapping[str, object], lines: Mapping[str, int] | None = None) -> Policy:
        """A policy from keys and values, with defaults for the rest. lines: line number of each key, for
        messages.

        Raises UsageError (E521) for an unknown key or an invalid value.
        """
        for key, value in values.items():
            where = f" at line {lines[key]}" if lines and key in lines else ""
            if key not in _ARGUMENTS:
                text = f"unknown key {excerpt(key)}{where}.{suggestion(str(key), _ARGUMENTS)}"
                raise UsageError("E521", f"{text} A policy has {', '.join(_ARGUMENTS)}.")
            for kind in value if key == "shares" and isinstance(value, list | tuple) else ():
                if kind not in KINDS:
                    near = suggestion(str(kind), KINDS)
                    raise UsageError("E521", f"shares{where}: there is no kind {excerpt(kind)}.{near}")
        return Policy(**arguments.check(Policy, values, "the policy", "E521"))

    @staticmethod
    def read(folder: Path) -> Policy:
        """The policy of a site's folder.

        Raises UsageError (E521) if it is missing, can be changed by other users, or contains anything
        invalid.
        """
        path = folder / POLICY_FILE
        try:
            mode, text = path.stat().st_mode, path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason, remedy = "cannot read the policy", str(error)
            if isinstance(error, FileNotFoundError):
                reason, command = "there is no policy", "unskew site policy --default"
                remedy = f"write the default one: {command} --folder {shlex.quote(str(folder))}"
            raise UsageError("E521", f"{reason} {path}, so the site refuses everything; {remedy}") from None
        if stat.S_IMODE(mode) & 0o077:
            text = f"other users may read or change the policy {path}; run: chmod 600 {path}"
            raise UsageError("E521", text)
        return _parse(text, str(path))

    def write(self, folder: Path) -> None:
        """Write the policy with explanations of its keys so that only this user can read or change it."""
        disk.replace_private(folder / POLICY_FILE, self.text())

    def text(self) -> str:
        """The policy as YAML for `read`."""
        text = (
            "# What studies may ask of this site. `unskew site policy` checks this file; the site reads it at"
            " every\n# request, so that changes count at once. Without a readable policy the site refuses"
            " everything.\n"
        )
        for name, value in asdict(self).items():
            entry = documents.dump({name: list(value) if isinstance(value, tuple) else value}).strip()
            text += f"\n# {_ARGUMENTS[name].meaning}\n{entry}\n"
        return text


@lru_cache(maxsize=16)
def _parse(text: str, where: str) -> Policy:
    """The policy in this text, cached because a site reads it at every request. Raises UsageError (E521)."""
    try:
        values = documents.load(text, where, "E521")
        if not isinstance(values, dict):
            raise UsageError("E521", "it must hold keys and values, such as `most_rounds: 50`.")
        return Policy.of(values, documents.lines_of(text))
    except UnskewError as error:
        raise UsageError("E521", error.text if where in error.text else f"{where}: {error.text}") from None


_ARGUMENTS = {argument.name: argument for argument in arguments.of(Policy)}
