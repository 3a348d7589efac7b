"""From a call's output to a cell: values by path and typed getters (C6, P9). Pure.

It stands between the receipt, which keeps the raw output, and the cell. It is total: any JSON gives a value, for here the call is
paid for, and a fold must not fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from schemas.canonical import InvalidJson, JsonValue, canonical, dump_json, parse_json
from schemas.plays import Column
from streams.engine.program import look_up

Paths: TypeAlias = Mapping[str, str]
_Reader: TypeAlias = Callable[[Any], JsonValue]

#: What to do with an address, by what is known of it.
VERDICTS: Final = {"valid": "send", "invalid": "drop", "catch_all": "verify_next", "unknown": "hold"}

#: How verification services spell a status; what is not here is unknown, never valid. Fixed: see ``GETTERS``.
_BY_STATUS: Final = {
    "valid": "valid ok deliverable verified good safe safe_to_send true",
    "invalid": (
        "invalid undeliverable bad bounce bounced hard_bounce rejected disposable spamtrap spam_trap abuse do_not_mail "
        "do_not_send mailbox_not_found no_mailbox syntax_error invalid_syntax no_mx no_such_domain false"
    ),
    "catch_all": "catch_all catchall accept_all acceptall accepts_all valid_catch_all ok_for_all deliverable_catch_all",
}
SPELLINGS: Final = {spelling: status for status, spellings in _BY_STATUS.items() for spelling in spellings.split()}
#: Where services put the status, the first that is there counts; and their own flags for a domain that accepts everything.
_STATUS_FIELDS: Final = (
    *("email_status", "verification_status", "status", "result", "verdict", "deliverability", "state"),
    *("valid", "is_valid", "deliverable", "is_deliverable"),
)
_CATCH_ALL_FIELDS: Final = (
    *("catch_all", "is_catch_all", "catchall", "accept_all", "is_accept_all", "domain_catch_all", "gateway_catch_all"),
)
_TRUE: Final = frozenset({"true", "yes", "1"})
_FALSE: Final = frozenset({"false", "no", "0"})
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_SEPARATORS: Final = re.compile(r"[\s_-]+")


def extraction_of(column: Column) -> str | None:
    """What a column does with an output, as the text that a run carries: ``None``, a path, or a JSON object for all else."""
    if column.getter is None and not isinstance(column.extract, dict):
        return column.extract
    program: dict[str, Any] = {"extract": column.extract}
    if column.getter is not None:
        program |= {"getter": _NEWEST[column.getter.name], "paths": column.getter.paths}
    return canonical(program).decode()


def extracted(output: bytes, extraction: str) -> bytes:
    """The cell of an output, both exact JSON, by an extraction of ``extraction_of``. A path that leads nowhere gives null."""
    return dump_json(_reader(extraction)(parse_json(output)))


@lru_cache(maxsize=1024)
def _reader(extraction: str) -> _Reader:
    if not extraction.startswith("{"):  # no path of a play begins so
        return lambda value: look_up(value, extraction)
    program: Any = parse_json(extraction)
    select = _selector(program["extract"])
    if "getter" not in program:
        return select
    getter, paths = GETTERS[program["getter"]], program["paths"]
    return lambda value: getter(select(value), paths)


def _selector(extract: str | dict[str, str] | None) -> _Reader:
    match extract:
        case None:
            return lambda value: value
        case str():
            return lambda value: look_up(value, extract)
        case _:
            # Where there was no result at all there are no values either.
            return lambda value: None if value is None else {name: look_up(value, path) for name, path in extract.items()}


def email_status_2(value: JsonValue, paths: Paths) -> JsonValue:
    """What a verifier's answer means: ``status``, the ``verdict`` that follows from it, and whether the address is ``verified``.

    valid/send, invalid/drop, catch_all/verify_next, unknown/hold; only a valid address is verified. An address on a domain that
    accepts everything is not valid for certain, whatever its status says, if one of the answer's flags says so. Null without a
    result.
    """
    return _email_status(value, paths, _flags(value, paths.get("catch_all")))


def email_status_1(value: JsonValue, paths: Paths) -> JsonValue:
    """As ``email_status_2``, but only the first flag that is there is looked at: a domain's own *no* hides its gateway's *yes*."""
    return _email_status(value, paths, [_found(value, paths.get("catch_all"), _CATCH_ALL_FIELDS)])


def _email_status(value: JsonValue, paths: Paths, flags: list[JsonValue]) -> JsonValue:
    if value is None:
        return None
    status = _status(_found(value, paths.get("status"), _STATUS_FIELDS))
    if status in ("valid", "unknown") and any(boolean(flag, {}) is True for flag in flags):
        status = "catch_all"
    return {"status": status, "verdict": VERDICTS[status], "verified": status == "valid"}


def _flags(value: JsonValue, path: str | None) -> list[JsonValue]:
    """The flag at a path, or all that services have for it."""
    if path is not None:
        return [look_up(value, path)]
    return [value.get(name) for name in _CATCH_ALL_FIELDS] if isinstance(value, dict) else []


def _status(raw: JsonValue) -> str:
    if isinstance(raw, bool):
        return "valid" if raw else "invalid"
    return SPELLINGS.get(_SEPARATORS.sub("_", raw.strip().lower()), "unknown") if isinstance(raw, str) else "unknown"


def _found(value: JsonValue, path: str | None, names: tuple[str, ...]) -> JsonValue:
    if path is not None:
        found: JsonValue = look_up(value, path)
        return found
    if isinstance(value, dict):
        return next((value[name] for name in names if value.get(name) is not None), None)
    # The status itself, where a path led to it; a flag it is not.
    return value if names is _STATUS_FIELDS else None


def boolean(value: JsonValue, _paths: Paths) -> JsonValue:
    """True or false, also from ``yes``, ``no``, ``0``, ``1`` and their texts; null for all else."""
    if isinstance(value, bool):
        return value
    word = (
        value.strip().lower()
        if isinstance(value, str)
        else str(int(value))
        if isinstance(value, int | float) and value in (0, 1)
        else ""
    )
    return True if word in _TRUE else False if word in _FALSE else None


def number(value: JsonValue, _paths: Paths) -> JsonValue:
    """A number, also from the text of one, with all digits of an integer; null for all else, ``1,000`` included."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return None
    try:
        return parse_json(value.strip())
    except InvalidJson:  # beyond what a double or 4,300 digits hold
        return None


def text(value: JsonValue, _paths: Paths) -> JsonValue:
    """A text, also of a number or a truth value; null for all else."""
    if isinstance(value, str):
        return value
    return dump_json(value).decode() if isinstance(value, bool | int | float) else None


#: By name and version. A run keeps the version that it was accepted with, or a replay would not give its cells: a getter that is
#: to read otherwise, be it by one more spelling, is added as a new version.
GETTERS: Final[Mapping[str, Callable[[JsonValue, Paths], JsonValue]]] = {
    "email_status/1": email_status_1,
    "email_status/2": email_status_2,
    "boolean/1": boolean,
    "number/1": number,
    "text/1": text,
}
#: The version that runs get from now on, by name: the last above.
_NEWEST: Final = {name.partition("/")[0]: name for name in GETTERS}
