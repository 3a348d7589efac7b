"""One paid request from body to answer: who asks, how fast, what is done, what is billed, what goes wrong.

The work and its bill happen in one go, without an await between, so that no request is half billed;
whatever the caller does afterwards, it has been billed. What travels over the socket is `server`'s.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from streams.sandbox.bill import Bill, Summary
from streams.sandbox.endpoints import ENDPOINTS, BadRequest, Endpoint, Item, Work
from streams.sandbox.faults import BEFORE_WORK, Fault, FaultKind, FaultPlan
from streams.sandbox.jobs import Jobs
from streams.sandbox.limits import Done, KeyStore, TokenBucket
from streams.sandbox.settings import SandboxConfig, Settings


@dataclass(frozen=True)
class Answer:
    """What to send, and the fault that spoils the sending, if any."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: Fault | None = None


@dataclass(frozen=True)
class _Asked:
    """A request that may be served: read, allowed and in time."""

    endpoint: Endpoint
    key: str
    request_id: str
    work: Work
    fault: Fault | None
    now: float

    @property
    def remembered(self) -> bool:
        return self.key != "" and self.endpoint.honours_keys


class _ItemError(msgspec.Struct, frozen=True):
    code: str
    retryable: bool


class _ItemFailed(msgspec.Struct, frozen=True):
    error: _ItemError


def refusal(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer that says why nothing was done."""
    body = msgspec.json.encode({"error": {"code": code, "message": message}})
    return Answer(status, body, headers or {})


def _text(headers: Mapping[str, str], name: str) -> str:
    # Bytes that are no UTF-8 arrive as lone surrogates, which neither the bill's CSV nor JSON can hold.
    return headers.get(name, "").encode("utf-8", "backslashreplace").decode()


class Provider:
    """The service behind the sockets, with its bill, its memory of keys and its faults."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._authorization = f"Bearer {config.api_key}"
        self._loop = asyncio.get_running_loop()
        self.bill = Bill(config.bill)
        self._start()

    def _start(self) -> None:
        self._keys = KeyStore()
        #: What was done under each key, whether or not its endpoint honours keys.
        self._billed: dict[str, tuple[_Asked, Done]] = {}
        self.jobs = Jobs()
        self._requests = self._replayed = self._rejected = self._in_flight = self._in_flight_max = 0
        self.set_faults(self._config.faults)
        self.set_settings(self._config.settings)

    def reset(self) -> None:
        """Back to the state of the start, with an empty bill and no keys remembered."""
        self.bill.reset()
        self._start()

    def set_settings(self, settings: Settings) -> None:
        """Puts latency and rate in force; the burst is full again."""
        self.settings = settings
        self._bucket = TokenBucket(settings.rate, settings.burst, self._loop.time())

    def set_faults(self, faults: tuple[Fault, ...]) -> None:
        """Replaces the faults in force, their counts and dice starting anew."""
        self.faults = faults
        self._plan = FaultPlan(faults, self._config.seed)

    def summary(self) -> Summary:
        """The bill and the traffic added up."""
        traffic = (self._replayed, self._requests, self._rejected, self._in_flight, self._in_flight_max)
        return Summary(*self.bill.counts(), *traffic)

    def look_up(self, key: str, headers: Mapping[str, str]) -> Answer:
        """What became of the work under an idempotency key, on the bill of any endpoint; costs nothing. Forgotten at a restart."""
        if headers.get("Authorization") != self._authorization:
            return refusal(401, "unauthorized", "expected Authorization: Bearer with the API key")
        if key not in self._billed:
            return Answer(404, b'{"status":"absent"}')
        asked, done = self._billed[key]
        if self._loop.time() < done.ready_at:
            return Answer(200, b'{"status":"pending"}')
        return Answer(200, b'{"status":"done","answer":' + self._body(asked, done) + b"}")

    async def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answers one POST to a paid path after the latency; what it did is billed before that."""
        self._requests += 1
        self._in_flight += 1
        self._in_flight_max = max(self._in_flight_max, self._in_flight)
        try:
            answer, ready_at = self._decide(ENDPOINTS[path], headers, body)
            if (seconds := ready_at - self._loop.time()) > 0:
                await asyncio.sleep(seconds)
            return answer
        finally:
            self._in_flight -= 1

    def _decide(self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> tuple[Answer, float]:
        now = self._loop.time()
        if headers.get("Authorization") != self._authorization:
            return refusal(401, "unauthorized", "expected Authorization: Bearer with the API key"), now
        if (seconds := self._bucket.seconds_to_wait(now)) > 0:
            self._rejected += 1
            wait = str(max(1, math.ceil(seconds)))
            return refusal(429, "rate_limited", f"try again in {wait} s", {"Retry-After": wait}), now
        try:
            work = endpoint.read(body)
        except BadRequest as bad:
            return refusal(bad.status, bad.code, str(bad)), now
        fault = self._plan.for_request(endpoint.path, work.items)
        key, request_id = _text(headers, "Idempotency-Key"), _text(headers, "X-Request-Id")
        return self._serve(_Asked(endpoint, key, request_id, work, fault, now))

    def _serve(self, asked: _Asked) -> tuple[Answer, float]:
        now, fault, items = asked.now, asked.fault, asked.work.items
        done = self._keys.find(asked.key) if asked.remembered else None
        if done is not None and done.digest != asked.work.digest:
            return refusal(409, "key_reused", "this idempotency key was used with a different request"), now
        if fault is not None and fault.kind in BEFORE_WORK:
            refused = refusal(fault.http_status, "unavailable", f"nothing was done ({fault.kind})")
            return replace(refused, fault=fault), now
        # Items that failed for now are tried again, but not while the answer that says so is still under way.
        replayed = done is not None and (not done.again or now < done.ready_at)
        if done is None:
            done = Done(asked.work.digest, [b""] * len(items), list(range(len(items))), 200, now)
        if not replayed:
            self._work(asked, done)
        if asked.remembered:
            self._keys.keep(asked.key, done)
        self._replayed += replayed
        return self._deliver(asked, done, replayed), done.ready_at

    def _work(self, asked: _Asked, done: Done) -> None:
        """Works on and bills what is due: all of a new request, the failed items of a repeated one."""
        endpoint, items = asked.endpoint, asked.work.items
        due, done.again, done.status = done.again, [], 200
        billed: list[Item] = []
        for place in due:
            item = items[place]
            failed = self._plan.for_item(endpoint.path, item) if endpoint.batch else None
            if failed is None:
                done.outcomes[place] = item.work()
                billed.append(item)
                continue
            error = _ItemFailed(_ItemError(failed.code, failed.retryable))
            done.outcomes[place] = msgspec.json.encode(error)[1:]
            done.status = failed.http_status
            if failed.retryable:
                done.again.append(place)
        done.ready_at = asked.now + self.settings.latency_ms / 1000
        status = str(done.status) if asked.fault is None else str(asked.fault.kind)
        if asked.key:
            self._billed[asked.key] = asked, done
        self.bill.record(endpoint.path, asked.key, asked.request_id, billed, len(items), status)

    def _deliver(self, asked: _Asked, done: Done, replayed: bool) -> Answer:
        headers = {"Idempotent-Replayed": "true"} if replayed else {}
        fault = asked.fault
        if fault is not None and fault.kind is FaultKind.ERROR_AFTER_WORK:
            spoiled = refusal(fault.http_status, "internal", "the work was done, then something went wrong")
            return replace(spoiled, headers=headers, fault=fault)
        return Answer(done.status, self._body(asked, done), headers, fault)

    def _body(self, asked: _Asked, done: Done) -> bytes:
        """What a request is answered with, also when it is looked up: the name of its job, where it is one, else its results."""
        results = asked.endpoint.answer(asked.work.items, done.outcomes)
        if not asked.endpoint.job:
            return results
        if not done.job:
            done.job = self.jobs.submit(results, asked.now + self.settings.job_ms / 1000)
        return self.jobs.submitted(done.job)

    def job(self, rest: str, headers: Mapping[str, str]) -> Answer:
        """Answers a question about a job, by its name and what stands behind it in the path."""
        if headers.get("Authorization") != self._authorization:
            return refusal(401, "unauthorized", "expected Authorization: Bearer with the API key")
        return Answer(*self.jobs.ask(rest, self._loop.time()))
