"""Calls go to the caller of their kind."""

from __future__ import annotations

from pathlib import Path

from schemas.providers import Providers
from streams.app import build_caller
from streams.settings import Settings
from streams.tools.port import Answered, CallMember, CallReport, ProviderCall
from streams.tools.routing import RoutedCaller
from tests.support.scripted_python import SECRET, call_of, fault_of, providers_of, value


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


class Named:
    """A caller that says who it is."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.closed = False

    async def call(self, call: ProviderCall) -> CallReport:
        return CallReport((Answered(self.name),) * len(call.members))

    async def close(self) -> None:
        self.closed = True


async def test_calls_go_to_the_caller_of_their_kind() -> None:
    special, usual = Named(b'"special"'), Named(b'"usual"')
    router = RoutedCaller({"fetch": special}, default=usual)
    names = ["fetch.get", "fetcher.get", "acme.fetch", "fetch"]
    found = [(await router.call(ProviderCall(name, (CallMember("r", b"{}"),), False, "k", "i"))).outcomes[0] for name in names]
    assert found == [Answered(special.name), Answered(usual.name), Answered(usual.name), Answered(special.name)]
    await router.close()
    assert special.closed
    assert usual.closed
