"""What stands for a client's class counts where every sample has a proof of its own: no noise would cover them."""

from __future__ import annotations

from typing import Any, NoReturn

from unskew.errors import UsageError


class Hidden:
    """Whoever uses it in any way reads why that cannot be (E108). by: the Part that protects samples."""

    def __init__(self, by: str):
        self._by = by

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UsageError(
            "E108", f"a hook reads the client's class counts, which no noise of '{self._by}' covers; take it out."
        )

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def __torch_function__(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse()

    __getitem__ = __iter__ = __len__ = __add__ = __sub__ = __mul__ = __truediv__ = __gt__ = __lt__ = _refuse
