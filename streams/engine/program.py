"""Row programs: templates over a row, and paths into values. Pure, and shared by ``rows``, ``runs`` and the client.

A template is JSON in which strings may hold ``{{ row.field }}`` or ``{{ row.field.path }}``. A string that is one placeholder
alone takes the value with its type; inside other text the value is written as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from schemas.canonical import dump_json

_PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}")
#: Some characters count as digits and are no number, and Python refuses to read very long ones.
_INDEX = re.compile(r"[0-9]{1,9}")
_REFERENCE = re.compile(r"row\.(?P<field>[^.{}]+?)(?:\.(?P<path>[^{}]+))?")

Row = Mapping[str, Any]
Renderer = Callable[[Row], Any]


class TemplateError(ValueError):
    """A template cannot be understood: the message names the place and what is wrong there."""


class MissingField(ValueError):
    """A row lacks a field that a template needs."""

    def __init__(self, field: str) -> None:
        super().__init__(f"the row has no field {field!r}")
        self.field = field


def look_up(value: Any, path: str) -> Any:
    """The value at a dotted path (numbers index lists), ``None`` where there is nothing."""
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _references(text: str, place: str) -> list[tuple[int, int, str, str | None]]:
    found = []
    for match in _PLACEHOLDER.finditer(text):
        reference = _REFERENCE.fullmatch(match[1])
        if reference is None:
            raise TemplateError(f"{place}: {match[0]!r} is not of the form {{{{ row.field }}}}")
        found.append((match.start(), match.end(), reference["field"], reference["path"]))
    rest = _PLACEHOLDER.sub("", text)
    if "{{" in rest or "}}" in rest:
        raise TemplateError(f"{place}: unbalanced braces in {text!r}")
    return found


def _field(row: Row, field: str, path: str | None) -> Any:
    if field not in row:
        raise MissingField(field)
    return row[field] if path is None else look_up(row[field], path)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else dump_json(value).decode()


def _text(text: str, place: str) -> Renderer:
    references = _references(text, place)
    if not references:
        return lambda _row: text
    start, end, field, path = references[0]
    if len(references) == 1 and start == 0 and end == len(text):
        if path is None:

            def whole(row: Row) -> Any:
                try:
                    return row[field]
                except KeyError:
                    raise MissingField(field) from None

            return whole
        return lambda row: _field(row, field, path)

    def joined(row: Row) -> str:
        parts, position = [], 0
        for start, end, field, path in references:
            parts += [text[position:start], _as_text(_field(row, field, path))]
            position = end
        return "".join([*parts, text[position:]])

    return joined


def compile_template(template: Any, place: str = "input") -> Renderer:
    """A function from a row to the template's value for it.

    Raises ``TemplateError`` naming the place inside the template; the function raises ``MissingField``.
    """
    if isinstance(template, str):
        return _text(template, place)
    if isinstance(template, Mapping):
        members = [(key, compile_template(value, f"{place}.{key}")) for key, value in template.items()]
        return lambda row: {key: render(row) for key, render in members}
    if isinstance(template, list):
        items = [compile_template(value, f"{place}.{index}") for index, value in enumerate(template)]
        return lambda row: [render(row) for render in items]
    return lambda _row: template


def fields_of(template: Any, place: str = "input") -> set[str]:
    """Names of the row's fields that a template uses. Raises ``TemplateError``."""
    return {field for text, where in _strings(template, place) for _, _, field, _ in _references(text, where)}


def _strings(template: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(template, str):
        yield template, place
    elif isinstance(template, Mapping):
        for key, value in template.items():
            yield from _strings(value, f"{place}.{key}")
    elif isinstance(template, list):
        for index, value in enumerate(template):
            yield from _strings(value, f"{place}.{index}")
