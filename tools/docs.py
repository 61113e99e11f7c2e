"""Write the pages that are made from the code: one per method, one per error, the table of models.

python tools/docs.py            write them
python tools/docs.py --check    fail if any differs from what would be written
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

from unskew import models
from unskew.core.method import Method, part
from unskew.engine import setup
from unskew.errors import PAGES

DOCS = Path(__file__).parent.parent / "docs"
METHODS = ("fedprox", "scaffold", "fedbn", "norm", "fedrdn", "rebafl", "flea", "local")
WHEN = {
    "fedprox": "Clients do many local steps on skewed data and drift apart; the pull holds them near the global model.",
    "scaffold": "The same, with few clients that come back often: their control variates must be fresh to help.",
    "fedbn": "Sites whose inputs look different (scanners, cameras) and that each want a model of their own. It needs batch normalisation.",
    "norm": "The plain alternative to FedRDN: one pair of constants for everybody.",
    "fedrdn": "Images that look different from site to site. It adds to any method, costs two numbers a channel, once.",
    "rebafl": "Each client holds few of the classes and many clients are absent.",
    "flea": "Clients hold few samples of few classes, and may share obfuscated activations of a tenth of them.",
    "local": "As a reference: what clients reach without any federation.",
}


def method_page(name: str) -> str:
    made = part(name, {})
    kind = type(made)
    about = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")
    first, _, rest = about.partition("\n")
    fields = [f for f in dataclasses.fields(kind) if f.init]
    settings = "\n".join(f"| `{f.name}` | `{f.default!r}` |" for f in fields) or "| none | |"
    return f"""# {name}

{first}

```text
{rest.strip()}
```

**When to use it.** {WHEN[name]}

| setting | default |
|---|---|
{settings}

{inspect.cleandoc(kind.__doc__ or "")}

## What leaves a client

{shares(made)}

Run it: `unskew run {name}`; with others: `unskew run {name}+fedprox`. Its code: `{Path(inspect.getfile(kind)).relative_to(DOCS.parent)}`.
"""


def shares(made) -> str:
    from unskew.engine.cells import federation_for

    settings = setup.Settings(data="digits", skew="iid", clients=10)
    if made.normalises:
        return _table(made, None)
    loop = setup.loop_of(settings, Method(made), federation_for(settings, Method(made)))
    loop.trainer.close()
    return _table(made, loop.fed)


def _table(made, fed) -> str:
    if fed is None:
        from types import SimpleNamespace

        fed = SimpleNamespace(shape=(3, 64, 64), classes=10)
    found = {**made.shares(fed), **{n: s for t in made.trips for n, s in t.shares(fed).items()}}
    if not found:
        return "Nothing beside the weights." if made.name != "local" else "Nothing."
    grouped: dict[str, list] = {}
    for leaf, share in found.items():
        grouped.setdefault(leaf.split("/")[0], []).append(share)
    rows = []
    for leaf, group in grouped.items():
        shape = (
            "as the weights" if len(group) > 1 else "×".join("rows" if s is None else str(s) for s in group[0].shape)
        )
        s = group[0]
        rows.append(
            f"| `{made.name}/{leaf}` | {s.what} | {shape} | {sum(g.max_bytes for g in group):,} | {s.reads} | {s.guarantee} |"
        )
    where = "digits and its default model, 10 clients" if fed.shape != (3, 64, 64) else "colour images"
    return "\n".join(
        [
            f"Beside the weights, with {where}:",
            "",
            "| share | what | shape | at most, bytes | read | guarantee |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )


def pages() -> dict[Path, str]:
    made = {DOCS / "methods" / f"{n}.md": method_page(n) for n in METHODS}
    made |= {DOCS / "errors" / f"{c}.md": f"# {c}\n\n{t}\n" for c, t in PAGES.items()}
    made[DOCS / "models.md"] = (
        f"# Models\n\nAny `torch.nn.Module` works: a name, `file.py:function(input_shape, classes)`, or an object in Python.\n\n{models.table()}\n"
    )
    return made


def main() -> int:
    stale = []
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            stale.append(path)
            if "--check" not in sys.argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    for path in stale:
        print(("stale: " if "--check" in sys.argv else "wrote ") + str(path.relative_to(DOCS.parent)))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
