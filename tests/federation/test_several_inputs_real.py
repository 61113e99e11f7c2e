"""Real processes whose sites hold samples of several inputs, and a model of their own: the simulator's
weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

import unskew
from tests.federation import fake  # noqa: F401  skips where cryptography is missing
from tests.federation.loopback import Loopback, samples
from tests.federation.test_several_inputs import MODULE

pytestmark = [pytest.mark.slow, pytest.mark.flower]

STUDY = {"method": "scaffold", "rounds": 2, "epochs": 1, "seed": 0, "eval_every": 2}
SITES = "ab"


def inputs_of(x: np.ndarray) -> dict[str, np.ndarray]:
    """Digits [N, 1, 8, 8] as a part of 4 by 4 pixels and one number."""
    return {"scan": x[:, :, 2:6, 2:6], "age": x[:, 0, 0, 3]}


class Several(Loopback):
    """A federation whose every site holds an .npz of two inputs."""

    def _write_data(self, site: str, k: int) -> None:
        dealt = samples(len(SITES))
        train, test = dealt.train[k], dealt.test[k]
        arrays = {f"x_train.{n}": v for n, v in inputs_of(dealt.x[train]).items()}
        arrays |= {f"x_test.{n}": v for n, v in inputs_of(dealt.x_test[test]).items()}
        labels = {"y_train": dealt.y[train], "y_test": dealt.y_test[test]}
        np.savez(self.root / f"{site}.npz", **arrays, **labels, classes=np.array(dealt.classes))

    def start_site(self, site: str, folder: str = "", approve: str = "all") -> None:
        places = ["--data", f"{site}.npz", "--folder", f"site-{site}", "--model", "net.py:Net"]
        self.start(site, "site", "run", *places, "--approve", approve, "--metrics", "0")


def test_sites_with_several_inputs_end_with_the_simulators_weights(tmp_path):
    (tmp_path / "net.py").write_text(MODULE)
    federation = Several(tmp_path, sites=SITES)
    (tmp_path / "study.yaml").write_text(
        "\n".join(f"{n}: {v}" for n, v in {**STUDY, "model": "net.py:Net"}.items())
    )
    try:
        federation.up(SITES)
        federation.start_run("several", "--min-sites", "2", "--model", "net.py:Net", deadline="120s")
        result = json.loads(federation.end("run"))
    finally:
        federation.stop()
    dealt = samples(len(SITES))
    packed = unskew.data.arrays(
        inputs_of(dealt.x), dealt.y, inputs_of(dealt.x_test), dealt.y_test, classes=dealt.classes
    )
    alone = unskew.run(
        **{**STUDY, "method": "scaffold+clip_median"},
        data=unskew.data.Federation(
            "digits",
            packed.x,
            packed.y,
            packed.x_test,
            packed.y_test,
            packed.classes,
            dealt.train,
            dealt.test,
            "sites",
            layout=packed.layout,
        ),
        model=f"{tmp_path / 'net.py'}:Net",
        lanes="1",
        clients=len(SITES),
    )
    assert result["sha256"] == alone.digest
