"""Python tools that do what their input says, found by entry point as a user's are, and a caller for them."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from schemas.providers import Providers
from streams.tools.port import Answered, CallMember, CallReport, ProviderCall
from streams.tools.python import BatchCall, NotDone, PythonCaller, Refused, ToolCall, ToolResult

HERE = __name__
SECRET = "sk-very-secret"

#: What the functions below were called with, in order; and what lets those go that will not be cancelled.
calls: list[ToolCall | BatchCall] = []
released = asyncio.Event()


def fresh() -> None:
    """Forget all calls, and hold anew what will not be cancelled."""
    global released
    calls.clear()
    released = asyncio.Event()


def release() -> None:
    """Let those go that will not be cancelled."""
    released.set()


async def lookup(call: ToolCall) -> ToolResult:
    calls.append(call)
    return await _done(call.input, call)


async def lookups(call: BatchCall) -> Any:
    calls.append(call)
    first: Any = call.inputs[0]
    shape = first.get("shape", "list")
    if shape == "whole":
        return await _done(first, call)
    results: Any = await asyncio.gather(*[_done(given, call) for given in call.inputs], return_exceptions=True)
    match shape:
        case "short":
            return results[:-1]
        case "long":
            return [*results, 1]
        case "mapping":
            return dict(reversed(list(zip(call.keys, results, strict=True))))
        case "unmatched":
            return dict(zip((*call.keys[:-1], "nobody's"), results, strict=True))
        case _:
            return results


async def _done(given: Any, call: ToolCall | BatchCall) -> Any:
    match given["do"]:
        case "answer":
            return given["value"]
        case "refuse":
            raise Refused("no_such_domain", f"no domain for {call.secrets['api_key']}", given.get("repairable", False))
        case "return_refused":
            return Refused("no_such_domain", "no domain")
        case "not_done":
            raise NotDone("come back", given.get("seconds"))
        case "raise":
            raise ConnectionResetError(f"with {call.secrets['api_key']} on the way")
        case "say":
            raise RuntimeError(given["words"])
        case "interrupt":
            raise KeyboardInterrupt
        case "exit":
            sys.exit(3)
        case "cancel":
            raise asyncio.CancelledError
        case "objects":
            return {"a": {1, 2}}
        case "leak":
            return {"said": f"key {call.secrets['api_key']} was used"}
        case "hang":
            await asyncio.Event().wait()
        case "stay":
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue
            raise ValueError("told to nobody")
        case "answer_late" | "not_done_late" | "raise_late":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if given["do"] == "answer_late":
                    return "paid"
                raise (NotDone("had not begun") if given["do"] == "not_done_late" else ValueError("cut off")) from None
    raise AssertionError(given)


def blocking(call: ToolCall) -> ToolResult:
    return None


async def stream(call: ToolCall) -> AsyncIterator[int]:
    yield 1


async def two(call: ToolCall, more: int) -> ToolResult:
    return None


async def none() -> ToolResult:
    return None


class Lookup:
    async def __call__(self, call: ToolCall) -> ToolResult:
        return "object"


instance = Lookup()
partial = functools.partial(two, more=1)
number = 7


def providers_of(*, provider: dict[str, Any] | None = None, batch: dict[str, Any] | None = None, **tool: Any) -> Providers:
    one = {"entry_point": f"{HERE}:lookup"} | tool
    if batch is not None:
        one["batch"] = {"entry_point": f"{HERE}:lookups", "size_max": 10} | batch
    described = {"kind": "python", "account": "test", "secrets": {"api_key": "env:KEY"}, "tools": {"lookup": one}} | (
        provider or {}
    )
    return Providers.model_validate({"providers": {"acme": described}})


@asynccontextmanager
async def opened(*, end_seconds: float = 1.0, abandoned_max: int = 9, **described: Any) -> AsyncIterator[PythonCaller]:
    caller = PythonCaller(
        providers_of(**described), environment={"KEY": SECRET}, end_seconds=end_seconds, abandoned_max=abandoned_max
    )
    try:
        yield caller
    finally:
        released.set()
        await caller.close()


def call_of(*inputs: Any, batched: bool | None = None) -> ProviderCall:
    members = tuple(CallMember(f"receipt-{place}", json.dumps(given).encode()) for place, given in enumerate(inputs))
    return ProviderCall("acme.lookup", members, len(inputs) > 1 if batched is None else batched, "key-1", "request-1")


def do(what: str, **more: Any) -> dict[str, Any]:
    return {"do": what, **more}


def value(of: object, **more: Any) -> dict[str, Any]:
    return do("answer", value=of, **more)


def fault_of(report: CallReport, member: int = 0) -> Any:
    outcome = report.outcomes[member]
    assert not isinstance(outcome, Answered)
    return outcome.fault
