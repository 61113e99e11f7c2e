"""A run from its order to its ending: what the server's process does, and what it leaves for whoever follows it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from unskew import config, disk
from unskew.deploy import bounds, server
from unskew.deploy.admitted import Admitted
from unskew.deploy.orders import ENDING, Order
from unskew.deploy.post import Channel, Contact, names
from unskew.deploy.tickets import Coordinator
from unskew.engine.leaves import leaves
from unskew.engine.server.loop import Loop
from unskew.engine.server.summary import Round
from unskew.errors import Paused, UnskewError
from unskew.failures import explained
from unskew.scores import latest

ENDED = "E507"
"""What ended is not the study: the run can go on."""


def conduct_order(channel: Channel, order: Order) -> None:
    """Conduct the run. However it ends, `ending.json` says how, unless this process is killed."""
    with disk.private():  # what sites send stands in the run's files
        order.path.mkdir(parents=True, exist_ok=True)
        _conduct_to_the_end(channel, order)


def _conduct_to_the_end(channel: Channel, order: Order) -> None:
    began = time.time()
    ending: dict[str, Any] = {"state": "done", "code": 0}
    with open(order.path / "server.log", "a", opener=disk.refuse_link) as log:
        try:
            _conduct(channel, order, log)
        except UnskewError as error:
            text = f"{error} Resume with: unskew resume {order.path}" if error.code == ENDED else str(error)
            ending = {"state": "stopped", "code": error.exit_code, "text": text}
        except OSError as error:
            known = explained(error)
            ending = {"state": "stopped", "code": known.exit_code, "text": str(known)}
        except (SystemExit, KeyboardInterrupt) as error:
            ending = {"state": "stopped", "code": 2, "text": f"{_told(error)} Resume with: unskew resume {order.path}"}
            raise
        except BaseException as error:
            ending = {"state": "failed", "code": 1, "text": f"{type(error).__name__}: {error}"}
            raise
        finally:
            text = ending.get("text", "done")
            _say(log, text)
            if not text.startswith("E110"):  # else another process conducts this run, and will say how it ends
                with suppress(Paused):  # then whoever follows the run sees that the disk is full
                    disk.replace(order.path / ENDING, json.dumps({**ending, "began": began}))


def _told(end: SystemExit | KeyboardInterrupt) -> str:
    """Who ended a run's process: `unskew serve` or somebody else on this machine, or Flower's server (KeyboardInterrupt)."""
    if isinstance(end, SystemExit):
        return "E507 the run's process was told to end; every finished round is saved."
    text = "E507 Flower's server has ended the run: somebody has stopped it, or this machine's clock has jumped."
    return f"{text} Every finished round is saved."


def _conduct(channel: Channel, order: Order, log: TextIO) -> None:
    home = Coordinator.open(Path(order.federation))
    admitted = home.admitted()
    sites = tuple(site for site in home.sites if site in admitted) or home.sites
    if uninvited := [site for site in home.sites if site not in sites]:
        is_, it = ("is", "it") if len(uninvited) == 1 else ("are", "them")
        _say(log, f"{names(uninvited)} {is_} not admitted, and nobody waits for {it}.")
    contact = Contact(channel, sites, home.key, Admitted(home), bounds.read(home))
    loops: list[Loop] = []

    def ready(loop: Loop) -> None:
        loops.append(loop)
        _say(log, "\n".join(leaves(loop)))

    listeners = server.Listeners(
        lambda text: _say(log, text),
        lambda state, done: _say(log, in_a_line(done, loops[0])),
        ready,
    )
    server.conduct(order.path, config.build(dict(order.settings)), contact, order.terms, listeners)


def in_a_line(done: Round, loop: Loop) -> str:
    """A finished round: which sites counted, and what was scored last."""
    dropped = f", {done.dropped} dropped" if done.dropped else ""
    scores = latest(loop.record.latest, loop.fed.task.main_score, done.t)
    return "  ".join([f"round {done.t}: {done.answered}/{done.asked} sites{dropped}, {done.seconds:.1f} s", *scores])


def _say(log: TextIO, text: str) -> None:
    with suppress(OSError):  # a full disk under a log must not end the run
        print(text)
        print(time.strftime("%H:%M:%S"), text, file=log, flush=True)
