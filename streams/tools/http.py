"""Calls providers over HTTP: one physical call in, one outcome per member out, with a verdict on whether it may have been billed.

Between the dispatcher and the socket. It never raises (save for cancelling), never sends twice, follows no redirects, and puts no
secret, header, query or unbounded body into a fault; nothing here is logged.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import httpx

from schemas.events import Fault, Repeat
from schemas.providers import BatchForm, Provider, Providers
from schemas.providers import Tool as ToolForm
from streams.engine.retries import Kind, Rule, parse_retry_after, rule
from streams.errors import ConfigurationError
from streams.tools.connections import (
    CONNECT_SECONDS_MAX,
    AnswerLost,
    BadAnswer,
    Connections,
    NothingSent,
    read_beginning,
    read_body,
)
from streams.tools.port import (
    Answered,
    CallReport,
    Doubtful,
    MemberOutcome,
    NotDone,
    ProviderCall,
    Refused,
)
from streams.tools.results import TEXT_BYTES_MAX, Steps, batch_body, query_of, single_outcome, split, steps_of
from streams.tools.secrets import excerpt, redact

#: How long the explanation of a no may take to arrive; the no itself is known by then, and a slot is held meanwhile.
EXPLANATION_SECONDS: Final = 2.0

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a call goes, and how messages call that place: without query and secrets."""

    url: httpx.URL
    place: str


@dataclass(frozen=True, slots=True)
class _Tool:
    """One tool with everything that does not change from call to call made ready."""

    name: str
    method: str
    single: _Target
    many: _Target
    form: BatchForm | None
    result: Steps
    headers: tuple[_Header, ...]
    key_header: bytes | None
    id_header: bytes
    seconds: float
    connect_seconds: float
    repeat: Repeat
    connections: Connections


@dataclass(slots=True)
class _Answer:
    """What is known of the answer so far; kept outside of the deadline, which may strike in the middle of a body."""

    status: int = 0
    body: bytes = b""
    retry_after_seconds: float | None = None
    rule: Rule | None = None


class HttpCaller:
    """The ``Caller`` for the HTTP providers of a providers file.

    ``secrets`` holds the secret of each provider with ``auth`` by its name (`secrets.resolve_all`). An answer may have at most
    ``response_bytes_max`` bytes once decoded; no call takes longer than its tool's time or ``call_seconds``, connecting included.
    ``now`` is Unix time, for a Retry-After date. Raises ``ConfigurationError`` for what could not be called.
    """

    def __init__(
        self,
        providers: Providers,
        secrets: Mapping[str, str],
        *,
        response_bytes_max: int = 64 << 20,
        call_seconds: float = 900.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._secrets = tuple(secrets.values())
        self._response_bytes_max = response_bytes_max
        self._call_seconds = call_seconds
        self._now = now
        self._closed = False
        self._connections: list[Connections] = []
        self._tools: dict[str, _Tool] = {}
        has_tls = any(provider.url.startswith("https:") for provider in providers.providers.values())
        tls = httpx.create_ssl_context() if has_tls else None
        for name, provider in providers.providers.items():
            connections = Connections(connections_max=provider.pace.concurrency, tls=tls)
            self._connections.append(connections)
            headers = _headers(name, provider, secrets.get(name))
            for tool_name, form in provider.tools.items():
                tool = self._tool(f"{name}.{tool_name}", provider, form, headers, connections)
                self._tools[tool.name] = tool

    def _tool(
        self, name: str, provider: Provider, form: ToolForm, headers: tuple[_Header, ...], connections: Connections
    ) -> _Tool:
        if form.method == "GET" and form.batch is not None:
            raise ConfigurationError(f"tool {name}: a GET has no body to carry a batch; use POST or remove batch")
        seconds = min(form.timeout_seconds, self._call_seconds)
        single = self._target(provider.url + form.path)
        return _Tool(
            name=name,
            method=form.method,
            single=single,
            many=self._target(provider.url + form.batch.path) if form.batch and form.batch.path else single,
            form=form.batch,
            result=steps_of(form.result),
            headers=headers if form.method == "GET" else (*headers, (b"Content-Type", b"application/json")),
            key_header=provider.idempotency_header.encode() if provider.idempotency_header else None,
            id_header=provider.request_id_header.encode(),
            seconds=seconds,
            connect_seconds=min(CONNECT_SECONDS_MAX, seconds / 2),
            repeat=form.repeat,
            connections=connections,
        )

    def _target(self, url: str) -> _Target:
        parsed = httpx.URL(url)
        return _Target(parsed, redact(str(parsed.copy_with(query=None, fragment=None)), self._secrets))

    async def call(self, call: ProviderCall) -> CallReport:
        """Make one call and tell how it ended; see `Caller`."""
        started = time.monotonic()
        tool = self._tools.get(call.tool)
        if tool is None:
            fault = Fault("unknown_tool", f"{call.tool}: the providers file has no such tool", repairable=True)
            return CallReport((Refused(fault),) * len(call.members))
        if self._closed:
            fault = Fault("closed", f"{call.tool}: this worker is stopping", repairable=True)
            return CallReport((NotDone(fault),) * len(call.members))
        request = _request(tool, call)
        if isinstance(request, tuple):
            return CallReport(self._named(call.tool, request))
        answer = _Answer()
        outcomes = await self._outcomes(tool, call, request, answer)
        return CallReport(outcomes, answer.lane_pause_seconds, time.monotonic() - started)

    async def close(self) -> None:
        """Close all connections; calls in flight end as doubtful, later ones are not done."""
        self._closed = True
        for connections in self._connections:
            await connections.close()

    async def _outcomes(
        self, tool: _Tool, call: ProviderCall, request: _Request, answer: _Answer
    ) -> tuple[MemberOutcome, ...]:
        failure: MemberOutcome
        place = request.target.place
        try:
            async with asyncio.timeout(tool.seconds):
                await self._exchange(tool, request, answer)
        except NothingSent as error:
            text = f"{place} cannot be reached: {error}"
            failure = NotDone(Fault("unreachable", text, repairable=True))
        except TimeoutError:
            failure = Doubtful(Fault("deadline", f"no whole answer from {place} within {tool.seconds:g} s"))
        except AnswerLost as error:
            failure = Doubtful(Fault("answer_lost", f"the answer from {place} was lost: {error}"))
        except BadAnswer as error:
            failure = Doubtful(Fault("bad_response", f"HTTP {answer.status} from {place}: {error}"))
        else:
            if answer.kind is Kind.ANSWERED:
                return self._answered(tool, call, place, answer.body)
        if answer.kind not in (None, Kind.ANSWERED):  # a no stays a no, also if its explanation was cut off
            failure = self._said_no(tool, place, answer)
        return self._named(tool.name, (failure,)) * len(call.members)

    async def _exchange(self, tool: _Tool, request: _Request, answer: _Answer) -> None:
        """Send the request and fill in the answer as it arrives; raises what `connections` raises."""
        response = await tool.connections.send(
            tool.method, request.target.url, request.headers, request.body, tool.connect_seconds
        )
        try:
            values = response.headers.get_list("retry-after")
            answer.received(response.status_code, parse_retry_after(values, self._now()) if values else None)
            if answer.kind is Kind.ANSWERED:
                answer.body = await read_body(response, self._response_bytes_max)
                return
            with contextlib.suppress(TimeoutError, AnswerLost, BadAnswer):
                async with asyncio.timeout(EXPLANATION_SECONDS):
                    answer.body = await read_beginning(response, TEXT_BYTES_MAX)
        finally:
            # Closes the connection too, if the body was not read to its end.
            await response.aclose()

    def _answered(self, tool: _Tool, call: ProviderCall, place: str, body: bytes) -> tuple[MemberOutcome, ...]:
        outcomes: tuple[MemberOutcome, ...]
        if call.batched and tool.form is not None:
            outcomes = split(tool.form, call.members, body)
        else:
            outcomes = (single_outcome(body, tool.result),)
        if all(type(outcome) is Answered for outcome in outcomes):
            return outcomes
        return self._named(f"{tool.name}: {place}", outcomes)

    def _said_no(self, tool: _Tool, place: str, answer: _Answer) -> MemberOutcome:
        kind, reason = answer.rule
        said = answer.body.decode("utf-8", "replace") or reason
        fault = Fault(f"http_{answer.status}", f"HTTP {answer.status} from {place}: {said}")
        if answer.status == 409 and tool.repeat is Repeat.WITH_KEY:
            # So answers a provider that is still at work under this key, after an earlier try whose answer was lost. It will be
            # billed, and asking again under the key is how to get its result.
            kind = Kind.DOUBTFUL
        match kind:
            case Kind.REFUSED:
                return Refused(fault)
            case Kind.REFUSED_REPAIRABLE:
                return Refused(replace_fault(fault, repairable=True))
            case Kind.NOT_DONE:
                return NotDone(fault, answer.retry_after_seconds)
