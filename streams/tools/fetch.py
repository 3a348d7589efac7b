"""Makes the requests of ``fetch`` columns: to the public internet, never beyond it, and never twice where that could matter.

Between the dispatcher and the socket, beside `http`, whose promises it keeps: it never raises (save for cancelling), logs nothing,
and puts no secret into a value or fault. Unlike a provider, the servers here are named by rows, and nothing they say is trusted.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import httpx

from schemas.definitions import origin_of
from schemas.events import Fault
from schemas.fetch import FETCH, SAFE_METHODS
from schemas.providers import Providers
from streams.engine.retries import Kind, parse_retry_after, rule
from streams.tools.addresses import why_not_host
from streams.tools.asking import PORTS, Ask, Trip, Unfit, asked, host_of, reparsed, turns_to_get
from streams.tools.connections import (
    CONNECT_SECONDS_MAX,
    AnswerLost,
    BadAnswer,
    Connections,
    NothingSent,
    Reply,
    header_values,
    read_beginning,
)
from streams.tools.dialing import Dialing, UnsafeAddress
from streams.tools.pages import Page, outcome_of
from streams.tools.phases import Late, within
from streams.tools.port import Answered, CallReport, Doubtful, MemberOutcome, NotDone, ProviderCall, Refused
from streams.tools.secrets import excerpt, resolve, resolve_all
from streams.tools.spellings import redact

#: Times that a request is sent which changes nothing where it arrives (F3) ...
TRIES_MAX: Final = 3
#: ... and the wait after the first time; after the second it is twice as long.
TRY_AGAIN_SECONDS: Final = 0.1
REDIRECTS_MAX: Final = 5
#: Lanes limit the requests of an organisation; this limits those of all together.
CONNECTIONS_MAX: Final = 1000
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
#: With these the server did not act on the request (RFC 9110, 15.4.8 and 15.4.9); with the others it may have.
_NOT_ACTED_ON: Final = frozenset((307, 308))
#: Of a request that changes nothing these say only that the server is in trouble now; a receipt of that would outlast it.
_TEMPORARY: Final = frozenset((408, 500, 502, 503, 504))
_HEADERS: Final[dict[str, str]] = {"Accept": "*/*", "Accept-Encoding": "gzip", "User-Agent": "paidonce"}


class FetchCaller:
    """The ``Caller`` of the built-in provider ``fetch``.

    ``environment`` is where ``env:`` secrets are looked up, all of them at once. ``dialing``, ``tls``, ``now`` (Unix time, for a
    Retry-After date) and ``sleep`` are for tests. Raises ``ConfigurationError`` for a missing secret.
    """

    def __init__(
        self,
        providers: Providers,
        *,
        environment: Mapping[str, str],
        call_seconds: float = 900.0,
        dialing: Dialing | None = None,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        settings = self._settings = providers.fetch
        own = {name: resolve(entry.secret, environment) for name, entry in settings.secrets.items()}
        self._secrets = own
        #: Also those of providers: a page may repeat any secret that this process knows.
        self._known = tuple(resolve_all(providers, environment).values())
        self._total_seconds = min(settings.total_seconds, call_seconds)
        # Half at most, so that it ends before the headers' time does: then it is proven that nothing was sent.
        self._connect_seconds = min(CONNECT_SECONDS_MAX, settings.headers_seconds / 2, self._total_seconds / 2)
        self._now, self._sleep = now, sleep
        self._closed = False
        tls = tls or httpx.create_ssl_context()  # once, for it takes 50 ms
        self._public = Connections(headers=_HEADERS, connections_max=CONNECTIONS_MAX, tls=tls, dialing=dialing or Dialing())
        self._allowed = Connections(headers=_HEADERS, connections_max=CONNECTIONS_MAX, tls=tls)

    async def call(self, call: ProviderCall) -> CallReport:
        """Make one request, with its redirects and tries, and tell how it ended; see ``Caller``."""
        started = time.monotonic()
        if len(call.members) != 1:
            fault = Fault(
                "bad_call", f"{call.tool}: {len(call.members)} inputs in one call; a fetch is made for one", repairable=True
            )
            return CallReport((Refused(fault),) * len(call.members))
        outcome = await self._outcome(call)
        # No pause for the lane: it has calls to other servers too, and none of them should be able to stop it.
        return CallReport((outcome,), None, time.monotonic() - started)

    async def close(self) -> None:
        """Close all connections; see ``Caller``."""
        self._closed = True
        for connections in (self._public, self._allowed):
            await connections.aclose()

    # --- one request -----------------------------------------------------------------------------------------

    async def _outcome(self, call: ProviderCall) -> MemberOutcome:
        ask = asked(call.members[0].input)
        if isinstance(ask, Fault):
            return self._told(call.tool, None, Refused(ask))
        if call.tool != f"{FETCH}.{ask.method.lower()}":  # by its name it was judged how it may be repeated
            return self._told(call.tool, None, Refused(Fault("bad_input", f"its input asks for a {ask.method}")))
        url: httpx.URL | None = None
        try:
            url = reparsed(ask.url)
            trip = self._begun(ask, url)
        except Unfit as error:
            return self._told(call.tool, url, Refused(error.fault))
        found = await self._travelled(trip)
        if isinstance(found, Page):
            outcome = outcome_of(found, self._known)
        elif isinstance(found, NotDone):
            outcome = found
        elif self._closed:
            outcome = NotDone(Fault("closed", "the worker is stopping", repairable=True))
        else:
            outcome = Refused(found)
        if trip.in_doubt and not isinstance(outcome, Answered):  # also a page that cannot be kept, after what was done for it
            outcome = Doubtful(Fault(outcome.fault.code, outcome.fault.message))
        return self._told(call.tool, trip.url, outcome)

    def _begun(self, ask: Ask, url: httpx.URL) -> Trip:
        """The first request; raises ``Unfit`` where it may not be made."""
        self._check(url)
        headers = ask.plain_headers()
        for header, use in ask.secrets.items():
            entry = self._settings.secrets.get(use.secret)
            if entry is None:
                # Another worker, or this one with the right file, can do it.
                raise Unfit("unknown_secret", f"this worker's providers file has no fetch.secrets.{use.secret}", repairable=True)
            if _origin(url) not in entry.origins:
                raise Unfit("secret_withheld", f"secret {use.secret!r} may not go there; it goes to {', '.join(entry.origins)}")
            secret = self._secrets[use.secret]
            headers[header] = f"{use.scheme} {secret}" if use.scheme else secret
        body, media = ask.content()
        if media:
            headers.setdefault("content-type", media)
        return Trip(ask.method, url, headers, body)

    def _check(self, url: httpx.URL) -> None:
        """Raise ``Unfit`` for a URL that may not be asked, as far as can be told without resolving its name (F4)."""
        if _origin(url) in self._settings.allow:
            return
        reason = why_not_host(host_of(url))
        if reason is not None:
            raise Unfit("unsafe_url", f"its host is {reason}, and only the public internet and allowed origins may be asked")

    async def _travelled(self, trip: Trip) -> Page | NotDone | Fault:
        """Where the trip ends: a page, a server that wants to be asked later, or what went wrong."""
        try:
            async with within("total", self._total_seconds):
                while True:
                    found = await self._tried(trip)
                    if found is not None:
                        return found
        except Unfit as error:
            return error.fault
        except UnsafeAddress as error:
            return Fault("unsafe_url", str(error))
        except Late as error:
            return Fault("deadline", str(error), repairable=True)
        except NothingSent as error:
            return Fault("unreachable", f"no connection: {error}{_times(trip)}", repairable=True)
        except AnswerLost as error:
            return Fault("answer_lost", f"the connection broke before the answer was whole: {error}{_times(trip)}", repairable=True)
        except BadAnswer as error:
            return Fault("bad_response", str(error), repairable=True)

    async def _tried(self, trip: Trip) -> Page | NotDone | None:
        """One request of a trip, sent again on transport errors where that is harmless (F3); ``None``: go on where it leads."""
        while True:
            try:
                return await self._visit(trip)
            except (NothingSent, AnswerLost):
                trip.failures += 1
                if self._closed or trip.method not in SAFE_METHODS or trip.failures >= TRIES_MAX:
                    raise
            await self._sleep(TRY_AGAIN_SECONDS * trip.failures)

    async def _visit(self, trip: Trip) -> Page | NotDone | None:
        if self._closed:
            raise NothingSent("the worker is stopping")
        safe, before = trip.method in SAFE_METHODS, trip.in_doubt
        connections = self._allowed if _origin(trip.url) in self._settings.allow else self._public
        headers = [(name.encode(), value.encode()) for name, value in trip.headers.items()]
        trip.in_doubt = before or not safe
        try:
            async with within("headers", self._settings.headers_seconds):
                response = await connections.send(trip.method, trip.url, headers, trip.body, self._connect_seconds)
        except (NothingSent, UnsafeAddress):
            trip.in_doubt = before
            raise
        try:
            status = response.status_code
            leads = header_values(response, b"location") if status in _REDIRECTS else []
            if leads and not _leads_nowhere(leads[0], status, trip.method):
                if status in _NOT_ACTED_ON:
                    trip.in_doubt = before
                self._follow(trip, status, leads[0])
                return None
            later = _later(response, safe, self._now())
            if later is not None and not before:
                trip.in_doubt = False
                return later
            body = b""
            if trip.method != "HEAD":
                async with within("body", self._settings.body_seconds):
                    body = await read_beginning(response, self._settings.body_bytes_max + 1)
            if len(body) > self._settings.body_bytes_max:
                raise Unfit("too_large", f"the body has more than {self._settings.body_bytes_max:,} bytes (fetch.body_bytes_max)")
            return Page(status, str(trip.url), response.headers(), body)
        finally:
            response.close()

    def _follow(self, trip: Trip, status: int, location: str) -> None:
        """Turn to where an answer leads; raises ``Unfit`` where that may not be asked."""
        trip.hops += 1
        if trip.hops > REDIRECTS_MAX:
            raise Unfit("too_many_redirects", f"it leads on after {REDIRECTS_MAX} redirects")
        try:
            url = reparsed(location, trip.url)
            self._check(url)
        except Unfit as error:
            raise Unfit(error.fault.code, f"a redirect leads to where no fetch goes: {error}") from error
        trip.turn(status, url, same_origin=_origin(url) == _origin(trip.url))

    def _told(self, tool: str, url: httpx.URL | None, outcome: MemberOutcome) -> MemberOutcome:
        """The outcome with its fault for people: tool and place, then what happened, cut and without secrets."""
        if isinstance(outcome, Answered):
            return outcome
        place = "" if url is None else f"{redact(str(url.copy_with(query=None)), self._known)[:200]}: "
        fault = outcome.fault
        told = Fault(fault.code, f"{tool}: {place}{excerpt(fault.message, self._known)}", fault.repairable)
        match outcome:
            case Refused():
                return Refused(told)
            case NotDone(retry_after_seconds=wait):
                return NotDone(told, wait)
            case Doubtful():
                return Doubtful(told)


def _later(response: Reply, safe: bool, now: float) -> NotDone | None:
    """What to do about an answer that only says that the server cannot answer now."""
    status = response.status_code
    waits = [] if response.is_success else header_values(response, b"retry-after")
    wait = parse_retry_after(waits, now) if waits else None
    judged = rule(status, has_retry_after=wait is not None)
    if judged.kind is not Kind.NOT_DONE and not (safe and status in _TEMPORARY):
        return None
    return NotDone(Fault(f"http_{status}", f"HTTP {status}: {judged.reason}", repairable=True), wait)


def _leads_nowhere(location: str, status: int, method: str) -> bool:
    """Whether a redirect leads back to the very request that was just made, so that it is an answer like one that leads nowhere.

    Where it makes a GET of another method it leads on: a form's answer may be read under the address that the form was sent to.
    """
    here = not location.strip() or location.strip().startswith("#")
    return here and (method == "GET" or not turns_to_get(status, method))


def _origin(url: httpx.URL) -> str:
    return origin_of(url.scheme, host_of(url), url.port or PORTS[url.scheme])


def _times(trip: Trip) -> str:
    return f" (tried {trip.failures} times)" if trip.failures > 1 else ""
