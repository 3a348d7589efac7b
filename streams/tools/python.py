"""Calls tools that are async Python functions, found by entry point; and what such a function is given and may say.

Between the dispatcher and a function that is not ours. A call never raises (save for cancelling), never runs a function twice, and
puts no secret into a fault. Only what the function itself declares unbilled, by ``Refused`` or ``NotDone``, counts as unbilled:
whatever else goes wrong may have happened after the provider was paid.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from schemas.canonical import NESTED, InvalidJson, JsonValue, UncanonicalValue, normalize, parse_json
from schemas.events import Fault
from schemas.providers import Providers, PythonBatch, PythonProvider
from streams.engine.retries import RETRY_AFTER_MAX_SECONDS
from streams.errors import ConfigurationError
from streams.tools import port
from streams.tools.entrypoints import Function, Functions, functions_of
from streams.tools.port import Answered, CallReport, Doubtful, MemberOutcome, ProviderCall
from streams.tools.results import NO_RESULT, mismatched, output_of, withheld
from streams.tools.secrets import excerpt, resolve, resolve_all

#: How long a function whose time is over, or whose worker stops, may take to end: what it still says is heard.
END_SECONDS: Final = 1.0
#: Calls that did not end when they were cancelled. With more of them than this nothing is called, for they hold memory for good.
ABANDONED_MAX: Final = 100


# --- what a function sees -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call for one input."""

    #: The column's input, as decoded JSON.
    input: JsonValue
    #: The same for every try of one operation; a tool with ``repeat = "with-key"`` must hand it to the provider.
    idempotency_key: str
    request_id: str
    #: Seconds from now after which the function is cancelled.
    deadline_seconds: float
    #: The provider's secrets, by the names of the providers file.
    secrets: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class BatchCall:
    """One call for many inputs."""

    #: The columns' inputs, as decoded JSON.
    inputs: tuple[JsonValue, ...]
    #: A key for each input, in the same order.
    keys: tuple[str, ...]
    #: As in ``ToolCall``, for the batch as a whole.
    idempotency_key: str
    request_id: str
    deadline_seconds: float
    secrets: Mapping[str, str] = field(repr=False)


class Refused(Exception):
    """The provider said no and billed nothing. A ``repairable`` no is asked for again by the next run. Raise or return it."""

    def __init__(self, code: str, message: str, repairable: bool = False) -> None:
        super().__init__(code, message, repairable)
        self.code = str(code)
        self.message = str(message)
        self.repairable = bool(repairable)


class NotDone(Exception):
    """Nothing was done or billed, and trying again later makes sense. Raise or return it.

    ``retry_after_seconds`` is the provider's own wish; said of a whole call, it pauses all calls of the provider (P3). The code
    ``http_429`` says that the provider is merely busy, which is tried more often than other failures.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None, *, code: str = "not_done") -> None:
        super().__init__(message, retry_after_seconds, code)
        self.message = str(message)
        self.retry_after_seconds = retry_after_seconds
        self.code = str(code)


#: What a function returns for one input; ``None`` is no result.
ToolResult: TypeAlias = "JsonValue | Refused | NotDone"
#: What a batch function returns: results in the order of the inputs, or by their keys, as the providers file says.
BatchResult: TypeAlias = Sequence[ToolResult] | Mapping[str, ToolResult]


# --- what calls it ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    functions: Functions
    batch: PythonBatch | None
    seconds: float
    secrets: Mapping[str, str]
    #: All secrets of the providers file: no function's result may carry one, nor any word about it.
    known: tuple[str, ...]


class _Exited(Exception):
    """A function asked the interpreter to end; that would end the worker, which is not its to end."""


class PythonCaller:
    """The ``Caller`` for the Python providers of a providers file, whose names are ``providers``.

    ``environment`` is where ``env:`` secrets are looked up; no call takes longer than its tool's time or ``call_seconds``. Raises
    ``ConfigurationError`` naming every tool whose function is missing or cannot be called, before any is called.
    """

    def __init__(
        self,
        providers: Providers,
        *,
        environment: Mapping[str, str],
        call_seconds: float = 900.0,
        end_seconds: float = END_SECONDS,
        abandoned_max: int = ABANDONED_MAX,
    ) -> None:
        functions, faults = functions_of(providers)
        if faults:
            raise ConfigurationError("; ".join(faults))
        known = tuple(resolve_all(providers, environment).values())
        self.providers: list[str] = []
        self._tools: dict[str, _Tool] = {}
        for provider_name, provider in providers.providers.items():
            if not isinstance(provider, PythonProvider):
                continue
            self.providers.append(provider_name)
            secrets = MappingProxyType({name: resolve(reference, environment) for name, reference in provider.secrets.items()})
            for tool_name, form in provider.tools.items():
                name = f"{provider_name}.{tool_name}"
                self._tools[name] = _Tool(
                    name, functions[name], form.batch, min(form.timeout_seconds, call_seconds), secrets, known
                )
        self._closed = False
        self._end_seconds = end_seconds
        self._abandoned_max = abandoned_max
        self._running: set[asyncio.Task[tuple[MemberOutcome, ...]]] = set()
        self._abandoned: set[asyncio.Task[tuple[MemberOutcome, ...]]] = set()

    async def call(self, call: ProviderCall) -> CallReport:
        """Make one call and tell how it ended; see ``Caller``."""
        tool = self._tools.get(call.tool)
        if tool is None:
            fault = Fault("unknown_tool", f"{call.tool}: the providers file has no such tool", repairable=True)
            return CallReport((port.Refused(fault),) * len(call.members))
        unable = self._unable(tool, call)
        if unable is not None:
            return CallReport(_told(tool, (unable,) * len(call.members)))
        try:
            inputs = tuple(parse_json(member.input) for member in call.members)
        except InvalidJson as error:
            fault = Fault("bad_input", f"nothing was called: {error}", repairable=True)
            return CallReport(_told(tool, (port.Refused(fault),) * len(call.members)))
        started = time.monotonic()
        outcomes = await self._outcomes(tool, call, inputs)
        pause = None
        if len(outcomes) < len(call.members) or not call.batched:  # said of the call, not of a member
            first = outcomes[0]
            pause = first.retry_after_seconds if isinstance(first, port.NotDone) else None
        if len(outcomes) < len(call.members):
            outcomes *= len(call.members)
        return CallReport(_told(tool, outcomes), pause, time.monotonic() - started)

    async def close(self) -> None:
        """Cancel what runs; calls in flight end as doubtful, later ones are not done."""
        self._closed = True
        running = self._running | self._abandoned
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=self._end_seconds)

    def _unable(self, tool: _Tool, call: ProviderCall) -> MemberOutcome | None:
        """Why a call is not made."""
        if self._closed:
            return port.NotDone(Fault("closed", "the worker is stopping", repairable=True))
        if len(self._abandoned) >= self._abandoned_max:
            text = f"{self._abandoned_max} earlier calls of Python tools still run although they were cancelled; restart the worker"
            return port.NotDone(Fault("stuck", text, repairable=True))
        if tool.functions.many is None if call.batched else len(call.members) != 1:
            text = f"{len(call.members)} inputs in one call, and this tool has no batch function"
            return port.Refused(Fault("bad_call", text, repairable=True))
        return None

    async def _outcomes(self, tool: _Tool, call: ProviderCall, inputs: tuple[JsonValue, ...]) -> tuple[MemberOutcome, ...]:
        """How a call ended: an outcome for each member, or one for all of them."""
        task = asyncio.create_task(_awaited(tool, call, inputs), name=f"tool/{call.request_id}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait({task}, timeout=tool.seconds)
            late = not task.done()
            if late:
                # Not by asyncio.timeout, which waits for ever for a function that will not be cancelled.
                task.cancel()
                await asyncio.wait({task}, timeout=self._end_seconds)
        finally:
            if not task.done():
                task.cancel()
                self._abandoned.add(task)
        if not task.done():
            return _doubtful("deadline", f"no result within {tool.seconds:g} s, and it goes on although it was cancelled")
        if task.cancelled():
            text = f"no result within {tool.seconds:g} s" if late else "it was cancelled before it had a result"
            return _doubtful("deadline" if late else "cancelled", text)
        error = task.exception()
        return task.result() if error is None else (_raised(error),)

    def _ended(self, task: asyncio.Task[tuple[MemberOutcome, ...]]) -> None:
        self._running.discard(task)
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not log it, with what may stand in it


async def _awaited(tool: _Tool, call: ProviderCall, inputs: tuple[JsonValue, ...]) -> tuple[MemberOutcome, ...]:
    """Run the function and read its result, in a task of its own: whatever fails in either is that task's exception."""
    terms = (call.idempotency_key, call.request_id, tool.seconds, tool.secrets)
    if not call.batched or tool.functions.many is None or tool.batch is None:
        return (_outcome(await _result(tool.functions.single, ToolCall(inputs[0], *terms))),)
    keys = tuple(member.receipt for member in call.members)
    result = await _result(tool.functions.many, BatchCall(inputs, keys, *terms))
    return _split(tool.batch, keys, result)


async def _result(function: Function, argument: ToolCall | BatchCall) -> object:
    try:
        return await function(argument)
    except (Refused, NotDone) as said:  # read in this task, as if it were returned: it may be of a class that fails at that
        return said
    except SystemExit as error:
        raise _Exited(f"it called sys.exit({error.code!r})") from error
    except KeyboardInterrupt as error:  # the function's own: a worker hears of the signal by its handler
        raise _Exited("it raised KeyboardInterrupt") from error


def _split(form: PythonBatch, keys: tuple[str, ...], result: object) -> tuple[MemberOutcome, ...]:
    """The outcome of each member, in order, by the same rules as for an answer over HTTP (`results.split`): B4, B6."""
    match result:
        case Refused() | NotDone():
            return (_outcome(result),)
        case None:
            return (NO_RESULT,) * len(keys)
        case Mapping() if form.match == "key":
            # A key that is no input's is dropped; an input without a key has no result.
            return tuple(_outcome(result[key]) if key in result else NO_RESULT for key in keys)
        case list() | tuple() if form.match == "position":
            if len(result) != len(keys):
                return mismatched(len(result), len(keys))
            return tuple(_outcome(item) for item in result)
        case _:
            expected = "a mapping by key" if form.match == "key" else "a list in the order of the inputs"
            return _doubtful("bad_result", f"a batch function returned {type(result).__name__}, expected {expected}")


def _outcome(result: object) -> MemberOutcome:
    """The outcome that a result stands for. What is no JSON was paid for all the same, so it is doubtful and not refused."""
    if isinstance(result, BaseException):  # also those that asyncio.gather(return_exceptions=True) collects
        return _said(result)
    try:
        return output_of(normalize(result))
    except UncanonicalValue as error:
        # The reason first: a path may be longer than what people are shown. A function that nests too deeply would do so again.
        message = f"the result is no JSON: {error.reason} (at {error.path})"
        return Doubtful(Fault("bad_result", message), used_up=True if error.reason in NESTED else None)


def _said(error: BaseException) -> MemberOutcome:
    """What an exception says of the bill: nothing, unless it is one of ours.

    A subclass of ours that sets no fields of its own, or others than text, is a no all the same. Whatever else fails while they
    are read is the task's exception.
    """
    match error:
        case Refused():
            code, message = getattr(error, "code", "refused"), getattr(error, "message", type(error).__name__)
            return port.Refused(Fault(str(code), str(message), bool(getattr(error, "repairable", False))))
        case NotDone():
            code, message = getattr(error, "code", "not_done"), getattr(error, "message", type(error).__name__)
            wait = getattr(error, "retry_after_seconds", None)
            seconds = None
            if (
                isinstance(wait, int | float) and wait >= 0
            ):  # NaN is not; and an int may be larger than any float, so it is cut first
                seconds = float(min(wait, RETRY_AFTER_MAX_SECONDS))
            return port.NotDone(Fault(str(code), str(message), repairable=True), seconds)
        case _:
            return _raised(error)


def _raised(error: BaseException) -> Doubtful:
    # By the library, which survives an exception that cannot say what it is.
    return Doubtful(Fault("raised", "".join(traceback.format_exception_only(error)).strip()))


def _doubtful(code: str, message: str) -> tuple[MemberOutcome, ...]:
    return (Doubtful(Fault(code, message)),)


def _told(tool: _Tool, outcomes: tuple[MemberOutcome, ...]) -> tuple[MemberOutcome, ...]:
    """The outcomes as they may be kept: no output with a secret in it (R10), and faults cut, without secrets, for people."""
    secrets = tool.known

    def told(outcome: MemberOutcome) -> MemberOutcome:
        if isinstance(outcome, Answered):
            unkept = withheld(outcome.output, secrets)
            if unkept is None:
                return outcome
            outcome = unkept
        fault = outcome.fault
        told = Fault(excerpt(fault.code, secrets), f"{tool.name}: {excerpt(fault.message, secrets)}", fault.repairable)
        return msgspec.structs.replace(outcome, fault=told)

    return tuple([told(outcome) for outcome in outcomes])
