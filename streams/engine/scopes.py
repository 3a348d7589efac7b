"""What happens when a provider says that the credentials' scope has changed (P4). Pure.

A run's receipts are keyed by the scope that its tools had when it was accepted (K3). A worker that meets such an answer tells, in
the fault's code, the scope of the providers file it runs with: that is what resolving again means here. ``rows`` then asks under
the keys of that scope, once per request. The old receipt has a repairable failure that billed nothing, which is no obstacle to
anybody who asks under the old scope again.
"""

from __future__ import annotations

from typing import Final

from schemas.events import Fault

AUTH_SCOPE_CHANGED: Final = "auth_scope_changed"
AUTH_SCOPE_UNCHANGED: Final = "auth_scope_unchanged"


def scope_changed(scope: str) -> str:
    """The fault code that says so, with the scope that holds now."""
    return f"{AUTH_SCOPE_CHANGED}:{scope}"


def scope_in(code: str) -> str | None:
    """The scope that a fault's code tells, ``None`` for any other code."""
    name, _, scope = code.partition(":")
    return scope if name == AUTH_SCOPE_CHANGED and scope else None


def unmoved(fault: Fault) -> Fault:
    """The fault of a cell whose keys would be the same: loud, and for a person to mend."""
    text = "the providers file names the same account as before; change it, restart the workers, and run again"
    return Fault(AUTH_SCOPE_UNCHANGED, f"{fault.message}: {text}", fault.repairable)


def too_late(fault: Fault) -> Fault:
    """The fault of a cell whose run has ended meanwhile, so that nothing more is asked for it."""
    text = "this run has ended; a next one asks under the keys of the account that holds now"
    return Fault(AUTH_SCOPE_CHANGED, f"{fault.message}: {text}", fault.repairable)
