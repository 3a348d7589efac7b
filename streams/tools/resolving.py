"""Resolves the names of servers, those that rows bring and those of providers, in threads of its own (F4).

The loop's own threads do other work too: slow name servers, which anybody can name in a row, would hold all of them, and so would
Python tools that block, while a provider's name waits until its call is given up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

#: Names that are asked for at once; each thread may be held by the system's resolver for as long as it tries.
THREADS: Final = 16
#: Names that are being asked for or wait for a thread; a further one is not resolved.
WAITING_MAX: Final = 256
#: A name that has no address by then has none; what still waits for a thread waits no longer.
SECONDS_MAX: Final = 10.0


class OwnThreads(AbstractResolver):
    """A resolver that lets nobody else wait; needs a running loop. ``ask`` has the form of ``socket.getaddrinfo``."""

    def __init__(
        self,
        ask: Callable[..., list[Any]] = socket.getaddrinfo,
        *,
        waiting_max: int = WAITING_MAX,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        self._ask = ask
        self._waiting_max, self._seconds_max = waiting_max, seconds_max
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="names")
        self._waiting = 0

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        """The addresses of a name. Raises ``OSError``."""
        if self._waiting >= self._waiting_max:
            raise OSError(f"{self._waiting_max} other names are being resolved; their name servers are slow")
        asked = partial(self._ask, host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG)
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds_max):
                found = await asyncio.get_running_loop().run_in_executor(self._threads, asked)
        except UnicodeError as error:
            raise OSError("the name is none that can be resolved") from error
        except TimeoutError as error:
            raise OSError(f"no address within {self._seconds_max:g} s") from error
        finally:
            self._waiting -= 1
        return [
            ResolveResult(
                hostname=host,
                host=str(place[0]),
                port=int(place[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, place in found
        ]

    async def close(self) -> None:
        """Ask for nothing more; threads that are still held by the system's resolver end when it does."""
        self._threads.shutdown(wait=False, cancel_futures=True)
