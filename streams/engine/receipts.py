"""The receipts engine: folds requests, claims and completions, answers callers, and tells the lanes what to do.

Pure: records and events in, outputs and effects out. The rules about one receipt are in ``protocol``; here is what surrounds them:
which record lives under which key, who is answered in which message, and which claims are granted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from schemas.commands import AnswersDue, LeaseJudgedExpired, RecoveryEnded, SweepDue, SweepGoesOn, WaitsDue
from schemas.events import (
    Ambiguous,
    AttemptEnded,
    BatchClaimed,
    CallWithdrawn,
    ClaimedMember,
    Event,
    Failed,
    Fault,
    JobStarted,
    LeaseExpired,
    LeaseReleased,
    LeasesRenewed,
    Mark,
    Probed,
    ReceiptForgotten,
    ReceiptResolved,
    Retry,
    RunClosed,
    ToolRequested,
    Value,
)
from schemas.states import (
    ASK,
    BATCH,
    OPEN,
    VALUE,
    WAITER,
    Ask,
    Batch,
    Flag,
    OpenReceipt,
    Out,
    Receipt,
    StoredValue,
    Waiter,
    record_key,
)
from streams.engine import budgets, completedcache, gates, protocol, stock, sweep, unknowns, waits
from streams.engine.answers import CALLERS_MAX, CALLERS_MIN, answer, callers_max
from streams.engine.effects import ClaimFolded, KeptAside, LeaseOver, LeaseSeen, LeasesSeen, ProbeSeen, Queued, Unqueued
from streams.engine.port import Context, Outbox, Records, Wake
from streams.engine.protocol import Told, Verdict
from streams.engine.receiptsturn import ReceiptsTurn
from streams.engine.sweep import SweepPolicy
from streams.engine.withdrawal import WAITERS_INLINE, withdraw

#: Values up to this size live in the receipt's record, larger ones in records of their own.
INLINE_BYTES_MAX = 1024
# Members of enums, bound once: see ``protocol``.
_WAITS, _COMPLETED, _TOLD_UNKNOWN, _FLAG_FAILED, _FLAG_UNKNOWN = Told.WAITS, Told.COMPLETED, Told.UNKNOWN, Flag.FAILED, Flag.UNKNOWN
_LIVE, _UNKNOWN, _DONE, _WITHDRAWN = Verdict.LIVE, Verdict.UNKNOWN, Flag.DONE, Flag.WITHDRAWN
_CACHE, _IN_FLIGHT, _FIRST = Mark.CACHE, Mark.IN_FLIGHT, Mark.LIVE
_OPEN_ENTRY = OpenReceipt()


class ReceiptsEngine:
    """The engine of the ``receipts`` table; without ``sweep`` it drops nothing by itself."""

    def __init__(
        self, wait: waits.Waits | None = None, sweep: SweepPolicy | None = None, *, answers_max: int = CALLERS_MAX
    ) -> None:
        self._waits = wait or waits.Waits()
        self._sweep = sweep
        self._answers_max = answers_max

    def turn(self, records: Records, events: Sequence[Event], outbox: Outbox, context: Context) -> None:
        """Fold all events, then answer callers, decide about claims, and tell the lanes what is needed."""
        turn = ReceiptsTurn(records, outbox, context)
        turn.prefetch(events)
        for event in events:
            self._fold(turn, event)
        for claim in turn.claims:
            self._decide(turn, claim)
        for key, receipt in (turn.stock | turn.touched).items():
            self._settle(turn, key, receipt)
        if turn.retries:
            budgets.report(turn)
        sweep.finish(records, outbox, context, turn.for_sweep, turn.sweeps, self._sweep)
        effects = outbox.effects
        effects.extend(LeaseOver(lease, tuple(receipts)) for lease, receipts in turn.over.items())
        effects.extend(Unqueued(lane, tuple(receipts)) for lane, receipts in turn.resting.items())

    # --- folding ---------------------------------------------------------------------------------------------

    def _fold(self, turn: ReceiptsTurn, event: Event) -> None:
        match event:
            case ToolRequested():
                self._request(turn, event)
            case BatchClaimed():
                self._claim(turn, event)
            case AttemptEnded():
                self._end(turn, event)
            case LeaseReleased():
                for member in event.members:
                    receipt = turn.receipt(member.receipt)
                    protocol.release(receipt, member.n, event.lease)
                    if not receipt.open:
                        turn.reindex.add(member.receipt)
                    turn.over.setdefault(event.lease, []).append(member.receipt)
            case LeaseExpired():
                used_up = frozenset(event.used_up)
                for member in event.members:
                    receipt, spent = turn.receipt(member.receipt), member.receipt in used_up
                    protocol.expire(receipt, member.n, event.lease, event.not_before_ms, spent)
                    turn.over.setdefault(event.lease, []).append(member.receipt)
            case RunClosed():
                unknowns.run_ended(turn.records, turn.context, event.run)
            case JobStarted():
                protocol.job_started(turn.receipt(event.receipt), event.n, event.lease, event.job)
            case LeaseJudgedExpired():
                expired = LeaseExpired(event.lease, event.members, event.not_before_ms, event.used_up)
                turn.outbox.send("receipt-claims", turn.context.partition, expired)
            case LeasesRenewed():
                turn.outbox.effects.append(LeasesSeen(event.leases))
            case CallWithdrawn():
                receipt = turn.receipt(event.receipt, calm=True)
                withdraw(turn.records, receipt, event)
                if not receipt.open:
                    turn.for_sweep[event.receipt] = None
            case ReceiptResolved():
                self._resolve(turn, event)
            case Probed():
                turn.outbox.effects.append(ProbeSeen(event.probe))
            case AnswersDue():
                turn.receipt(event.receipt, calm=True)
                turn.page(event.receipt, event.after)
            case WaitsDue():
                waits.end(turn.records, turn.outbox, turn.context, event, turn.receipt(event.receipt))
            case RecoveryEnded():
                turn.stock |= stock.take(turn.records, turn.outbox, turn.context)
                turn.recheck_all.update(turn.stock)
                self._waits.resume(turn.records, turn.outbox)
                if self._sweep is not None:
                    turn.outbox.effects.append(self._sweep.next(turn.context.now_ms))
            case SweepDue() | SweepGoesOn() | ReceiptForgotten():
                turn.sweeps.append(event)

    def _request(self, turn: ReceiptsTurn, event: ToolRequested) -> None:
        if event.kept_under:
            event = completedcache.placed(turn, event)
        receipt = turn.receipt(event.receipt, calm=True)
        if event.call in receipt.waiters:
            return
        inline = len(receipt.waiters) < WAITERS_INLINE
        # Also where there is room again: a sweep may have dropped inline ones while this caller has a record of its own (T6).
        overflow_key = record_key(WAITER, event.receipt, event.call) if receipt.overflow or not inline else b""
        if overflow_key and turn.records.get(overflow_key, Waiter) is not None:
            return
        if receipt.repeat is None:
            receipt.tool, receipt.run, receipt.bucket = event.tool, event.run, event.bucket
            receipt.kept_under = event.kept_under
            if len(event.input) <= INLINE_BYTES_MAX:
                receipt.input = event.input
            else:
                turn.records.put(ASK + event.receipt.encode(), Ask(event.input))
        if event.continues:
            turn.continuing.add(event.receipt)
        waiter = protocol.waiter_of(receipt, event)
        if receipt.attempts:
            stands = protocol.standing(receipt)
            waiter.late = protocol.told(receipt, waiter, stands)[0] is not _WAITS
            if waits.follows(receipt, waiter, stands):
                self._waits.note(turn.records, turn.outbox, event, turn.context.now_ms)
        if inline:
            receipt.waiters[event.call] = waiter
        else:
            receipt.overflow += 1
            turn.records.put(overflow_key, waiter)
            turn.newcomers.setdefault(event.receipt, {})[event.call] = waiter

    def _claim(self, turn: ReceiptsTurn, event: BatchClaimed) -> None:
        won: list[ClaimedMember] = []
        for member in event.members:
            receipt = turn.receipt(member.receipt)
            terms = (event.lease, event.generation, member.epoch, member.op, event.batch, event.job)
            if protocol.claim(receipt, member.n, *terms):
                won.append(member)
        payload = event.payload or event.members
        if won and len(payload) > 1 and event.batch:
            # Only what an attempt names is found again, and dropped some day.
            members = tuple((member.receipt, member.epoch, member.op) for member in payload)
            turn.records.put(record_key(BATCH, event.batch), Batch(event.tool, event.lane, members))
        if event.generation == turn.context.generation:
            # A copy was judged with the first, and its owner heard of that: a release now would free a call in flight.
            if won or all(turn.receipt(member.receipt).attempts[member.n].lease != event.lease for member in event.members):
                turn.claims.append(event)
        elif won and event.generation < turn.context.generation:
            # Nobody folded it before, so it was never granted and nothing was sent (T12).
            turn.outbox.send("receipt-claims", turn.context.partition, LeaseReleased(event.lease, tuple(won)))
        if won:
            turn.outbox.effects.append(LeaseSeen(event.lane, event.lease, tuple(won)))

    def _end(self, turn: ReceiptsTurn, event: AttemptEnded) -> None:
        receipt = turn.receipt(event.receipt)
        over = turn.over.get(event.lease)
        if over is None:
            over = turn.over[event.lease] = []
        over.append(event.receipt)
        if not receipt.open or len(receipt.attempts) > 1:
            turn.reindex.add(event.receipt)
        outcome = event.outcome
        if isinstance(outcome, Value):
            self._value(turn, event.receipt, receipt, event.n, event.epoch, outcome.output)
            return
        attempt = protocol.end(receipt, event.n, _OUT_OF[type(outcome)])
        if attempt is not None:
            attempt.fault = outcome.fault
            # What an expiry says stays: it may be folded on either side of this.
            if isinstance(outcome, Retry | Ambiguous):
                attempt.not_before_ms = max(attempt.not_before_ms, outcome.not_before_ms)
            if isinstance(outcome, Retry):
                gates.note(turn.outbox, turn.context, receipt.lane, attempt.batch, outcome.fault, outcome.not_before_ms)
            if isinstance(outcome, Ambiguous):
                attempt.used_up = attempt.used_up or outcome.used_up

    def _value(self, turn: ReceiptsTurn, key: str, receipt: Receipt, n: int, epoch: int, output: bytes) -> None:
        digest = hashlib.blake2b(output, digest_size=16).hexdigest()
        if not protocol.complete(receipt, n, epoch, digest):
            return
        if not receipt.open:
            # Nobody may be told of it, as of one that came after its receipt was dropped: the sweep is to find it all the same.
            turn.for_sweep[key] = None
        attempt = receipt.attempts[n]
        if attempt.value != digest:
            turn.records.put(record_key(VALUE, key, str(n), digest), StoredValue(output))
            turn.outbox.effects.append(KeptAside(key, n, receipt.tool, output))
            return
        if len(output) <= INLINE_BYTES_MAX:
            attempt.output = output
        else:
            turn.records.put(record_key(VALUE, key, str(n)), StoredValue(output))
        if receipt.current != (epoch, n):
            # Paid for, but another attempt's value came first: it stays with its attempt, and is reported (S5).
            turn.outbox.effects.append(KeptAside(key, n, receipt.tool, output))
        if receipt.kept_under:
            completedcache.keep(turn, key, receipt, n, epoch, digest, output)

    def _resolve(self, turn: ReceiptsTurn, event: ReceiptResolved) -> None:
        receipt = turn.receipt(event.receipt)
        turn.reindex.add(event.receipt)
        if event.output is not None:
            self._value(turn, event.receipt, receipt, event.n, event.epoch, event.output)
        else:
            attempt = protocol.end(receipt, event.n, Out.UNPAID)
            if attempt is not None:
                attempt.fault = Fault("resolved_unpaid", f"resolved as unpaid by {event.who}: {event.why}")
                unknowns.unpaid(turn.outbox, turn.context, event, receipt)
                for call, waiter in unknowns.waiting_again(turn.records, turn.calls(event.receipt, receipt)):
                    turn.keep(event.receipt, receipt, call, waiter)

    # --- what follows ----------------------------------------------------------------------------------------

    def _decide(self, turn: ReceiptsTurn, claim: BatchClaimed) -> None:
        """Grant what may be called for, from the state at the end of the turn; release what won but may not (owner's rule 2)."""
        granted: list[str] = []
        lost: list[str] = []
        released: list[ClaimedMember] = []
        for member in claim.members:
            receipt = turn.receipt(member.receipt)
            attempt = receipt.attempts[member.n]
            if attempt.lease != claim.lease:
                lost.append(member.receipt)
                continue
            waiters = turn.waiters(member.receipt, receipt)
            if len(receipt.attempts) > 1:
                waiters = unknowns.demanding(turn.records, waiters)
            if protocol.grantable(receipt, member.n, waiters, protocol.standing(receipt)) and (
                len(receipt.attempts) == 1 or budgets.may_call(turn, member.receipt, receipt, member.n)
            ):
                granted.append(member.receipt)
                continue
            lost.append(member.receipt)
            if protocol.verdict(attempt, receipt.repeat) is _LIVE:
                released.append(member)
        if released:
            turn.outbox.send("receipt-claims", turn.context.partition, LeaseReleased(claim.lease, tuple(released)))
        turn.outbox.effects.append(ClaimFolded(claim.lane, claim.lease, tuple(granted), tuple(lost)))

    def _settle(self, turn: ReceiptsTurn, key: str, receipt: Receipt) -> None:
        """Answer the waiters of a receipt, keep the index of open ones, and tell the lane."""
        stands = protocol.standing(receipt)
        need = None
        if not protocol.undisturbed(receipt, stands):
            need = self._answered(turn, key, receipt, stands)
            if (receipt.retry is not None or (need is not None and need.tries)) and not budgets.may_need(turn, key, receipt, need):
                stands = protocol.standing(receipt)
                turn.recheck_all.add(key)
                need = self._answered(turn, key, receipt, stands)
        active = need is not None or stands.verdict is _LIVE
        if receipt.open and not active:
            turn.for_sweep[key] = None
            turn.rest(receipt.lane, key)
        # Open until the last page of answers is sent: pages live in timers, and a new owner examines open receipts only.
        wanted = active or key in turn.unfinished or (receipt.open and turn.pages_on(key, receipt))
        if wanted is not receipt.open:
            receipt.open = wanted
            name = turn.changed(key, receipt)
            turn.records.put_local(OPEN + name[1:], _OPEN_ENTRY if wanted else None)
        if need is not None:
            continues = key in turn.continuing
            turn.outbox.effects.append(Queued(key, receipt.lane, receipt.tool, receipt.run, need, receipt.bucket, continues))

    def _answered(self, turn: ReceiptsTurn, key: str, receipt: Receipt, stands: protocol.Standing) -> protocol.Need | None:
        """Answer the waiters of a receipt as it stands, and say what the others need."""
        n, verdict = stands
        need = None
        settled = receipt.overflow > 0 and protocol.settled(receipt, stands)
        if receipt.open and not settled and verdict is not _LIVE:
            turn.recheck_all.add(key)
        if receipt.attempts:
            self._answer(turn, key, receipt, stands)
        if not settled and (receipt.current is None or receipt.refreshes):
            need = protocol.need(receipt, turn.due_waiters(key, receipt), stands)
            if need is not None and n:
                need = protocol.need(receipt, unknowns.demanding(turn.records, turn.due_waiters(key, receipt)), stands)
        if verdict is _UNKNOWN or key in turn.reindex:
            unknowns.index(turn.records, turn.outbox, turn.context, key, receipt)
        return need

    def _answer(self, turn: ReceiptsTurn, key: str, receipt: Receipt, stands: protocol.Standing) -> None:
        groups: dict[tuple[int, Told, int], list[tuple[str, Mark]]] = {}
        count, most = 0, CALLERS_MIN
        for call, waiter in turn.due(key, receipt):
            before = waiter.flag
            if before is _DONE or before is _WITHDRAWN:
                continue
            what, n = protocol.told(receipt, waiter, stands)
            if what is _WAITS:
                if before is _FLAG_UNKNOWN and stands.live and unknowns.waits_again(turn.records, waiter):
                    turn.keep(key, receipt, call, waiter)
                continue
            flag = _FLAG_AFTER[what]
            if before is flag:
                continue
            if count >= most and count >= (most := min(self._answers_max, callers_max(turn.records, key, receipt, what, n))):
                turn.unfinished.add(key)
                after = "" if call in receipt.waiters else call
                turn.outbox.effects.append(Wake(turn.context.now_ms, AnswersDue(key, after)))
                break
            # Rule 1: a value is no news to who was told failed; for one call the first of the two is final.
            if not (what is _COMPLETED and before is _FLAG_FAILED):
                told = (call, _CACHE if waiter.late else _IN_FLIGHT if count else _FIRST)
                place = (waiter.destination, what, n)
                if place in groups:
                    groups[place].append(told)
                else:
                    groups[place] = [told]
                count += 1
            waiter.flag = flag
            if receipt.overflow and call not in receipt.waiters:
                turn.records.put(record_key(WAITER, key, call), waiter)
        if not groups:
            return
        turn.changed(key, receipt)
        turn.for_sweep[key] = None
        send = turn.outbox.send
        for (destination, what, n), calls in groups.items():
            if what is _TOLD_UNKNOWN:
                # The attempt in doubt need not be the last, nor have changed in this turn: who is told is to find it listed (U5).
                turn.reindex.add(key)
                unknowns.tell(turn.outbox, destination, key, receipt, n, calls)
            send("tool-results", destination, answer(turn.records, key, receipt, what, n, tuple(calls)))


_OUT_OF: dict[type[object], Out] = {Failed: Out.FAILED, Retry: Out.RETRY, Ambiguous: Out.AMBIGUOUS}
_FLAG_AFTER = {
    Told.COMPLETED: Flag.DONE,
    Told.UNKNOWN: Flag.UNKNOWN,
    Told.FAILED: Flag.FAILED,
}
