"""`unskew explain`: what a method does, what it shares, and its settings, or an error code or a page;
`unskew check`: the conformance checks that every method must pass."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated

from unskew.cli.options import Json

if TYPE_CHECKING:
    from unskew.core.part import Part
    from unskew.round.loop import Loop

DATA, MODEL = "digits", "auto"


def explain(
    method: Annotated[
        str, "a method by name, like flea or flea+scaffold; or a code, E109; or a page, docs/data.md"
    ],
    data: Annotated[str, "for which data set to count bytes"] = DATA,
    model: Annotated[str, "for which model to count bytes"] = MODEL,
) -> None:
    """Print the equations of a method, its settings, and what leaves a client, in bytes; or the meaning of an
    error code; or a page of the documentation."""
    print(text(method, data, model))


def _page(name: str) -> str:
    """The paragraph of an error code, or a page of the documentation, by its path; "" for another text.

    Raises UsageError (E125) if there is none of that name.
    """
    from unskew.errors import UsageError, code_pages, docs_folder, excerpt, suggestion

    is_code = re.fullmatch(r"E\d+", name)
    if not is_code and not name.endswith(".md"):
        return ""
    folder = docs_folder()
    pages = {f"docs/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*.md")}
    known = code_pages() if is_code else pages
    if name not in known:
        near = suggestion(name, known)
        raise UsageError("E125", f"there is no {'code' if is_code else 'page'} {excerpt(name)}.{near}")
    return f"{name}\n\n{code_pages()[name]}" if is_code else pages[name].read_text(encoding="utf-8").rstrip()


def text(method: str, data: str = DATA, model: str = MODEL) -> str:
    """The text that `unskew explain` prints."""
    from unskew.attacks.registry import readers_lines
    from unskew.core.part import overrides
    from unskew.merge import mean
    from unskew.report.method_pages import method_page

    if page := _page(method):
        return page
    loop, example = _example(method, data, model)
    parts = loop.run.method.parts
    try:
        shared = [*_disclosed(loop), _summed(loop), *readers_lines(loop.run.method, loop.fed)]
    finally:
        loop.trainer.close()
    pages = [method_page(part, loop.fed, example).rstrip() for part in parts]
    pages = pages or [inspect.cleandoc(mean.__doc__ or "")]
    if len(names := [part.name for part in parts if overrides(part, "grad")]) > 1:
        pages.append(f"Order matters: of the gradient, {' before '.join(names)}.")
    return "\n\n".join([*pages, f"With {example}, in all:", "\n".join(shared)])


def _disclosed(loop: Loop) -> list[str]:
    """What leaves each client; without the library that accounts for privacy (E133), how to install it."""
    from unskew.errors import UsageError
    from unskew.runs.disclosure import disclosure_lines

    try:
        return disclosure_lines(loop)
    except UsageError as error:
        if error.code != "E133":
            raise
        return [str(error)]


def _summed(loop: Loop) -> str:
    """Whether secure aggregation can hide what each client sends, and if not, why."""
    from unskew.core.method import sum_problem
    from unskew.privacy.secure_aggregation import LEAST_SITES

    for part in loop.method.parts:
        if reason := sum_problem(part, loop.fed):
            return f"secure aggregation  not possible with '{part.name}': {reason}"
    hidden = f"all of it is read only in the sum of {LEAST_SITES} or more clients"
    return f"secure aggregation  with --secure-aggregation on, {hidden}"


def _example(method: str, data: str, model: str) -> tuple[Loop, str]:
    """(run, description of the run): a run that has not begun, as the basis for counting bytes.

    A method that cannot work with the defaults (FedBN without batch normalisation) gets colour images and a
    model with normalisation.
    """
    from unskew.config import build
    from unskew.data.registry import divided_by
    from unskew.errors import UsageError
    from unskew.runs import conformance
    from unskew.runs.assemble import loop_of
    from unskew.runs.resolve import method_of, resolve

    split = {} if divided_by(data) else {"skew": "iid", "clients": 10}
    settings = build({"method": method, "data": data, "model": model, **split})
    try:
        loop = loop_of(resolve(settings))
        net = "its default model" if model == "auto" else model
        return loop, f"{data} and {net}, {loop.fed.clients} clients"
    except UsageError as refusal:
        if refusal.code != "E108" or (data, model) != (DATA, MODEL):
            raise
    parts = method_of(settings)
    loop = conformance.loop_for(parts)
    return loop, f"colour images of 8x8 and {loop.run.settings.model}, 8 clients"


def check(
    method: Annotated[str, "a method by name, or a file that defines Parts"], as_json: Json = False
) -> None:
    """Check that a method is deterministic, resumes, shares only what it declares, and copes with small and
    absent clients."""
    import json

    from unskew.runs import conformance

    results = []
    for part in parts_of(method):
        for result in conformance.check_method(part):
            results.append(result)
            if not as_json:
                detail = f": {result.detail}" if result.detail else ""
                print(f"{'ok  ' if result.ok else 'FAIL'}  {result.name}{detail}", flush=True)
    failed = [result for result in results if not result.ok]
    if as_json:
        print(json.dumps([{"check": r.name, "ok": r.ok, "detail": r.detail} for r in results]))
    elif not results:
        print(f"{method} has no Parts that could be checked: it averages weights, and nothing else.")
    else:
        print(f"\n{len(results) - len(failed)} of {len(results)} checks passed")
    if failed:
        raise SystemExit(1)


def parts_of(text: str) -> list[Part]:
    """The Parts of a method, or all Parts in a Python file, with their default arguments."""
    from unskew.methods import registry

    if not text.endswith(".py"):
        return list(registry.parse(text).parts)
    return [registry.part_of(kind, kind.spelling, {}) for kind in registry.user_parts(text)]
