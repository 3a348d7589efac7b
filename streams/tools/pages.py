"""What a ``fetch`` brings home: an HTTP answer as one JSON value, its text decoded and without known secrets (F5, R10). Pure.

Nothing is guessed: a body whose bytes are not text by the answer's own word, or by UTF-8, is kept as bytes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from schemas.canonical import InvalidJson, JsonValue, UncanonicalValue, dump_json, parse_json
from schemas.events import Fault
from streams.tools.port import Answered, MemberOutcome, Refused
from streams.tools.results import OUTPUT_BYTES_MAX
from streams.tools.spellings import carries, redact

#: The headers of an answer that are kept: what it is, and where it belongs. Cookies are nobody's business.
KEPT_HEADERS: Final = (
    "content-type",
    "content-language",
    "content-disposition",
    "etag",
    "last-modified",
    "link",
    "location",
)
#: Bytes of one kept header.
HEADER_BYTES_MAX: Final = 2048
#: Names of encodings that are believed. Python knows others that are no text, or cost more time than their bytes are worth.
_ENCODINGS: Final = frozenset(
    (
        *("utf-8", "utf8", "us-ascii", "ascii", "latin1", "utf-16", "utf-16le", "utf-16be"),
        *("shift_jis", "shift-jis", "euc-jp", "iso-2022-jp", "euc-kr", "gb2312", "gbk", "gb18030", "big5", "koi8-r", "koi8-u"),
        *(f"iso-8859-{part}" for part in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16)),
        *(f"windows-{page}" for page in range(1250, 1259)),
    )
)
_CHARSET: Final = re.compile(r""";\s*charset\s*=\s*"?([0-9A-Za-z_.:-]{1,40})""", re.IGNORECASE)
_JSON: Final = re.compile(r"application/([0-9a-z.!#$&^_-]+\+)?json", re.IGNORECASE)


class Page(msgspec.Struct, frozen=True):
    """An answer, as it came: ``headers`` in lower case, ``body`` unpacked."""

    status: int
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes


def outcome_of(page: Page, secrets: Iterable[str]) -> MemberOutcome:
    """The value of a page: ``status``, ``url``, ``headers``, ``body``, whether it is ``base64``, and ``json`` where it is that."""
    secrets = tuple(secrets)
    headers: dict[str, JsonValue] = {}
    for name, said in page.headers:
        if name in KEPT_HEADERS and name not in headers:
            headers[name] = redact(said, secrets)[:HEADER_BYTES_MAX]
    media = next((said for name, said in page.headers if name == "content-type"), "")
    value: dict[str, JsonValue] = {"status": page.status, "url": redact(page.url, secrets), "headers": headers}
    text = text_of(page.body, media)
    if text is None:
        # Secrets are ASCII, and Latin-1 has a character for each byte.
        clean = redact(page.body.decode("latin-1"), secrets).encode("latin-1")
        value["body"], value["base64"] = base64.b64encode(clean).decode(), True
    else:
        text = redact(text, secrets)
        value["body"], value["base64"] = text, False
        if _JSON.fullmatch(media.partition(";")[0].strip()):
            value.update(_json_of(text, secrets))
    output = _dumped(value)
    if len(output) > OUTPUT_BYTES_MAX:
        return Refused(Fault("too_large", f"the page makes a value of {len(output):,} bytes; a receipt keeps {OUTPUT_BYTES_MAX:,}"))
    if carries(output, secrets):  # whatever was overlooked above
        return Refused(Fault("secret_in_output", "the page carries a secret, in a spelling that could not be hidden"))
    return Answered(output)


def text_of(body: bytes, media: str) -> str | None:
    """The body as text, in the encoding that its media type names, else UTF-8; ``None`` where it is not that, or no text."""
    named = _CHARSET.search(media)
    encoding = named[1].lower() if named is not None and named[1].lower() in _ENCODINGS else "utf-8"
    try:
        text = body.decode(encoding)
        text.encode()  # not what UTF-8 cannot carry
    except UnicodeError:
        return None
    return None if "\x00" in text else text.removeprefix("\ufeff")


def _json_of(text: str, secrets: Sequence[str]) -> dict[str, JsonValue]:
    """What stands under ``json``, and in place of the ``body`` where its text spells a secret as only a reader of JSON sees it."""
    try:
        found = parse_json(text)
        plain = dump_json(found).decode()  # nested too deeply, for one: the text is kept all the same
        if redact(plain, secrets) == plain:
            return {"json": found}
        found = _redacted(found, secrets)
        return {"body": dump_json(found).decode(), "json": found}
    except (InvalidJson, UncanonicalValue):
        return {}


def _redacted(value: JsonValue, secrets: Sequence[str]) -> JsonValue:
    """The value with its texts and keys redacted; of at most as many levels as canonical JSON may have."""
    match value:
        case str():
            return redact(value, secrets)
        case list():
            return [_redacted(item, secrets) for item in value]
        case dict():
            return {redact(key, secrets): _redacted(item, secrets) for key, item in value.items()}
        case _:
            return value


def _dumped(value: dict[str, JsonValue]) -> bytes:
    """The value as JSON, without ``json`` where that can stand alone but not inside of this: it is a level deeper here."""
    try:
        return dump_json(value)
    except UncanonicalValue:
        value.pop("json", None)
        return dump_json(value)
