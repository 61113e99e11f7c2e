"""Python files: import of users' files that a setting names, and facts from source without importing it.

Lists of methods, models and data sets are read from source, which does not load torch.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache, wraps
from importlib import invalidate_caches
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from unskew.errors import UnskewError, UsageError

IMPORTED_BY = "imported by"
"""The words between a user's module and the file that imports it, in names of digests."""
GIVEN_OBJECT = "(given)"
"""The text in settings in place of a Python object."""
FOREIGN_MODULES = {*sys.stdlib_module_names, "unskew"}
"""Names of modules that are never a user's: Python's own, and this package."""
_imported_digests: dict[Path, str] = {}
"""The digests of the user's modules at the last import of a file that imports them."""
_CALL = re.compile(r"\s*(?:(.*\.py)(?::\w+)?|[\w-]+)\s*(?:\(\s*(?:\w+\s*=.*)?\))?\s*", re.DOTALL)
"""A file or a name, with arguments or without: FILE.py:make(width=3), fedprox(mu=0.1)."""
_BETWEEN_CALLS = re.compile(r"[+,](?![^()]*\))")
"""Between the Parts of a method, or the names of metrics; not inside brackets."""
_named: ContextVar[frozenset[str] | None] = ContextVar("named", default=None)
"""The files that may be imported, because the user named them; None outside of commands and calls."""
_P = ParamSpec("_P")
_R = TypeVar("_R")


@contextmanager
def restrict(*texts: str, also: frozenset[str] = frozenset()) -> Iterator[None]:
    """Inside the block, only files in these texts may be imported: the arguments of a command or a call, also
    as --option=VALUE. Documents may name other files. also: further files."""
    before = _named.set(also | {file for text in texts for file in _named_in(text)})
    try:
        yield
    finally:
        _named.reset(before)


def restricted(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function of the public API in which only files that its arguments name may be imported, and none that
    a document names which it reads; and inside a command or another such function, those that it names."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        given = signature(function).bind(*args, **kwargs).arguments
        samples = [name for name in ("data", "group") if not isinstance(given.get(name), str | os.PathLike)]
        texts = _texts([value for name, value in given.items() if name not in samples])
        with restrict(*texts, also=_named.get() or frozenset()):
            return function(*args, **kwargs)

    return call


def _texts(value: Any) -> Iterator[str]:
    """The texts and paths among arguments, also in lists and dictionaries."""
    if isinstance(value, str | os.PathLike):
        yield os.fspath(value)
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def check_named(file: str | Path) -> None:
    """Raises UsageError (E506) for a file that a document names but the user does not."""
    named = _named.get()
    if named is None or _resolved(file) in map(_resolved, named):
        return
    text = f"{file} is named in a document and not by you, so it is not imported"
    options = (
        "--method, --model, --loss or --metrics, for a table --file, in Python method, model, loss or metrics"
    )
    raise UsageError("E506", f"{text}; if you trust it, name it in this command, too ({options}).")


def names_function(text: str) -> bool:
    """Whether a setting names a user's function: `file.py:function`, or one that was given in Python."""
    file, _, function = text.rpartition(":")
    return function.isidentifier() and (file == GIVEN_OBJECT or file.endswith(".py"))


def _resolved(file: str | Path) -> Path:
    return Path(file).expanduser().resolve()


def folder_note(path: Path) -> str:
    """The folder to which a path is relative, for a sentence about a missing file; "" for an absolute
    path."""
    if path.is_absolute():
        return ""
    try:
        return f" in {Path.cwd()}, where this was started"
    except FileNotFoundError:
        return " in a folder that has been removed"


def import_file(file: str | Path) -> ModuleType:
    """Import a user's file under a unique name, so that a `random.py` does not replace Python's.

    Raises UsageError: E111 if the file does not exist or its import fails, E506 if only a document names it.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise UsageError("E111", f"there is no file {file}{folder_note(path)}.")
    check_named(path)
    name = f"unskew_own_{path.stem}_{_digest(str(path.resolve()).encode())}"
    _forget_changed(path)
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    sys.modules[name] = loaded  # dataclasses look up their module while the file runs
    try:
        spec.loader.exec_module(loaded)
    except UnskewError:
        raise
    except Exception as error:
        del sys.modules[name]
        raise UsageError(
            "E111", f"{file} cannot be read as Python{line_note(file, error)}: {one_line(error)}."
        ) from error
    return loaded


def _forget_changed(file: Path) -> None:
    """Make Python read the user's modules that a file imports again if one has changed since the last import,
    so that the code in use agrees with the digests of the files."""
    now = {module.resolve(): digest(module) for module in imported_files(file)}
    if any(_imported_digests.get(module, d) != d for module, d in now.items()):
        for name, loaded in list(sys.modules.items()):
            place = getattr(loaded, "__file__", None)
            if place and name != "__main__" and Path(place).resolve() in now:
                del sys.modules[name]
        invalidate_caches()
    _imported_digests.update(now)


def files_of(*texts: str) -> list[str]:
    """The files in texts of methods, models or metrics, in order."""
    return [os.path.expanduser(file) for text in texts for file in _operands(text) or _whole(text)]


def _operands(text: str) -> list[str]:
    """The files of `a.py+fedprox` or `auroc,b.py:cost`; [] unless all of the text is such a list of calls."""
    calls = [_CALL.fullmatch(piece) for piece in _BETWEEN_CALLS.split(text)]
    return [call[1].strip() for call in calls if call and call[1]] if all(calls) else []


def _whole(text: str) -> list[str]:
    """The file of a single FILE.py:name(...), of which the path may hold any signs; [] for other texts."""
    call = _CALL.fullmatch(text)
    return [call[1].strip()] if call and call[1] else []


def _is_python(text: str) -> bool:
    return text.endswith(".py") and os.path.isfile(text)


def _named_in(text: str) -> list[str]:
    """The files that an argument names, which the user wrote. A path that exists names no code unless it is a
    Python file: who made a document also chose its name, such as `study.py.yaml` or `net.py,1/`."""
    files = list[str]()
    while not os.path.exists(re.sub(r"\([^()]*\)$", "", text)) or _is_python(text):
        files += [*_whole(text), *_operands(text)]
        if not (option := re.match(r"(?:--)?[\w.-]+=(.*)", text, re.DOTALL)):
            break
        text = option[1]
    return files


def digests(*texts: str) -> dict[str, str]:
    """Digests of the existing files in texts of methods or models, by file."""
    return {file: digest(file) for file in files_of(*texts) if Path(file).is_file()}


def digests_with_imports(*texts: str) -> dict[str, str]:
    """Digests of the files in texts of methods or models and of the user's modules that they import, by file.
    A constant or layer in an imported module affects training as much as one in the file."""
    named = digests(*texts)
    return named | {
        f"{module} ({IMPORTED_BY} {file})": digest(module)
        for file in named
        for module in sorted(imported_files(Path(file)))
    }


def imported_files(file: Path) -> set[Path]:
    """The files of the user's modules that a file imports, directly or through another module."""
    modules, waiting = set[Path](), [file]
    while waiting:
        importing = waiting.pop()
        imported = _imported_names(importing.read_bytes())
        new = {m for names in imported for m in _import_places(names, importing, file)} - modules
        modules |= new - {file}
        waiting += new
    return modules


def digest(file: str | Path) -> str:
    """16 hexadecimal digits of the SHA-256 of a file's content."""
    return _digest(Path(file).read_bytes())


def line_note(file: str | Path, error: Exception) -> str:
    """` at line 3`, the line of an error in this file; '' if it arose elsewhere."""
    if isinstance(error, SyntaxError):
        return f" at line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(str(file))]
    return f" at line {lines[-1]}" if lines else ""


def one_line(error: BaseException) -> str:
    """An exception on one line: its type, and the first line of its message if it has one."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@lru_cache
def _imported_names(source: bytes) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The imports of a file, each with the number of its dots: `from ..a.b import c` is (2, ("a", "b", "c")).
    () if the source is not valid Python; its import reports that."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    whole = [(0, a.name) for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    parts = [
        (node.level, f"{node.module or ''}.{a.name}".lstrip("."))
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for a in node.names
    ]
    return tuple((level, tuple(name.split("."))) for level, name in whole + parts)


def _import_places(imported: tuple[int, tuple[str, ...]], importing: Path, file: Path) -> Iterator[Path]:
    """The user's files that an import runs: in the folder of the file, the working folder, or elsewhere on
    Python's path except for installed packages."""
    level, names = imported
    if not level and names[0] in FOREIGN_MODULES:
        return
    roots = [importing.parents[level - 1]] if level else [file.parent, *_folders()]
    for root in roots:
        modules = [m for end in range(1, len(names) + 1) if (m := _module(root.joinpath(*names[:end])))]
        if modules:
            yield from modules
            return


def _module(place: Path) -> Path | None:
    """The file of the module or package at this place; None if there is none."""
    return next((f for f in (place / "__init__.py", place.with_suffix(".py")) if f.is_file()), None)


def _folders() -> Iterator[Path]:
    """The folders on Python's path, except for those of Python and of installed packages."""
    with_python = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix)}
    for entry in map(Path, ("", *sys.path)):
        if (
            entry.is_dir()
            and "site-packages" not in entry.parts
            and not with_python & {*entry.resolve().parents}
        ):
            yield entry


def module_files(folder: Path) -> list[Path]:
    """The Python files of a package by name, without its `__init__.py`."""
    return sorted(path for path in folder.glob("*.py") if path.stem != "__init__")


def docstring(path: Path) -> str:
    """The docstring of a file; "" if it has none."""
    return ast.get_docstring(_parsed(path)) or ""


def summary(path: Path) -> str:
    """The first line of the docstring, without its full stop."""
    return docstring(path).split("\n")[0].rstrip(".")


def description(path: Path) -> str:
    """`summary; argument=default, ...` of a file and of its function of the same name, as in the source."""
    for node in _parsed(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == path.stem and (values := node.args.defaults):
            pairs = zip(node.args.args[-len(values) :], values)
            return f"{summary(path)}; {', '.join(f'{a.arg}={ast.unparse(value)}' for a, value in pairs)}"
    return summary(path)


def constant(path: Path, name: str, otherwise: Any) -> Any:
    """The literal that the file assigns to a name at its top level; `otherwise` if there is none."""
    for node in _parsed(path).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return ast.literal_eval(node.value)
    return otherwise


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
