"""The chaos run's plan is a function of its seed, and its verdict finds what it is there to find."""

from __future__ import annotations

import dataclasses

import pytest

from schemas.events import Ambiguous, AttemptEnded, Failed, Fault, Outcome, Value
from schemas.progress import Counts, MapProgress, MapRow, RowCell, RunEvent
from streams.public.sheet import SheetLine
from streams.sandbox.bill import BillLine
from tests.bench.chaosplan import ROUGH, Asked, Kind, plan_of
from tests.bench.chaosverdict import Found, RunFound, violations
from tests.support.evidence import Attempt, Evidence

DOUBT = Ambiguous(Fault("lost", "the answer is lost"))
REFUSED = Failed(Fault("no", "not billed"))


def test_one_seed_is_one_plan_and_another_seed_is_another() -> None:
    assert plan_of(7, kills=40, seconds=120) == plan_of(7, kills=40, seconds=120)
    assert plan_of(7, kills=40, seconds=120) != plan_of(8, kills=40, seconds=120)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_has_all_that_was_asked_for_and_mends_everything_in_time(seed: int) -> None:
    plan = plan_of(seed, kills=40, seconds=120)
    kinds = [action.kind for action in plan.actions]
    assert sum(kind in (Kind.KILL, Kind.WIPE, Kind.STOP, Kind.LEAVE, Kind.PAUSE) for kind in kinds) == 40
    assert sum(kind in (Kind.KILL_BROKER, Kind.STOP_BROKER, Kind.PAUSE_BROKER) for kind in kinds) == 3
    assert kinds.count(Kind.PAUSE) == kinds.count(Kind.RESUME)
    assert kinds.count(Kind.LEAVE) == kinds.count(Kind.JOIN)
    assert sorted(action.run for action in plan.actions if action.kind is Kind.SUBMIT) == [run.number for run in plan.runs]
    assert [action.at for action in plan.actions] == sorted(action.at for action in plan.actions)
    assert plan.actions[-1].at <= 120 * ROUGH
    last = [action for action in plan.actions if action.kind is Kind.PROVIDER][-1]
    assert (last.at, last.faults) == (120 * ROUGH, ())


@pytest.mark.parametrize("seed", range(20))
def test_runs_overlap_in_their_rows_and_there_are_both_kinds_of_tools(seed: int) -> None:
    runs = plan_of(seed, kills=40, seconds=120).runs
    for keyed in (True, False):
        same = [run for run in runs if run.keyed is keyed]
        whole = next(run for run in same if run.first == 0)
        assert all(whole.first <= run.first < run.last <= whole.last for run in same)
        assert any(run.dataset == whole.dataset for run in same if run is not whole)


# --- the verdict --------------------------------------------------------------------------------------------------


def bill(item: str, *, key: str = "k", call: int = 1, path: str = "/v1/phone/check") -> BillLine:
    return BillLine(call, call, 0, path, key, "r", "", item, 1, "200")


ITEMS = {"batched": "+49 30 00000000", "single": "+49 30 00000001"}


def found(*, status: str = "completed", outcomes: dict[str, Outcome | None] | None = None, granted: bool = True) -> Found:
    """One run of one row with two cells, as it should be, but for what a test changes."""
    cell_status = {"completed": "completed", "unknown": "unknown", "failed": "failed"}[status]
    cells = {name: RowCell(status=cell_status, receipt=f"R-{name}") for name in ITEMS}  # type: ignore[arg-type]
    row = MapRow(dataset="d", key="k", status=status, run="run1", position=0, fields={}, cells=cells, updated_ms=0)  # type: ignore[arg-type]
    end = RunEvent(type="run.completed", run="run1", at_ms=0, counts=Counts(total=1, received=1, completed=1))
    evidence = Evidence()
    for name in ITEMS:
        evidence.attempts[f"R-{name}"] = {1: Attempt(1, "L", 0, granted_ms=1 if granted else None)}
        outcome = (outcomes or {}).get(name, Value(b"1"))
        if outcome is not None:
            evidence.ends.append((2, AttemptEnded(f"R-{name}", 1, 0, "L", outcome)))
    asked = Asked(1, False, "d", 0, 1)
    return Found(
        [RunFound("run1", asked, [end], [], [SheetLine(0, {}, row)])],
        {"d/k": [row]},
        [bill(item, call=number) for number, item in enumerate(ITEMS.values())],
        evidence,
    )


def test_what_is_as_it_must_be_has_no_violation() -> None:
    assert violations(found()) == []
    assert violations(found(status="unknown", outcomes={"batched": DOUBT, "single": None})) == []


def test_an_item_that_was_billed_twice_is_found() -> None:
    it = found()
    it = dataclasses.replace(it, bill=[*it.bill, bill(ITEMS["single"], key="other", call=9)])
    assert violations(it) == [f"{ITEMS['single']} was billed 2 times"]


def test_an_item_that_was_billed_and_said_to_have_failed_is_found() -> None:
    wrong = violations(found(outcomes={"single": REFUSED}))
    assert wrong == [f"{ITEMS['single']} was billed, and its receipts ['R-single'] have neither a value nor a call in doubt"]


def test_a_value_that_nobody_billed_is_found() -> None:
    it = found()
    assert violations(dataclasses.replace(it, bill=it.bill[:1])) == [f"{ITEMS['single']} has a value that nobody billed"]


def test_an_unknown_without_a_granted_call_and_one_with_a_value_are_found() -> None:
    without = violations(found(status="unknown", outcomes={"batched": None, "single": None}, granted=False))
    assert sum("no call for" in line for line in without) == 2
    assert sum("has a value" in line for line in violations(found(status="unknown"))) == 2


def test_a_row_that_leaves_its_end_a_lost_row_and_a_second_end_are_found() -> None:
    it = found()
    (run,) = it.runs
    row = it.rows["d/k"][0]
    after = [row, row.model_copy(update={"status": "failed", "run": "run2"})]
    assert violations(dataclasses.replace(it, rows={"d/k": after})) == ["row d/k went from completed (run1) to failed (run2)"]
    lost = dataclasses.replace(run, lines=[SheetLine(0, {}, None)])
    assert "run1: row 0 is none" in violations(dataclasses.replace(it, runs=[lost]))
    twice = dataclasses.replace(run, ledger=[*run.ledger, *run.ledger])
    assert any("2 terminal events" in line for line in violations(dataclasses.replace(it, runs=[twice])))


def test_progress_that_falls_is_found() -> None:
    it = found()
    (run,) = it.runs
    samples = [
        MapProgress(run="run1", status="running", counts=Counts(total=1, completed=done), started_ms=0, updated_ms=0)
        for done in (1, 0)
    ]
    assert any(
        "backwards" in line for line in violations(dataclasses.replace(it, runs=[dataclasses.replace(run, samples=samples)]))
    )
