"""The connections to one provider: aiohttp's pool, with our rules for what is resent and believed.

Only here is a failure of either library judged: before anything was sent, or perhaps after. Nothing is logged, followed,
remembered (cookies) or sent a second time.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final

import aiohttp
import httpx
import yarl
from aiohttp.abc import AbstractResolver

from streams.errors import PaidonceError
from streams.tools.dialing import Dialing
from streams.tools.heads import OF_KNOWN, OF_STRANGERS, Answer
from streams.tools.resolving import OwnThreads

if TYPE_CHECKING:
    from aiohttp.client_middlewares import ClientHandlerType
    from aiohttp.client_reqrep import ClientRequest, ClientResponse
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

#: An idle connection is not kept longer. Servers close theirs too (gunicorn after 2 s, Node and uvicorn after 5), and a call
#: that meets that close half-way is doubtful, for good if its tool may not be repeated. A new connection costs milliseconds.
IDLE_SECONDS: Final = 1.5
#: No provider takes longer to accept a connection.
CONNECT_SECONDS_MAX: Final = 10.0
#: Connections in a row on which the other side spoke first.
SPOILT_MAX: Final = 8

_GZIP: Final = zlib.MAX_WBITS | 16
_GZIP_MARK: Final = b"\x1f"
#: Bytes of a packed body beyond those it may have when opened: what does not shrink grows a little, and has headers.
_PACKED_ROOM: Final = 64 << 10
#: A packed body may be a row of members, each packed for itself. So many of them may open to less than this; all others are
#: limited by what they open to.
_SMALL_MEMBERS_MAX: Final = 1000
_SMALL_BYTES: Final = 1024
#: zlib copies what stands behind a member's end in the bytes that it is given; so it is given few at a time.
_WINDOW_BYTES: Final = 4096


class NothingSent(PaidonceError):
    """The provider was not reached: not a byte of the request left, so nothing is billed."""


class AnswerLost(PaidonceError):
    """The request may have arrived, and no whole answer came back."""


class BadAnswer(PaidonceError):
    """The answer is too large or cannot be decoded."""

    #: Whether asking again is of no use (see ``Doubtful``).
    used_up: bool | None = None


class TooLarge(BadAnswer):
    """It is larger than anybody here would hold, and so would the next one be."""

    used_up = True


class _Connector(aiohttp.TCPConnector):
    """A pool whose failures prove that nothing was sent, and that gives out no connection on which something was already said.

    aiohttp looks only whether a kept connection is still open. If the provider answered once too often, what lies there would
    be taken for the answer to the next call: one member's result for another's.
    """

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        try:
            for _ in range(SPOILT_MAX):
                connection = await super().connect(req, traces, timeout)
                if connection.protocol is not None and not connection.protocol.should_close:
                    return connection
                connection.close()
        except aiohttp.ClientConnectorError as error:  # name, address, TLS
            raise NothingSent(str(error.__cause__ or error)) from error
        except TimeoutError as error:
            raise NothingSent("no connection in time") from error
        except aiohttp.ClientError as error:
            raise NothingSent(_name(error)) from error
        except UnicodeError as error:  # of the resolver, over a name with a part that is empty or too long
            raise NothingSent("the host's name is none that can be resolved") from error
        except asyncio.CancelledError:
            # Closing the pool cancels those who wait for a connection, without a word to their tasks.
            task = asyncio.current_task()
            if self.closed and task is not None and not task.cancelling():
                raise NothingSent("the connections were closed") from None
            raise
        raise NothingSent("it speaks before it is asked")


async def _judge(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """Make one attempt; where it fails now, with a connection, the request may have arrived.

    As a middleware, for above it aiohttp sends a GET or PUT again when a kept connection breaks, which may be paid for twice
    (case_A2). It does so for its own errors only.
    """
    try:
        return await send(request)
    except (aiohttp.ClientError, OSError) as error:
        raise AnswerLost(_name(error)) from error


def _name(error: BaseException) -> str:
    """What is told of a failure: not the library's text, in which a URL or a part of an answer may stand."""
    return type(error).__name__


class Reply:
    """An answer whose body is still to be read, and which is then to be closed."""

    __slots__ = ("_response", "raw_headers", "status_code")

    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self.status_code = response.status
        self.raw_headers = response.raw_headers

    @property
    def is_success(self) -> bool:
        """The status is of the class 2xx."""
        return self.status_code // 100 == 2

    def headers(self) -> list[tuple[str, str]]:
        """All headers, their names in lower case."""
        return [(name.decode("latin-1").lower(), _text(value)) for name, value in self.raw_headers]

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives, undecoded."""
        content = self._response.content
        while piece := await content.readany():
            yield piece

    def close(self) -> None:
        """Give the connection back where the body was read to its end, else end it."""
        self._response.close()


class Connections:
    """The connections to one provider; opened when first needed, in the loop that is running then.

    aiohttp's, for httpx's own pool makes a tenth of the calls a second. The package httpx_aiohttp (0.2) has this same pool; but it
    reports a server that hung up after the request as httpx.ConnectTimeout, as if nothing had been sent, and it fails on a reason
    phrase that is not UTF-8, when all is paid. httpx's client is left out because it logs every URL, and its request and response
    because they take a tenth of a call's time.
    """

    def __init__(
        self, *, headers: Mapping[str, str], connections_max: int, tls: ssl.SSLContext | None, dialing: Dialing | None = None
    ) -> None:
        self._headers = headers
        #: 0: as many as there are calls.
        self._connections_max = connections_max
        self._tls = tls
        #: Which addresses may be dialled; ``None``: any, for whoever named the host is trusted.
        self._dialing = dialing
        self._resolver: AbstractResolver | None = None
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, method: str, url: httpx.URL, headers: list[tuple[bytes, bytes]], body: bytes, connect_seconds: float
    ) -> Reply:
        """Send one request, ``headers`` beside the fixed ones. The answer's body is still to be read, and it to be closed.

        Raises ``NothingSent``, ``AnswerLost`` or, with ``dialing``, ``UnsafeAddress``. The total time is the caller's to limit,
        by cancelling.
        """
        session = self._session
        if session is None:
            session = self._session = self._opened()
        # aiohttp sends a GET or PUT again when a kept connection breaks, above its middlewares, and never a POST.
        middlewares = () if method == "POST" else (_judge,)
        try:
            response = await session.request(
                method,
                _address(str(url)),
                headers=[(name.decode("ascii"), value.decode("ascii")) for name, value in headers],
                data=body or None,
                allow_redirects=False,
                auto_decompress=False,
                timeout=_timeout(connect_seconds),
                middlewares=middlewares,
            )
        except (aiohttp.ClientError, OSError) as error:
            raise AnswerLost(_name(error)) from error
        return Reply(response)

    def _opened(self) -> aiohttp.ClientSession:
        dialing = self._dialing
        # Never by the loop's own threads, which Python tools may hold, as long as their blocking code takes.
        self._resolver = OwnThreads() if dialing is None else dialing.resolving()
        connector = _Connector(
            limit=self._connections_max,
            keepalive_timeout=IDLE_SECONDS,
            ssl=self._tls or True,
            resolver=self._resolver,
            socket_factory=None if dialing is None else dialing.socket_of,
        )
        size = OF_KNOWN if dialing is None else OF_STRANGERS
        return aiohttp.ClientSession(
            connector=connector,
            max_line_size=size.line_bytes_max,
            max_field_size=size.line_bytes_max,
            max_headers=size.headers_max,
            response_class=Answer,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close all connections; calls on them end as lost."""
        if self._session is not None:
            await self._session.close()
        if self._resolver is not None:  # the session closes none but its own
            await self._resolver.close()


@functools.lru_cache(maxsize=64)
def _timeout(connect_seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(connect=connect_seconds)


@functools.lru_cache(maxsize=256)
def _address(url: str) -> yarl.URL:
    # As it was written: yarl would put %2F and its like in plain, and a signature over the URL would no longer fit.
    return yarl.URL(url, encoded=True)


def header_values(response: Reply, name: bytes) -> list[str]:
    """The values of a header, ``name`` in lower case, one by one."""
    return [_text(value) for key, value in response.raw_headers if key.lower() == name]


def _text(value: bytes) -> str:
    """A header's value: servers write UTF-8 if anything beyond ASCII, though Latin-1 was meant for it once (RFC 9110, 5.5)."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def read_body(response: Reply, bytes_max: int) -> bytes:
    """The whole body, decoded, of at most ``bytes_max`` bytes; raises ``TooLarge``, ``BadAnswer`` or ``AnswerLost``."""
    body, whole = await _read(response, bytes_max)
    if not whole:
        raise TooLarge(f"the answer is larger than {bytes_max} bytes")
    return body


async def read_beginning(response: Reply, bytes_max: int) -> bytes:
    """The first ``bytes_max`` bytes of the body, decoded; raises ``BadAnswer`` or ``AnswerLost``."""
    body, _ = await _read(response, bytes_max)
    return body


async def _read(response: Reply, bytes_max: int) -> tuple[bytes, bool]:
    """At most ``bytes_max`` bytes, and whether that is all. No more is ever held, however small a body was packed (case_G3).

    Nor is more than that read where it opens to less, or to nothing.
    """
    opener = _opener(header_values(response, b"content-encoding"))
    packed_max = bytes_max + bytes_max // 64 + _PACKED_ROOM
    body = bytearray()  # a list of pieces would take many times their size, where a server sends them byte by byte
    try:
        async for piece in response.pieces():
            body += piece if opener is None else opener.feed(piece, bytes_max + 1 - len(body))
            if opener is not None and opener.taken > packed_max:
                raise TooLarge(f"the answer is larger than {packed_max} bytes, packed as it is")
            if len(body) > bytes_max:
                return bytes(body[:bytes_max]), False
    except (aiohttp.ClientError, OSError) as error:
        raise AnswerLost(_name(error)) from error
    if opener is not None and not opener.is_complete:
        raise BadAnswer("the answer's gzip data are cut off")
    return bytes(body), True


def _opener(encodings: list[str]) -> _Gunzip | None:
    match [encoding.strip().lower() for encoding in encodings]:
        case [] | [""] | ["identity"]:
            return None
        case ["gzip"] | ["x-gzip"]:
            return _Gunzip()
        case _:
            raise BadAnswer(f"the answer's encoding is {', '.join(encodings)!r:.40}, and gzip was asked for")


class _Gunzip:
    """Opens gzip piece by piece, never more than there is room for; httpx's decoder opens a piece whatever becomes of it."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=_GZIP)
        #: Bytes that it was given.
        self.taken = 0
        #: What the current member opened to, and how many before it opened to little.
        self._opened = 0
        self._small = 0

    @property
    def is_complete(self) -> bool:
        """Whether the data came to their end, or there were none."""
        return self._stream.eof or not self.taken

    def feed(self, piece: bytes, room: int) -> bytearray:
        """Open a piece into at most ``room`` bytes, from 1. What does not fit is lost, so who gets a full room must stop."""
        self.taken += len(piece)
        opened = bytearray()
        at = 0
        try:
            while at < len(piece) and len(opened) < room:  # to zlib a length of 0 would mean "no limit"
                if self._stream.eof:
                    if not piece.startswith(_GZIP_MARK, at):
                        break  # padding
                    self._next_member()
                window = piece[at : at + _WINDOW_BYTES]
                found = self._stream.decompress(window, room - len(opened))
                opened += found
                self._opened += len(found)
                at += len(window) - len(self._stream.unused_data)
        except zlib.error as error:
            raise BadAnswer("the answer is not the gzip that it says it is") from error
        return opened

    def _next_member(self) -> None:
        if self._opened < _SMALL_BYTES:
            self._small += 1
            if self._small > _SMALL_MEMBERS_MAX:
                raise TooLarge(f"the answer's gzip data are in more than {_SMALL_MEMBERS_MAX} parts that hold next to nothing")
        self._opened = 0
        self._stream = zlib.decompressobj(wbits=_GZIP)
