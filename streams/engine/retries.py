"""What an HTTP answer says about the bill, and how long to wait before asking again.

Pure judgement for the dispatcher and ``tools.http``: no clock, no dice; time and jitter come in as arguments. The table below
is the only place where a status gets its meaning. In doubt a call counts as billed.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

#: A provider that asks for more than this is asked again after it; a longer sleep is no pause but an outage.
RETRY_AFTER_MAX_SECONDS: Final = 3600.0
#: Waits double from here ...
BACKOFF_BASE_MS: Final = 250
#: ... and no wait is longer than this, jitter included.
BACKOFF_MAX_MS: Final = 5_000


class Kind(enum.Enum):
    """What a status says: whether there is an answer, and otherwise whether the call may have been billed."""

    ANSWERED = "answered"
    #: A definite no, not billed; final.
    REFUSED = "refused"
    #: A definite no, not billed, that a person can mend; a later run asks again.
    REFUSED_REPAIRABLE = "refused_repairable"
    #: Not done and not billed; worth another attempt.
    NOT_DONE = "not_done"
    #: May have been done and billed.
    DOUBTFUL = "doubtful"


class Rule(NamedTuple):
    """One line of the table; ``reason`` is for people."""

    kind: Kind
    reason: str


_DOUBTFUL: Final = Rule(Kind.DOUBTFUL, "no status that says whether the work was done")

_BY_CLASS: Final[dict[int, Rule]] = {
    2: Rule(Kind.ANSWERED, "the provider answered"),
    3: Rule(Kind.REFUSED, "the provider sends elsewhere, and redirects are not followed; correct base_url or path"),
    4: Rule(Kind.REFUSED, "the provider does not accept this request"),
    5: Rule(Kind.DOUBTFUL, "the provider failed, perhaps after the work was done"),
}

_MAYBE_ELSEWHERE: Final = Rule(
    Kind.DOUBTFUL,
    "the provider sends elsewhere, perhaps after it did the work, and redirects are not followed; correct base_url or path",
)

_BY_STATUS: Final[dict[int, Rule]] = {
    # Most servers say 302 where they mean 303, "done, and look there"; only 307 and 308 are defined so that the method stays, which
    # is to say that nothing was done yet (RFC 9110, 15.4).
    301: _MAYBE_ELSEWHERE,
    302: _MAYBE_ELSEWHERE,
    # After a POST it says that the work is done and its result lies elsewhere (RFC 9110, 15.4.4).
    303: Rule(Kind.DOUBTFUL, "the provider may have done the work and keeps its result elsewhere"),
    401: Rule(Kind.REFUSED_REPAIRABLE, "the provider does not accept the credentials"),
    402: Rule(Kind.REFUSED_REPAIRABLE, "the account at the provider has no credit"),
    403: Rule(Kind.REFUSED_REPAIRABLE, "the account at the provider may not do this"),
    407: Rule(Kind.REFUSED_REPAIRABLE, "a proxy asks for credentials"),
    # The server gave up waiting, but a gateway says so too when what it waited for was the work.
    408: Rule(Kind.DOUBTFUL, "the provider timed out, perhaps on the work itself"),
    425: Rule(Kind.NOT_DONE, "the provider will not act on early data"),
    429: Rule(Kind.NOT_DONE, "the provider is asked too often"),
}

#: Statuses that mean something else where the answer says when to come back.
_WITH_RETRY_AFTER: Final[dict[int, Rule]] = {
    # It names a time to come back, so it turned the request away; without that it may as well have died half-way.
    503: Rule(Kind.NOT_DONE, "the provider is closed for now and says for how long"),
}


#: Statuses that mean something else in answer to a GET, which is sent elsewhere because it was not answered.
_TO_A_GET: Final[dict[int, Rule]] = {301: _BY_CLASS[3], 302: _BY_CLASS[3]}


def rule(status: int, *, has_retry_after: bool, is_get: bool = False) -> Rule:
    """What a status says about the bill, and why; ``has_retry_after``: there was a usable Retry-After (`parse_retry_after`)."""
    if is_get and (found := _TO_A_GET.get(status)) is not None:
        return found
    if has_retry_after and (found := _WITH_RETRY_AFTER.get(status)) is not None:
        return found
    return _BY_STATUS.get(status) or _BY_CLASS.get(status // 100, _DOUBTFUL)


class Patience(NamedTuple):
    """How often a call is made that ends in one way again and again, the first time included; ``reason`` is for people."""

    tries_max: int
    reason: str


#: More patience than the setting ``attempts_max`` gives to all else, by the fault's code (P2).
_PATIENCE: Final[dict[str, Patience]] = {
    "http_429": Patience(10, "a provider that is merely busy: nine waits, about 25 s in all"),
    "http_425": Patience(10, "as a busy one"),
}
#: Where the provider itself says when to come back, the call is parked until then (W3), for an hour at most.
_PARKED: Final = Patience(20, "twenty times what the provider asked for")


def tries_max_of(code: str, *, has_retry_after: bool, attempts_max: int) -> int:
    """Attempts that a call is worth which nobody billed, by how it ended last. Doubtful ends have ``attempts_max`` alone."""
    patience = _PATIENCE.get(code)
    if patience is None:
        return attempts_max
    return max(attempts_max, _PARKED.tries_max if has_retry_after else patience.tries_max)


_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
# All three forms of RFC 9110 begin so. Without this the mail parser below would find dates in much else.
_DATE: Final = re.compile(r"(mon|tue|wed|thu|fri|sat|sun)[a-z]*,? .{1,48}", re.IGNORECASE)


def parse_retry_after(values: Sequence[str], now_epoch_seconds: float) -> float | None:
    """Seconds to wait by the values of all Retry-After headers, from 0 to RETRY_AFTER_MAX_SECONDS; never raises.

    ``None`` where they say nothing usable: none, negative, garbage, or a good one next to a bad one. Of several good ones the
    longest wait counts. A date is compared with ``now_epoch_seconds`` (Unix time); one in the past is 0 (case_G1).
    """
    waits = [_wait_seconds(value.strip(), now_epoch_seconds) for value in values]
    usable = [wait for wait in waits if wait is not None]
    if not usable or len(usable) < len(waits):
        return None
    return min(max(usable), RETRY_AFTER_MAX_SECONDS)


def _wait_seconds(value: str, now_epoch_seconds: float) -> float | None:
    if _SECONDS.fullmatch(value):
        return float(value)  # thousands of digits are infinite, which the cap ends
    if not _DATE.fullmatch(value):
        return None
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None  # no such day, hour or zone
    if date.tzinfo is None:  # the asctime form, in GMT by its definition
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now_epoch_seconds)


def backoff_ms(attempt: int, *, jitter: float) -> int:
    """Milliseconds to wait after attempt ``attempt`` (from 1), where the provider names no time; ``jitter`` is in [0, 1).

    From 250 ms it doubles, and jitter adds up to as much again: no wait is shorter than the one before, until half the cap of
    30 s is reached, and even there callers stay spread out.
    """
    doublings = min(max(attempt, 1) - 1, 16)  # beyond that the cap rules anyway, and the power would grow without end
    floor = min(BACKOFF_BASE_MS << doublings, BACKOFF_MAX_MS // 2)
    return floor + int(floor * jitter)
