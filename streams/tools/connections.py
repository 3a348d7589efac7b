"""The connections to one provider: httpx's requests over aiohttp's pool, under our rules for what is resent and what is believed.

Only here is a failure of either library judged: before anything was sent, or perhaps after. Nothing is logged, followed, remembered
(cookies) or sent a second time. httpx's client is left out on purpose: it logs every URL, and its own pool does a tenth of the calls.
"""

from __future__ import annotations

import ssl
import zlib
from typing import TYPE_CHECKING, Final

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from streams.errors import PaidonceError

if TYPE_CHECKING:
    from aiohttp.client_middlewares import ClientHandlerType
    from aiohttp.client_reqrep import ClientRequest, ClientResponse
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

#: An idle connection is not kept longer: servers close theirs (gunicorn after 2 s, Node and uvicorn after 5), and a call that meets the
#: close on its way is doubtful, for good if its tool may not be repeated. A new connection costs milliseconds.
IDLE_SECONDS: Final = 1.5
#: No provider takes longer to accept a connection; at most half a call's time, so that this always ends first and proves "not sent".
CONNECT_SECONDS_MAX: Final = 10.0
#: Connections in a row that were spoilt before their first request.
SPOILT_MAX: Final = 8

_GZIP: Final = zlib.MAX_WBITS | 16
_GZIP_MARK: Final = b"\x1f"


class NothingSent(PaidonceError):
    """The provider was not reached: not a byte of the request left, so it is not billed."""


class AnswerLost(PaidonceError):
    """The request may have arrived, and no whole answer came back."""


class BadAnswer(PaidonceError):
    """The answer is too large or cannot be decoded."""


class _Connector(aiohttp.TCPConnector):
    """A pool that gives out no connection on which something was already said.

    aiohttp looks only whether a pooled connection is still open. If the provider answered once too often, what lies there would be
    taken for the answer to the next call: one member's result for another's.
    """

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        for _ in range(SPOILT_MAX):
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is not None and not connection.protocol.should_close:
                return connection
            connection.close()
        raise NothingSent("it speaks before it is asked")


async def _judge(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """Make one attempt and judge its failure where aiohttp's own classes are still to be seen.

    A middleware for two reasons. Above it aiohttp sends a GET or PUT again when a kept connection breaks, which would be paid for
    twice (case_A2); it does so only for its own classes. And httpx_aiohttp turns "the server hung up" into httpx.ConnectTimeout, as if
    nothing had been sent.
    """
    try:
        response = await send(request)
    except aiohttp.ClientConnectorError as error:
        raise NothingSent(str(error.os_error)) from error
    except aiohttp.ConnectionTimeoutError as error:
        raise NothingSent("no connection in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise AnswerLost(_name(error)) from error
    if not (response.reason or "").isascii():
        response.reason = ""  # httpx_aiohttp fails on the reason phrases of some servers, once all is paid
    return response


def _name(error: BaseException) -> str:
    """What is told of a failure: not the library's text, in which a URL or a part of an answer may stand."""
    return type(error).__name__


class Connections:
    """The connections to one provider; opened when first needed, in the loop that is running then."""

    def __init__(self, *, connections_max: int, tls: ssl.SSLContext | None) -> None:
        self._connections_max = connections_max
        self._tls = tls
        # Given a context the transport makes none of its own, which takes 50 ms; the session below is what counts.
        self._transport = AiohttpTransport(verify=tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), client=self._session)

    def _session(self) -> aiohttp.ClientSession:
        connector = _Connector(
            limit=self._connections_max,
            keepalive_timeout=IDLE_SECONDS,
            ssl=self._tls or True,
        )
        return aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), middlewares=(_judge,), trust_env=False
        )

    async def send(
        self, method: str, url: httpx.URL, headers: list[tuple[bytes, bytes]], body: bytes | None, connect_seconds: float
    ) -> httpx.Response:
        """Send one request; its answer's body is still to be read, and the response to be closed.

        Raises ``NothingSent`` or ``AnswerLost``. The total time is the caller's to limit, by cancelling.
        """
        # "pool" is aiohttp's time for getting a connection, a new one or one from the pool.
        extensions = {"timeout": {"pool": connect_seconds}}
        request = httpx.Request(method, url, headers=headers, content=body, extensions=extensions)
        return await self._transport.handle_async_request(request)

    async def close(self) -> None:
        """Close all connections; calls on them end as lost."""
        await self._transport.aclose()


async def read_body(response: httpx.Response, bytes_max: int) -> bytes:
    """The whole body, decoded, of at most ``bytes_max`` bytes; raises ``BadAnswer`` or ``AnswerLost``."""
    body, whole = await _read(response, bytes_max)
    if not whole:
        raise BadAnswer(f"the answer is larger than {bytes_max} bytes")
    return body


async def read_beginning(response: httpx.Response, bytes_max: int) -> bytes:
    """The first ``bytes_max`` bytes of the body, decoded; raises ``BadAnswer`` or ``AnswerLost``."""
    body, _ = await _read(response, bytes_max)
    return body


async def _read(response: httpx.Response, bytes_max: int) -> tuple[bytes, bool]:
    """At most ``bytes_max`` bytes, and whether that is all. It never holds more, however small the packed body is (case_G3)."""
    opened = _opener(response.headers.get("content-encoding", ""))
    body = bytearray()  # a list of pieces would take many times their size, where a server sends them byte by byte
    assert isinstance(response.stream, httpx.AsyncByteStream)
    try:
        async for piece in response.stream:
            body += piece if opened is None else opened.feed(piece, bytes_max + 1 - len(body))
            if len(body) > bytes_max:
                return bytes(body[:bytes_max]), False
    except (httpx.TransportError, aiohttp.ClientError, OSError) as error:
        raise AnswerLost(_name(error)) from error
    if opened is not None and not opened.is_complete:
        raise BadAnswer("the answer's gzip data are cut off")
    return bytes(body), True


def _opener(encoding: str) -> _Gunzip | None:
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return _Gunzip()
        case _:
            raise BadAnswer(f"the answer's encoding is {encoding!r:.40}, and gzip was asked for")


class _Gunzip:
    """Opens gzip piece by piece, never more than there is room for. httpx's own decoder opens a piece whatever becomes of it."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=_GZIP)
        self._begun = False

    @property
    def is_complete(self) -> bool:
        """Whether the data came to their end, or there were none."""
        return self._stream.eof or not self._begun

    def feed(self, piece: bytes, room: int) -> bytes:
        """Open a piece into at most ``room`` bytes (from 1); what does not fit is lost, so who gets a full room should stop."""
        self._begun = True
        opened = b""
        try:
            while piece and len(opened) < room:  # a length of 0 would mean "no limit" to zlib
                if self._stream.eof:
                    if not piece.startswith(_GZIP_MARK):
                        break  # padding
                    self._stream = zlib.decompressobj(wbits=_GZIP)
                opened += self._stream.decompress(piece, room - len(opened))
                piece = self._stream.unused_data
        except zlib.error as error:
            raise BadAnswer("the answer is not the gzip that it says it is") from error
        return opened
