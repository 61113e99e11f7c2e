"""Studies inside of a Flower federation that exists already: the simulator's bits through a Grid and a
ClientApp that is opened anew for every message."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.task_identity import TaskIdentity

from tests.federation import fake
from tests.federation.test_bits import simulated
from unskew import config
from unskew.errors import Paused, UnskewError, UsageError
from unskew.federation.flower_app.client import answer
from unskew.federation.flower_app.server import run_study
from unskew.federation.site.site_folder import SiteFolder
from unskew.federation.tickets import Coordinator
from unskew.records import checkpoints

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("few_attempts")]
METHODS = ("scaffold", "flea", "fedbn")
"""Methods with private state, with trips, and with weights that stay."""

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """As docs/deploy.md shows it."""
    site = str(context.node_config["site"])
    return answer(message, site, f"{site}/own.npz", classes=("a", "b", "c"), approve="all")


class Wire:
    """A Grid whose messages go through Flower's form on the wire to the app of each node, and back."""

    def __init__(self, nodes: dict[int, Context]):
        self.contexts, self.sent = nodes, 0
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in Flower's processes

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = f"m{self.sent}"
            node = message.metadata.dst_node_id
            arrived = message_from_proto(message_to_proto(message))
            reply = app(arrived, self.contexts[node])
            yield message_from_proto(message_to_proto(reply))


@pytest.fixture
def joined(tmp_path):
    """(the coordinator's folder, a Grid): five sites with a client's samples each."""
    dealt, names = fake.federation(), [f"s{k}" for k in range(len(fake.SIZES))]
    home, nodes = Coordinator.make(tmp_path / "lung", "lung", "localhost", names), {}
    for k, name in enumerate(names):
        site = SiteFolder.make(tmp_path / name, home.ticket(name))
        home.ticket_file(name).unlink()
        home.admit(name, site.key.public)
        fake.OPEN.write(site.folder)
        own = fake.data_of(dealt, k)
        parts = {"x_train": own.x, "y_train": own.y, "x_test": own.x_test, "y_test": own.y_test}
        np.savez(site.folder / "own.npz", **parts)
        nodes[1000 - k] = Context(1, 1000 - k, {"site": str(site.folder)}, RecordDict(), {})
    return home, Wire(nodes)


def study(path, **changes):
    """A file of the settings with which `simulated` trains."""
    path.write_text(config.dump(fake.small(changes.pop("method"), **changes)))
    return path


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_in_an_app_of_flower(joined, tmp_path, method):
    home, grid = joined
    settings = study(tmp_path / "study.yaml", method=method)
    run_study(grid, home.folder, settings, tmp_path / "run", clip=False)
    asked = grid.sent
    run_study(grid, home.folder, settings, tmp_path / "run", clip=False)  # it has ended, and is greeted only
    assert grid.sent == asked + len(fake.SIZES)
    last = checkpoints.latest(tmp_path / "run", lambda _: None, print)
    assert last
    assert checkpoints.digest(checkpoints.state_in(last).weights) == simulated(method).digest


def test_a_site_of_another_coordinator_answers_nothing(joined, tmp_path):
    home, grid = joined
    other = Coordinator.make(tmp_path / "other", "other", "localhost", list(home.sites))
    for name in home.sites:
        other.admit(name, home.admitted()[name])
    settings, said = study(tmp_path / "study.yaml", method="fedavg"), []
    with pytest.raises(Paused, match="E206 0 of 5 sites take part"):
        run_study(grid, other.folder, settings, tmp_path / "run", wait_s=0.1, say=said.append)
    assert "signature" in "".join(said)


def test_a_study_imports_no_file_that_it_alone_names(joined, tmp_path):
    home, grid = joined
    (tmp_path / "net.py").write_text("raise SystemExit('imported')")
    settings = study(tmp_path / "study.yaml", method="fedavg", model=f"{tmp_path}/net.py:make")
    with pytest.raises(UsageError, match=r"E506"):
        run_study(grid, home.folder, settings, tmp_path / "run", wait_s=0.1)


def test_sums_need_sites_that_stay(joined, tmp_path):
    home, grid = joined
    settings = study(tmp_path / "study.yaml", method="fedavg", secure_aggregation="on")
    with pytest.raises(UsageError, match=r"E506 secure_aggregation .*unskew serve"):
        run_study(grid, home.folder, settings, tmp_path / "run")


def test_what_fails_at_a_site_names_its_folder_there_alone(tmp_path, capsys):
    """Flower sends the text of an error to the ServerApp."""
    with pytest.raises(UnskewError, match=r"^E503 the site's log says more\.$"):
        answer(Message(RecordDict(), 1, "query"), tmp_path, "own.npz")
    assert f"{tmp_path} is not a site's folder" in "".join(capsys.readouterr())


def test_what_nobody_expected_is_not_quoted_either(joined, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(f"{tmp_path}/Mueller.csv")

    monkeypatch.setattr("unskew.federation.flower_app.client.SiteFolder.open", fail)
    with pytest.raises(UnskewError, match=r"^E311 the site's log says more\.$"):
        answer(Message(RecordDict(), 1, "query"), tmp_path, "own.npz")
