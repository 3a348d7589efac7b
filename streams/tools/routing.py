"""One caller of several: a call goes to the caller of its provider."""

from __future__ import annotations

from collections.abc import Mapping

from streams.tools.port import Caller, CallReport, ProviderCall


class RoutedCaller:
    """A ``Caller`` by what stands before the first dot of a tool's name; ``default`` for all that no route is for."""

    def __init__(self, routes: Mapping[str, Caller], default: Caller) -> None:
        self._routes = routes
        self._default = default

    async def call(self, call: ProviderCall) -> CallReport:
        """See ``Caller``."""
        return await self._routes.get(call.tool.partition(".")[0], self._default).call(call)

    async def close(self) -> None:
        """Close every caller, once each."""
        for caller in {id(caller): caller for caller in (*self._routes.values(), self._default)}.values():
            await caller.close()
