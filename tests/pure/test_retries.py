"""What a status says about the bill, and how long is waited: `streams.engine.retries`."""

from __future__ import annotations

import itertools
from email.utils import format_datetime, formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.engine.retries import (
    BACKOFF_MAX_MS,
    RETRY_AFTER_MAX_SECONDS,
    Kind,
    backoff_ms,
    parse_retry_after,
    rule,
    tries_max_of,
)

NOW = 1_800_000_000.0
DATE_AHEAD = formatdate(NOW + 3, usegmt=True)


# --- statuses ---


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        ([200, 201, 202, 204, 206, 207, 299], Kind.ANSWERED),
        ([300, 304, 305, 307, 308], Kind.REFUSED),
        ([400, 404, 405, 406, 409, 410, 411, 413, 415, 418, 422, 424, 426, 431, 451, 499], Kind.REFUSED),
        ([401, 402, 403, 407], Kind.REFUSED_REPAIRABLE),
        ([425, 429], Kind.NOT_DONE),
        ([500, 501, 502, 503, 504, 505, 507, 520, 529, 599], Kind.DOUBTFUL),
        ([301, 302, 303, 408], Kind.DOUBTFUL),
        ([0, 100, 101, 103, 600, 999], Kind.DOUBTFUL),
    ],
)
def test_P2_each_status_has_its_kind(statuses: list[int], kind: Kind) -> None:
    for status in statuses:
        assert rule(status, has_retry_after=False).kind is kind, status


def test_P2_U4_a_redirect_that_servers_send_after_the_work_counts_as_unbilled_only_in_answer_to_a_get() -> None:
    """301 and 302 after a POST counted as billed nothing, though 302 is how most servers say "done, and look there"."""
    assert [rule(status, has_retry_after=False).kind for status in (301, 302)] == [Kind.DOUBTFUL] * 2
    assert [rule(status, has_retry_after=False, is_get=True).kind for status in (301, 302)] == [Kind.REFUSED] * 2
    assert all(
        rule(status, has_retry_after=wait).kind is rule(status, has_retry_after=wait, is_get=True).kind
        for status in range(1000)
        if status not in (301, 302)
        for wait in (False, True)
    )


def test_P2_a_503_is_not_done_only_when_it_says_when_to_come_back() -> None:
    assert rule(503, has_retry_after=True).kind is Kind.NOT_DONE
    assert rule(503, has_retry_after=False).kind is Kind.DOUBTFUL


@given(status=st.integers(0, 999).filter(lambda status: status != 503))
def test_for_no_other_status_a_retry_after_changes_the_verdict(status: int) -> None:
    assert rule(status, has_retry_after=True) == rule(status, has_retry_after=False)
    assert rule(status, has_retry_after=False).reason


# --- Retry-After (case_G1) ---


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["3"], 3.0),
        ([" 3 "], 3.0),
        (["3.5"], 3.5),
        (["0"], 0.0),
        ([DATE_AHEAD], 3.0),
        ([formatdate(NOW - 3600, usegmt=True)], 0.0),
        (["-5"], None),
        ([""], None),
        (["abc"], None),
        (["99999999999999"], RETRY_AFTER_MAX_SECONDS),
        (["9" * 5000], RETRY_AFTER_MAX_SECONDS),
        ([formatdate(NOW + 10**6, usegmt=True)], RETRY_AFTER_MAX_SECONDS),
        (["3", "3"], 3.0),
        (["3", "7"], 7.0),
        (["1", DATE_AHEAD], 3.0),
        (["3", "abc"], None),
        (["3", "-5"], None),
        ([], None),
    ],
)
def test_P3_case_G1_each_form_of_retry_after(values: list[str], seconds: float | None) -> None:
    assert parse_retry_after(values, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "sun, 06 nov 1994 08:49:37 gmt",
        "Sun, 06 Nov 1994 09:49:37 +0100",
    ],
)
def test_P3_all_forms_of_an_http_date_are_the_same_instant(value: str) -> None:
    assert parse_retry_after([value], 784111777.0 - 60) == 60.0


@pytest.mark.parametrize(
    "value",
    [
        "nan",
        "inf",
        "1e3",
        "+3",
        "3s",
        "3, 7",
        "٣",
        "0x10",
        "1_0",
        ".5",
        "3.",
        "Sun",
        "Sun, 31 Feb 2030 08:49:37 GMT",
        "Sun, 06 Nov 99999999999999 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 +99999999999",
        "Sun, " + "9" * 5000,
        "06 Nov 1994 08:49:37 GMT",
    ],
)
def test_P3_what_is_neither_seconds_nor_a_date_is_nothing(value: str) -> None:
    assert parse_retry_after([value], NOW) is None


_nearly_dates = st.lists(
    st.sampled_from(
        [
            "Sun",
            "Sun,",
            "Sunday,",
            "06",
            "6",
            "Nov",
            "-",
            "1994",
            "94",
            "08:49:37",
            "8.49",
            "25:61:61",
            "GMT",
            "+9999",
            ":",
            "\x00",
        ]
    ),
    max_size=9,
).map(" ".join)
_values = st.one_of(st.text(), _nearly_dates, st.floats().map(str), st.integers().map(str), st.datetimes().map(format_datetime))


@given(values=st.lists(_values, max_size=3), now=st.floats(0, 4e9))
def test_no_header_makes_it_raise_or_leave_its_bounds(values: list[str], now: float) -> None:
    seconds = parse_retry_after(values, now)
    assert seconds is None or 0.0 <= seconds <= RETRY_AFTER_MAX_SECONDS


# --- backoff ---


@given(jitters=st.lists(st.floats(0, 1, exclude_max=True), min_size=40, max_size=40))
def test_P2_waits_grow_whatever_the_jitter_and_stay_under_the_cap(jitters: list[float]) -> None:
    waits = [backoff_ms(attempt, jitter=jitter) for attempt, jitter in enumerate(jitters, start=1)]
    growing = waits[:4]  # the fifth is floored at half the cap
    assert all(earlier <= later for earlier, later in itertools.pairwise(growing))
    assert all(250 <= wait <= BACKOFF_MAX_MS for wait in waits)


def test_P2_waits_double_from_a_quarter_of_a_second() -> None:
    assert [backoff_ms(attempt, jitter=0.0) for attempt in range(1, 9)] == [250, 500, 1000, 2000, 2500, 2500, 2500, 2500]
    assert backoff_ms(1, jitter=0.5) == 375
    assert backoff_ms(10**9, jitter=0.999) < BACKOFF_MAX_MS
    assert backoff_ms(0, jitter=0.0) == 250


# --- patience ---


def test_P2_a_busy_provider_is_waited_for_about_25_s_each_wait_at_most_5_s() -> None:
    tries = tries_max_of("http_429", has_retry_after=False, attempts_max=3)
    for jitter, low, high in ((0.0, 15, 25), (0.5, 22, 28), (0.999, 25, 35)):
        waits = [backoff_ms(attempt, jitter=jitter) / 1000 for attempt in range(1, tries)]
        assert max(waits) <= 5.0
        assert low <= sum(waits) <= high


@pytest.mark.parametrize(
    ("code", "has_retry_after", "tries"),
    [("http_429", False, 10), ("http_429", True, 20), ("http_425", False, 10), ("http_503", True, 3), ("unreachable", False, 3)],
)
def test_P2_each_class_of_ends_has_a_bounded_count(code: str, has_retry_after: bool, tries: int) -> None:
    assert tries_max_of(code, has_retry_after=has_retry_after, attempts_max=3) == tries


def test_P2_a_larger_setting_counts_for_every_class() -> None:
    assert tries_max_of("http_429", has_retry_after=False, attempts_max=50) == 50
