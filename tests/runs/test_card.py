"""The model card of a finished run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import unskew
from unskew.formats.specs import without_folders
from unskew.records.checkpoints import digest
from unskew.runs.export.export_folder import model_facts
from unskew.runs.export.exported_model import export_model

SETTINGS = {"rounds": 1, "epochs": 1, "workers": 1, "clients": 3, "model": "mlp", "skew": "iid", "lanes": "1"}


def test_a_card_says_what_the_run_wrote(tmp_path):
    ours = unskew.run("rebafl", "digits", samples=20, name="r", folder=tmp_path, **SETTINGS)  # type: ignore[arg-type]
    text = (tmp_path / "r" / "model.md").read_text()
    assert text.startswith("# rebafl on digits\n")
    assert f"| weights | SHA-256 {digest(ours.weights)} |" in text
    assert f"| global | accuracy | {ours.scores()['last']:.4f} |" in text
    sent = {row["share"]: 0 for row in ours.record.rows["ledger"] if row["way"] == "up"}
    for share in sent:
        assert f"\n| {'weights' if share == 'w' else share.replace('_', chr(92) + '_')} | " in text
    assert "| source and licence | " in text
    assert "not known" not in text
    assert str(tmp_path) not in text
    unskew.run("rebafl", "digits", samples=20, name="again", folder=tmp_path, **SETTINGS)  # type: ignore[arg-type]
    assert (tmp_path / "again" / "model.md").read_text() == text


@pytest.mark.parametrize(
    ("method", "unit", "reader"),
    [
        ("dp(epsilon=0, noise_multiplier=1.0, delta=1e-3)", "one client more or less", "whoever reads them"),
        ("dpsgd(noise_multiplier=1.2, delta=1e-3)", "one sample more or less", "whoever reads it"),
    ],
)
def test_a_guarantee_has_its_unit_its_reader_its_delta_and_the_source_of_its_noise(
    method, unit, reader, tmp_path
):
    """With the seed anybody can compute the noise again and subtract it, so the card does not publish it."""
    chosen: dict[str, Any] = {**SETTINGS, "samples": 20, "seed": 4711}
    ours = unskew.run(method, "digits", name="r", folder=tmp_path, **chosen)
    unskew.run(method, "digits", **chosen).export(tmp_path / "of memory")
    ours.export(tmp_path / "e")
    privacy = json.loads((tmp_path / "r" / "privacy.json").read_text())
    first = next(iter(privacy.values()))["epsilons"][0]
    report = ours.report().read_text()
    assert first["reading"].replace("'", "&#39;") in report
    for folder in ("r", "e", "of memory"):
        text = (tmp_path / folder / "model.md").read_text()
        (line,) = [line for line in text.splitlines() if f"epsilon {first['epsilon']:.4g}, " in line]
        for piece in (unit, reader, "delta 0.001", "study's seed", "simulation only"):
            assert piece in line
        assert "epsilon infinite" in text
        assert "4711" not in text


def test_scores_of_the_untrained_model_alone_are_none_of_the_card(tmp_path):
    """Where clients keep weights, round 0 alone has a macro-F1; the card gave it as that of the last
    evaluated round."""
    kept = unskew.run("fedper", "digits", samples=20, name="r", folder=tmp_path, **SETTINGS)  # type: ignore[arg-type]
    assert ("global", "macro_f1", 0) in {
        (row["scope"], row["metric"], row["t"]) for row in kept.record.rows["metrics"]
    }
    text = (tmp_path / "r" / "model.md").read_text()
    assert f"| global | accuracy | {kept.scores()['last']:.4f} |" in text
    assert "macro" not in text


def test_names_of_somebody_elses_do_not_become_markup(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    y = np.array(["![x](http://e.org/p.png)", "a|b"])[np.arange(40) % 2]
    unskew.run("fedavg", (x, y), name="r", folder=tmp_path, **SETTINGS)  # type: ignore[arg-type]
    text = (tmp_path / "r" / "model.md").read_text()
    assert r"\!\[x\](http://e.org/p.png), a\|b" in text
    assert "not known to unskew" in text


MINE = '''"""A Part that changes nothing."""
from dataclasses import dataclass
from typing import ClassVar
from unskew.core import Part

@dataclass(frozen=True)
class Mine(Part):
    name: ClassVar[str] = "mine"
'''


def test_folders_of_the_machine_stay_out_of_what_is_handed_on(tmp_path):
    """A method's file, a trace and data of the user's own are named without the folders that they lie in."""
    home = tmp_path / "marked home"
    home.mkdir()
    (home / "my.py").write_text(MINE)
    (home / "who.csv").write_text("round,client\n1,0\n1,1\n1,2\n")
    np.savez(home / "rows.npz", x=np.random.default_rng(0).normal(size=(40, 4)), y=np.arange(40) % 2)
    ours = unskew.run(
        str(home / "my.py"),
        str(home / "rows.npz"),
        folder=home,
        name="r",
        availability=f"trace:{home / 'who.csv'}",
        **SETTINGS,  # type: ignore[arg-type]
    )
    ours.export(tmp_path / "e")
    told = [home / "r" / "model.md", *(tmp_path / "e").iterdir()]
    assert len(told) >= 4
    for file in told:
        assert b"marked" not in file.read_bytes(), file.name
    text = told[0].read_text()
    assert text.startswith("# my.py on rows\n")
    assert "| who answers | trace:who.csv |" in text


FILES = {
    "pull.py": (
        "from dataclasses import dataclass\nimport unskew\n\n"
        "@dataclass(frozen=True)\nclass Pull(unskew.Part):\n    name = 'pull'\n    note: str = ''\n"
    ),
    "net.py": (
        "from torch import nn\n\ndef net(shape, classes):\n    return nn.Sequential(nn.Linear(4, classes))\n"
    ),
    "cost.py": "def cost(y, answers):\n    return 0.5\n",
    "who.csv": "round,client\n1,0\n1,1\n",
}


@pytest.mark.parametrize("kind", ["safetensors", "torch-export"])
def test_nothing_that_leaves_says_where_files_lie_on_the_machine_that_trained(kind, tmp_path):
    """A method, a model, a metric, data and a trace of the user's own are called by their files' names."""
    home = tmp_path / "home of=somebody, 7"
    home.mkdir()
    for name, text in FILES.items():
        (home / name).write_text(text)
    plain = tmp_path / "somebody"
    plain.mkdir()
    for name in ("who.csv", "cost.py"):
        (plain / name).write_text(FILES[name])
    y = np.arange(40) % 2
    np.savez(home / "rows.npz", x=np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), y=y)
    ours = unskew.run(
        f"{home}/pull.py(note='{plain}/note.txt')", f"{home}/rows.npz", name="r", folder=tmp_path,
        **{**SETTINGS, "model": f"{home}/net.py:net", "availability": f"trace:{plain}/who.csv,drop:0.0",
           "metrics": f"{plain}/cost.py:cost"},
    )  # type: ignore[arg-type]  # fmt: skip
    folder = replace(ours.run, settings=ours.settings.replace(model=f"hf(path='{home}')"))
    said = model_facts(
        replace(ours.trained, run=folder), export_model(ours.trained), "safetensors", "float32"
    )
    assert str(plain.parent) not in str(said)
    assert "somebody, 7" in said["made_by"]
    text = (tmp_path / "r" / "model.md").read_text()
    assert text.startswith("# pull.py(note='note.txt') on rows\n")
    assert "| model | net.py:net |" in text
    assert "| who answers | trace:who.csv,drop:0.0 |" in text
    for path in (tmp_path / "r" / "model.md", *ours.export(tmp_path / "e", kind)):
        assert b"somebody" not in path.read_bytes(), path
        assert str(tmp_path).encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fedprox(mu=0.1)+/home/me/a b/mine.py(x=1)", "fedprox(mu=0.1)+mine.py(x=1)"),
        ("trace:C:\\Users\\me\\who.csv,drop:0.1", "trace:C:who.csv,drop:0.1"),
        ("hf(path='../me/tiny/', lora_rank=4)", "hf(path='tiny/', lora_rank=4)"),
        ("sample:0.1,redraw", "sample:0.1,redraw"),
        ("fedprox(mu=1e-05)", "fedprox(mu=1e-05)"),
    ],
)
def test_a_text_without_folders_keeps_all_else(text, shown):
    assert without_folders(text) == shown
