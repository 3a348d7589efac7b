"""What a request was bound to when its run was accepted, held against this worker's providers file (K1, K3, P4).

Beside ``calls``, which asks before each claim. A receipt's key names an account and a version: an answer of another account, or of
another version, under it would be wrong for ever, and nobody would see it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from schemas.events import ClaimedMember, Fault, Repeat
from schemas.fetch import FETCH
from schemas.providers import Providers
from schemas.states import Receipt
from streams.engine.compile import scope_of, scope_of_secrets
from streams.engine.scopes import scope_changed, scope_digits_in, terms, terms_in, version_in
from streams.tools.port import Doubtful, MemberOutcome, NotDone, Refused

#: Code of the failure of a call that was asked for under another version of its tool.
VERSION_CHANGED: Final = "version_changed"


class _Secret(msgspec.Struct):
    secret: str


class _Ask(msgspec.Struct):
    secrets: dict[str, _Secret] = {}


_ask = msgspec.json.Decoder(_Ask).decode


class TodaysTerms:
    """The versions and auth scopes of the tools in a providers file."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers
        #: Version, scope, and both as requests carry them, by tool.
        self._tools: dict[str, tuple[str, str, str]] = {}

    def barred(
        self, tool: str, payload: Sequence[ClaimedMember], receipts: Sequence[Receipt], inputs: Sequence[bytes], *, job: bool
    ) -> tuple[MemberOutcome, ...]:
        """An outcome for each member of a call that this worker may not make; none where it may. ``job``: it only asks for one.

        A member that an earlier attempt may have paid for becomes doubtful: a refusal would be asked again under new keys, and paid
        twice.
        """
        known = self._tools.get(tool)
        if known is not None and all(terms_in(receipt.bucket) in ("", known[2]) for receipt in receipts):
            return ()
        faults = [self._fault(tool, receipt, text, job=job) for receipt, text in zip(receipts, inputs, strict=True)]
        if not any(faults):
            return ()
        return tuple(_outcome(*entry) for entry in zip(faults, payload, receipts, strict=True))

    def other_scope(self, tool: str, receipt: Receipt, text: bytes) -> Fault | None:
        """Why an account of today may not be asked about a receipt: it was asked for under another; ``None`` where it may."""
        asked = terms_in(receipt.bucket)
        today = self._of(tool, text)
        if not asked or today is None or scope_digits_in(asked) == scope_digits_in(today[2]):
            return None
        now = scope_digits_in(today[2])
        words = f"{tool}: asked for under the credentials {scope_digits_in(asked)}; this worker's providers file names {now}"
        return Fault(scope_changed(today[1]), f"{words}; nothing was sent", True)

    def _fault(self, tool: str, receipt: Receipt, text: bytes, *, job: bool) -> Fault | None:
        if self._providers.tool(tool) is None:
            return Fault("unknown_tool", f"this worker's providers file has no tool {tool!r}", True)
        asked, today = terms_in(receipt.bucket), self._of(tool, text)
        if not asked or today is None or asked == today[2]:
            return None
        if version_in(asked) != today[0] and not job:
            words = f"{tool}: asked for as version {version_in(asked)!r}; this worker's providers file has version {today[0]!r}"
            return Fault(VERSION_CHANGED, f"{words}; nothing was sent", True)
        return self.other_scope(tool, receipt, text)

    def _of(self, tool: str, text: bytes) -> tuple[str, str, str] | None:
        """Version, scope and terms of a tool today, for one input; ``None`` where that is not for us to say."""
        known = self._tools.get(tool)
        if known is not None:
            return known
        found = self._providers.tool(tool)
        if found is None:
            return None
        provider, form = found
        name = tool.partition(".")[0]
        if name != FETCH:
            scope = scope_of(name, provider)
            known = self._tools[tool] = form.version, scope, terms(form.version, scope)
            return known
        # Whose secrets a request carries is said by its input alone.
        try:
            names = {use.secret for use in _ask(text).secrets.values()}
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if not names <= self._providers.fetch.secrets.keys():
            return None  # the caller of fetches refuses it, and says which secret it is
        scope = scope_of_secrets(names, self._providers.fetch)
        return form.version, scope, terms(form.version, scope)


def _outcome(fault: Fault | None, member: ClaimedMember, receipt: Receipt) -> MemberOutcome:
    if fault is None:
        return NotDone(Fault("batch_withheld", "another member of this batch may not be called for by this worker", True))
    # An operation that goes on over attempts has one without a definite answer (protocol.md).
    in_doubt = member.op < member.n and receipt.repeat is not Repeat.FREELY
    if not in_doubt:
        return Refused(fault)
    words = "an earlier attempt may have been paid for, so it is not asked for again"
    return Doubtful(Fault(fault.code.partition(":")[0], f"{fault.message}; {words}"), used_up=True)
