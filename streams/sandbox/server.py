"""The sockets of the sandbox: paths to the provider or the admin, answers sent whole or spoiled by a fault.

Binds to loopback only; the admin endpoints ask for no key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from streams.sandbox.admin import Admin
from streams.sandbox.bill import BillLine, Summary
from streams.sandbox.endpoints import ENDPOINTS
from streams.sandbox.faults import Fault, FaultKind
from streams.sandbox.provider import Answer, Provider, refusal
from streams.sandbox.settings import SandboxConfig, Settings

# How long requests in flight may go on once the sandbox is being closed; a hanging one would never end.
SHUTDOWN_SECONDS = 0.2
# A full batch is about 20 kB; a body beyond this is answered with 413.
BODY_BYTES_MAX = 1024**2
#: Behind it stands an idempotency key: what became of the work under it.
LOOK_UP = "/v1/operations/"
JOBS = "/v1/email/jobs/"
_HTML = b"<!doctype html><title>Maintenance</title><p>We will be back soon."
_JSON = "application/json"

_Reply = Callable[[web.BaseRequest, Answer], Awaitable[web.StreamResponse]]


def _whole(answer: Answer, body: bytes | None = None, content_type: str = _JSON) -> web.Response:
    sent = answer.body if body is None else body
    return web.Response(status=answer.status, body=sent, headers=answer.headers, content_type=content_type)


async def _close(request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()
    return await _hang(request, answer)


async def _hang(_request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
    # Ends when the caller goes away: the server cancels the handler of a lost connection.
    await asyncio.get_running_loop().create_future()
    return _whole(answer)


async def _html(_request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
    return _whole(answer, _HTML, "text/html")


async def _truncated(_request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
    # The length announced is that of the stump: to the HTTP client all is well, only the JSON is cut off.
    return _whole(answer, answer.body[: len(answer.body) // 2])


async def _drip(request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.content_type = _JSON
    response.content_length = len(answer.body)
    await response.prepare(request)
    seconds = answer.fault.seconds if answer.fault is not None else 0.0
    for place in range(len(answer.body)):
        await response.write(answer.body[place : place + 1])
        await asyncio.sleep(seconds)
    return response


# Kinds that are not here are answered whole: their status and body say it all.
_SPOILED: dict[FaultKind, _Reply] = {
    FaultKind.CLOSE_BEFORE_WORK: _close,
    FaultKind.CLOSE_AFTER_WORK: _close,
    FaultKind.HANG: _hang,
    FaultKind.HTML: _html,
    FaultKind.TRUNCATED: _truncated,
    FaultKind.DRIP: _drip,
}


class Sandbox:
    """A paid provider in this process, for tests.

    async with Sandbox(api_key="k", bill=path, latency_ms=20) as sandbox:
        ...  # POST to sandbox.url, then look at sandbox.summary()
    """

    def __init__(
        self,
        *,
        api_key: str,
        bill: Path | str | None = None,
        port: int = 0,
        latency_ms: float = 0.0,
        rate: float = 0.0,
        burst: float = 0.0,
        faults: Sequence[Fault] = (),
        seed: int = 7,
    ) -> None:
        self.api_key = api_key
        self.url = ""
        self._config = SandboxConfig(
            api_key=api_key,
            bill=Path(bill) if bill is not None else None,
            port=port,
            settings=Settings(latency_ms=latency_ms, rate=rate, burst=burst),
            faults=tuple(faults),
            seed=seed,
        )

    async def __aenter__(self) -> Self:
        self._provider = Provider(self._config)
        self._admin = Admin(self._provider)
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._config.port)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._runner.cleanup()
        self._provider.bill.close()

    def summary(self) -> Summary:
        """The bill and the traffic added up; readable after the sandbox is closed, too."""
        return self._provider.summary()

    def bill(self) -> list[BillLine]:
        """All lines of the bill, oldest first."""
        return list(self._provider.bill.lines())

    def set_faults(self, *faults: Fault) -> None:
        """Replaces the faults in force; without arguments all goes well again."""
        self._provider.set_faults(faults)

    def set_settings(self, settings: Settings) -> None:
        """Replaces latency and rate."""
        self._provider.set_settings(settings)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" and request.path.startswith(LOOK_UP):
            return _whole(self._provider.look_up(request.path.removeprefix(LOOK_UP), request.headers))
        if request.method == "GET" and request.path.startswith(JOBS):
            return _whole(self._provider.job(request.path.removeprefix(JOBS), request.headers))
        if request.path not in ENDPOINTS:
            return await self._admin.handle(request)
        if request.method != "POST":
            return _whole(refusal(405, "method_not_allowed", f"POST {request.path}", {"Allow": "POST"}))
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _whole(refusal(413, "body_too_large", f"at most {BODY_BYTES_MAX} bytes"))
        answer = await self._provider.answer(request.path, request.headers, body)
        reply = _SPOILED.get(answer.fault.kind) if answer.fault is not None else None
        return _whole(answer) if reply is None else await reply(request, answer)
