"""Sends each call to the caller of its kind of tool, by what stands before the dot in the tool's name."""

from __future__ import annotations

from collections.abc import Mapping

from streams.tools.port import Caller, CallReport, ProviderCall


class RoutedCaller:
    """The ``Caller`` made of several: ``routes`` by provider name, and ``default`` for all others."""

    def __init__(self, routes: Mapping[str, Caller], default: Caller) -> None:
        self._routes = dict(routes)
        self._default = default

    async def call(self, call: ProviderCall) -> CallReport:
        """Make one call and tell how it ended; see ``Caller``."""
        return await self._routes.get(call.tool.partition(".")[0], self._default).call(call)

    async def close(self) -> None:
        """Release the connections of all."""
        for caller in (*self._routes.values(), self._default):
            await caller.close()
