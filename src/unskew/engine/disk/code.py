"""Code that a run needs and its folder only names: it is taken from what the caller gives, for the folder may be anybody's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from unskew import own
from unskew.config import Settings
from unskew.core.method import Method
from unskew.core.part import Part
from unskew.data.intake.take import GIVEN
from unskew.engine import resolve
from unskew.errors import StateError, UsageError
from unskew.models import folder


@dataclass(frozen=True)
class Code:
    """What a caller gives in place of what a run's settings name, because it is code.

    method: text, Method or Part. model: a module, or the text FILE.py:FUNCTION.
    """

    method: Method | Part | str | None = None
    model: nn.Module | str | None = None

    @staticmethod
    def of(settings: Settings) -> Code:
        """The files that these settings name, for a caller whose user wrote them."""
        named = (text if ".py" in text else None for text in (settings.method, settings.model))
        return Code(*named)


def method_of(path: Path, files: Mapping[str, str], settings: Settings, given: Method | Part | str | None) -> Method:
    """The method of the run in this folder. files: digests of the files it was trained with. given: by the caller, if needed.

    Raises StateError (E156) where it takes a Python file and none was given, (E112) where the one given is another.
    """
    if given is None:
        if ".py" in settings.method:  # anywhere in it, so that no other way of reading the text can find a file
            text = f"the method of {path}, {settings.method}, has a Part in a Python file"
            raise StateError("E156", f"{text}; name the method with your own file: method=... (--method).")
        try:
            return resolve.method_of(settings)
        except UsageError as error:
            text = f"the method of {path} cannot be read: {error.text} If a program gave its Parts, give them again"
            raise StateError("E156", f"{text}: method=...") from error
    if isinstance(given, str):
        _check_file(path, files, given)
        return resolve.parts_of(given, settings.set if given == settings.method else None)
    return resolve.method_of(settings, given)


def check_model(path: Path, files: Mapping[str, str], settings: Settings, given: nn.Module | str | None) -> None:
    """Raises StateError (E156) where the model of the run takes code and none was given, (E112) where it is another file."""
    if given is None and (settings.model == GIVEN or ".py" in settings.model):
        was = "a module that a program gave" if settings.model == GIVEN else f"{settings.model}, a Python file"
        raise StateError("E156", f"the model of {path} was {was}; name yours: model=... (--model FILE.py:FUNCTION).")
    if isinstance(given, str):
        _check_file(path, files, given)


def _check_file(path: Path, files: Mapping[str, str], text: str) -> None:
    """Raises StateError (E112) for a file or folder of the caller's whose content is not that of any that the run was trained with."""
    then = set(files.values())
    imports = any(own.IMPORTED in file for file in files)  # older versions did not tell them
    named = own.with_imports(text) if imports else own.digests(text)
    for file, digest in {**named, **folder.digests(text)}.items():
        if then and digest not in then:
            raise StateError("E112", f"{file} is not the file with which {path} was trained; name that one.")
