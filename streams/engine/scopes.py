"""What happens when a provider says that the credentials' scope has changed (P4). Pure.

A run's receipts are keyed by the scope that its tools had when it was accepted (K3). A worker that meets such an answer tells, in
the fault's code, the scope of the providers file it runs with: that is what resolving again means here. ``rows`` then asks under
the keys of that scope, once per request. The old receipt has a repairable failure that billed nothing, which is no obstacle to
anybody who asks under the old scope again.

Each request carries the tool's version and the scope that its run was accepted with, so that no worker with another providers file
answers it (K1): in its bucket, since requests that differ in them may not share a call either.
"""

from __future__ import annotations

from typing import Final

from schemas.events import CompiledColumn, Fault

AUTH_SCOPE_CHANGED: Final = "auth_scope_changed"
AUTH_SCOPE_UNCHANGED: Final = "auth_scope_unchanged"

#: Before what a bucket says of version and scope. No bucket key holds it: JSON writes control characters in another way.
_BOUND: Final = "\x1f"
#: Digits of a scope that tell it from others; a request and its receipt carry them.
_SCOPE_DIGITS: Final = 12


def terms(version: str, scope: str) -> str:
    """What a call must agree on with whoever asked for it: the tool's version, and the beginning of the scope's digest."""
    return f"{version}{_BOUND}{scope[:_SCOPE_DIGITS]}"


def bound(bucket: str, column: CompiledColumn) -> str:
    """The bucket of a request: its own key, and the terms that its run was accepted under."""
    return f"{bucket}{_BOUND}{column.version}{_BOUND}{column.scope[:_SCOPE_DIGITS]}"


def terms_in(bucket: str) -> str:
    """The terms that a bucket carries, ``""`` for one of before."""
    return bucket.partition(_BOUND)[2]


def version_in(terms: str) -> str:
    """The version that terms name."""
    return terms.rpartition(_BOUND)[0]


def scope_digits_in(terms: str) -> str:
    """The beginning of the scope that terms name."""
    return terms.rpartition(_BOUND)[2]


def scope_changed(scope: str) -> str:
    """The fault code that says so, with the scope that holds now."""
    return f"{AUTH_SCOPE_CHANGED}:{scope}"


def scope_in(code: str) -> str | None:
    """The scope that a fault's code tells, ``None`` for any other code."""
    name, _, scope = code.partition(":")
    return scope if name == AUTH_SCOPE_CHANGED and scope else None


def unmoved(fault: Fault) -> Fault:
    """The fault of a cell whose keys would be the same, or have changed once already: loud, and for a person to mend."""
    text = (
        "the providers file names the same account as before, or not all workers have the same one; "
        "change it, restart the workers, and run again"
    )
    return Fault(AUTH_SCOPE_UNCHANGED, f"{fault.message}: {text}", fault.repairable)


def too_late(fault: Fault) -> Fault:
    """The fault of a cell whose run has ended meanwhile, so that nothing more is asked for it."""
    text = "this run has ended; a next one asks under the keys of the account that holds now"
    return Fault(AUTH_SCOPE_CHANGED, f"{fault.message}: {text}", fault.repairable)


def in_doubt(fault: Fault) -> Fault:
    """The fault of a cell of which an earlier call may have been billed: until that is settled, no other key is used."""
    text = (
        "an earlier call of it lost its answer and may have been billed; settle that first, then it moves to the keys that hold now"
    )
    return Fault(AUTH_SCOPE_CHANGED, f"{fault.message}: {text}", fault.repairable)
