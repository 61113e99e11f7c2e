"""A study in the ServerApp of somebody's Flower federation: its Grid carries requests and replies."""

# pyright: reportMissingImports=false
# Flower lives in an environment of its own, and types are checked in the one without it.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from unskew import config
from unskew.errors import MissingPackage, UsageError
from unskew.federation.coordinator.correspondence import Contact
from unskew.federation.coordinator.network_run import Terms, conduct
from unskew.federation.programs import Say, echo_timed
from unskew.federation.protocol.signed_messages import SignedMessage
from unskew.federation.protocol.study_rules import study_settings, with_clipping
from unskew.federation.tickets import Coordinator
from unskew.runs.disclosure import disclosure_lines
from unskew.system import disk, python_files

try:
    from flwr.app import Array, Message
    from flwr.serverapp import Grid

    from unskew.federation.protocol.flower_messages import pack_message, unpack_message
except ImportError as error:  # the extra is not installed, or in a version that has other names
    raise MissingPackage(f"a federation ({error})", "Flower 1.41", "flower") from error


class GridChannel:
    """A Channel (see `correspondence`) through a Grid. Flower fetches replies of any size, so that a reply
    that is too large is refused after it has come."""

    def __init__(self, grid: Grid):
        self._grid = grid

    def nodes(self) -> list[int]:
        """See `Channel.nodes`."""
        return sorted(self._grid.get_node_ids())

    def ask(
        self, requests: Mapping[int, SignedMessage], kind: str, t: int, deadline_s: float, most: int
    ) -> dict[int, SignedMessage | str]:
        """See `Channel.ask`. Every request is a query of Flower's, so that a ClientApp needs one function."""
        arrays: dict[int, Array] = {}
        messages = [
            Message(pack_message(sealed, arrays), node, "query", group_id=str(t), ttl=deadline_s)
            for node, sealed in requests.items()
        ]
        replies: dict[int, SignedMessage | str] = {}
        for reply in self._grid.send_and_receive(messages, timeout=deadline_s):
            node = reply.metadata.src_node_id
            try:
                replies[node] = reply.error.reason if reply.has_error() else unpack_message(reply.content)
            except ValueError as error:  # of another app
                replies[node] = str(error)
        return replies


@disk.private_files()
def run_study(
    grid: Grid,
    federation: Path | str,
    study: Path | str,
    run: Path | str,
    *,
    min_sites: int = 1,
    deadline_s: float = 600.0,
    wait_s: float = 600.0,
    clip: bool = True,
    model: str = "",
    say: Say = echo_timed,
) -> None:
    """Train a study at the sites behind a Grid, or continue it; call this in a ServerApp.

    federation: the coordinator's folder, of `unskew federation init`. study: a YAML file of settings. run:
    the run's folder, which receives the model. min_sites: a round with fewer replies changes nothing.
    deadline_s: longest wait for an exchange, in seconds; wait_s: for missing sites before round 1. clip:
    add `clip_median`, as `unskew run --on` does; `cap` has the same default as there, too. model:
    FILE.py:FUNCTION if the study names one, because no file is imported that a document alone names. say:
    takes the lines that it reports.
    Raises UsageError for a study that cannot run over a network (E506) or sites that do not fit together
    (E504), and Paused (E206) if too few of them answer.
    """
    home = Coordinator.open(Path(federation))
    settings = study_settings(config.build(config.ON_SITES | config.load_partial(Path(study))))
    if settings.secure_aggregation != "off":
        text = "secure_aggregation holds a sum between messages, and an app of Flower ends after each"
        raise UsageError("E506", f"{text}; take unskew serve and unskew site run.")
    settings = with_clipping(settings) if clip else settings
    contact, terms = Contact.of(home, GridChannel(grid)), Terms(min_sites, deadline_s, wait_s)
    with python_files.restrict(model):
        conduct(
            Path(run), settings, contact, terms,
            say=say, ready=lambda loop: say("\n".join(disclosure_lines(loop))),
            shown=lambda _, done: say(f"round {done.t}: {done.answered}/{done.asked} sites"),
        )  # fmt: skip
