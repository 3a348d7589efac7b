"""What is lost with a lease (L4, P2): whether its attempts are made again, and when; judged once, when the lease is judged expired.

Pure; the dispatcher takes the judgement, and it is an event before it counts. A call that takes its worker down is made by the next
owner, and would be by each one after: its attempts are counted like those whose answers were lost in another way.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.commands import LeaseJudgedExpired
from schemas.events import ClaimedMember, Repeat
from schemas.states import Receipt
from streams.engine.retries import backoff_ms

_REPEATED = (Repeat.WITH_KEY, Repeat.FREELY)


def judged(
    lease: str, lost: Iterable[tuple[ClaimedMember, Receipt]], repeat: Repeat | None, tries_max: int, now_ms: int, jitter: float
) -> LeaseJudgedExpired:
    """The end of a lease that nobody renews. ``repeat``: what the tool allows today, ``None`` where it is not known.

    The first lost call is made again at once (R4): its lease has been waited for. Further ones wait twice as long each time, all of
    a lease alike, so that a batch is repeated as one; ``jitter`` is in [0, 1).
    """
    members: list[ClaimedMember] = []
    used_up: list[str] = []
    most = 0
    for member, receipt in lost:
        members.append(member)
        attempt = receipt.attempts.get(member.n)
        if attempt is None or (attempt.job is None and receipt.repeat not in _REPEATED):
            continue  # it is unknown in any case, unless a job turns up that can be asked for
        tries = tries_of(receipt, member.n)
        # Asking for a job is no call, whatever the tool says of calls.
        if tries >= tries_max or (attempt.job is None and repeat is Repeat.NEVER):
            used_up.append(member.receipt)
        else:
            most = max(most, tries)
    wait_until_ms = now_ms + backoff_ms(most - 1, jitter=jitter) if most > 1 else 0
    return LeaseJudgedExpired(lease, tuple(members), wait_until_ms, tuple(used_up))


def tries_of(receipt: Receipt, n: int) -> int:
    """Attempts up to this one that reached the provider, or may have, under the same demand (the ``tries`` of a ``Need``)."""
    epoch = receipt.attempts[n].epoch
    return sum(
        number <= n and attempt.epoch == epoch and attempt.lease is not None and not attempt.released
        for number, attempt in receipt.attempts.items()
    )
