"""What a new owner of a partition of ``receipts`` begins with: what is open, live leases, paused lanes, what is unknown. Pure."""

from __future__ import annotations

from schemas.events import ClaimedMember
from schemas.states import OPEN, RECEIPT, OpenReceipt, Receipt, record_key
from streams.engine import gates, protocol, unknowns
from streams.engine.effects import LeaseSeen
from streams.engine.port import Context, Outbox, Records
from streams.engine.protocol import Verdict


def take(records: Records, outbox: Outbox, context: Context) -> dict[str, Receipt]:
    """All open receipts; live leases' clocks start, lanes wait as their providers want, the dispatcher hears of what is unknown."""
    leases: dict[tuple[str, str], list[ClaimedMember]] = {}
    found: dict[str, Receipt] = {}
    opened = [name[1:].decode() for name, _ in records.scan(OPEN, OpenReceipt)]
    records.prefetch(record_key(RECEIPT, key) for key in opened)
    for key in opened:
        receipt = records.get(record_key(RECEIPT, key), Receipt)
        if receipt is None:
            continue
        found[key] = receipt
        stands = protocol.standing(receipt)
        if stands.verdict is Verdict.RETRY:
            attempt = receipt.attempts[stands.n]
            gates.note(outbox, context, receipt.lane, attempt.batch, attempt.fault, attempt.not_before_ms)
        elif stands.live:
            n = stands.n
            attempt = receipt.attempts[n]
            member = ClaimedMember(key, n, attempt.epoch, attempt.op)
            leases.setdefault((receipt.lane, attempt.lease or ""), []).append(member)
    for (lane, lease), members in leases.items():
        outbox.effects.append(LeaseSeen(lane, lease, tuple(members)))
    unknowns.take_stock(records, outbox)
    return found
