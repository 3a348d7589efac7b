"""The endpoints of whoever runs the sandbox: health, the bill, faults, settings, reset.

A caller under test has no business here. Every answer is one JSON object, but for the bill's lines.
"""

import os
from collections.abc import Awaitable, Callable
from itertools import islice

import msgspec
from aiohttp import web

from streams.sandbox.bill import BillLine
from streams.sandbox.faults import Fault
from streams.sandbox.provider import Provider
from streams.sandbox.settings import Settings

LINES_PER_WRITE = 5_000


class _Faults(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[Fault]


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def _error(status: int, code: str, message: str) -> web.Response:
    return _json({"error": {"code": code, "message": message}}, status)


def bill_json(line: BillLine) -> bytes:
    """One line as JSON; the item's id is the value the caller sent, null for a single."""
    fields = msgspec.structs.asdict(line)
    fields["item_id"] = msgspec.Raw(line.item_id.encode() or b"null")
    return msgspec.json.encode(fields)


class Admin:
    """Routes by method and path to one small method each."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._routes: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/admin/bill"): self._bill,
            ("GET", "/admin/bill/summary"): self._summary,
            ("GET", "/admin/faults"): self._show_faults,
            ("POST", "/admin/faults"): self._set_faults,
            ("GET", "/admin/settings"): self._show_settings,
            ("POST", "/admin/settings"): self._set_settings,
            ("POST", "/admin/reset"): self._reset,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers an admin request; 404 for any other path, 422 for a body that cannot be read."""
        route = self._routes.get((request.method, request.path))
        if route is None:
            return _error(404, "not_found", f"{request.method} {request.path} is not served here")
        try:
            return await route(request)
        except msgspec.DecodeError as fault:
            return _error(422, "malformed", str(fault))

    async def _health(self, _request: web.BaseRequest) -> web.StreamResponse:
        return _json({"status": "ok", "pid": os.getpid()})

    async def _bill(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/x-ndjson"
        await response.prepare(request)
        lines = self._provider.bill.lines()
        while part := list(islice(lines, LINES_PER_WRITE)):
            await response.write(b"".join(bill_json(line) + b"\n" for line in part))
        return response

    async def _summary(self, _request: web.BaseRequest) -> web.StreamResponse:
        return _json(self._provider.summary())

    async def _show_faults(self, _request: web.BaseRequest) -> web.StreamResponse:
        return _json({"faults": self._provider.faults})

    async def _set_faults(self, request: web.BaseRequest) -> web.StreamResponse:
        wanted = msgspec.json.decode(await request.read(), type=_Faults)
        self._provider.set_faults(tuple(wanted.faults))
        return await self._show_faults(request)

    async def _show_settings(self, _request: web.BaseRequest) -> web.StreamResponse:
        return _json(self._provider.settings)

    async def _set_settings(self, request: web.BaseRequest) -> web.StreamResponse:
        changes = msgspec.json.decode(await request.read(), type=dict[str, float])
        merged = msgspec.structs.asdict(self._provider.settings) | changes
        self._provider.set_settings(msgspec.convert(merged, Settings))
        return await self._show_settings(request)

    async def _reset(self, _request: web.BaseRequest) -> web.StreamResponse:
        self._provider.reset()
        return _json({"status": "ok"})
