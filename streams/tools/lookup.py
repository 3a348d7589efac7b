"""A tool's look-up over HTTP (``reconcile``): what became of a call whose answer was lost, asked by its idempotency key (U3).

It buys nothing, so it may be asked again at any time. What it finds passes through the same extraction, and the same care for
secrets, as the answer that was lost. Where that was the answer to a job's submission, the job is asked for (P10). It never raises,
save for cancelling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol, TypeAlias
from urllib.parse import quote

import httpx
import msgspec

from schemas.canonical import JsonValue, UncanonicalValue, dump_json
from schemas.events import Fault
from schemas.providers import JobForm, Provider, Providers, Reconcile, Tool
from streams.tools.connections import CONNECT_SECONDS_MAX, AnswerLost, BadAnswer, Connections, NothingSent, read_body
from streams.tools.fixedheaders import fixed_headers
from streams.tools.jobs import Read, ended, job_name, job_path, read
from streams.tools.port import Answered, CallMember, Doubtful, MemberOutcome
from streams.tools.results import Steps, single_outcome, split, steps_of, value_at, withheld
from streams.tools.secrets import excerpt, resolve_all


class Found(msgspec.Struct, frozen=True):
    """The provider has done it: an outcome for each member, in order."""

    outcomes: tuple[MemberOutcome, ...]


class Pending(msgspec.Struct, frozen=True):
    """The provider works on it."""


class Absent(msgspec.Struct, frozen=True):
    """The provider never heard of it."""


class NoWord(msgspec.Struct, frozen=True):
    """The look-up itself failed, or what it said is not understood."""

    fault: Fault


Word: TypeAlias = Found | Pending | Absent | NoWord


class LookUp(Protocol):
    """Asks a provider about one call; never raises, and buys nothing."""

    def terms(self, tool: str) -> Reconcile | None:
        """How a tool is looked up; ``None`` where it cannot be."""
        ...

    async def ask(self, tool: str, key: str, members: tuple[CallMember, ...]) -> Word:
        """What became of the call under an idempotency key."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class HttpLookUp:
    """The ``LookUp`` of the HTTP tools of a providers file. Raises ``ConfigurationError`` for a missing secret."""

    def __init__(self, providers: Providers, *, environment: Mapping[str, str], response_bytes_max: int = 64 << 20) -> None:
        secrets = resolve_all(providers, environment)
        self._secrets = tuple(secrets.values())
        self._bytes_max = response_bytes_max
        self._tools: dict[str, tuple[Provider, Tool, Reconcile]] = {}
        self._connections: dict[str, Connections] = {}
        for name, provider in providers.providers.items():
            if not isinstance(provider, Provider) or all(tool.reconcile is None for tool in provider.tools.values()):
                continue
            tls = httpx.create_ssl_context() if provider.base_url.scheme == "https" else None
            headers = fixed_headers(name, provider, secrets)
            # No limit: a lane looks up one call at a time, and must not wait here for another organisation's.
            self._connections[name] = Connections(headers=headers, connections_max=0, tls=tls)
            for tool_name, tool in provider.tools.items():
                if tool.reconcile is not None:
                    self._tools[f"{name}.{tool_name}"] = provider, tool, tool.reconcile

    def terms(self, tool: str) -> Reconcile | None:
        """See ``LookUp``."""
        found = self._tools.get(tool)
        return None if found is None else found[2]

    async def ask(self, tool: str, key: str, members: tuple[CallMember, ...]) -> Word:
        """See ``LookUp``."""
        provider, form, reconcile = self._tools[tool]  # a job's call has one member
        url = httpx.URL(provider.url + reconcile.path.replace("{key}", quote(key, safe="")))
        headers: list[tuple[bytes, bytes]] = []
        if "{key}" not in reconcile.path and provider.idempotency_header:
            headers.append((provider.idempotency_header.encode(), key.encode()))
        found = await self._got(tool, url, headers, reconcile.timeout_seconds)
        if isinstance(found, NoWord):
            return Absent() if found.fault.code == "http_404" else found
        lost = self._lost(tool, reconcile, found)
        if not isinstance(lost, Read):
            return lost
        if form.job is not None:
            return await self._followed(tool, form, form.job, reconcile.timeout_seconds, lost)
        try:
            answer = dump_json(lost.answer)
        except UncanonicalValue as error:
            return self._no_word(tool, "bad_response", f"the answer at {reconcile.answer!r} cannot be kept: {error.reason}")
        if len(members) > 1 and form.batch is not None:
            outcomes = split(form.batch, members, answer)
        else:
            outcomes = (single_outcome(answer, steps_of(form.result)),) * len(members)
        return Found(tuple([self._kept(outcome) for outcome in outcomes]))

    async def close(self) -> None:
        """See ``LookUp``."""
        for connections in self._connections.values():
            await connections.aclose()

    async def _got(self, tool: str, url: httpx.URL, headers: list[tuple[bytes, bytes]], seconds: float) -> bytes | NoWord:
        """The body of a good answer to a GET; any other is no word, its status in the fault's code."""
        connections = self._connections[tool.partition(".")[0]]
        try:
            async with asyncio.timeout(seconds):
                reply = await connections.send("GET", url, headers, b"", min(CONNECT_SECONDS_MAX, seconds / 2))
                try:
                    status, body = reply.status_code, await read_body(reply, self._bytes_max)
                finally:
                    reply.close()
        except (NothingSent, AnswerLost, BadAnswer) as error:
            return self._no_word(tool, "unreachable", str(error))
        except TimeoutError:
            return self._no_word(tool, "deadline", f"no whole answer within {seconds:g} s")
        return body if status // 100 == 2 else self._no_word(tool, f"http_{status}", "the look-up was not answered")

    async def _followed(self, tool: str, form: Tool, job: JobForm, seconds: float, lost: Read) -> Word:
        """What became of the job whose submission's answer was lost: that answer names it, and never holds its result."""
        name = job_name(value_at(lost.answer, steps_of(job.id)))
        if name is None:
            return self._no_word(tool, "bad_response", f"the submission's answer has no name of a job at {job.id!r}")
        url = self._tools[tool][0].url
        body = await self._got(tool, httpx.URL(url + job_path(job.poll_path, name)), [], seconds)
        if isinstance(body, NoWord):  # also a 404: the provider did hear of this call
            return body
        said = read(body)
        end = said.fault if isinstance(said, Doubtful) else ended(job, steps_of(form.result), said, 200)
        if isinstance(end, Answered) and job.fetch_path is not None:
            body = await self._got(tool, httpx.URL(url + job_path(job.fetch_path, name)), [], seconds)
            if isinstance(body, NoWord):
                return body
            end = single_outcome(body, steps_of(form.result))
        match end:
            case None:
                return Pending()
            case Fault(code=code, message=message):
                return self._no_word(tool, code, message)
            case _:
                return Found((self._kept(end),))

    def _lost(self, tool: str, reconcile: Reconcile, body: bytes) -> Word | Read:
        """The answer that was lost, or the word that there is instead of it."""
        said = read(body)
        if isinstance(said, Doubtful):
            return self._no_word(tool, "bad_response", said.fault.message)
        answer = said.answer
        word = value_at(answer, steps_of(reconcile.status))
        if word in reconcile.absent:
            return Absent()
        if word in reconcile.pending:
            return Pending()
        if word not in reconcile.found:
            return self._no_word(
                tool, "bad_response", f"{word!r:.80} at {reconcile.status!r} is none of the words of the providers file"
            )
        steps = steps_of(reconcile.answer)
        if not _is_there(answer, steps):
            # An answer that the provider keeps no longer, or a wrong path: to take it for *nothing found* would settle it for good.
            return self._no_word(
                tool, "bad_response", f"the word at {reconcile.status!r} is {word!r:.80}, but nothing is at {reconcile.answer!r}"
            )
        return Read(value_at(answer, steps))

    def _kept(self, outcome: MemberOutcome) -> MemberOutcome:
        """No output that carries a secret is taken (R10), and a fault's words, which are kept too, are cut and without secrets."""
        if isinstance(outcome, Answered):
            return withheld(outcome.output, self._secrets) or outcome
        fault = outcome.fault
        return msgspec.structs.replace(outcome, fault=Fault(fault.code, excerpt(fault.message, self._secrets), fault.repairable))

    def _no_word(self, tool: str, code: str, message: str) -> NoWord:
        return NoWord(Fault(code, f"{tool}: look-up: {excerpt(message, self._secrets)}"))


def _is_there(value: JsonValue, steps: Steps) -> bool:
    """Whether a path leads somewhere, if only to ``null``."""
    if not steps:
        return True
    above, last = value_at(value, steps[:-1]), steps[-1]
    if isinstance(above, list):
        return last.isascii() and last.isdigit() and len(last) < 10 and int(last) < len(above)
    return isinstance(above, dict) and last in above
