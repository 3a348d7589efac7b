"""Addresses are judged where they are dialled: after the one resolution of a name, and again at each socket (F4).

Between aiohttp's connector and the network. A name is resolved once for a connection, and what was judged is what is dialled, so
that a name server that answers otherwise the second time (DNS rebinding) is never asked a second time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import AddrInfoType

from streams.errors import PaidonceError
from streams.tools.addresses import why_not_public
from streams.tools.resolving import OwnThreads


class UnsafeAddress(PaidonceError):
    """A name leads to an address that may not be dialled: nothing was sent."""


@dataclass(frozen=True, slots=True)
class Dialing:
    """Which addresses may be dialled, and who resolves names; both as the public internet has it unless a test says otherwise."""

    why_not: Callable[[str], str | None] = why_not_public
    resolver: Callable[[], AbstractResolver] = OwnThreads

    def resolving(self) -> AbstractResolver:
        """A resolver that raises ``UnsafeAddress`` where one address of a name may not be dialled; needs a running loop."""
        return _Judged(self.resolver(), self.why_not)

    def socket_of(self, address: AddrInfoType) -> socket.socket:
        """The socket for an address; raises ``PermissionError`` for one that may not be dialled.

        The last gate, also for what is no name and so is never resolved.
        """
        family, kind, protocol, _, place = address
        reason = self.why_not(str(place[0]))
        if reason is not None:
            raise PermissionError(f"the address is {reason}")
        return socket.socket(family, kind, protocol)


class _Judged(AbstractResolver):
    def __init__(self, inner: AbstractResolver, why_not: Callable[[str], str | None]) -> None:
        self._inner = inner
        self._why_not = why_not

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for result in found:
            # One is enough: who answers with a public and a private address at once hopes for the wrong choice.
            reason = self._why_not(result["host"])
            if reason is not None:
                raise UnsafeAddress(f"the name leads to an address that is {reason}")
        return found

    async def close(self) -> None:
        await self._inner.close()
