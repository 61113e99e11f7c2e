"""YAML as users write it: a key that stands twice is refused, where YAML's readers would keep the last one."""

from __future__ import annotations

from typing import Any

from unskew.errors import UsageError


def load(text: str, where: str, code: str) -> Any:
    """What a YAML text says. Raises UsageError of this code, which says where (a file's name) and at which line."""
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_twice(node, where, code)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        said = " ".join(str(error).replace(' in "<unicode string>",', " at").split())
        raise UsageError(code, f"{where} is not YAML: {said}.") from None


def _refuse_twice(node: Any, where: str, code: str) -> None:
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_twice(item, where, code)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            at = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise UsageError(code, f"{where}: '{key.value}' stands at line {seen[key.value]} and at line {at}.")
                seen[key.value] = at
            _refuse_twice(value, where, code)
