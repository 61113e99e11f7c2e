"""What users might give, right and wrong: each kind of input is a generator of cases."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from PIL import Image
from scipy.io import wavfile

from unskew.config import OPTIONS


@dataclass(frozen=True)
class Case:
    """arguments: of `unskew run`. wrong: True must be refused, False must be taken, None is either in one
    sentence."""

    arguments: tuple[str, ...]
    wrong: bool | None
    note: str = ""


Generator = Callable[[random.Random, Path], Case]
PIECES = "()[]{}=,+-*:;.'\"\\/ x#!&%\0\x1b\néé∞𝟛0123456789eE_aAnNif"


def mutated(text: str, rng: random.Random) -> str:
    """A text with a few characters inserted, removed, doubled or exchanged."""
    characters = list(text)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(characters) + 1)
        match rng.randrange(4):
            case 0:
                characters.insert(place, rng.choice(PIECES))
            case 1 if characters:
                del characters[min(place, len(characters) - 1)]
            case 2:
                characters[place:place] = characters[place : place + 5]
            case _ if characters:
                characters[min(place, len(characters) - 1)] = rng.choice(PIECES)
    return "".join(characters)


def texts(option: str, right: tuple[str, ...], wrong: tuple[str, ...]) -> Generator:
    """Of an option whose value is a text in a grammar of ours; option "" for the method."""

    def case(rng: random.Random, folder: Path) -> Case:
        kind = rng.random()
        text = rng.choice(wrong if kind < 0.5 else right)
        if kind > 0.65:
            text = mutated(text, rng).replace("\0", "")
        text = text or "?"
        given = (f"--{option}={text}",) if option else ("--", text)
        return Case(given, True if kind < 0.5 else False if kind <= 0.65 else None, text)

    return case


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


METHODS = texts(
    "",
    ("fedavg", "fedprox(mu=0.1)", "scaffold+flea", "fedprox + bsm", "moon(mu=1)", "flea(alpha=0.5)"),
    (
        *words(
            """
    fedprox(mu=-1) fedprox(mu=nan) fedprox(mu=1e999) fedprox(mu='a') fedprox(nu=1) fedprox(mu=1 ?
    fedprox(mu=1)(mu=5) fedprox(mu=1)-(2) fedprox(mu={[]:1}) fedprox(mu=1,mu=2) fedavgg + a+b
    fedprox(lambda=1) fedprox+fedprox fedprox(1) flea(alpha=-1) moon(tau=0) fedprox(mu=True)
    fedprox(mu=None) fedprox(mu=[1]) no.py
    """
        ),
        f"fedprox(mu={'-' * 3000}1)",
        f"fedprox(mu={'[' * 400})",
        "x" * 11000,
    ),
)
SETS = texts(
    "set",
    ("fedprox.mu=0.1", "FEDPROX.mu = 1"),
    words(
        """
    fedprox.mu=[ fedprox.mu= fedprox.mu mu=1 .= = flea.alpha=1 fedprox.nu=1 fedprox.mu=-1 fedprox.mu=inf
    fedprox.mu=nan fedprox.mu={} fedprox.mu=' fedprox..mu=1 fedprox.mu=1e999
    """
    ),
)
SKEWS = texts(
    "skew",
    ("iid", "dirichlet:0.5", "classes:2", "dirichlet:1e3"),
    words(
        """
    dirichlet:-1 dirichlet:0 dirichlet:nan dirichlet:inf dirichlet: dirichlet classes:0 classes:99
    classes:x classes:1.5 pathological:0 pathological:2x iid:3 column:nope column domain ? clustered:-
    dirichlet:0.1,nope dirichlet:0.1,noise:x non-iid iid,iid , : dirichlet:1e-9999
    """
    ),
)
AVAILABILITIES = texts(
    "availability",
    (
        "full",
        "sample:0.5",
        "bernoulli:0.3,drop:0.1",
        "persistent:0.5x3",
        "clustered:0.5-0.3",
        "full,deadline:2",
    ),
    words(
        """
    sample:0 sample:-1 sample:inf sample:nan bernoulli:nan bernoulli:1.1 bernoulli:-0.1 ?
    persistent:0.5x0 persistent:0.5x1.5 clustered:0.5-2 full,quorum:inf full,quorum:-1 full:1
    full,drop:2 full,redraw:maybe trace:/etc trace: trace:nope.csv full,drop:.1,drop:.2 full,,
    """
    ),
)
MODELS = texts(
    "model",
    ("mlp", "mlp(hidden=(4,))", "cnn_small", "auto"),
    words(
        """
    mlp(hidden=(0,)) mlp(hidden=(-1,)) mlp(hidden=3) mlp(hidden=('a',)) mlp(hid=(1,)) mlpp mlp( ?
    mlp(hidden=(1.5,)) no.py:f /etc:f mlp(hidden=(1e99,)) mlp(hidden=[[1]]) mlp+mlp mlp(hidden=nan)
    """
    ),
)


def options(rng: random.Random, folder: Path) -> Case:
    """Numbers and choices on the command line."""
    wrong = rng.random() < 0.6
    name, right, bad = rng.choice(
        (
            ("rounds", "3", ("0", "-1", "1.5", "x", "", "1e3", "nan")),
            ("clients", "4", ("0", "-3", "2.5", "many")),
            ("lr", "0.1", ("0", "-1", "nan", "inf", "x", "1e999")),
            ("lr-decay", "0.9", ("0", "1.1", "nan")),
            ("momentum", "0.5", ("-0.1", "1", "nan")),
            ("batch", "8", ("0", "-8", "x")),
            ("epochs", "2", ("0", "-1")),
            ("seed", "7", ("-1", "x", "1.5")),
            ("optimiser", "adam", ("adamm", "", "SGD2")),
            ("loss", "ce", ("mse", "")),
            ("lanes", "2", ("0", "-1", "x", "1.5", "²")),
            ("device", "cpu", ("gpu", "mps", "cuda:x", "tpu", "", "cuda:999")),
            ("validation", "0.2", ("1", "-0.1", "nan")),
            ("cap", "0.5", ("0", "-0.1", "1.1", "nan", "half")),
            ("weighting", "equal", ("size", "same", "")),
            ("normalise", "none", ("all", "")),
            ("measure", "diversity", ("nope", "diversity,nope")),
            ("workers", "1", ("-1", "x")),
            ("samples", "5", ("0", "-1", "x")),
            ("name", "my-run", ("../x", "a/b", "A", "", "-", "x" * 65, ".x")),
            ("config", "", ("nope.yaml", "/", "..")),
        )
    )
    if not wrong and not right:
        name, right = "rounds", "2"
    value = rng.choice(bad) if wrong else right
    given = f"--{name}={value}" if name in ("config", "name", *OPTIONS) else f"--set={name}={value}"
    return Case((given,), wrong, f"{name}={value}")


ODD_YAML = (
    "1: 2\n", "? [a]\n: 2\n", "rounds: 3\n", "lr: x\n", "learning: 1\n", "set: 3\n", "set: {fedprox: 1}\n",
    "epochs: [1]\n", "batch: {a: 1}\n", "seed: 1.5\n", "&a x: *a\n", "a: &b [*b]\n", "\t: 1\n", "null: 1\n",
    "epochs: .nan\n", "momentum: .inf\n", "2020-02-30: 1\n", "epochs: 2020-02-30\n", "epochs: true\n",
    "!!python/object:os.x: 1\n", "set: {1: {a: 2}}\n", "set: {flea: {alpha: 1}}\n", "- a\n", "[" * 3000,
    "...\n---\nx: 1\n",
)  # fmt: skip
"""Lines that no file of settings may hold."""


def yamls(rng: random.Random, folder: Path) -> Case:
    """Files of settings."""
    good = {"method": "fedprox(mu=0.1)", "rounds": 3, "lr": 0.1, "skew": "iid", "clients": 4}
    kind = rng.randrange(4)
    text, wrong = yaml.safe_dump(good), False
    if kind == 1:
        text, wrong = mutated(text, rng), None
    if kind >= 2:
        text += rng.choice(ODD_YAML)
        wrong = True
    (folder / "c.yaml").write_text(text, errors="replace")
    return Case(("--config", "c.yaml"), wrong, text[-60:])


def traces(rng: random.Random, folder: Path) -> Case:
    """Files that say who answers."""
    rows = [
        [str(t), str(k), str(rng.random())] for t in range(1, 4) for k in range(4) if rng.random() < 0.8
    ] or [["1", "0", "1"]]
    header, wrong, last = ["round", "client", "seconds"], rng.random() < 0.7, rows[-1][0]
    if wrong:
        row = rng.choice(rows)
        match rng.randrange(7):
            case 0:
                header[rng.randrange(2)] = "other"
            case 1:
                row[0] = rng.choice(("x", "-1", "0", "1.5", ""))
            case 2:
                row[1] = rng.choice(("x", "-1", "2.5", "", "nan", "9" * 5000))
            case 3:
                row[2] = rng.choice(("x", "-1", "nan", "inf"))
            case 4:
                row.append("more")
            case 5:
                rows.append(list(row))
            case 6:
                row[2] = "1" * 200_000
    content = "\n".join(",".join(row) for row in [header, *rows]).encode()
    (folder / "t.csv").write_bytes(content + b"\n")
    return Case(("--availability", "trace:t.csv", "--rounds", last), wrong, str(rows[:2]))


def arrays(rng: random.Random) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(rng.randrange(1 << 30))
    return {
        "x_train": generator.random((60, 1, 6, 6), dtype=np.float32),
        "y_train": np.arange(60) % 3,
        "x_test": generator.random((15, 1, 6, 6), dtype=np.float32),
        "y_test": np.arange(15) % 3,
    }


def spoiled(values: dict[str, np.ndarray], rng: random.Random) -> str:
    """Make one of the arrays wrong. Returns how."""
    key = rng.choice(("x_train", "x_test"))
    match how := rng.choice(
        ("nan", "length", "object", "0-d", "label", "missing", "text", "inf", "shape", "empty")
    ):
        case "nan" | "inf":
            values[key][rng.randrange(15), 0, 2, 3] = np.nan if how == "nan" else np.inf
        case "length":
            values["y_train"] = values["y_train"][:-1]
        case "object":
            values[key] = np.array([{}] * len(values[key]), dtype=object)
        case "0-d":
            values[rng.choice(sorted(values))] = np.array(3)
        case "label":
            values["y_train"] = values["y_train"].astype(np.int64)
            values["y_train"][5] = rng.choice((-2, 10**9, -(10**15)))
        case "missing":
            del values[rng.choice(("x_train", "y_train"))]
        case "text":
            values[key] = values[key].astype(str)
        case "shape":
            values["x_test"] = values["x_test"][:, :, :3]
        case "empty":
            values["x_train"], values["y_train"] = values["x_train"][:0], values["y_train"][:0]
    return how


def broken(content: bytes, rng: random.Random) -> tuple[bytes, bool | None, str]:
    """A file's content changed; whether the change must be refused."""
    changed = bytearray(content)
    match how := rng.choice(("cut", "bit", "zeros", "empty", "noise")):
        case "cut":
            return content[: rng.randrange(len(content) - 1)], True, how
        case "bit":
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        case "zeros":
            start = rng.randrange(len(changed))
            changed[start : start + 200] = bytes(len(changed[start : start + 200]))
        case "empty":
            return b"", True, how
        case "noise":
            return rng.randbytes(len(content)), True, how
    return bytes(changed), None, how


def npz(rng: random.Random, folder: Path) -> Case:
    values, kind, wrong, how = arrays(rng), rng.randrange(4), False, ""
    if kind == 1:
        how, wrong = spoiled(values, rng), True
    file = io.BytesIO()
    rng.choice((np.savez, np.savez_compressed))(file, **values)
    content = file.getvalue()
    if kind == 2:
        content, wrong, how = broken(content, rng)
    if kind == 3:
        content, wrong, how = bad_archive(rng), True, "archive"
    (folder / "d.npz").write_bytes(content)
    return Case(("--data", "d.npz"), wrong, how)


def bad_archive(rng: random.Random) -> bytes:
    """A zip of arrays whose headers promise what is not there, or with other methods of compression."""
    file = io.BytesIO()
    header = rng.choice(
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 3)}",
            "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}",
            "{",
            "{'shape': (-1,)}",
        )
    )
    with zipfile.ZipFile(
        file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
    ) as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            text = header.encode() + b"\n"
            archive.writestr(
                f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64)
            )
    content = bytearray(file.getvalue())
    if rng.random() < 0.3:
        for place in range(len(content) - 4):
            if content[place : place + 4] in (b"PK\x03\x04", b"PK\x01\x02"):
                content[place + (6 if content[place + 2] == 3 else 8)] |= 1  # encrypted
    return bytes(content)


def npy(rng: random.Random, folder: Path) -> Case:
    """A folder of .npy files."""
    values, kind, wrong, how = arrays(rng), rng.randrange(3), False, ""
    if kind == 1:
        how, wrong = spoiled(values, rng), True
    place = folder / "arrays"
    place.mkdir()
    for name, array in values.items():
        np.save(place / f"{name}.npy", array, allow_pickle=True)
    if kind == 2:
        file = place / f"{rng.choice(sorted(values))}.npy"
        content, wrong, how = broken(file.read_bytes(), rng)
        file.write_bytes(content)
    return Case(("--data", "arrays"), wrong, how)


def tables(rng: random.Random, folder: Path) -> Case:
    """CSV files."""
    rows = [
        [f"{rng.random():.3f}", f"{rng.random() * 100:.1f}", "yes" if rng.random() < 0.5 else "no"]
        for _ in range(60)
    ]
    rows[0][2], rows[1][2] = "yes", "no"
    header, kind, wrong, how = ["age", "size", "label"], rng.randrange(3), False, ""
    if kind == 1:
        wrong, how = True, rng.choice(("ragged", "nan", "no rows", "inf", "nothing"))
        row = rng.choice(rows)
        match how:
            case "ragged":
                row.append("7")
            case "nan":
                row[0] = "nan"
            case "inf":
                row[0] = "inf"
            case "no rows":
                rows.clear()
    content = "\n".join(",".join(row) for row in [header, *rows]).encode() + b"\n"
    if how == "nothing":
        content = b""
    if kind == 2:
        content, _, how = broken(content, rng)
        wrong = True if how in ("empty", "noise") else None
    (folder / "t.csv").write_bytes(content)
    return Case(("--data", "t.csv"), wrong, how)


def picture(rng: random.Random, height: int = 8, width: int = 8) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.frombuffer(rng.randbytes(height * width), np.uint8).reshape(height, width)).save(
        file, "PNG"
    )
    return file.getvalue()


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises a huge image."""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + chunk(b"IEND", b"")
    )


def images(rng: random.Random, folder: Path) -> Case:
    """Folders with a folder of images for each class."""
    for label in ("cat", "dog"):
        (folder / "images" / label).mkdir(parents=True)
        for i in range(8):
            (folder / "images" / label / f"{i}.png").write_bytes(picture(rng))
    kind, wrong, how = rng.randrange(3), False, ""
    file = folder / "images" / "cat" / "3.png"
    if kind == 1:
        content, how = rng.choice(
            (
                (bomb(60_000, 60_000), "bomb"),
                (bomb(1, 100_000_000), "long"),
                (b"P6\n9 9\n255\n", "ppm"),
                (b"", "empty"),
                (b"no image", "text"),
                (picture(rng)[:60], "cut"),
                (b"\x89PNG\r\n\x1a\n", "header"),
                (bomb(0, 5), "no width"),
            )
        )
        file.write_bytes(content)
        wrong = True
    if kind == 2:
        content, wrong, how = broken(file.read_bytes(), rng)
        wrong = wrong if how in ("empty", "noise") else None
        file.write_bytes(content)
    return Case(("--data", "images"), wrong, how)


def masks(rng: random.Random, folder: Path) -> Case:
    """Folders of images with masks."""
    for part in ("images", "masks"):
        (folder / "scans" / part).mkdir(parents=True)
    for i in range(10):
        mask = np.zeros((8, 8), np.uint8)
        mask[: 2 + i % 4] = 255
        Image.fromarray(mask).save(folder / "scans" / "masks" / f"{i}.png")
        (folder / "scans" / "images" / f"{i}.png").write_bytes(picture(rng))
    kind, wrong, how = rng.randrange(3), False, ""
    file = folder / "scans" / "masks" / "2.png"
    if kind == 1:
        wrong, how = True, rng.choice(("missing", "size", "empty", "bomb"))
        if how == "missing":
            file.unlink()
        else:
            file.write_bytes({"size": picture(rng, 4, 9), "empty": b"", "bomb": bomb(60_000, 60_000)}[how])
    if kind == 2:
        content, wrong, how = broken(file.read_bytes(), rng)
        wrong = wrong if how in ("empty", "noise") else None
        file.write_bytes(content)
    return Case(("--data", "scans", "--model", "auto", "--skew", "iid"), wrong, how)


def sounds(rng: random.Random, folder: Path) -> Case:
    """Folders with a folder of .wav files for each class."""
    file = io.BytesIO()
    wavfile.write(file, 8000, (9000 * np.sin(np.arange(2000) / 7)).astype(np.int16))
    content = file.getvalue()
    for label in ("low", "high"):
        (folder / "sounds" / label).mkdir(parents=True)
        for i in range(5):
            (folder / "sounds" / label / f"{i}.wav").write_bytes(content)
    kind, wrong, how = rng.randrange(3), False, ""
    if kind == 1:
        place, size = rng.choice(((22, 2), (24, 4), (20, 2), (12, 4), (36, 4), (32, 2)))
        content = content[:place] + bytes(size) + content[place + size :]
        wrong, how = True, f"zeros at {place}"
    if kind == 2:
        content, wrong, how = broken(content, rng)
    (folder / "sounds" / "low" / "2.wav").write_bytes(content)
    return Case(("--data", "sounds", "--model", "auto"), wrong, how)


KINDS: dict[str, Generator] = {
    "yaml": yamls,
    "method": METHODS,
    "set": SETS,
    "skew": SKEWS,
    "availability": AVAILABILITIES,
    "model": MODELS,
    "options": options,
    "trace": traces,
    "npz": npz,
    "npy": npy,
    "csv": tables,
    "images": images,
    "masks": masks,
    "wav": sounds,
}
