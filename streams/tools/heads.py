"""The head of an answer: how large it may be, and a name for what is larger, which is told in place of the library's own."""

from __future__ import annotations

from typing import Final, NamedTuple

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong


class HeadSize(NamedTuple):
    """Bytes of one header or of the status line, and headers of one answer."""

    line_bytes_max: int
    headers_max: int


#: Of a provider or another host that the operator named: beyond it a paid answer is lost, so it is far beyond what servers send.
OF_KNOWN: Final = HeadSize(64 << 10, 1000)
#: Of anybody whom a row names: in all no more than a body or two (``fetch.body_bytes_max``).
OF_STRANGERS: Final = HeadSize(16 << 10, 256)
_TOO_MANY: Final = "Too many headers"


class HeadersTooLarge(aiohttp.ClientResponseError):
    """The answer's head is larger than ``HeadSize`` allows."""


class Answer(aiohttp.ClientResponse):
    """An answer whose head, where it is too large, fails under a name that says so."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """See the library; raises ``HeadersTooLarge``, too."""
        try:
            return await super().start(connection)
        except aiohttp.ClientResponseError as error:
            if _is_too_large(error):
                raise HeadersTooLarge(self.request_info, self.history, status=error.status) from error
            raise


def _is_too_large(error: BaseException | None) -> bool:
    """Whether the library's parser met a limit; what it raised is wrapped on the way."""
    while error is not None:
        if isinstance(error, LineTooLong) or (isinstance(error, BadHttpMessage) and _TOO_MANY in error.message):
            return True
        error = error.__cause__
    return False
