"""What lists show of a run: the ledger has the last word, whichever topic was read first."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from schemas.progress import Counts, MapProgress, RunEvent
from streams.public.runview import RunView, Views


def sample(done: int, at_ms: int, status: str = "running") -> MapProgress:
    counts = Counts(total=10, completed=done)
    return MapProgress(run="r", status=status, counts=counts, message=f"{done}", started_ms=1, updated_ms=at_ms)


def told(kind: str, at_ms: int, **fields: object) -> RunEvent:
    return RunEvent.model_validate({"type": kind, "run": "r", "at_ms": at_ms, "play": "p", "dataset": "d", **fields})


SAMPLES: list[MapProgress | RunEvent] = [sample(0, 2), sample(5, 3), sample(10, 4, "closing")]
LEDGER: list[MapProgress | RunEvent] = [
    told("run.started", 1, counts={"total": 10}),
    told("run.completed", 5, counts={"total": 10, "completed": 10}, message="done"),
]


def view_of(*events: MapProgress | RunEvent) -> RunView:
    views = Views()
    for event in events:
        topic = "map-progress" if isinstance(event, MapProgress) else "run-events"
        views.take(topic, event.model_dump_json().encode())
    (view,) = views.runs()
    return view


@given(turns=st.permutations([0, 0, 0, 1, 1]))
def test_the_order_between_the_topics_changes_nothing(turns: list[int]) -> None:
    streams = (iter(SAMPLES), iter(LEDGER))
    view = view_of(*(next(streams[turn]) for turn in turns))
    assert (view.status, view.message, view.ended_ms, view.play) == ("completed", "done", 5, "p")
    assert view.counts == Counts(total=10, completed=10)
    assert view.started_ms == 1
    assert view.ended


def test_a_run_that_goes_on_shows_its_newest_sample() -> None:
    for order in itertools.permutations([LEDGER[0], *SAMPLES[:2]]):
        if order.index(SAMPLES[0]) < order.index(SAMPLES[1]):
            view = view_of(*order)
            assert view.status == "running"
            assert view.counts is not None
            assert view.counts.completed == 5


def test_a_refused_id_that_is_used_again_is_a_run_like_any_other() -> None:
    refused = told("run.refused", 1, play="", faults=["columns.0: no"], code="invalid_request", message="no")
    assert view_of(refused).faults == ("columns.0: no",)
    view = view_of(refused, *LEDGER)
    assert (view.status, view.faults, view.refused) == ("completed", (), 1)


def test_a_rejected_request_does_not_touch_the_run() -> None:
    rejected = told("run.rejected", 9, play="", message="in use")
    view = view_of(*LEDGER, rejected)
    assert (view.status, view.rejections) == ("completed", ("in use",))


def test_what_is_no_event_changes_nothing() -> None:
    views = Views()
    for value in (None, b"", b"{}", b'{"run":"r"}'):
        views.take("map-progress", value)
        views.take("run-events", value)
    assert views.runs() == []
