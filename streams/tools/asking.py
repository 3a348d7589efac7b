"""What a ``fetch`` asks for: from a receipt's input to a request, and from one request to the next by a redirect. Pure.

The values come from rows and from strangers' servers, so that each is checked here before anything is made of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import httpx
import msgspec
import yarl

from schemas.definitions import name_fault
from schemas.events import Fault
from schemas.fetch import Method
from streams.errors import PaidonceError

PORTS: Final = {"http": 80, "https": 443}
#: Characters of a URL; servers take no longer ones.
URL_CHARACTERS_MAX: Final = 8192
#: Names, and addresses of both kinds, in ASCII.
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_USER: Final = re.compile(r"//[^/]*@")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]{0,8192}")
#: What a server of another origin may know of a request that was meant for this one.
_HARMLESS: Final = frozenset(("accept", "accept-language", "user-agent"))
_CONTENT: Final = frozenset(("content-type", "content-language", "content-encoding", "content-location"))
_NOTHING: Final = msgspec.Raw(b"null")


class Unfit(PaidonceError):
    """A request that may not or cannot be made."""

    def __init__(self, code: str, message: str, *, repairable: bool = False) -> None:
        super().__init__(message)
        self.fault = Fault(code, message, repairable)


class SecretUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A header that carries a secret: its name, and what stands before its value."""

    secret: str
    scheme: str = ""


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request as a column's template renders it."""

    method: Method
    url: str
    headers: dict[str, msgspec.Raw] = {}
    secrets: dict[str, SecretUse] = {}
    body: msgspec.Raw = _NOTHING

    def plain_headers(self) -> dict[str, str]:
        """The headers without secrets: texts, and numbers digit for digit; null leaves one out. Raises ``Unfit``."""
        found: dict[str, str] = {}
        for name, raw in self.headers.items():
            text = _text_of(raw)
            if text is None:
                continue
            if not _HEADER_VALUE.fullmatch(text):
                raise Unfit(
                    "bad_input", f"header {name} has a value that no header can carry: expected printable ASCII on one line"
                )
            found[name] = text.strip()
        return found

    def content(self) -> tuple[bytes, str]:
        """Body and media type: a text as it is, any other value as JSON, digit for digit."""
        raw = bytes(self.body)
        if raw == b"null":
            return b"", ""
        if raw.startswith(b'"'):
            return msgspec.json.decode(raw, type=str).encode(), "text/plain; charset=utf-8"
        return raw, "application/json"


_ask = msgspec.json.Decoder(Ask).decode


def asked(text: bytes) -> Ask | Fault:
    """The request that an input asks for, or why it asks for none."""
    try:
        return _ask(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Fault("bad_input", f"no request can be made of it: {error}")


def _text_of(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    if text == b"null":
        return None
    if text.startswith(b'"'):
        return msgspec.json.decode(text, type=str)
    if text.startswith((b"{", b"[")):
        raise Unfit("bad_input", "a header's value is an object or list; expected text")
    return text.decode()


def reparsed(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """The URL, seen from ``base``; raises ``Unfit`` for one that no request can go to, or that two readers read differently.

    It is checked by httpx's reading and dialled by yarl's: a host that the two see differently would be checked in vain. None is
    known (200,000 random URLs); what later versions do is not.
    """
    text = text.strip()
    if len(text) > URL_CHARACTERS_MAX:
        raise Unfit("unsafe_url", f"a URL of {len(text):,} characters; at most {URL_CHARACTERS_MAX:,} are sent")
    if base is None and not text.lower().startswith(("http://", "https://")):
        raise Unfit("unsafe_url", f"{_shown(text)!r} is no web address: expected https://... or http://...")
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        url = url.copy_with(fragment=None)
        dialled = yarl.URL(str(url), encoded=True)
        port = dialled.port
    except (httpx.InvalidURL, ValueError, TypeError):
        raise Unfit("unsafe_url", f"{_shown(text)!r} is no web address") from None
    if url.scheme not in PORTS:
        raise Unfit("unsafe_url", f"it leads to a {url.scheme[:20] or 'missing'} address; only http and https are asked")
    if url.userinfo or dialled.user is not None or dialled.password is not None:
        raise Unfit("unsafe_url", "it holds a user or a password; a secret belongs under fetch.secrets, by reference")
    mine = (url.scheme, host_of(url), url.port or PORTS[url.scheme])
    if not _HOST.fullmatch(mine[1]):
        raise Unfit("unsafe_url", "it names no host, or one that no server has")
    if (fault := name_fault(mine[1])) is not None:
        raise Unfit("unsafe_url", fault)
    if mine != (dialled.scheme, (dialled.raw_host or "").lower(), port):
        raise Unfit("unsafe_url", "its host can be read in more than one way")
    return url


def host_of(url: httpx.URL) -> str:
    """The host as it is resolved and compared, in ASCII and without brackets: a name in Unicode is there as its A-labels.

    Never ``url.host``: it makes a name readable, and raises errors of its own for an A-label that stands for no text (``xn--a``).
    """
    return url.raw_host.decode("ascii").strip("[]").lower()


def _shown(text: str) -> str:
    """The beginning of what is no URL, for a message: without a user or password, and without the query."""
    return _USER.sub("//", text.partition("?")[0])[:60]


def turns_to_get(status: int, method: str) -> bool:
    """Whether a redirected request goes on as a GET (RFC 9110, 15.4)."""
    return (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST")


@dataclass(slots=True)
class Trip:
    """A request on its way through redirects and tries."""

    method: str
    url: httpx.URL
    headers: dict[str, str]
    body: bytes
    hops: int = 0
    #: Times that the connection failed, over all hops.
    failures: int = 0
    #: A request has left that may have changed something, and whether it did is not known.
    in_doubt: bool = False

    def turn(self, status: int, url: httpx.URL, *, same_origin: bool) -> None:
        """Go where a redirect leads, by RFC 9110, 15.4; secrets and all else that was meant for one origin stay there."""
        if turns_to_get(status, self.method):
            self.method, self.body = "GET", b""
            self.headers = {name: value for name, value in self.headers.items() if name not in _CONTENT}
        if not same_origin:
            kept = _HARMLESS | (_CONTENT if self.body else frozenset())
            self.headers = {name: value for name, value in self.headers.items() if name in kept}
        self.url = url
