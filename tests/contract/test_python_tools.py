"""The Python caller, held to the contract of the HTTP caller: what is billed or may be is never called unbilled.

The tools are below, found by entry point as a user's are. What each does is its input's to say.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Ambiguous, Failed, Repeat, Retry
from schemas.providers import Providers
from streams.app import build_caller, run_worker
from streams.calls import outcome_of
from streams.errors import ConfigurationError
from streams.settings import Settings
from streams.tools import port
from streams.tools.port import Answered, CallMember, CallReport, Doubtful, ProviderCall
from streams.tools.python import BatchCall, NotDone, PythonCaller, Refused, ToolCall, ToolResult
from streams.tools.routing import RoutedCaller
from streams.userfiles import load_providers, secret_faults
from tests.support import wait

HERE = __name__
SECRET = "sk-very-secret"

# --- the tools ---

#: What the functions below were called with, in order; and what lets those go that will not be cancelled.
calls: list[ToolCall | BatchCall] = []
released = asyncio.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global released
    calls.clear()
    released = asyncio.Event()


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


# --- the caller ---


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


# --- calls for one ---


async def test_P1_a_function_gets_input_key_request_deadline_and_secrets_and_its_answer_is_the_output() -> None:
    async with opened(timeout_seconds=7.5) as caller:
        report = await caller.call(call_of(value({"a": [1, None, "é"]})))
    assert report.outcomes == (Answered('{"a":[1,null,"é"]}'.encode()),)
    assert report.lane_pause_seconds is None
    [call] = calls
    assert isinstance(call, ToolCall)
    assert call.input == value({"a": [1, None, "é"]})
    assert (call.idempotency_key, call.request_id, call.deadline_seconds) == ("key-1", "request-1", 7.5)
    assert dict(call.secrets) == {"api_key": SECRET}
    assert SECRET not in repr(call)


async def test_B10_none_is_no_result() -> None:
    async with opened(batch={}) as caller:
        assert (await caller.call(call_of(value(None)))).outcomes == (Answered(b"null"),)
        whole = await caller.call(call_of(value(None, shape="whole"), value(1)))
    assert whole.outcomes == (Answered(b"null"),) * 2


async def test_case_D3_integers_keep_their_digits() -> None:
    async with opened() as caller:
        report = await caller.call(call_of(value(98765432109876543210)))
    assert report.outcomes == (Answered(b"98765432109876543210"),)


async def test_R5_refused_is_a_no_that_billed_nothing_and_says_whether_a_person_can_mend_it() -> None:
    async with opened() as caller:
        final = await caller.call(call_of(do("refuse")))
        mendable = await caller.call(call_of(do("refuse", repairable=True)))
        returned = await caller.call(call_of(do("return_refused")))
    assert all(isinstance(report.outcomes[0], port.Refused) for report in (final, mendable, returned))
    assert [fault_of(report).repairable for report in (final, mendable, returned)] == [False, True, False]
    assert fault_of(final).code == "no_such_domain"
    assert fault_of(final).message == "acme.lookup: no domain for [secret]"


@pytest.mark.parametrize(
    ("asked", "wait"), [(2.0, 2.0), (0, 0.0), (None, None), (-1, None), (1e9, 3600.0), (1e300, 3600.0), ("soon", None)]
)
async def test_U4_P3_not_done_is_tried_again_and_pauses_the_lane(asked: Any, wait: float | None) -> None:
    async with opened() as caller:
        report = await caller.call(call_of(do("not_done", seconds=asked)))
    [outcome] = report.outcomes
    assert isinstance(outcome, port.NotDone)
    assert outcome.retry_after_seconds == report.lane_pause_seconds == wait
    assert (outcome.fault.code, outcome.fault.repairable) == ("not_done", True)
    # Whatever the tool allows: nothing was billed.
    assert isinstance(outcome_of(outcome, Repeat.NEVER, 1, 3, 0.0, 0.5), Retry)


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("raise", "raised", "ConnectionResetError: with [secret] on the way"),
        ("exit", "raised", "sys.exit(3)"),
        ("cancel", "cancelled", "before it had a result"),
        ("objects", "bad_result", ""),  # its set, or that a batch's result is no list
        ("hang", "deadline", "no result within 0.05 s"),
        ("raise_late", "raised", "ValueError: cut off"),
        ("unheard of", "raised", "AssertionError"),
    ],
)
async def test_U1_whatever_else_goes_wrong_may_have_been_billed(what: str, code: str, words: str) -> None:
    seconds = 0.05 if what in ("hang", "raise_late") else 30.0
    async with opened(timeout_seconds=seconds, batch={}) as caller:
        report = await caller.call(call_of(do(what)))
        whole = await caller.call(call_of(do(what, shape="whole"), value(1)))
    assert len(whole.outcomes) == 2
    for outcome in (*report.outcomes, *whole.outcomes[:1]):
        assert isinstance(outcome, Doubtful)
        assert outcome.fault.code == code
        assert outcome.fault.message.startswith("acme.lookup: ")
        assert words in outcome.fault.message
        assert SECRET not in outcome.fault.message
        assert isinstance(outcome_of(outcome, Repeat.NEVER, 1, 3, 0.0, 0.5), Ambiguous)
        again = outcome_of(outcome, Repeat.WITH_KEY, 1, 3, 0.0, 0.5)
        assert isinstance(again, Ambiguous)
        assert again.not_before_ms > 0
    assert len(calls) == 2


async def test_R10_a_result_that_is_no_json_or_carries_a_secret_is_told_and_not_kept() -> None:
    async with opened() as caller:
        objects = fault_of(await caller.call(call_of(do("objects"))))
        leak = fault_of(await caller.call(call_of(do("leak"))))
        spared = await caller.call(call_of(value("sk-very")))
    assert objects.message == "acme.lookup: the result is no JSON: $.a: a set has no order, so no one text; send a sorted list"
    assert (leak.code, leak.message) == ("secret_in_output", "acme.lookup: the result carries a secret")
    assert spared.outcomes == (Answered(b'"sk-very"'),)


# --- time ---


async def test_P5_what_a_function_still_says_when_its_time_is_over_is_heard() -> None:
    async with opened(timeout_seconds=0.02) as caller:
        paid = await caller.call(call_of(do("answer_late")))
        spared = await caller.call(call_of(do("not_done_late")))
    assert paid.outcomes == (Answered(b'"paid"'),)
    assert isinstance(spared.outcomes[0], port.NotDone)


async def test_P5_no_call_outlives_the_time_of_all_calls() -> None:
    caller = PythonCaller(providers_of(timeout_seconds=600), environment={"KEY": SECRET}, call_seconds=0.02)
    report = await caller.call(call_of(do("hang")))
    assert fault_of(report).message == "acme.lookup: no result within 0.02 s"
    assert calls[0].deadline_seconds == 0.02


async def test_P5_a_function_that_will_not_be_cancelled_holds_up_nobody_but_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(timeout_seconds=0.02, end_seconds=0.02, abandoned_max=2) as caller:
        for _ in range(2):
            report = await caller.call(call_of(do("stay")))
            assert isinstance(report.outcomes[0], Doubtful)
            assert "goes on although it was cancelled" in fault_of(report).message
        stuck = await caller.call(call_of(value(1)))
        assert isinstance(stuck.outcomes[0], port.NotDone)
        assert fault_of(stuck).code == "stuck"
        assert len(calls) == 2
        released.set()
        await wait.until("both have ended", lambda: _gone("tool/request-1"))
        assert (await caller.call(call_of(value(1)))).outcomes == (Answered(b"1"),)
    assert caplog.records == []


async def _gone(name: str) -> bool:
    return all(task.get_name() != name for task in asyncio.all_tasks())


async def test_cancelling_a_call_cancels_its_function() -> None:
    async with opened() as caller:
        call = asyncio.ensure_future(caller.call(call_of(do("hang"))))
        await wait.until("the function runs", lambda: _true(lambda: calls))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await wait.until("it has ended", lambda: _gone("tool/request-1"))


async def test_closing_ends_calls_in_flight_as_doubtful_and_makes_no_more() -> None:
    async with opened() as caller:
        call = asyncio.ensure_future(caller.call(call_of(do("hang"))))
        await wait.until("the function runs", lambda: _true(lambda: calls))
        await caller.close()
        assert isinstance((await call).outcomes[0], Doubtful)
        closed = await caller.call(call_of(value(1)))
    assert isinstance(closed.outcomes[0], port.NotDone)
    assert fault_of(closed).code == "closed"
    assert len(calls) == 1


async def _true(holds: Callable[[], object]) -> object:
    return holds()


# --- batches ---


@pytest.mark.parametrize("form", [{}, {"match": "key"}])
async def test_B4_a_batch_is_one_call_and_each_member_has_its_own_output(form: dict[str, Any]) -> None:
    shape = "mapping" if form else "list"
    async with opened(batch=form) as caller:
        report = await caller.call(call_of(*[value(place, shape=shape) for place in range(4)]))
        alone = await caller.call(call_of(value(2)))
    assert report.outcomes == tuple(Answered(str(place).encode()) for place in range(4))
    # P9: batched or not alike.
    assert alone.outcomes[0] == report.outcomes[2]
    batch, single = calls
    assert isinstance(batch, BatchCall)
    assert isinstance(single, ToolCall)  # B5
    assert batch.inputs == tuple(value(place, shape=shape) for place in range(4))
    assert batch.keys == tuple(f"receipt-{place}" for place in range(4))
    assert (batch.idempotency_key, batch.request_id, batch.deadline_seconds) == ("key-1", "request-1", 60.0)  # B8
    assert SECRET not in repr(batch)


@pytest.mark.parametrize("shape", ["short", "long"])
async def test_B6_too_few_or_too_many_results_by_position_are_nobodys(shape: str) -> None:
    async with opened(batch={}) as caller:
        report = await caller.call(call_of(*[value(place, shape=shape) for place in range(3)]))
    assert [type(outcome) for outcome in report.outcomes] == [Doubtful] * 3
    assert {fault_of(report, place).code for place in range(3)} == {"results_mismatch"}


async def test_B6_by_key_the_unmatched_have_no_result_and_nobody_gets_his_neighbours() -> None:
    async with opened(batch={"match": "key"}) as caller:
        report = await caller.call(call_of(*[value(place, shape="unmatched") for place in range(3)]))
    assert report.outcomes == (Answered(b"0"), Answered(b"1"), Answered(b"null"))


@pytest.mark.parametrize(("match", "shape"), [("position", "mapping"), ("key", "list")])
async def test_B6_results_of_the_other_form_are_doubtful_for_all(match: str, shape: str) -> None:
    async with opened(batch={"match": match}) as caller:
        report = await caller.call(call_of(value(1, shape=shape), value(2)))
    assert [fault_of(report, place).code for place in range(2)] == ["bad_result", "bad_result"]
    assert all(isinstance(outcome, Doubtful) for outcome in report.outcomes)


async def test_case_F5_what_becomes_of_one_member_stays_with_it() -> None:
    async with opened(batch={}) as caller:
        inputs = [value(0), do("refuse"), do("not_done", seconds=5), do("raise"), do("objects"), do("leak"), value(None), value(7)]
        report = await caller.call(call_of(*inputs))
    kinds = [Answered, port.Refused, port.NotDone, Doubtful, Doubtful, Doubtful, Answered, Answered]
    assert [type(outcome) for outcome in report.outcomes] == kinds
    assert report.outcomes[-1] == Answered(b"7")
    # One member's wish is no word on the provider as a whole.
    assert report.lane_pause_seconds is None
    assert SECRET not in repr(report)


@pytest.mark.parametrize(("what", "kind"), [("refuse", port.Refused), ("return_refused", port.Refused), ("not_done", port.NotDone)])
async def test_B7_what_is_said_of_a_batch_holds_for_all_its_members(what: str, kind: type) -> None:
    async with opened(batch={}) as caller:
        report = await caller.call(call_of(do(what, shape="whole", seconds=4), value(1), value(2)))
    assert [type(outcome) for outcome in report.outcomes] == [kind] * 3
    assert report.lane_pause_seconds == (4.0 if what == "not_done" else None)


async def test_what_cannot_be_called_is_told_without_a_call() -> None:
    async with opened() as caller:
        unknown = await caller.call(ProviderCall("acme.absent", (CallMember("r", b"{}"),), False, "k", "i"))
        several = await caller.call(call_of(value(1), value(2)))
        crowd = await caller.call(call_of(value(1), value(2), batched=False))
    assert [fault_of(report).code for report in (unknown, several, crowd)] == ["unknown_tool", "bad_call", "bad_call"]
    assert len(several.outcomes) == len(crowd.outcomes) == 2
    async with opened() as caller:
        garbled = await caller.call(ProviderCall("acme.lookup", (CallMember("r", b"{"),), False, "k", "i"))
    assert fault_of(garbled).code == "bad_input"
    assert all(
        isinstance(outcome_of(report.outcomes[0], Repeat.NEVER, 1, 3, 0, 0), Failed)
        for report in (unknown, several, crowd, garbled)
    )
    assert calls == []


# --- before anything runs ---


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (f"{HERE}:absent", "cannot be loaded: AttributeError"),
        ("no.such.module:f", "cannot be loaded: ModuleNotFoundError"),
        (f"{HERE}:number", "is no function, but int"),
        (f"{HERE}:blocking", "is not an async function; declare it with `async def`"),
        (f"{HERE}:Lookup", "is not an async function"),
        (f"{HERE}:stream", "is an async generator"),
        (f"{HERE}:two", "is called with one argument, a ToolCall: missing a required argument: 'more'"),
        (f"{HERE}:none", "is called with one argument, a ToolCall: too many positional arguments"),
        (f"{HERE}:lookups", "takes a BatchCall, but is called with a ToolCall here"),
        ("acme-lookup", "no installed package has an entry point 'acme-lookup' in paidonce.tools; known are: "),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_at_the_start(reference: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PythonCaller(providers_of(entry_point=reference), environment={"KEY": SECRET})
    assert str(caught.value).startswith(f"providers.acme.tools.lookup.entry_point: {reference!r} ") or "no installed" in words
    assert "providers.acme.tools.lookup.entry_point" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.exit_code == 78


def test_every_tool_that_cannot_be_called_is_named_at_once() -> None:
    tools = {"a": {"entry_point": f"{HERE}:absent"}, "b": {"entry_point": f"{HERE}:lookup"}}
    tools["b"]["batch"] = {"entry_point": f"{HERE}:lookup", "size_max": 2}  # type: ignore[assignment]
    with pytest.raises(ConfigurationError) as caught:
        PythonCaller(providers_of(provider={"tools": tools}), environment={"KEY": SECRET})
    assert "providers.acme.tools.a.entry_point" in str(caught.value)
    assert "providers.acme.tools.b.batch.entry_point" in str(caught.value)
    assert "takes a ToolCall, but is called with a BatchCall here" in str(caught.value)


@pytest.mark.parametrize("name", ["instance", "partial"])
async def test_what_can_be_awaited_with_one_argument_is_a_tool(name: str) -> None:
    async with opened(entry_point=f"{HERE}:{name}") as caller:
        report = await caller.call(call_of(value(1)))
    assert report.outcomes == (Answered(b'"object"' if name == "instance" else b"null"),)


def installed(folder: Path, package: str, *lines: str) -> None:
    """What an installed package leaves behind for importlib.metadata."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[paidonce.tools]", *lines]))


async def test_a_tool_is_found_by_the_entry_point_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "acme-tools", f"acme-lookup = {HERE}:lookup", f"twice = {HERE}:lookup")
    installed(tmp_path, "other-tools", f"twice = {HERE}:lookups")
    monkeypatch.syspath_prepend(tmp_path)
    async with opened(entry_point="acme-lookup") as caller:
        assert (await caller.call(call_of(value(1)))).outcomes == (Answered(b"1"),)
    with pytest.raises(ConfigurationError, match=f"stands for {HERE}:lookup and for {HERE}:lookups"):
        PythonCaller(providers_of(entry_point="twice"), environment={"KEY": SECRET})
    with pytest.raises(ConfigurationError, match="known are: acme-lookup, twice"):
        PythonCaller(providers_of(entry_point="absent"), environment={"KEY": SECRET})


@pytest.mark.parametrize("body", ["import sys\nsys.exit('no')", "1/0", "not Python"])
def test_a_module_that_cannot_be_imported_ends_the_start_with_its_name(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tool.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"lookup\.entry_point: 'broken_tool:f' cannot be loaded: \w+: "):
        PythonCaller(providers_of(entry_point="broken_tool:f"), environment={"KEY": SECRET})


def test_a_missing_secret_is_named_with_its_place_and_the_worker_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "providers.toml"
    file.write_text(
        '[providers.acme]\nkind = "python"\nsecrets = { api_key = "env:KEY" }\n'
        f'[providers.acme.tools.lookup]\nentry_point = "{HERE}:lookup"\n'
    )
    assert secret_faults(load_providers(file), file, {}, ["acme"]) == [
        f"{file}: providers.acme.secrets.api_key: secret env:KEY: the environment has no KEY; set it for the worker"
    ]
    with pytest.raises(ConfigurationError, match="secret env:KEY"):
        run_worker(Settings(broker="127.0.0.1:1", data=tmp_path, providers=file), {})
    file.write_text(file.read_text().replace(":lookup", ":absent"))
    with pytest.raises(ConfigurationError, match=r"providers\.acme\.tools\.lookup\.entry_point"):
        run_worker(Settings(broker="127.0.0.1:1", data=tmp_path, providers=file), {"KEY": SECRET})


# --- beside HTTP ---


class Recorder:
    """A ``Caller`` that notes what comes to it."""

    def __init__(self) -> None:
        self.tools: list[str] = []
        self.closed = 0

    async def call(self, call: ProviderCall) -> CallReport:
        self.tools.append(call.tool)
        return CallReport((Answered(b"1"),))

    async def close(self) -> None:
        self.closed += 1


async def test_a_call_goes_to_the_caller_of_its_provider() -> None:
    python, other = Recorder(), Recorder()
    caller = RoutedCaller({"acme": python, "also": python}, default=other)
    for tool in ("acme.a", "also.b", "acmes.c", "fetch"):
        assert await caller.call(ProviderCall(tool, (CallMember("r", b"{}"),), False, "k", "i")) == CallReport((Answered(b"1"),))
    await caller.close()
    assert (python.tools, python.closed) == (["acme.a", "also.b"], 1)
    assert (other.tools, other.closed) == (["acmes.c", "fetch"], 1)


async def test_one_providers_file_may_hold_both_kinds(tmp_path: Path) -> None:
    both = providers_of().providers | {"web": {"base_url": "http://127.0.0.1:9", "tools": {"t": {"path": "/t"}}}}
    providers = Providers.model_validate({"providers": both})
    assert providers.tool_names() == ["acme.lookup", "web.t"]
    caller = build_caller(Settings(data=tmp_path), providers, {"KEY": SECRET})
    assert (await caller.call(call_of(value(1)))).outcomes == (Answered(b"1"),)
    unreached = await caller.call(ProviderCall("web.t", (CallMember("r", b"{}"),), False, "k", "i"))
    assert fault_of(unreached).code == "unreachable"
    await caller.close()
