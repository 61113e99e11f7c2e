"""The options of a command that takes the model of a finished run, and the model that they name."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from unskew.predicting import AtSite, Published
    from unskew.results import Result


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Which run's model a command takes, and whose."""

    run: Annotated[
        Path, "folder of a finished run, of a run at a site (SITE/runs/NUMBER), or one that was exported for the hub"
    ]
    client: Annotated[str | None, "take this client's own model, by name or number"] = None
    model: Annotated[str | None, "FILE.py:FUNCTION of a run whose model is in a Python file"] = None
    method: Annotated[str | None, "the method of a run of which a Part is in a Python file, with your own file"] = None
    best: Annotated[bool, "take the model of the best round, which a run with --keep-best keeps"] = False
    unfinished: Annotated[bool, "also take the model of a run that has not come to its end"] = False
    data: Annotated[
        str, "at a site, whose model some methods make with its samples: its data, as it took part with them"
    ] = ""
    classes: Annotated[str, "of these data all class names, in the order on which the sites agreed"] = ""

    def result(self) -> Result | Published | AtSite:
        """The run, as `unskew.load` reads it; raises UsageError as that does."""
        from unskew import loading
        from unskew.cli.site_run import names
        from unskew.predicting import AtSite

        own = {"data": self.data or None, "classes": names(self.classes)}
        code = {"model": self.model, "method": self.method}
        result = loading.load(self.run, **code, unfinished=self.unfinished, best=self.best, **own)
        if isinstance(result, AtSite):  # whose weights may be of an earlier round than the coordinator's
            print(result, file=sys.stderr)
        return result

    @property
    def whose(self) -> int | str | None:
        """The client by its number if it is one, else by its name; None for the global model."""
        return int(self.client) if self.client and self.client.isdecimal() else self.client
