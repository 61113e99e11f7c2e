"""The grammar of methods, models and data sets: `name(key=value, key=value)`.

    call    name [ "(" [ key=value {"," key=value} ] ")" ]
    name    any text without brackets; FILE.py or FILE.py:NAME names an object in a user's file
    value   a Python literal (number, text in quotes, True, None, list, tuple, dict), or a bare word such as
            paper or block1.conv, which is text
    sum     call {"+" call}                                                              (methods only)

Nothing is evaluated: values are parsed as literals, and nesting is bounded.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from unskew.errors import UsageError, excerpt

MOST_LETTERS = 10_000
"""Maximum length of a text, in characters."""
MOST_DEPTH = 10
"""Maximum depth of brackets."""
_FILE = re.compile(r"(?P<file>.*\.py)(?::(?P<member>\w+))?", re.S)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Call:
    """One `name(key=value)`. name: the name as written, without surrounding spaces."""

    name: str
    arguments: dict[str, object] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """`path/to/file.py` if the name contains a file; otherwise ""."""
        match = _FILE.fullmatch(self.name)
        return match["file"] if match else ""

    @property
    def member(self) -> str:
        """The name of the object in that file, `Class` for `file.py:Class`; otherwise ""."""
        match = _FILE.fullmatch(self.name)
        return (match["member"] or "") if match else ""

    def __str__(self) -> str:
        return call_text(self.name, self.arguments)


class _CallSyntaxError(Exception):
    """The reason why a text cannot be parsed, as the end of a sentence."""


def parse(text: str, what: str, code: str) -> Call:
    """Parse a text that contains one call. what: "model" or "data set", for the message.

    Raises UsageError with this code for a text that does not follow the grammar.
    """
    try:
        return _call(text)
    except _CallSyntaxError as why:
        problem = f"cannot read the {what} {excerpt(text)}: {why}"
        raise UsageError(code, f"{problem}; write name(key=value).") from None


def parse_sum(text: str) -> tuple[Call, ...]:
    """Parse the calls of a method, `a(key=value)+b`, in their order. Raises UsageError (E102)."""
    try:
        cuts = [position for position, character, depth in _walk(text) if character == "+" and not depth]
        pieces = zip([-1, *cuts], [*cuts, len(text)])
        return tuple(_call(text[begin + 1 : end]) for begin, end in pieces)
    except _CallSyntaxError as why:
        problem = f"cannot read the method {excerpt(text)}: {why}"
        raise UsageError("E102", f"{problem}; write name(key=value)+name.") from None


def parse_value(text: str, where: str, code: str) -> object:
    """Parse one value, as written after `key=`. where: the name of the value, for the message; raises as
    `parse` does."""
    try:
        list(_walk(text))
        return _value(_expression(text.strip(), text))
    except _CallSyntaxError as why:
        raise UsageError(code, f"cannot read the value {excerpt(text)} of {where}: {why}.") from None


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    """The text that `parse` reads as this call."""
    if not arguments:
        return name
    return f"{name}({', '.join(f'{key}={value_text(value)}' for key, value in arguments.items())})"


def value_text(value: object) -> str:
    """The text that `parse_value` reads as this literal."""
    return value if isinstance(value, str) and _is_word(value) else repr(value)


def _is_word(text: str) -> bool:
    return all(piece.isidentifier() and not keyword.iskeyword(piece) for piece in text.split("."))


def _walk(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield (position, character, bracket depth after it) for every character outside quotes.

    Quotes count only inside brackets, because the name of a file may contain an apostrophe.
    """
    if len(text) > MOST_LETTERS:
        raise _CallSyntaxError(f"it has {len(text):,} characters, {MOST_LETTERS:,} are allowed")
    expected: list[str] = []
    quote, escaped = "", False
    for position, character in enumerate(text):
        if quote:
            if character == quote and not escaped:
                quote = ""
            escaped = character == "\\" and not escaped
            continue
        if expected and character in "'\"":
            quote = character
        elif character == "(" or (expected and character in _CLOSING):
            expected.append(_CLOSING[character])
            if len(expected) > MOST_DEPTH:
                raise _CallSyntaxError(f"brackets are nested more than {MOST_DEPTH} deep")
        elif character == ")" or (expected and character in "]}"):
            opened = expected.pop() if expected else ""
            if opened != character:
                raise _CallSyntaxError(f"'{character}' at character {position + 1} closes nothing")
        yield position, character, len(expected)
    if quote or expected:
        raise _CallSyntaxError(f"a closing {quote or expected[-1]} is missing")


def _call(text: str) -> Call:
    name, begin, end = text.strip(), None, None
    for position, character, depth in _walk(text):
        if character == "(" and begin is None:
            begin, name = position, text[:position].strip()
        elif character == ")" and depth == 0 and end is None:
            end = position
    if not name:
        raise _CallSyntaxError("a name is missing")
    if begin is None or end is None:
        return Call(name)
    if rest := text[end + 1 :].strip():
        raise _CallSyntaxError(f"{excerpt(rest, 20)} follows the closing bracket")
    return Call(name, _arguments(text[begin + 1 : end]))


def _arguments(text: str) -> dict[str, object]:
    call = _expression(f"f({text})", text)
    if not isinstance(call, ast.Call) or call.args:
        raise _CallSyntaxError("an argument has no name")
    arguments: dict[str, object] = {}
    for argument in call.keywords:
        if argument.arg is None:
            raise _CallSyntaxError("an argument has no name")
        if argument.arg in arguments:
            raise _CallSyntaxError(f"'{argument.arg}' is given twice")
        arguments[argument.arg] = _value(argument.value)
    return arguments


def _expression(code: str, text: str) -> ast.expr:
    """Parse an expression. code: the text for Python's parser. text: the user's part of it, for the
    message."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's own, of odd escapes in quotes
            return ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        problem = "is not a list of key=value (quote text with spaces or signs)"
        raise _CallSyntaxError(f"{excerpt(text, 40)} {problem}") from None


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Name | ast.Attribute):
        return _word(node)
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _CallSyntaxError("a value is neither a number, nor text, nor a list of them") from None


def _word(node: ast.expr) -> str:
    pieces: list[str] = []
    while isinstance(node, ast.Attribute):
        pieces.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise _CallSyntaxError("a value is neither a number, nor text, nor a list of them")
    return ".".join([node.id, *reversed(pieces)])
