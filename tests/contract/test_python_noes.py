"""Noes of Python tools that are not as they should be: read as far as they can be, and never the end of a worker (U4, B11)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.providers import Providers
from streams.tools import port
from streams.tools.port import CallMember, CallReport, Doubtful, ProviderCall
from streams.tools.python import BatchCall, NotDone, PythonCaller, Refused, ToolCall


class NoCredit(Refused):
    """Sets no field of its parent's."""

    def __init__(self, balance: int) -> None:
        self.balance = balance


class Later(NotDone):
    """As little."""

    def __init__(self) -> None:
        pass


class Spiteful(Refused):
    """Cannot be read at all."""

    def __init__(self) -> None:
        pass

    @property
    def code(self) -> str:
        raise ZeroDivisionError("no code today")


def numbered() -> Refused:
    no = Refused("x", "y", True)
    no.code = 402  # type: ignore[assignment]
    no.message = 7  # type: ignore[assignment]
    return no


NOES: dict[str, Any] = {
    "huge": lambda: NotDone("busy", 10**400),
    "endless": lambda: NotDone("busy", float("inf")),
    "nan": lambda: NotDone("busy", float("nan")),
    "no credit": lambda: NoCredit(3),
    "later": Later,
    "numbered": numbered,
    "spiteful": Spiteful,
    "refused again": lambda: type("Again", (Spiteful,), {"code": property(lambda self: _raises(Refused("a", "b")))})(),
}


def _raises(error: Exception) -> str:
    raise error


async def raised(call: ToolCall) -> Any:
    """Raise the no that the input names."""
    assert isinstance(call.input, str)
    raise NOES[call.input]()


async def returned(call: ToolCall) -> Any:
    """Return it."""
    assert isinstance(call.input, str)
    return NOES[call.input]()


async def all_raised(call: BatchCall) -> Any:
    """Raise the first one's."""
    raise NOES[str(call.inputs[0])]()


async def all_returned(call: BatchCall) -> Any:
    """Return each one's."""
    return [NOES[str(given)]() for given in call.inputs]


PLACE = __name__


async def told(how: str, *names: str) -> CallReport:
    many = {"size_max": 9, "entry_point": f"{PLACE}:all_{how.removeprefix('all_')}"}
    tool = {"entry_point": f"{PLACE}:{how.removeprefix('all_')}", "batch": many}
    provider = {"kind": "python", "account": "a", "tools": {"t": tool}}
    caller = PythonCaller(Providers.model_validate({"providers": {"p": provider}}), environment={})
    members = tuple(CallMember(f"r{place}", json.dumps(name).encode()) for place, name in enumerate(names))
    report = await caller.call(ProviderCall("p.t", members, len(names) > 1, "key", "request"))
    await caller.close()
    return report


@pytest.mark.parametrize("how", ["raised", "returned", "all_raised", "all_returned"])
@pytest.mark.parametrize(
    ("name", "kind", "code", "message"),
    [
        ("huge", port.NotDone, "not_done", "busy"),
        ("endless", port.NotDone, "not_done", "busy"),
        ("nan", port.NotDone, "not_done", "busy"),
        ("no credit", port.Refused, "refused", "NoCredit"),
        ("later", port.NotDone, "not_done", "Later"),
        ("numbered", port.Refused, "402", "7"),
        ("spiteful", Doubtful, "raised", "ZeroDivisionError: no code today"),
        ("refused again", Doubtful, "raised", "streams.tools.python.Refused: ('a', 'b', False)"),
    ],
)
async def test_U4_B11_a_no_is_read_as_far_as_it_can_be_and_its_strangeness_ends_no_worker(
    how: str, name: str, kind: type, code: str, message: str
) -> None:
    """A wait larger than any float, or a subclass that sets no fields, raised out of the caller, and the worker ended over it."""
    report = await told(how, *[name] * (2 if how.startswith("all_") else 1))
    for outcome in report.outcomes:
        assert type(outcome) is kind
        assert not isinstance(outcome, port.Answered)
        assert (outcome.fault.code, outcome.fault.message) == (code, f"p.t: {message}")
        if isinstance(outcome, port.NotDone):
            assert outcome.retry_after_seconds == (3600.0 if name in ("huge", "endless") else None)


async def test_U4_one_members_strange_no_says_nothing_of_its_neighbours() -> None:
    report = await told("all_returned", "numbered", "huge", "no credit")
    assert [type(outcome) for outcome in report.outcomes] == [port.Refused, port.NotDone, port.Refused]
