"""What of a receipt's old attempts nobody can be told any more: values and faults go, so that a cell forced each day stays small.

Pure; for the sweep. The attempts stay with their numbers, leases, ends and digests, so that whatever comes late or twice is
recognised. All refresh ids stay, too: an epoch is the place of an id among them, and a late copy of one that was thrown away
would be a new refresh, and be paid for.
"""

from __future__ import annotations

from schemas.states import VALUE, Out, Receipt, StoredValue, record_key
from streams.engine import protocol
from streams.engine.batches import doubtful
from streams.engine.port import Records
from streams.engine.protocol import Verdict


def thin(records: Records, key: str, receipt: Receipt) -> bool:
    """Drop values and faults of attempts of which nobody can be told any more; whether there were any.

    A caller gets the current value, if that is of its epoch or a later one, whatever else there is: so nothing of an epoch below
    the current one is ever told again. Where nothing is in doubt it gets the last refusal of its epoch or a later one: so no
    refusal is told again once there is a later one of its epoch or a later one.
    """
    current, supplier = receipt.current or (-1, 0)
    refused = {n for n, attempt in receipt.attempts.items() if attempt.lease is not None and _is_refused(receipt, n)}
    last = 0 if doubtful(receipt) else max(refused, default=0)
    changed = False
    for n, attempt in receipt.attempts.items():
        below = attempt.epoch < current and (attempt.released or attempt.out not in (None, Out.AMBIGUOUS))
        if n == supplier or (not below and not (n < last and n in refused and attempt.epoch <= receipt.attempts[last].epoch)):
            continue
        if attempt.fault is not None or attempt.output is not None:
            attempt.fault = attempt.output = None
            changed = True
        if attempt.value is not None:
            name = record_key(VALUE, key, str(n))
            if records.get(name, StoredValue) is not None:
                records.delete(name)
    return changed


def _is_refused(receipt: Receipt, n: int) -> bool:
    return protocol.verdict(receipt.attempts[n], receipt.repeat) is Verdict.FAILED
