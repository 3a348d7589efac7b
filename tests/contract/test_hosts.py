"""Hosts that no server can have: told with the file, and where one is dialled all the same, nothing was sent (U4)."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from pydantic import HttpUrl, ValidationError

from schemas.definitions import name_fault
from schemas.providers import Provider, Providers
from streams.cli.doctor import _dial_all
from streams.errors import Unreachable
from streams.tools.connections import Connections, NothingSent
from streams.tools.dialing import Dialing
from streams.tools.http import HttpCaller
from streams.tools.port import NotDone
from streams.tools.resolving import OwnThreads
from tests.support.raw_server import call_of
from tests.support.resolving import Scripted

EMPTY_LABEL = "https://api..example.com/v1"
IMPOSSIBLE = [
    (EMPTY_LABEL, "a part of its host's name is empty"),
    ("https://.example.com", "a part of its host's name is empty"),
    (f"https://{'a' * 70}.example.com", "has 70 characters; it may have at most 63"),
    (f"https://{'a.' * 130}example.com", "a name has at most 253"),
]


def described(base_url: str) -> dict[str, Any]:
    return {"base_url": base_url, "tools": {"check": {"path": "/check"}}}


def unchecked(base_url: str) -> Providers:
    """As the file was read before its hosts were looked at."""
    provider = Provider.model_validate(described("https://a.example")).model_copy(update={"base_url": HttpUrl(base_url)})
    return Providers(providers={"raw": provider})


@pytest.mark.parametrize(("base_url", "says"), IMPOSSIBLE)
def test_U4_a_providers_file_with_an_impossible_host_is_refused(base_url: str, says: str) -> None:
    """It was taken, and every row of every run became *unknown*, though nothing was ever sent."""
    with pytest.raises(ValidationError, match="base_url") as caught:
        Providers.model_validate({"providers": {"raw": described(base_url)}})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "[::1]", "a.example.", "bücher.example", "a_b.internal", "xn--bcher-kva.example"]
)
def test_U4_hosts_that_can_be_are_taken(host: str) -> None:
    assert Provider.model_validate(described(f"https://{host}:8443/v1")).url.endswith(":8443/v1")
    assert name_fault(host) is None


async def test_U4_a_call_to_a_name_that_cannot_be_resolved_is_not_done() -> None:
    """The resolver's UnicodeError passed for a defect in the middle of a call, which may have been billed."""
    caller = HttpCaller(unchecked(EMPTY_LABEL), environment={})
    report = await caller.call(call_of())
    await caller.close()
    [outcome] = report.outcomes
    assert isinstance(outcome, NotDone)
    assert outcome.fault.code == "unreachable"
    assert "the name is none that can be resolved" in outcome.fault.message


class Failing(Scripted):
    """A resolver that fails as Python's own encoding of names does."""

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> Any:
        raise UnicodeError("label empty or too long")


async def test_U4_also_of_a_resolver_that_lets_it_through() -> None:
    connections = Connections(headers={}, connections_max=1, tls=None, dialing=Dialing(resolver=lambda: Failing({})))
    with pytest.raises(NothingSent, match="none that can be resolved"):
        await connections.send("POST", httpx.URL("http://a.test/"), [], b"", 5.0)
    await connections.aclose()


async def test_U4_the_resolver_tells_it_as_any_other_name_without_an_address() -> None:
    def fails(*_where: Any, **_how: Any) -> list[Any]:
        raise UnicodeError("label empty or too long")

    resolver = OwnThreads(fails)
    with pytest.raises(OSError, match="none that can be resolved"):
        await resolver.resolve("api..test", 443)
    await resolver.close()


async def test_U4_doctor_tells_it_in_a_line() -> None:
    """It ended in a traceback, and told nothing of the other providers."""
    [finding] = await _dial_all(unchecked(EMPTY_LABEL))
    assert finding.code == Unreachable.exit_code
    assert "raw: api..example.com:443 cannot be reached" in str(finding)
