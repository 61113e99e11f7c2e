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

    @classmethod
    def __torch_function__(cls, _func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> NoReturn:
        flat = [
            one
            for arg in (*args, *(kwargs or {}).values())
            for one in (arg if isinstance(arg, list | tuple) else (arg,))
        ]
        next(one for one in flat if isinstance(one, Hidden))._refuse()

    __getitem__ = __iter__ = __len__ = __contains__ = __array__ = __bool__ = __float__ = __int__ = __index__ = _refuse
    __eq__ = __ne__ = __gt__ = __lt__ = __ge__ = __le__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __floordiv__ = __mod__ = __neg__ = __abs__ = __invert__ = _refuse
    __hash__ = object.__hash__
