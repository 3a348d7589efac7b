"""The provider's two memories about its callers: how fast they may ask, and which keys they have used.

Both take the time as an argument and touch no clock.
"""

from collections import OrderedDict
from dataclasses import dataclass

# A provider would keep keys for a day. Far more than any run here uses, so that a forgotten key is never the
# reason for a second line on the bill.
KEYS_KEPT_MAX = 1_000_000


class TokenBucket:
    """Requests per second with a burst; a rate of 0 lets everything through."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst or max(1.0, rate)
        self._tokens = self._burst
        self._at = now

    def seconds_to_wait(self, now: float) -> float:
        """Takes a token and answers 0, or answers how long until there is one."""
        if self._rate <= 0:
            return 0.0
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate


@dataclass
class Done:
    """What a request came to: each item's outcome as JSON, which of them may be tried again, when it is due.

    `ready_at` is in the event loop's time; a second request under the same key is not answered before it.
    """

    digest: bytes
    outcomes: list[bytes]
    again: list[int]
    status: int
    ready_at: float
    #: Name of the job that works on it; empty: none was made.
    job: str = ""


class KeyStore:
    """The idempotency keys of one account, the oldest forgotten when there are too many."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Done] = OrderedDict()

    def find(self, key: str) -> Done | None:
        """What was done under this key."""
        return self._kept.get(key)

    def keep(self, key: str, done: Done) -> None:
        """Remembers what was done under a key."""
        self._kept[key] = done
        if len(self._kept) > KEYS_KEPT_MAX:
            self._kept.popitem(last=False)
