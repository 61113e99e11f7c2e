"""Commands against the files of a stranger, in one process: `python -m tests.cli.hostile FOLDER` prints, as JSON,
what went wrong in which case.

A case is a command and what the stranger did to the files that it reads. It goes wrong if anything outside the
command's own output changes, code of the stranger runs, a control character or a line of the stranger's reaches
the terminal, memory grows beyond MOST_BYTES, or the command ends otherwise than right or with one of our errors.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import yaml
from PIL import Image

from tests.cli.calling import Called, call
from tests.samples import a_part_of
from unskew.cli.plain_output import KEPT

MOST_BYTES = 1 << 30
"""The most memory that a command may take on top of what the process had before."""
ONE_OF = 4
"""The share of the cases that `make test` tries; `make matrix` tries all."""
LONGEST_S = 20
"""The most processor seconds of a command."""
MARK = "strangers_code"
FORGED = "FORGED-LINE"
EVIL = f"\x1b[8m\x07\r\n{FORGED} admitted\u202e"
CODE = f"{MARK} = 1\n{MARK}()\n"
SMALL = "--data own.npz --clients 4 --skew iid --model mlp --rounds 2 --epochs 1 --workers 1"


@dataclass(frozen=True)
class Use:
    """A command line that reads a file or folder of a stranger's, which is `subject` in the working folder."""

    words: str
    subject: str
    read_elsewhere: bool = False
    """Whether another command here reads the subject by the same function, so that only code and outputs are
    tried."""
    code: int = 0
    """How the command ends if the stranger did nothing."""

    def __post_init__(self):
        assert self.subject in self.words.split(), self


READS: dict[str, tuple[Use, ...]] = {
    "run": (
        Use("run study.yaml --dry-run", "study.yaml"),
        Use("run --config study.yaml --dry-run", "study.yaml", True),
        Use("run fedavg --skew iid --clients 3 --dry-run --data d.npz", "d.npz"),
        Use("run fedavg --skew iid --clients 3 --dry-run --model mlp --data images", "images"),
    ),
    "compare": (Use("compare fedavg --no-references --dry-run --config study.yaml", "study.yaml"),),
    "diagnose": (Use("diagnose --skew iid --clients 2 t.csv", "t.csv", True),),
    "resume": (Use("resume r", "r"), Use("resume c", "c"), Use("resume u", "u", True)),
    "attack": (
        Use("attack r membership --set clients=1 --set shadows=2 --set passes=1 --samples 20", "r", True),
    ),
    "watch": (Use("watch r --once", "r"), Use("watch c --once", "c")),
    "report": (Use("report r", "r"), Use("report c", "c")),
    "predict": (
        Use("predict r own.npz", "r"),
        Use("predict r d.npz", "d.npz"),
        Use("predict r images", "images", code=2),
    ),
    "export": (Use("export r out", "r", True),),
    "reproduce": (Use("reproduce table.yaml --dry-run", "table.yaml"),),
    "explain": (Use("explain fedavg --data d.npz", "d.npz", True),),
    "join": (Use("join a.ticket --folder s", "a.ticket"),),
    "data check": (
        Use("data check d.npz", "d.npz", True),
        Use("data check images", "images", True),
        Use("data check t.csv", "t.csv"),
    ),
    "data get": (
        Use("data get cifar10 --from cifar.tar.gz --out o", "cifar.tar.gz", code=2),
        Use("data get cifar10 --from cifar.zip --out o", "cifar.zip", code=2),
    ),
    "federation admit": (Use("federation admit f a.pub --compared", "a.pub"),),
    "federation audit": (Use("federation audit f r", "r", True, code=2),),
    "site check": (Use("site check --data own.npz --folder site --study study.yaml", "study.yaml", code=2),),
}
OWN_FILES_ONLY = {
    *(
        "list",
        "check",
        "serve",
        "federation init",
        "federation ticket",
        "federation revoke",
        "federation add",
        "audit",
    ),
    *("federation remove", "federation show"),
    *("site approve", "site policy", "site refuse", "site watch", "site run"),
}
"""Commands that read nothing but what the user, or another command of the user's, has written. `audit` is an attack,
which reads a run as all of them do; `site run` reads
a ticket by the function of `join`, and what a coordinator sends in tests/federation."""


class Alarm(BaseException):
    """A command that does not end; no `except` of the command catches it."""


class Watcher:
    """What the interpreter says that it does while a command runs."""

    def __init__(self):
        self.problems: list[str] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.problems is None:
            return
        if event == "exec" and _is_foreign(arguments[0]):
            self.problems.append(f"runs {arguments[0].co_filename}")
        elif event == "import" and MARK in str(arguments[:2]):
            self.problems.append(f"imports {arguments[0]}")
        elif event == "pickle.find_class" and arguments[0] in ("os", "posix", "builtins", "subprocess"):
            self.problems.append(f"unpickles {arguments[0]}.{arguments[1]}")
        elif event in ("os.system", "os.exec", "os.posix_spawn") or (
            event == "socket.connect" and "127.0.0.1" not in str(arguments[1])
        ):
            self.problems.append(f"{event} {arguments[:2]}")
        elif event == "subprocess.Popen" and (MARK in str(arguments) or arguments[0] != sys.executable):
            self.problems.append(f"starts {arguments[:2]}")


def _is_foreign(code: object) -> bool:
    """Whether compiled code is the stranger's."""
    if not isinstance(code, CodeType):
        return MARK in str(code)
    return MARK in code.co_names or any(isinstance(c, CodeType) and _is_foreign(c) for c in code.co_consts)


def stranger(folder: Path) -> None:
    """Make what the commands read: the results of real commands."""
    rng = np.random.default_rng(0)
    x, y = rng.random((140, 1, 8, 8), dtype=np.float32), np.arange(140) % 4
    np.savez(folder / "d.npz", x_train=x[60:], y_train=y[60:], x_test=x[:60], y_test=y[:60])
    shutil.copy(folder / "d.npz", folder / "own.npz")
    for name in ("cats", "dogs"):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(
                folder / "images" / name / f"{i}.png"
            )
    rows = "".join(f"{i % 7},{i % 3},{'xy'[i % 2]},{'no' if i % 5 else 'yes'}\n" for i in range(60))
    (folder / "t.csv").write_text(f"a,b,hospital,label\n{rows}")
    done("run", "fedavg", *SMALL.split(), "--name", "r", cwd=folder)
    done("compare", "fedavg", *SMALL.split(), "--seeds", "1", "--no-references", "--name", "c", cwd=folder)
    for name in ("r", "c"):
        (folder / "runs" / name).rename(folder / name)
    (folder / "runs").rmdir()
    shutil.copytree(folder / "r", folder / "u")  # as a run that was interrupted
    for name in ("model.safetensors", "report.html"):
        (folder / "u" / name).unlink()
    (folder / "u" / "state.previous.safetensors").replace(folder / "u" / "state.safetensors")
    study = {"data": "own.npz", "method": "fedavg", "model": "mlp", "skew": "iid", "clients": 2, "rounds": 2}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    del study["method"]
    table = {"title": "t", "settings": study, "methods": {"ours": "fedavg"}, "rows": {"iid": {"note": "a"}}}
    (folder / "table.yaml").write_text(yaml.safe_dump(table))
    done("federation", "init", "f", "--host", "127.0.0.1:9", "--sites", "a,b", cwd=folder)
    shutil.copy(folder / "federations/f/tickets/a.ticket", folder / "a.ticket")
    done("join", "a.ticket", cwd=folder)
    shutil.copy(folder / "site/a.pub", folder / "a.pub")
    for name in ("cifar.zip", "cifar.tar.gz"):
        (folder / name).write_bytes(archive({"data_batch_1": b"x"}, name))


def done(*words: str, cwd: Path) -> None:
    called = call(*words, cwd=cwd)
    assert called.code == 0, called.text


def archive(members: dict[str, bytes], name: str) -> bytes:
    """A zip or tar archive of these members."""
    file = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as z:
            for member, content in members.items():
                z.writestr(member, content)
    else:
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            for member, content in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


# What a stranger does: each returns the cases of one subject as (name, function that changes the files).

Change = Callable[[Path], None]


def files_of(subject: Path) -> list[Path]:
    """The files of a subject, one of each name, and one picture."""
    if subject.is_file():
        return [subject]
    kinds = {
        p.suffix if p.suffix == ".png" else p.name: p for p in sorted(subject.rglob("*"))[::-1] if p.is_file()
    }
    return [kinds[name] for name in sorted(kinds)]


def code_changes(subject: Path) -> Iterator[tuple[str, Change]]:
    """Documents that name Python files, and files that Python or a library might run."""
    documents = [f.name for f in files_of(subject) if f.suffix in (".yaml", ".json")]
    named = {
        "method": f"{MARK}.py",
        "model": f"{MARK}.py:make",
        "metrics": f"{MARK}.py:f",
        "loss": f"{MARK}.py:f",
        "data": f"{MARK}.py:f",
    }
    for key, value in named.items() if documents else ():

        def change(place: Path, key=key, value=value) -> None:
            for name in documents:
                replace_keys(first(place, name), key, value)

        yield f"a Python file as {key}", change
    pickled = pickle.dumps(np.array([_Reduced()], dtype=object))
    for file in files_of(subject):
        if file.suffix in (".npz", ".safetensors"):
            yield f"{file.name} is a pickle", lambda place, f=file.name: first(place, f).write_bytes(pickled)
    if subject.is_dir():
        yield "modules lie in the folder", modules


class _Reduced:
    def __reduce__(self):
        return os.system, (f"echo {MARK}",)


def modules(place: Path) -> None:
    for name in ("torch", "sitecustomize", "conftest", "__init__", "modeling", "cli"):
        (place / f"{name}.py").write_text(CODE)


def first(place: Path, name: str) -> Path:
    """The file of this name in the subject, or the subject."""
    return place if place.is_file() else next(p for p in sorted(place.rglob(name)))


def replace_keys(file: Path, key: str, value: str) -> None:
    """Give every `key` of a document this value; add it at the top if there is none."""
    read: Callable[[str], Any] = json.loads if file.suffix == ".json" else yaml.safe_load
    content = read(file.read_text())
    if not _replace(content, key, value) and isinstance(content, dict):
        content[key] = value
    file.write_text(json.dumps(content) if file.suffix == ".json" else yaml.safe_dump(content))


def _replace(content: Any, key: str, value: str) -> bool:
    found = False
    for inner in (
        content if isinstance(content, list) else content.values() if isinstance(content, dict) else ()
    ):
        found |= _replace(inner, key, value)
    if isinstance(content, dict):
        for name, many in ((key, False), (f"{key}s", True)):
            if isinstance(content.get(name), str):
                content[name], found = value, True
            elif many and isinstance(content.get(name), list):
                content[name], found = [value], True
            elif many and isinstance(content.get(name), dict):
                content[name], found = {"ours": value}, True
    return found


def text_changes(subject: Path, free: bool) -> Iterator[tuple[str, Change]]:
    """Every text of a document ends in control characters and a line. free: also single texts of a run."""
    for file in files_of(subject):
        if file.suffix in (".json", ".jsonl", ".yaml", ".ticket", ".pub", ".csv"):
            yield f"texts of {file.name}", lambda place, f=file.name: spoil(first(place, f), False)
        if file.suffix == ".csv":
            yield f"columns of {file.name}", lambda place, f=file.name: spoil(first(place, f), True)
    if subject.name == "r" and free:
        for file, key in FREE_TEXTS:
            yield f"{file} {key}", lambda place, f=file, k=key: spoil_key(place / f, k)
    if subject.name == "images":
        yield "name of a class", lambda place: (place / "cats").rename(place / f"cats{EVIL}") and None


FREE_TEXTS = (
    *(("federation.json", key) for key in ("name", "classes", "names", "skew")),
    *(("events.jsonl", key) for key in ("text", "code")),
    *(("config.yaml", key) for key in ("data", "method", "model", "track", "measure")),
    *(("env.json", key) for key in ("unskew", "python", "torch", "device", "machine")),
    *(("sites.json", "site"), ("ending.json", "text"), ("metrics.jsonl", "metric"), ("ledger.jsonl", "leaf")),
)


def spoil_key(file: Path, key: str) -> None:
    """As `spoil`, for one key of a run's file, which is made if it is missing."""
    made = {
        "sites.json": {"sites": [{"site": "a"}] * 4},
        "ending.json": {"state": "failed", "code": 1, "text": "ended"},
        "events.jsonl": [{"t": 1, "code": "E301", "text": "a reply"}],
    }
    if file.suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows += made.get(file.name, [])
        file.write_text("".join(json.dumps(_spoiled(row, key)) + "\n" for row in rows))
    elif file.suffix == ".yaml":
        file.write_text(yaml.safe_dump(_spoiled(yaml.safe_load(file.read_text()), key)))
    else:
        file.write_text(
            json.dumps(_spoiled(json.loads(file.read_text()) if file.exists() else made[file.name], key))
        )


def _spoiled(content: Any, key: str | None, here: bool = False) -> Any:
    """The content with EVIL at the end of every text under a key; of every text if key is None."""
    if isinstance(content, dict):
        return {k: _spoiled(v, key, here or k == key) for k, v in content.items()}
    if isinstance(content, list):
        return [_spoiled(v, key, here) for v in content]
    return content + EVIL if isinstance(content, str) and (here or key is None) else content


def spoil(file: Path, keys: bool) -> None:
    if file.suffix == ".csv":
        head, *rows = file.read_text().splitlines()
        evil = '"' + EVIL + '"'
        text = [head.replace("label", evil), *rows] if keys else [head, *(r.replace("x", evil) for r in rows)]
        return void(file.write_text("\n".join(text)))
    if file.suffix == ".pub":
        return void(file.write_text(EVIL + file.read_text() + EVIL))

    def one(content: Any) -> Any:
        if not keys:
            return _spoiled(content, None)
        return {k + EVIL: v for k, v in content.items()} if isinstance(content, dict) else content

    if file.suffix == ".jsonl":
        lines = file.read_text().splitlines()
        return void(file.write_text("".join(json.dumps(one(json.loads(line))) + "\n" for line in lines)))
    if file.suffix == ".yaml":
        return void(file.write_text(yaml.safe_dump(one(yaml.safe_load(file.read_text())))))
    return void(file.write_text(json.dumps(one(json.loads(file.read_text())))))


def void(_: object) -> None:
    pass


def bombs(subject: Path) -> Iterator[tuple[str, Change]]:
    """Small files that announce, or unpack to, gigabytes."""
    for file in files_of(subject):
        for name, content in BOMBS.get(
            "".join(file.suffixes) if "tar" in file.name else file.suffix, {}
        ).items():
            yield (
                f"{file.name} is {name}",
                lambda place, f=file.name, c=content: first(place, f).write_bytes(c()),
            )


@cache
def _zeros(size: int) -> bytes:
    """A deflate stream of so many zeros, a multiple of 16 MB: one piece, repeated."""
    packer = zlib.compressobj(9, wbits=-15)
    return (packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)) * (size >> 24) + b"\x03\x00"


def _png(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    lines = b"\x78\xda" + _zeros(side * side) + bytes(4)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def _npz(name: str, size: int) -> bytes:
    """An archive of one array of zeros."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size >> 8}, 1, 8, 8)}}\n".encode()
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head
    packer = zlib.compressobj(9, wbits=-15)
    content = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH) + _zeros(size)
    file, entry = io.BytesIO(), zipfile.ZipInfo(f"{name}.npy")
    entry.CRC, entry.compress_type, entry.file_size, entry.compress_size = (
        0,
        zipfile.ZIP_DEFLATED,
        len(head) + size,
        len(content),
    )
    with zipfile.ZipFile(file, "w") as z:
        entry.header_offset = z.start_dir
        file.write(entry.FileHeader() + content)
        z.filelist.append(entry)
        z.start_dir, z._didModify = file.tell(), True  # type: ignore[attr-defined]
    return file.getvalue()


def _tar_head(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf()


def _gz(size: int) -> bytes:
    return gzip.compress(b"")[:10] + _zeros(size) + bytes(4) + struct.pack("<I", size)


def _laughs(head: str = "k") -> bytes:
    lines = (f"{head}{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9 if i else ['1'] * 9)}]\n" for i in range(12))
    return "".join(lines).encode()


def _tensors(header: dict[str, Any] | None = None) -> bytes:
    text = json.dumps(header).encode() if header else b"{" * 64
    return struct.pack("<Q", len(text) if header else 1 << 60) + text


_GIGABYTES = 2 << 30
BOMBS: dict[str, dict[str, Callable[[], bytes]]] = {
    ".npz": {
        "an archive of zeros": lambda: _npz("x_train", _GIGABYTES),
        "an archive with a further array of zeros": lambda: _npz("unknown", _GIGABYTES),
    },
    ".safetensors": {
        "a header without end": _tensors,
        "a header of a tensor that is not there": lambda: _tensors(
            {"w": {"dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 1 << 42]}}
        ),
    },
    ".yaml": {"a list of lists of lists": _laughs, "nested without end": lambda: b"a: " + b"[" * 600},
    ".json": {"nested without end": lambda: b"[" * 100_000},
    ".jsonl": {"nested without end": lambda: b"[" * 100_000},
    ".ticket": {"nested without end": lambda: b"[" * 100_000},
    ".png": {"an image of 32,768 pixels a side": lambda: _png(1 << 15)},
    ".csv": {"a line without end": lambda: b"a," * (1 << 22)},
    ".zip": {"zeros": lambda: _npz("data_batch_1", _GIGABYTES)},
    ".tar.gz": {"zeros": lambda: gzip.compress(_tar_head("data_batch_1", 1 << 30)) + _gz(1 << 30)},
}


def names_outside(subject: Path) -> Iterator[tuple[str, Change]]:
    """Archives with members above the folder, and with names that move the cursor."""
    if subject.suffix in (".zip", ".gz"):
        for member in ("../../canary/kept.txt", "/tmp/x", f"a{EVIL}"):
            content = archive({member: b"evil", "data_batch_1": b"x"}, subject.name)
            yield f"a member {member[:12]!r}", lambda place, c=content: void(place.write_bytes(c))


class Cases:
    """Runs the cases below one folder: `world`, the stranger's files; `canary`, what nothing may change."""

    def __init__(self, root: Path):
        self.root, self.watcher = root, Watcher()
        self.code, self.label = 0, ""
        self.world, self.canary, self.place = root / "world", root / "canary", root / "case"
        self.world.mkdir(parents=True)
        stranger(self.world)
        self._limit()

    def _limit(self) -> None:
        """From now on this process has MOST_BYTES beside what it has."""
        text = Path("/proc/self/status").read_text()
        now = int(re.search(r"VmData:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]
        resource.setrlimit(resource.RLIMIT_DATA, (now + MOST_BYTES, resource.RLIM_INFINITY))

    def problems(self, command: str) -> list[str]:
        """What went wrong in the cases of one command."""
        wrong: list[str] = []
        for use in READS[command]:
            subject = self.world / use.subject
            changes = [*code_changes(subject)]
            if not use.read_elsewhere:
                changes += [
                    *text_changes(subject, command in ("watch", "report")),
                    *bombs(subject),
                    *names_outside(subject),
                ]
            outputs = self._outputs(use, wrong)
            changes += [*self._links(use, outputs), *self._folders(use, outputs)]
            cases = {f"{use.words} | {name}": change for name, change in changes}
            for label in a_part_of(cases, ONE_OF):
                wrong += [f"{label}: {problem}" for problem in self._case(use, cases[label], label)]
        return wrong

    def _outputs(self, use: Use, wrong: list[str]) -> list[str]:
        """What a command writes into the stranger's folder, relative to it."""
        before = self._set(use)
        self.label = use.words
        wrong += [f"{use.words}: {problem}" for problem in self._call(use)]
        if self.code != use.code:
            wrong.append(f"{use.words}: ends with {self.code}")
        subject = self.place / use.subject
        after = contents(subject) if subject.is_dir() else {}
        return [n for n, what in after.items() if before.get(n) != what and (subject / n).is_file()]

    def _links(self, use: Use, outputs: list[str]) -> Iterator[tuple[str, Change]]:
        """All outputs at once, and each file that grows, are links or have a second name elsewhere."""
        kinds: dict[str, Callable[[Path, Path], None]] = {
            "links": lambda file, target: file.symlink_to(target),
            "links to nothing": lambda file, target: file.symlink_to(target.with_name(f"{target.name}.new")),
            "links to a folder": lambda file, _: file.symlink_to(self.canary / "folder"),
            "hard links": lambda file, target: file.hardlink_to(target),
        }
        for kind, make in kinds.items():
            grow = [n for n in outputs if "jsonl" in n or "lock" in n] if "to" not in kind else []
            for names in filter(None, [outputs, *([n] for n in grow)]):

                def change(subject: Path, names=names, make=make) -> None:
                    for number, file in enumerate(
                        subject / f"{n}{end}" for n in names for end in ("", ".part")
                    ):
                        file.parent.mkdir(parents=True, exist_ok=True)
                        target = self.canary / f"{number}-{file.name}"
                        target.write_bytes(file.read_bytes() if file.is_file() else b"kept")
                        file.unlink(missing_ok=True)
                        make(file, target)

                yield f"{', '.join(names)[:40]} among {kind}", change

    def _folders(self, use: Use, outputs: list[str]) -> Iterator[tuple[str, Change]]:
        """A folder below the stranger's, into which the command writes, is a link to one elsewhere."""
        for name in sorted({parent.as_posix() for n in outputs for parent in Path(n).parents} - {"."}):

            def change(subject: Path, name=name) -> None:
                folder, target = subject / name, self.canary / "linked"
                if folder.is_dir():
                    folder.rename(target)
                else:
                    target.mkdir()
                    folder.parent.mkdir(parents=True, exist_ok=True)
                folder.symlink_to(target)

            yield f"{name}/ is a link", change

    def _set(self, use: Use) -> dict[str, object]:
        """Lay out the files of a case; what the subject holds."""
        for folder in (self.place, self.canary):
            shutil.rmtree(folder, ignore_errors=True)
        (self.canary / "folder").mkdir(parents=True)
        (self.canary / "kept.txt").write_text("kept")
        self.place.mkdir()
        for name in {use.subject, "own.npz", "federations", "site", "r"}:
            source, there = self.world / name, self.place / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, there)
        (self.place / f"{MARK}.py").write_text(CODE)
        return contents(self.place / use.subject) if (self.place / use.subject).is_dir() else {}

    def _case(self, use: Use, change: Change, label: str) -> list[str]:
        self.label = label
        self._set(use)
        change(self.place / use.subject)
        return self._call(use)

    def _call(self, use: Use) -> list[str]:
        canary, outside = contents(self.canary), contents(self.root, 1)
        self.watcher.problems = problems = []
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        try:
            called = call(*use.words.split(), cwd=self.place)
        except Alarm:
            return [f"does not end within {LONGEST_S} s of processor time"]
        except Exception as error:
            return [f"raises {type(error).__name__}: {error}"[:300]]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.watcher.problems = None
            print(self.label, file=sys.stderr, flush=True)
        self.code = called.code
        problems += judged(called)
        after = contents(self.canary)
        problems += [f"changes {n}" for n in {**canary, **after} if canary.get(n) != after.get(n)]
        problems += [f"writes {n}" for n in contents(self.root, 1).keys() - outside.keys()]
        return list(dict.fromkeys(problems))


def judged(called: Called) -> Iterator[str]:
    """What is wrong with how a command ended and what it printed."""
    if bad := {c for c in called.text if not (c.isprintable() or c in KEPT)}:
        yield f"prints {bad}"
    if any(line.startswith(FORGED) for line in called.text.splitlines()):
        yield "prints a line of the stranger's"
    if match := re.search(r"E14[23] .*", called.err):
        yield match[0][:300]


def contents(folder: Path, depth: int = 9) -> dict[str, object]:
    """What a folder holds: kind, mode and content of each entry, without following links."""
    found: dict[str, object] = {}
    for path in folder.iterdir():
        facts = path.lstat()
        if path.is_symlink():
            found[path.name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[path.name] = ("folder", facts.st_mode)
            below = contents(path, depth - 1) if depth > 1 else {}
            found |= {f"{path.name}/{name}": what for name, what in below.items()}
        else:
            found[path.name] = (facts.st_mode, path.read_bytes() if path.is_file() else b"")
    return found


def _alarm(*_: object) -> None:
    raise Alarm


def main(folder: str, *commands: str) -> None:
    signal.signal(signal.SIGPROF, _alarm)
    cases = Cases(Path(folder))
    problems = {command: cases.problems(command) for command in commands or READS}
    print(json.dumps(problems, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
