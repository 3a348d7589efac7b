"""What a request was bound to, held against the providers file of the worker that is to call for it (K1, K3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from schemas.events import ClaimedMember, CompiledColumn, Mark, Repeat, ToolRequested
from schemas.plays import Play
from schemas.providers import Providers
from schemas.states import CellStatus, Receipt
from streams.calling.terms import VERSION_CHANGED, TodaysTerms
from streams.engine.compile import compile_play
from streams.engine.scopes import bound, scope_changed, scope_in, terms_in
from streams.tools.port import Doubtful, NotDone, Refused
from tests.pure.test_scopes import NEW, told
from tests.support.given_rows import added, ask, asked, column, failed, opened, play, row, rows_table, sheet

MEMBER = (ClaimedMember("r", 1, 0, 1),)
#: The second attempt of an operation that has no definite answer yet.
AGAIN = (ClaimedMember("r", 2, 0, 1),)
FETCH = {"name": "c", "fetch": {"url": "https://a.example/{{ row.x }}", "headers": {"x-key": {"secret": "crm"}}}}


def file(*, version: str = "1", account: str = "alice", url: str = "https://p.example", crm: str = "env:CRM") -> Providers:
    auth = {"secret": "env:KEY", "account": account}
    batch = {"size_max": 3, "bucket": "x"}
    python = {"kind": "python", "account": account, "tools": {"t": {"entry_point": "m:f", "version": version}}}
    return Providers.model_validate(
        {
            "providers": {
                "p": {"base_url": url, "auth": auth, "tools": {"t": {"path": "/t", "version": version, "batch": batch}}},
                "py": python,
            },
            "fetch": {"secrets": {"crm": {"secret": crm, "origins": ["https://a.example"]}}},
        }
    )


def asked_for(providers: Providers, tool: str) -> tuple[ToolRequested, CompiledColumn]:
    """What a row asks for whose run was accepted under a providers file."""
    given = FETCH if tool == "fetch.get" else {"name": "c", "tool": tool, "input": {"x": "{{ row.x }}"}}
    compiled, faults = compile_play(Play.model_validate({"name": "play", "columns": [given]}), providers, "org", 0)
    assert compiled is not None, faults
    request = ask(rows_table().given(opened(of=compiled), added(row(0, x="a"))))
    return request, compiled.columns[0]


def barred(today: Providers, request: ToolRequested, members: tuple[ClaimedMember, ...] = MEMBER, *, job: bool = False) -> Any:
    receipt = Receipt(repeat=request.repeat, bucket=request.bucket, tool=request.tool)
    return TodaysTerms(today).barred(request.tool, members, [receipt], [request.input], job=job)


TOOLS = pytest.mark.parametrize("tool", ["p.t", "py.t", "fetch.get"])


@TOOLS
def test_K1_case_D6_a_request_carries_version_and_scope_and_is_called_for_under_the_same(tool: str) -> None:
    request, bound_column = asked_for(file(), tool)
    key = '"a"' if tool == "p.t" else ""
    assert request.bucket == bound(key, bound_column)
    assert barred(file(), request) == ()
    terms = TodaysTerms(file())
    receipt = Receipt(bucket=request.bucket)
    for _ in range(2):
        assert terms.barred(tool, MEMBER, [receipt], [request.input], job=False) == ()


@pytest.mark.parametrize(
    ("tool", "today"),
    [
        ("p.t", file(account="bob")),
        ("p.t", file(url="https://q.example")),
        ("py.t", file(account="bob")),
        ("fetch.get", file(crm="env:OTHER")),
    ],
)
def test_K3_case_D6_P4_under_another_scope_it_is_not_called_for_and_the_scope_of_today_is_told(tool: str, today: Providers) -> None:
    """Bob's answer used to be stored under the receipt of Alice's, where every later run of hers would find it."""
    request, _ = asked_for(file(), tool)
    _, now = asked_for(today, tool)
    (outcome,) = barred(today, request)
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.repairable) == (scope_changed(now.scope), True)
    assert "nothing was sent" in outcome.fault.message


@pytest.mark.parametrize("tool", ["p.t", "py.t"])
def test_K1_case_D6_under_another_version_it_is_a_repairable_failure_that_names_both(tool: str) -> None:
    request, _ = asked_for(file(), tool)
    (outcome,) = barred(file(version="2"), request)
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.repairable) == (VERSION_CHANGED, True)
    assert "version '1'" in outcome.fault.message
    assert "version '2'" in outcome.fault.message


def test_K1_a_request_of_before_is_called_for_as_ever() -> None:
    request, _ = asked_for(file(), "p.t")
    old = msgspec.structs.replace(request, bucket='"a"')
    assert terms_in(old.bucket) == ""
    assert barred(file(account="bob", version="2"), old) == ()


def test_K1_a_tool_that_the_file_does_not_have_is_refused() -> None:
    request, _ = asked_for(file(), "p.t")
    (outcome,) = barred(Providers(), request)
    assert outcome.fault.code == "unknown_tool"


def test_F4_a_fetch_whose_secret_is_unknown_today_or_whose_input_is_none_is_left_to_its_caller() -> None:
    request, _ = asked_for(file(), "fetch.get")
    unknown = msgspec.structs.replace(request, input=request.input.replace(b'"crm"', b'"crn"'))
    spoilt = msgspec.structs.replace(request, input=b"[]")
    assert barred(file(), unknown) == barred(file(), spoilt) == ()


@pytest.mark.parametrize("today", [file(account="bob"), file(version="2"), Providers()])
def test_U1_K3_what_may_have_been_paid_for_under_another_account_or_version_is_unknown_and_not_asked_for_again(
    today: Providers,
) -> None:
    """A refusal is an end: the row would ask under its new keys, and pay again for what the old account may be billed for."""
    request, _ = asked_for(file(), "p.t")
    for repeat in (Repeat.NEVER, Repeat.WITH_KEY):
        (outcome,) = barred(today, msgspec.structs.replace(request, repeat=repeat), AGAIN)
        assert isinstance(outcome, Doubtful)
        assert outcome.used_up
        assert scope_in(outcome.fault.code) is None
    (outcome,) = barred(today, msgspec.structs.replace(request, repeat=Repeat.FREELY), AGAIN)
    assert isinstance(outcome, Refused)


def test_P10_a_job_is_asked_for_under_a_later_version_but_not_under_another_account() -> None:
    request, _ = asked_for(file(), "p.t")
    assert barred(file(version="2"), request, AGAIN, job=True) == ()
    (outcome,) = barred(file(version="2", account="bob"), request, AGAIN, job=True)
    assert isinstance(outcome, Doubtful)
    assert outcome.used_up


def test_B7_a_batch_of_before_with_a_member_that_is_barred_is_not_made_and_its_companions_go_on() -> None:
    request, _ = asked_for(file(), "p.t")
    receipts = [Receipt(repeat=Repeat.NEVER, bucket=request.bucket), Receipt(repeat=Repeat.NEVER, bucket='"a"')]
    members = (ClaimedMember("a", 1, 0, 1), ClaimedMember("b", 1, 0, 1))
    one, other = TodaysTerms(file(version="2")).barred("p.t", members, receipts, [b"{}", b"{}"], job=False)
    assert isinstance(one, Refused)
    assert isinstance(other, NotDone)


# --- and the rows -------------------------------------------------------------------------------------------


def test_P4_a_row_that_has_moved_asks_under_the_terms_of_the_new_scope() -> None:
    table = rows_table()
    first = ask(table.given(opened(of=play(column(private_to="people"))), added(row(0, x="a"))))
    second = ask(table.given(told(first, NEW)))
    assert (terms_in(first.bucket), terms_in(second.bucket)) == ("1\x1fscope", f"1\x1f{NEW[:12]}")


def test_P4_R5_what_an_earlier_worker_said_of_the_scope_is_asked_again_before_a_row_moves() -> None:
    """The file was changed, a run was refused, and the file was put back: the stored refusal sent later runs' rows to the keys
    of an account that no worker had any more, so that they failed, run after run.
    """
    table = rows_table()
    first = ask(table.given(opened(), added(row(0, x="a"))))
    again = ask(table.given(told(first, NEW, Mark.CACHE)))
    assert (again.receipt, again.call != first.call) == (first.receipt, True)
    moved = ask(table.given(told(again, NEW)))
    assert moved.receipt != first.receipt
    assert asked(table.given(told(moved, "6f" * 20))) == []


def test_R5_a_version_that_has_changed_fails_the_row_and_the_next_run_asks_again() -> None:
    table = rows_table()
    first = ask(table.given(opened(), added(row(0, x="a"))))
    (outcome,) = barred(file(version="2"), msgspec.structs.replace(asked_for(file(), "p.t")[0]))
    (shown,) = sheet(table.given(failed(first, outcome.fault)))
    assert (shown.cells["check"].status, shown.cells["check"].code) == (CellStatus.FAILED, VERSION_CHANGED)
    second = ask(table.given(opened("next"), added(row(0, x="a"), run="next")))
    assert ask(table.given(failed(second, outcome.fault, Mark.CACHE))).receipt == first.receipt
