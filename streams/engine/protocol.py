"""The receipt protocol: one record, folded from three topics, and what follows from it.

The state machine of ``docs/protocol.md``, whole and in one file. Each part of the record is a fold of one topic alone (requests,
claims, completions), so neither the order between topics nor a repeated event changes the record; the status is derived, never
stored. An attempt is *live* from its claim to its end; the verdict says which end it was:

    value            -> OK         the receipt has its value
    failed           -> FAILED     refused, not billed
    retry            -> RETRY      refused for now, not billed
    unpaid           -> AGAIN      a person says that nothing was billed
    released         -> RELEASED   nothing was sent
    ambiguous or     -> UNKNOWN    may have been billed, and the tool may not be repeated
      expired        -> AGAIN      may have been billed, and the tool may be repeated, or its job is known and asked for again
    none of these    -> LIVE       somebody may be calling

An attempt that is not repeated because its run's retry budget is spent (``budgets``) is FAILED where it would be asked for again
and was not billed, and UNKNOWN where it may have been.

Told flags and ``late`` marks are no part of the digest.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from schemas.events import Mode, Repeat, ToolRequested
from schemas.states import Attempt, Flag, Out, Receipt, Waiter

_DEFINITE = frozenset((Out.FAILED, Out.RETRY, Out.UNPAID, Out.VALUE))
# Reading a member off its enum costs a fifth of a microsecond in Python 3.11; these are read some thirty times a row.
_AMBIGUOUS, _VALUE, _DONE, _WITHDRAWN = Out.AMBIGUOUS, Out.VALUE, Flag.DONE, Flag.WITHDRAWN
_NEVER, _WITH_KEY = Repeat.NEVER, Repeat.WITH_KEY


class Verdict(enum.Enum):
    """How an attempt stands."""

    # Members are themselves and nothing else; Enum would hash their names, in Python.
    __hash__ = object.__hash__

    LIVE = "live"
    OK = "ok"
    FAILED = "failed"
    RETRY = "retry"
    AGAIN = "again"
    RELEASED = "released"
    UNKNOWN = "unknown"


_LIVE, _RELEASED = Verdict.LIVE, Verdict.RELEASED


class Told(enum.Enum):
    """What a waiter gets."""

    __hash__ = object.__hash__

    WAITS = "waits"
    COMPLETED = "completed"
    UNKNOWN = "unknown"
    FAILED = "failed"


_WAITING, _COMPLETED = Told.WAITS, Told.COMPLETED


class Need(msgspec.Struct, frozen=True):
    """The attempt that a lane must claim next."""

    n: int
    epoch: int
    op: int
    not_before_ms: int
    #: The batch that must be repeated as it was, or ``""``.
    batch: str
    #: Attempts of this epoch that reached the provider, or may have, and brought nothing.
    tries: int = 0


#: What nearly all receipts need first.
_FIRST = Need(1, 0, 1, 0, "")


# --- the fold -----------------------------------------------------------------------------------------------


def waiter_of(receipt: Receipt, request: ToolRequested) -> Waiter:
    """The waiter that a request adds; appends its refresh id when it is new."""
    if receipt.repeat is None:
        receipt.repeat = request.repeat
        receipt.lane = request.lane
    if request.refresh is None:
        return Waiter(request.run, request.destination, retries=request.retries)
    if request.refresh not in receipt.refreshes:
        receipt.refreshes.append(request.refresh)
    epoch = receipt.refreshes.index(request.refresh) + 1
    return Waiter(
        run=request.run,
        destination=request.destination,
        value_epoch=epoch if request.mode is Mode.FULL_REFRESH else 0,
        outcome_epoch=epoch if request.mode is not Mode.NORMAL else 0,
        retries=request.retries,
    )


def claim(receipt: Receipt, n: int, lease: str, generation: int, epoch: int, op: int, batch: str, job: str | None = None) -> bool:
    """Fold a claim; true when it won. The first claim of an attempt in the topic wins. ``job``: all that it will ask for."""
    attempt = receipt.attempts.get(n)
    if attempt is None:
        receipt.attempts[n] = Attempt(lease, generation, epoch, op, batch, job=job)
        return True
    if attempt.lease is not None:
        return False
    attempt.lease, attempt.generation, attempt.epoch, attempt.op, attempt.batch = lease, generation, epoch, op, batch
    attempt.job = job
    return True


def release(receipt: Receipt, n: int, lease: str) -> None:
    """Fold a release; it counts only under the attempt's own lease."""
    attempt = receipt.attempts.get(n)
    if attempt is not None and attempt.lease == lease:
        attempt.released = True


def expire(receipt: Receipt, n: int, lease: str, not_before_ms: int = 0, used_up: bool = False) -> None:
    """Fold an expiry; it counts only under the attempt's own lease, and a release beats it. What it says of repeats stays."""
    attempt = receipt.attempts.get(n)
    if attempt is not None and attempt.lease == lease:
        attempt.expired = True
        attempt.not_before_ms = max(attempt.not_before_ms, not_before_ms)
        attempt.used_up = attempt.used_up or used_up


def job_started(receipt: Receipt, n: int, lease: str, job: str) -> None:
    """Fold the start of a job; it counts only under the attempt's own lease, and the first one stays."""
    attempt = receipt.attempts.get(n)
    if attempt is not None and attempt.lease == lease and attempt.job is None:
        attempt.job = job


def complete(receipt: Receipt, n: int, epoch: int, value: str) -> bool:
    """Fold a value (its digest); true when it is new. The first value of an attempt counts, others are kept aside."""
    attempt = receipt.attempts.get(n)
    if attempt is None:
        attempt = receipt.attempts[n] = Attempt()
    if attempt.out is not _VALUE:
        attempt.out, attempt.value = _VALUE, value
        attempt.epoch = epoch if attempt.lease is None else attempt.epoch
        if receipt.current is None or receipt.current[0] < epoch:
            receipt.current = (epoch, n)
        return True
    if attempt.value == value or (n, value) in receipt.aside:
        return False
    receipt.aside.append((n, value))
    return True


def end(receipt: Receipt, n: int, out: Out) -> Attempt | None:
    """Fold an end without a value; the attempt where it counts, else ``None``. The first definite end wins."""
    attempt = receipt.attempts.setdefault(n, Attempt())
    counts = attempt.out is None if out is Out.AMBIGUOUS else attempt.out in (None, Out.AMBIGUOUS)
    if not counts:
        return None
    attempt.out = out
    return attempt


# --- what follows -------------------------------------------------------------------------------------------


def verdict(attempt: Attempt, repeat: Repeat | None) -> Verdict:
    """How an attempt stands; the order of the rules is part of the protocol."""
    out = attempt.out
    if out is None or out is _AMBIGUOUS:
        if attempt.released:
            return _RELEASED
        if out is None and not attempt.expired:
            return _LIVE
        if attempt.used_up or attempt.given_up is not None:
            return Verdict.UNKNOWN
        # Whoever comes next asks for the job that is known, and submits nothing: that is no second call.
        never = attempt.job is None and (repeat is None or repeat is _NEVER)
        return Verdict.UNKNOWN if never else Verdict.AGAIN
    if attempt.given_up is not None and out is not _VALUE:
        return Verdict.FAILED
    return _DEFINITE_VERDICTS[out]


_DEFINITE_VERDICTS = {
    Out.VALUE: Verdict.OK,
    Out.FAILED: Verdict.FAILED,
    Out.RETRY: Verdict.RETRY,
    Out.UNPAID: Verdict.AGAIN,
}


class Standing(NamedTuple):
    """The highest claimed attempt of a receipt (0 for none) and how it stands: what all questions about it begin with."""

    n: int
    verdict: Verdict | None

    @property
    def live(self) -> bool:
        """Somebody may be calling."""
        return self.verdict is _LIVE


_UNCLAIMED = Standing(0, None)
#: The first attempt, by its verdict: how most receipts stand.
_AT_FIRST = {how: Standing(1, how) for how in Verdict}


def standing(receipt: Receipt) -> Standing:
    """How a receipt stands."""
    attempts = receipt.attempts
    if not attempts:
        return _UNCLAIMED
    highest = 0
    for n, attempt in attempts.items():
        if n > highest and attempt.lease is not None:
            highest = n
    if highest == 1:
        return _AT_FIRST[verdict(attempts[1], receipt.repeat)]
    return Standing(highest, verdict(attempts[highest], receipt.repeat)) if highest else _UNCLAIMED


def told(receipt: Receipt, waiter: Waiter, stands: Standing) -> tuple[Told, int]:
    """What a waiter gets, and from which attempt; the order of the rules is part of the protocol."""
    current = receipt.current
    if current is not None and current[0] >= waiter.value_epoch:
        return _COMPLETED, current[1]
    n, latest = stands
    if not n:
        return _WAITS
    wanted = waiter.value_epoch
    if latest is _LIVE and receipt.attempts[n].epoch >= wanted:
        return _WAITS
    doubtful = in_doubt(receipt, wanted)
    unknown = failed = 0
    for number, attempt in receipt.attempts.items():
        if attempt.lease is None or attempt.epoch < wanted:
            continue
        how = verdict(attempt, receipt.repeat)
        if how is Verdict.UNKNOWN:
            unknown = max(unknown, number)
        elif how is Verdict.FAILED:
            if doubtful and number > doubtful and same_operation(attempt, receipt.attempts[doubtful]):
                unknown = max(unknown, number)
            if attempt.epoch >= waiter.outcome_epoch:
                failed = max(failed, number)
    if unknown:
        return Told.UNKNOWN, unknown
    if failed and not doubtful:
        return Told.FAILED, failed
    return _WAITS


def in_doubt(receipt: Receipt, epoch: int) -> int:
    """The newest attempt of this epoch or a later one that may have been billed and is to be repeated under its key; 0 for none.

    Only where the provider honours keys, or the attempt's job is known and can be asked for (P10). As long as there is one, no
    refusal counts, and no new epoch is opened for a waiter that would take its value: the new key would be a second operation, and
    paid again.
    """
    honoured = receipt.repeat is _WITH_KEY
    if not honoured and not any(attempt.job for attempt in receipt.attempts.values()):
        return 0
    ended = _ended_jobs(receipt)
    return max(
        (
            n
            for n, attempt in receipt.attempts.items()
            if attempt.lease is not None
            and attempt.epoch >= epoch
            and not attempt.released
            and (attempt.out is None or attempt.out is _AMBIGUOUS)
            and (honoured if attempt.job is None else attempt.job not in ended)
        ),
        default=0,
    )


def same_operation(one: Attempt, other: Attempt) -> bool:
    """Both attempts go under one provider key."""
    return (one.epoch, one.op) == (other.epoch, other.op)


_WAITS = (_WAITING, 0)


def stays(waiter: Waiter) -> bool:
    """The waiter is still to be evaluated: neither withdrawn nor answered for good."""
    return waiter.flag is not _DONE and waiter.flag is not _WITHDRAWN


def undisturbed(receipt: Receipt, stands: Standing) -> bool:
    """One attempt is live and nothing could answer a waiter yet: no more than ``told`` says (tested), without a look at each."""
    return stands.verdict is _LIVE and len(receipt.attempts) == 1 and receipt.current is None and not receipt.refreshes


def settled(receipt: Receipt, stands: Standing) -> bool:
    """Nobody waits: without refreshes all who stay want the same, and that is there. Says no more than ``told`` does (tested)."""
    return not receipt.refreshes and told(receipt, _ANYBODY, stands)[0] is not _WAITING


_ANYBODY = Waiter("", 0)


def waiting(receipt: Receipt, waiters: Iterable[Waiter], stands: Standing) -> list[Waiter]:
    """Those that wait."""
    return [waiter for waiter in waiters if stays(waiter) and told(receipt, waiter, stands)[0] is _WAITING]


def operation(receipt: Receipt, epoch: int, n: int) -> int:
    """The operation of attempt ``n``: kept as long as any call under it has no definite answer, so that no second key
    exists while a call under the first may still be billed; new after that, so that no old refusal is repeated (T8, T9).
    """
    ours = _tried(receipt, epoch)
    op = ours[max(ours)].op if ours else n
    ended = _ended_jobs(receipt)
    doubtful = any(attempt.op == op and attempt.out not in _DEFINITE and attempt.job not in ended for attempt in ours.values())
    return op if doubtful else n


def _tried(receipt: Receipt, epoch: int) -> dict[int, Attempt]:
    """Attempts of an epoch that were claimed and not given back."""
    attempts = receipt.attempts.items()
    return {n: attempt for n, attempt in attempts if attempt.lease is not None and attempt.epoch == epoch and not attempt.released}


def batch_of(receipt: Receipt, epoch: int, op: int) -> str:
    """The batch that an operation went out in first, and so ever after (K6); ``""`` where it went alone, or is new. It is not
    asked of the last attempt: one for which the record of the batch was gone names none.
    """
    return next((attempt.batch for _, attempt in sorted(_tried(receipt, epoch).items()) if attempt.op == op), "")


def job_of(receipt: Receipt, epoch: int, op: int) -> str | None:
    """The job that does the work of an operation: the next attempt asks for it instead of submitting anything again (P10).

    A person's word that an attempt was unpaid ends the jobs known until then.
    """
    job = None
    for _, attempt in sorted(receipt.attempts.items()):
        if attempt.epoch == epoch and attempt.op == op:
            job = None if attempt.out is Out.UNPAID else attempt.job or job
    return job


def _ended_jobs(receipt: Receipt) -> set[str]:
    """Jobs whose end is known, by whichever attempt: none that submitted or asked for one of them is in doubt any more."""
    return {attempt.job for attempt in receipt.attempts.values() if attempt.job is not None and attempt.out in _DEFINITE}


def need(receipt: Receipt, waiters: Iterable[Waiter], stands: Standing) -> Need | None:
    """The attempt that the lane must claim, or ``None`` when nobody waits or somebody may be calling."""
    last, latest = stands
    if latest is _LIVE:
        return None
    if not last and receipt.current is None:
        # Nothing was claimed and nothing is known, so all who stay wait.
        if not receipt.refreshes:
            return _FIRST if any(map(stays, waiters)) else None
        epoch = max([waiter.outcome_epoch for waiter in waiters if stays(waiter)], default=None)
        if epoch is None:
            return None
        return Need(1, epoch, 1, 0, "") if epoch else _FIRST
    those = waiting(receipt, waiters, stands)
    if not those:
        return None
    n = last + 1
    while n in receipt.attempts and receipt.attempts[n].out is _VALUE:
        n += 1  # a value without a claim (Y2, or a claim that is not read yet): claiming it would make no call
    doubtful = in_doubt(receipt, max(waiter.value_epoch for waiter in those))
    epoch = receipt.attempts[doubtful].epoch if doubtful else max(waiter.outcome_epoch for waiter in those)
    if not last:
        return Need(n, epoch, n, 0, "")
    op = operation(receipt, epoch, n)
    tried = _tried(receipt, epoch)
    # The last attempt may be of another epoch: what those of this one say of their repeat holds, too.
    not_before_ms = max(attempt.not_before_ms for attempt in (receipt.attempts[last], *tried.values()))
    return Need(n, epoch, op, not_before_ms, batch_of(receipt, epoch, op), len(tried))


def grantable(receipt: Receipt, n: int, waiters: Iterable[Waiter], stands: Standing) -> bool:
    """Attempt ``n`` may be called for: it is the latest, it is live, and somebody who waits would take its value."""
    if n != stands.n or stands.verdict is not _LIVE:
        return False
    if undisturbed(receipt, stands):
        return any(map(stays, waiters))
    epoch = receipt.attempts[n].epoch
    return any(waiter.value_epoch <= epoch for waiter in waiting(receipt, waiters, stands))
