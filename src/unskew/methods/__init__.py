"""One file per method; the file's name is the method's name."""

PRESETS: dict[str, tuple[str, dict[str, object]]] = {
    "rbsm": ("rebafl", {"mu": 0.0}),
    "faug": ("rebafl", {"eps": 1.0}),
    "fedrdn_v": ("fedrdn", {"mean": True}),
}
"""Other names for a method with some arguments set: name -> (file, arguments)."""
