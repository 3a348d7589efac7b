"""What a new owner of a partition of ``receipts`` begins with: what is open, the leases that live, what is unknown. Pure."""

from __future__ import annotations

from schemas.events import ClaimedMember
from schemas.states import OPEN, RECEIPT, OpenReceipt, Receipt, record_key
from streams.engine import protocol, unknowns
from streams.engine.effects import LeaseSeen
from streams.engine.port import Outbox, Records


def take(records: Records, outbox: Outbox) -> dict[str, Receipt]:
    """All open receipts; the clocks of live leases start, and the dispatcher hears of what is unknown."""
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
        if stands.live:
            n = stands.n
            attempt = receipt.attempts[n]
            member = ClaimedMember(key, n, attempt.epoch, attempt.op)
            leases.setdefault((receipt.lane, attempt.lease or ""), []).append(member)
    for (lane, lease), members in leases.items():
        outbox.effects.append(LeaseSeen(lane, lease, tuple(members)))
    unknowns.take_stock(records, outbox)
    return found
