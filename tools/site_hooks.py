"""What mkdocs does beside reading docs/: pages made from docstrings, links that leave docs/, and a look at
what it has built.

mkdocs calls the functions named on_*. It imports nothing that unskew depends on: docstrings are read, not
run.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from tools import notebooks, pages
from unskew.methods import catalogue

PACKAGE = pages.ROOT / "src" / "unskew"


def on_config(config: Any) -> Any:
    """Name every page of a folder where the navigation says so, and form anchors as code hosts do."""
    config.nav = pages.expanded(config.nav, pages.all_pages())
    config.mdx_configs["toc"]["slugify"] = pages.slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that have no file in docs/."""
    texts = {name: (pages.ROOT / name).read_text() for name in pages.PROJECT}
    texts |= {"python.md": _python(), "hooks.md": _hooks(), "notebooks/gallery.md": notebooks.gallery()}
    texts |= {f"notebooks/{name}.md": notebooks.page(name) for name in notebooks.names()}
    texts |= {f"notebooks/reports/{name}.html": text for name, text in notebooks.reports().items()}
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    known = [*pages.PROJECT, *(f.src_uri for f in files.documentation_pages() if f.src_uri not in texts)]
    for page in known:
        source = pages.in_repository(page)
        for link in pages.links((pages.ROOT / source).read_text()):
            shown = pages.on_site(pages.target(source, link)) if pages.is_local(link) else ""
            if shown.startswith(pages.SOURCE) and not files.get_file_from_path(shown):
                files.append(File.generated(config, shown, content=_source(pages.target(source, link))))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files of the repository into links to the pages that show them."""
    here = page.file.src_uri
    if here in pages.MADE or here.startswith(pages.SOURCE):
        return markdown
    source = pages.in_repository(here)

    def moved(match: re.Match[str]) -> str:
        link = match[1]
        if not pages.is_local(link):
            return match[0]
        path, _, anchor = link.partition("#")
        to = pages.on_site(pages.target(source, path))
        if "." not in posixpath.basename(to):  # a folder of docs/, of which its first page is shown
            to = posixpath.join(to, "README.md")
        return f"]({posixpath.relpath(to, posixpath.dirname(here) or '.')}{'#' * bool(anchor)}{anchor})"

    return pages.LINK.sub(moved, markdown)


def on_post_build(config: Any) -> None:
    """Refuse a site any page of which would fetch something from another host."""
    built = Path(config.site_dir)
    for path in [*built.rglob("*.html"), *built.rglob("*.css")]:
        text = path.read_text()
        if fetched := pages.foreign(f"<style>{text}</style>" if path.suffix == ".css" else text):
            raise PluginError(f"{path.relative_to(built)} would fetch {fetched[0]} from another host")


def _source(path: str) -> str:
    """A file of the repository as a page, or the list of files of a folder."""
    file = pages.ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n# `{path}`\n\n"
    if file.is_dir():
        names = sorted(
            inner.name for inner in file.iterdir() if inner.is_file() and not inner.name.startswith("__")
        )
        return head + "\n".join(f"- `{name}`" for name in names) + "\n"
    return f"{head}````{'python' if file.suffix == '.py' else 'text'}\n{file.read_text()}````\n"


def _homes() -> dict[str, str]:
    """The module of every public name, as the package declares it."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            return ast.literal_eval(node.value)
    raise PluginError("the package declares no public names")


FUNCTIONS = ("run", "compare", "load", "resume", "diagnose", "reproduce")
FOR_AUTHORS = ("Part", "Client", "Fed", "Share", "Trip", "Noise", "Batch", "Ups", "Method")
SPECIAL_HOOKS = (
    *(f"unskew.core.special_hooks.{subject}Hooks" for subject in ("Step", "Personal", "Input")),
    *(f"unskew.core.special_hooks.{subject}Hooks" for subject in ("Encoding", "Privacy")),
    "unskew.core.description.Description",
)
"""What every Part inherits."""
FOR_CALLBACKS = ("Callback", "Progress", "Replied", "EarlyStopping", "KeepBest")


def _entry(name: str, home: str) -> str:
    """The directive that shows a public name with its docstring."""
    options = f'    options:\n      heading: "unskew.{name}"\n      toc_label: "{name}"\n'
    return f"::: {home}.{name.rpartition('.')[2]}\n{options}\n"


def _python() -> str:
    """The page of every public name that is no hook."""
    homes = _homes()
    text = (
        "# Python\n\nEverything that `import unskew` gives. What authors of methods and callbacks override is"
        " on the page [Hooks](hooks.md).\n\n"
    )
    text += "## Functions\n\n" + "".join(_entry(name, homes[name]) for name in FUNCTIONS)
    rest = [name for name in homes if name not in (*FUNCTIONS, *FOR_AUTHORS, *FOR_CALLBACKS, "Settings")]
    text += "## What they return and raise\n\n" + "".join(_entry(name, homes[name]) for name in rest)
    text += (
        "## Settings\n\n`unskew.Settings` is a frozen dataclass whose fields are the"
        " [settings](settings.md).\n\n"
    )
    text += "## Data\n\n" + "".join(_entry(f"data.{name}", home) for name, home in _data().items())
    rows = [
        f"| `unskew.{e.kind}` | [`{name}`](methods/{name}.md) | {e.summary} |\n"
        for name, e in catalogue.entries().items()
    ]
    text += (
        "## Methods\n\nThe class of every method, for `unskew.Method(unskew.FLea(), unskew.Scaffold())`.\n\n"
    )
    return text + "| class | name | |\n|---|---|---|\n" + "".join(rows)


def _data() -> dict[str, str]:
    """The functions of unskew.data, with the module of each."""
    body = ast.parse((PACKAGE / "data" / "__init__.py").read_text()).body
    imports = {
        alias.asname or alias.name: node.module
        for node in ast.walk(ast.Module(body, []))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {name: str(home) for name, home in imports.items() if name[:1].islower() and home != "__future__"}


def _hooks() -> str:
    """The page of what authors of methods and callbacks override and are handed."""
    homes = _homes()
    text = (
        "# Hooks\n\nWhat a class of your own may override, and what its hooks receive. The guide is [A method"
        " of your own](guides/method.md).\n\n"
    )
    text += "## Methods\n\n" + "".join(_entry(name, homes[name]) for name in FOR_AUTHORS)
    text += "## Special hooks of a Part\n\n" + "".join(f"::: {home}\n\n" for home in SPECIAL_HOOKS)
    return text + "## Callbacks\n\n" + "".join(_entry(name, homes[name]) for name in FOR_CALLBACKS)
