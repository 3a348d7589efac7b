"""How long a request waits for a call of another run (R3, R4): a deadline for each follower, and nothing is polled.

A request that meets a live call of another run is written down with the moment at which it came. When its wait is over and that
call, or one that took its place, is still live, its own row is told so and its request is withdrawn; the receipt stays as it is.
Otherwise it needs no deadline any more: it was answered, or the lane's next attempt is its own. Who waits in the queue of a lane,
behind its pace, waits for itself, and has no deadline.

Pure: the wait is only used to say when to look, so no record depends on a setting, and a replay folds the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.commands import WaitsDue
from schemas.events import Answer, CallsAnswered, CallWithdrawn, Fault, Mark, ToolRequested
from schemas.states import FOLLOWERS, WAITER, Flag, Followers, Receipt, Waiter, record_key
from streams.engine.dispositions import Disposition, disposition
from streams.engine.port import Context, Outbox, Records, Wake
from streams.engine.protocol import Standing, standing

WAIT_MS = 300_000
_STANDS_IN_THE_WAY = (Disposition.RUNNING, Disposition.BLOCKED_ACTIVE_LEASE)


@dataclass(frozen=True, slots=True)
class Waits:
    """How long followers wait, in milliseconds: for all tools, and for those that say so themselves.

    What a request brings from its column goes before both.
    """

    default_ms: int = WAIT_MS
    by_tool: Mapping[str, int] = field(default_factory=dict)

    def note(self, records: Records, outbox: Outbox, request: ToolRequested, now_ms: int) -> None:
        """Write down that a call follows since this turn, and have it looked at when its wait is over."""
        due = WaitsDue(request.receipt, now_ms, request.receipt_wait_ms)
        key = _name(due)
        followers = records.get(key, Followers)
        if followers is None:
            followers = Followers(request.tool, [])
            self._wake(outbox, request.tool, due)
        followers.calls.append(request.call)
        records.put(key, followers)

    def resume(self, records: Records, outbox: Outbox) -> None:
        """A new owner: its timers are those of the one before."""
        for key, followers in records.scan(FOLLOWERS, Followers):
            self._wake(outbox, followers.tool, _named(key))

    def _wake(self, outbox: Outbox, tool: str, due: WaitsDue) -> None:
        own = due.receipt_wait_ms
        outbox.effects.append(Wake(due.met_ms + (self.by_tool.get(tool, self.default_ms) if own is None else own), due))


def _name(due: WaitsDue) -> bytes:
    """Key of the followers that one timer is for; a wait of their own stands in it, since it came with their requests."""
    own = "" if due.receipt_wait_ms is None else f"+{due.receipt_wait_ms}"
    return record_key(FOLLOWERS, due.receipt, f"{due.met_ms}{own}")


def _named(key: bytes) -> WaitsDue:
    receipt, _, moment = key[1:].decode().rpartition("\x00")
    met_ms, _, own = moment.partition("+")
    return WaitsDue(receipt, int(met_ms), int(own) if own else None)


def follows(receipt: Receipt, waiter: Waiter, stands: Standing) -> bool:
    """This new request meets a live call that is not its run's own: another run asked for it first, or for that refresh.

    A run's own call ends with its lease at the latest, and then the lane claims again by itself.
    """
    if not stands.live:
        return False
    epoch, wanted = receipt.attempts[stands.n].epoch, waiter.outcome_epoch
    own = epoch == wanted and (wanted > 0 or receipt.run == waiter.run)
    return not own and disposition(receipt, waiter, stands) in _STANDS_IN_THE_WAY


def end(records: Records, outbox: Outbox, context: Context, due: WaitsDue, receipt: Receipt) -> None:
    """The wait of these followers is over: tell those that still wait for a live call, and withdraw their requests (R4).

    The caller writes the receipt's record, in which waiters change.
    """
    key = _name(due)
    followers = records.get(key, Followers)
    if followers is None:
        return
    records.delete(key)
    stands = standing(receipt)
    told: dict[tuple[int, Disposition], list[tuple[str, Mark]]] = {}
    for call in followers.calls:
        waiter = receipt.waiters.get(call)
        kept_apart = waiter is None
        if waiter is None:
            waiter = records.get(record_key(WAITER, due.receipt, call), Waiter)
        if waiter is None or waiter.flag is not Flag.OPEN:
            continue
        met = disposition(receipt, waiter, stands)
        if met not in _STANDS_IN_THE_WAY:
            continue
        # Told, so that a value that comes before the withdrawal is folded is no news: of two answers the first is final.
        waiter.flag = Flag.FAILED
        if kept_apart:
            records.put(record_key(WAITER, due.receipt, call), waiter)
        told.setdefault((waiter.destination, met), []).append((call, Mark.IN_FLIGHT))
        outbox.send("tool-requests", context.partition, CallWithdrawn(due.receipt, call))
    for (destination, met), calls in told.items():
        fault = _fault(met, stands.n, context.now_ms - due.met_ms)
        outbox.send("tool-results", destination, CallsAnswered(due.receipt, stands.n, Answer.FAILED, tuple(calls), fault=fault))


def _fault(met: Disposition, n: int, waited_ms: int) -> Fault:
    """Repairable: the next run asks again, and finds the outcome or claims."""
    waited = f"after {waited_ms / 1000:g} s"
    if met is Disposition.BLOCKED_ACTIVE_LEASE:
        return Fault("force_blocked", f"not refreshed: {waited} it still met {met.value}, attempt {n} of another run", True)
    return Fault("wait_timed_out", f"wait timed out: {waited} it still met {met.value}, attempt {n} of another run", True)
