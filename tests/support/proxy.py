"""A loopback proxy in front of a real broker: what goes wrong on the way, while client and broker are well.

``ProxiedBroker`` has one listener more, which it advertises at the proxy's address: whoever bootstraps there goes through the proxy
with everything; whoever bootstraps at ``direct`` does not.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Self

from streams.broker import node
from streams.broker.local import LocalBroker

READ_BYTES = 1 << 16


class Proxy:
    """Passes bytes between ``port`` and ``target`` on loopback; an async context manager."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self.target = port, target
        self._open = True
        self._flows = asyncio.Event()
        self._flows.set()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Where to connect."""
        return f"{node.HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, node.HOST, self.port)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """End all connections, and every new one at once."""
        self._open = False
        for connection in self._connections:
            connection.cancel()

    def freeze(self) -> None:
        """Connections stay and are accepted; nothing passes, in either direction."""
        self._flows.clear()

    def heal(self) -> None:
        """All goes well again; what was frozen arrives."""
        self._open = True
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            if self._open:
                await self._pass(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # an end of a connection, by us or by others
        finally:
            await _closed(writer)
            self._connections.discard(connection)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(node.HOST, self.target)
        there = asyncio.create_task(self._pump(reader, far_writer))
        back = asyncio.create_task(self._pump(far_reader, writer))
        try:
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in (there, back):
                pump.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            await _closed(far_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close at once: what is still to be sent is lost, as on a line that is cut."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class ProxiedBroker(LocalBroker):
    """A local broker with a second listener, advertised at ``proxy_port``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        ports = node.free_address()
        self.proxy_port, self.inner_port = ports.client, ports.controller

    @property
    def direct(self) -> str:
        """Its address without the proxy."""
        return f"{node.HOST}:{self._address().client}"

    def _prepare(self, java: list[str]) -> None:
        super()._prepare(java)
        lines = []
        for line in self._properties.read_text().splitlines():
            name = line.partition("=")[0]
            more = {
                "listeners": f",PROXIED://{node.HOST}:{self.inner_port}",
                "advertised.listeners": f",PROXIED://{node.HOST}:{self.proxy_port}",
                "listener.security.protocol.map": ",PROXIED:PLAINTEXT",
            }.get(name, "")
            lines.append(line + more)
        self._properties.write_text("\n".join(lines) + "\n")
