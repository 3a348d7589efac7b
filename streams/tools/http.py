"""Calls providers over HTTP: one physical call in, one outcome per member out, with a verdict on whether it was billed.

Between the dispatcher and the socket. It never raises (save for cancelling), never sends twice, follows no redirects, and puts
no secret, header, query or unbounded body into a fault; nothing here is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never
from urllib.parse import quote

import httpx
import msgspec

from schemas.events import Fault, Repeat
from schemas.providers import BatchForm, JobForm, Provider, Providers
from schemas.providers import Tool as ToolForm
from streams.engine.compile import scope_of
from streams.engine.retries import Kind, Rule, parse_retry_after, rule
from streams.engine.scopes import scope_changed
from streams.errors import ConfigurationError
from streams.tools.connections import (
    CONNECT_SECONDS_MAX,
    AnswerLost,
    BadAnswer,
    Connections,
    NothingSent,
    header_values,
    read_beginning,
    read_body,
)
from streams.tools.fixedheaders import fixed_headers
from streams.tools.jobs import ended, fetched, job_path, read, submitted, under_way
from streams.tools.phases import Late, within
from streams.tools.port import Answered, CallReport, Doubtful, MemberOutcome, NotDone, ProviderCall, Refused
from streams.tools.results import (
    CODE_BYTES_MAX,
    TEXT_BYTES_MAX,
    Steps,
    batch_body,
    error_code,
    query_of,
    single_outcome,
    split,
    steps_of,
    withheld,
)
from streams.tools.secrets import excerpt, resolve_all
from streams.tools.spellings import carries, redact

#: How long the explanation of a no may take to arrive. The no itself is known by then, and a slot is held meanwhile.
EXPLANATION_SECONDS: Final = 2.0
#: Runs that one header names.
RUNS_MAX: Final = 8

_Header: TypeAlias = tuple[bytes, bytes]
_CONTENT_TYPE: Final[_Header] = (b"Content-Type", b"application/json")


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a call goes; ``place`` is how messages name it, without query and secrets."""

    url: httpx.URL
    place: str


@dataclass(frozen=True, slots=True)
class _Tool:
    """One tool, with everything made ready that does not change from call to call."""

    name: str
    method: str
    single: _Target
    many: _Target
    form: BatchForm | None
    result: Steps
    key_header: bytes | None
    id_header: bytes
    #: Headers that name the runs and the receipt, where the provider wants them (P1).
    run_header: bytes | None
    receipt_header: bytes | None
    seconds: float
    connect_seconds: float
    headers_seconds: float | None
    body_seconds: float | None
    repeat: Repeat
    connections: Connections
    #: How its jobs are asked for, and where; ``None``: its calls end with their answers.
    job: JobForm | None
    url: str
    #: What its credentials stand for, and the code by which the provider says that this has changed (P4).
    scope: str
    scope_changed_code: str | None


@dataclass(frozen=True, slots=True)
class _Request:
    """What is sent."""

    target: _Target
    url: httpx.URL
    headers: list[_Header]
    body: bytes
    #: Members of a batch whose inputs could not go into the body, by place.
    refused: Mapping[int, Refused] = field(default_factory=dict)


@dataclass(slots=True)
class _Answer:
    """What is known of an answer so far. It stands outside of the deadline, which may strike in the middle of a body."""

    status: int = 0
    rule: Rule | None = None
    retry_after_seconds: float | None = None
    body: bytes = b""

    @property
    def is_no(self) -> bool:
        """Whether there is a status, and it promises no result."""
        return self.rule is not None and self.rule.kind is not Kind.ANSWERED


class HttpCaller:
    """The ``Caller`` for the HTTP providers of a providers file.

    ``environment`` is where ``env:`` secrets are looked up, all of them at once. An answer may have at most
    ``response_bytes_max`` bytes once decoded; no call takes longer than its tool's time or ``call_seconds``, all included.
    ``connections_max`` limits a provider's connections; 0: only its lanes do, each of which is one organisation's and must not
    wait here for another's calls (G1). ``tls`` is for providers that need other certificates than the usual ones; ``now`` is Unix
    time, for a Retry-After date.
    Raises ``ConfigurationError`` for a missing secret and for what could not be called.
    """

    def __init__(
        self,
        providers: Providers,
        *,
        environment: Mapping[str, str],
        response_bytes_max: int = 64 << 20,
        call_seconds: float = 900.0,
        connections_max: int = 0,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        secrets = resolve_all(providers, environment)
        self._secrets = tuple(secrets.values())
        self._response_bytes_max = response_bytes_max
        self._now = now
        self._closed, self._connections = False, list[Connections]()
        self._tools: dict[str, _Tool] = {}
        for provider_name, provider in providers.providers.items():
            if not isinstance(provider, Provider):
                continue
            if tls is None and provider.base_url.scheme == "https":
                tls = httpx.create_ssl_context()  # once, for it takes 50 ms
            headers = fixed_headers(provider_name, provider, secrets)
            connections = Connections(headers=headers, connections_max=connections_max, tls=tls)
            self._connections.append(connections)
            for tool_name, form in provider.tools.items():
                name = f"{provider_name}.{tool_name}"
                seconds = min(form.timeout_seconds, call_seconds)
                self._tools[name] = self._tool(name, provider, form, seconds, connections)

    def _tool(self, name: str, provider: Provider, form: ToolForm, seconds: float, connections: Connections) -> _Tool:
        if form.method == "GET" and form.batch is not None:
            raise ConfigurationError(f"tool {name}: a GET has no body to carry a batch; use POST or remove batch")
        single = self._target(provider.url + form.path)
        batch_path = form.batch.path if form.batch is not None else None
        return _Tool(
            name=name,
            method=form.method,
            single=single,
            many=single if batch_path is None else self._target(provider.url + batch_path),
            form=form.batch,
            result=steps_of(form.result),
            key_header=provider.idempotency_header.encode() if provider.idempotency_header else None,
            id_header=provider.request_id_header.encode(),
            run_header=provider.run_header.encode() if provider.run_header else None,
            receipt_header=provider.receipt_header.encode() if provider.receipt_header else None,
            seconds=seconds,
            # Half at most, so that it ends before the whole time does: then it is proven that nothing was sent.
            connect_seconds=min(CONNECT_SECONDS_MAX, seconds / 2, (form.headers_seconds or seconds) / 2),
            headers_seconds=form.headers_seconds,
            body_seconds=form.body_seconds,
            repeat=form.repeat,
            connections=connections,
            job=form.job,
            url=provider.url,
            scope=scope_of(name.partition(".")[0], provider),
            scope_changed_code=provider.auth_scope_changed_code,
        )

    def _target(self, url: str) -> _Target:
        try:
            parsed = httpx.URL(url).copy_with(fragment=None)
        except httpx.InvalidURL as error:
            raise ConfigurationError(f"{redact(url, self._secrets)!r:.200} is no URL: {error}") from error
        return _Target(parsed, redact(str(parsed.copy_with(query=None)), self._secrets))

    async def call(self, call: ProviderCall) -> CallReport:
        """Make one call and tell how it ended; see ``Caller``."""
        tool = self._tools.get(call.tool)
        if tool is None:
            fault = Fault("unknown_tool", f"{call.tool}: the providers file has no such tool", repairable=True)
            return CallReport((Refused(fault),) * len(call.members))
        if self._closed:
            fault = Fault("closed", f"{call.tool}: the worker is stopping", repairable=True)
            return CallReport((NotDone(fault),) * len(call.members))
        if call.job is not None:
            return await self._asked(tool, call, call.job)
        request = _request(tool, call)
        if isinstance(request, tuple):
            return CallReport(self._told(tool, "nothing was sent", request))
        answer = _Answer()
        started = time.monotonic()
        steps = tool.result if tool.job is None else steps_of(tool.job.id)
        outcomes = await self._outcomes(tool, call, request, answer, steps)
        if request.refused:
            unsent = dict(zip(request.refused, self._told(tool, "not sent", tuple(request.refused.values())), strict=True))
            outcomes = tuple([unsent.get(place, outcome) for place, outcome in enumerate(outcomes)])
        pause = answer.retry_after_seconds if answer.is_no else None
        report = CallReport(outcomes, pause, time.monotonic() - started)
        if tool.job is None:
            return report
        began = submitted(tool.job, outcomes[0], report)
        if began is not report and began.outcomes:
            began = msgspec.structs.replace(began, outcomes=self._told(tool, _where(request, answer), began.outcomes))
        return began

    async def _asked(self, tool: _Tool, call: ProviderCall, job: str) -> CallReport:
        """Ask for a job, and fetch its result where it is done (P10)."""
        started = time.monotonic()
        if tool.job is None:
            fault = Fault("unknown_job", f"{tool.name}: the providers file no longer says how job {job} is asked for")
            return CallReport((Doubtful(fault),))
        # A question costs nothing, so that it has no key, and every no of it is plain.
        asking = dataclasses.replace(tool, method="GET", form=None, repeat=Repeat.FREELY)
        request, answer = self._question(tool, call, job_path(tool.job.poll_path, job)), _Answer()
        trouble = await self._trouble(asking, request, answer)
        said = trouble or read(answer.body)
        end = ended(tool.job, tool.result, said, answer.status)
        if isinstance(end, Answered) and tool.job.fetch_path is not None:
            request, answer = self._question(tool, call, job_path(tool.job.fetch_path, job)), _Answer()
            trouble = await self._trouble(asking, request, answer)
            end = fetched(trouble or single_outcome(answer.body, tool.result), answer.status)
        seconds, where = time.monotonic() - started, _where(request, answer)
        if end is None or isinstance(end, Fault):
            return under_way(tool.job, job, trouble, end and self._fault_told(tool, where, end), seconds)
        return CallReport(self._told(tool, where, (end,)), None, seconds)

    def _question(self, tool: _Tool, call: ProviderCall, path: str) -> _Request:
        target = self._target(tool.url + path)
        return _Request(target, target.url, [(tool.id_header, call.request_id.encode())], b"")

    async def close(self) -> None:
        """Close all connections; calls in flight end as doubtful, later ones are not done."""
        self._closed = True
        for connections in self._connections:
            await connections.aclose()

    async def _outcomes(
        self, tool: _Tool, call: ProviderCall, request: _Request, answer: _Answer, steps: Steps
    ) -> tuple[MemberOutcome, ...]:
        trouble = await self._trouble(tool, request, answer)
        if trouble is not None:
            outcomes: tuple[MemberOutcome, ...] = (trouble,)
        elif call.batched and tool.form is not None:
            outcomes = split(tool.form, call.members, answer.body)
        else:
            outcomes = (single_outcome(answer.body, steps),)
        outcomes = self._told(tool, _where(request, answer), outcomes)
        return outcomes if len(outcomes) == len(call.members) else outcomes * len(call.members)

    async def _trouble(self, tool: _Tool, request: _Request, answer: _Answer) -> Refused | NotDone | Doubtful | None:
        """Send a request, and say how it ended where that is no whole answer; otherwise ``answer`` has it."""
        trouble: NotDone | Doubtful | None = None
        try:
            async with asyncio.timeout(tool.seconds):
                await self._exchange(tool, request, answer)
        except NothingSent as error:
            trouble = NotDone(Fault("unreachable", f"nothing was sent, no connection: {error}", repairable=True))
        except TimeoutError:
            phase = "body" if answer.status else "headers"
            trouble = Doubtful(Fault("deadline", f"{phase}: no whole answer within {tool.seconds:g} s"))
        except Late as error:
            trouble = Doubtful(Fault("deadline", str(error)))
        except AnswerLost as error:
            trouble = Doubtful(Fault("answer_lost", f"the connection broke before the answer was whole: {error}"))
        except BadAnswer as error:
            trouble = Doubtful(Fault("bad_response", str(error)), error.used_up)
        if answer.rule is not None and answer.is_no:  # a no stays a no, also where its explanation was cut off
            return _said_no(tool, answer, answer.rule)
        return trouble

    async def _exchange(self, tool: _Tool, request: _Request, answer: _Answer) -> None:
        """Send the request and note the answer as it arrives. Raises what `connections` raises, unless the answer is a no."""
        async with within("headers", tool.headers_seconds):
            response = await tool.connections.send(tool.method, request.url, request.headers, request.body, tool.connect_seconds)
        try:
            answer.status = response.status_code
            waits = [] if response.is_success else header_values(response, b"retry-after")
            answer.retry_after_seconds = parse_retry_after(waits, self._now()) if waits else None
            answer.rule = rule(answer.status, has_retry_after=answer.retry_after_seconds is not None, is_get=tool.method == "GET")
            if not answer.is_no:
                async with within("body", tool.body_seconds):
                    answer.body = await read_body(response, self._response_bytes_max)
                return
            told_by_code = answer.status == 409 and tool.scope_changed_code is not None
            with contextlib.suppress(TimeoutError, AnswerLost, BadAnswer):
                async with asyncio.timeout(EXPLANATION_SECONDS):
                    answer.body = await read_beginning(response, CODE_BYTES_MAX if told_by_code else TEXT_BYTES_MAX)
        finally:
            response.close()  # with the connection, unless the body was read to its end

    def _told(self, tool: _Tool, where: str, outcomes: tuple[MemberOutcome, ...]) -> tuple[MemberOutcome, ...]:
        """The outcomes with faults for people: tool and place, then the provider's own words, cut and without secrets."""
        outputs = [outcome.output for outcome in outcomes if isinstance(outcome, Answered)]
        if len(outputs) == len(outcomes) and not carries(b"\n".join(outputs), self._secrets):
            return outcomes  # one look for all: no secret holds a line break

        def told(outcome: MemberOutcome) -> MemberOutcome:
            if isinstance(outcome, Answered):
                unkept = withheld(outcome.output, self._secrets)
                if unkept is None:
                    return outcome
                outcome = unkept
            return msgspec.structs.replace(outcome, fault=self._fault_told(tool, where, outcome.fault))

        return tuple([told(outcome) for outcome in outcomes])

    def _fault_told(self, tool: _Tool, where: str, fault: Fault) -> Fault:
        return Fault(fault.code, f"{tool.name}: {where}: {excerpt(fault.message, self._secrets)}", fault.repairable)


def _where(request: _Request, answer: _Answer) -> str:
    """What a message names as the place where something happened."""
    return f"HTTP {answer.status} from {request.target.place}" if answer.status else request.target.place


def _request(tool: _Tool, call: ProviderCall) -> _Request | tuple[MemberOutcome, ...]:
    """What to send for a call, or the outcomes of its members where nothing can be sent."""
    headers = [(tool.id_header, call.request_id.encode())]
    if tool.key_header is not None:
        headers.append((tool.key_header, call.idempotency_key.encode()))
    if tool.run_header is not None:
        # A batch may serve any number of runs; what a header cannot hold is left out.
        headers.append((tool.run_header, quote(",".join(call.runs[:RUNS_MAX]), safe=",:").encode()))
    if tool.receipt_header is not None:
        headers.append((tool.receipt_header, (call.batch or call.members[0].receipt).encode()))
    if tool.method != "GET":
        headers.append(_CONTENT_TYPE)
    if call.batched and tool.form is not None:
        body, refused = batch_body(tool.form, call.members)
        return tuple(refused.values()) if body is None else _Request(tool.many, tool.many.url, headers, body, refused)
    if len(call.members) != 1:
        fault = Fault("bad_call", f"{len(call.members)} inputs in one call, and this tool has no batch form", repairable=True)
        return (Refused(fault),) * len(call.members)
    member = call.members[0]
    if tool.method != "GET":
        return _Request(tool.single, tool.single.url, headers, member.input)
    query = query_of(member, tool.single.url.query.decode("ascii"))
    if isinstance(query, Refused):
        return (query,)
    return _Request(tool.single, tool.single.url.copy_with(query=query.encode() or None), headers, b"")


def _said_no(tool: _Tool, answer: _Answer, judged: Rule) -> Refused | NotDone | Doubtful:
    code = f"http_{answer.status}"
    said = answer.body.decode("utf-8", "replace").strip() or judged.reason
    kind = judged.kind
    if answer.status == 409 and tool.scope_changed_code is not None:
        told = error_code(answer.body)
        if told == tool.scope_changed_code:
            return Refused(Fault(scope_changed(tool.scope), said, repairable=True))
        if told is None:  # it may be that code, which must not end the cell for good
            kind = Kind.REFUSED_REPAIRABLE
    if answer.status == 409 and tool.repeat is Repeat.WITH_KEY:
        # So answers a provider that still works under this key, for an earlier try whose answer was lost. That will be billed,
        # and asking again under the key is the way to its result.
        kind = Kind.DOUBTFUL
    match kind:
        case Kind.REFUSED:
            return Refused(Fault(code, said))
        case Kind.REFUSED_REPAIRABLE:
            return Refused(Fault(code, said, repairable=True))
        case Kind.NOT_DONE:
            return NotDone(Fault(code, said, repairable=True), answer.retry_after_seconds)
        case Kind.DOUBTFUL | Kind.ANSWERED:
            return Doubtful(Fault(code, said))
        case _:
            assert_never(kind)
