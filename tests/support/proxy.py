"""A loopback proxy in front of a real broker: what goes wrong on the way, while client and broker are well.

``ProxiedBroker`` has one listener more, which it advertises at the proxy's address: whoever bootstraps there goes through the proxy
with everything; whoever bootstraps at ``direct`` does not.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from streams.broker import node
from streams.broker.local import LocalBroker


class Proxy:
    """Passes bytes between ``port`` and ``target`` on loopback; an async context manager."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self.target = port, target
        self.open = True
        self.flows = True
        self.ends: set[_End] = set()
        self._dialling: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Where to connect."""
        return f"{node.HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _End(self), node.HOST, self.port)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()
        await asyncio.gather(*self._dialling)
        lost = [end.lost.wait() for end in self.ends]
        self.cut()
        await asyncio.gather(*lost)

    def cut(self) -> None:
        """End all connections, and every new one at once."""
        self.open = False
        for end in list(self.ends):
            end.transport.abort()

    def freeze(self) -> None:
        """Connections stay and are accepted; nothing passes, in either direction."""
        self.flows = False
        for end in self.ends:
            end.transport.pause_reading()

    def heal(self) -> None:
        """All goes well again; what was frozen arrives."""
        self.open = self.flows = True
        for end in self.ends:
            if end.other is not None:
                end.transport.resume_reading()

    def dial(self, near: _End) -> None:
        """Connect a new connection to the broker."""
        task = asyncio.create_task(self._dial(near))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, near: _End) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: _End(self, near), node.HOST, self.target)
        except OSError:
            near.transport.abort()


class _End(asyncio.Protocol):
    """One of the two ends of a connection through the proxy: what it reads, the other one writes."""

    def __init__(self, proxy: Proxy, other: _End | None = None) -> None:
        self.proxy, self.other = proxy, other
        #: What came before there was another end: before Python 3.11.4 a pause in ``connection_made`` does not hold.
        self.early = b""
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.proxy.ends.add(self)
        if not self.proxy.open or (self.other is not None and self.other.lost.is_set()):
            transport.abort()
        elif self.other is None:
            transport.pause_reading()
            self.proxy.dial(self)
        else:
            self.other.other = self
            transport.write(self.other.early)
            if self.proxy.flows:
                self.other.transport.resume_reading()
            else:
                transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.proxy.ends.discard(self)
        self.lost.set()
        if self.other is not None:
            self.other.transport.close()


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
