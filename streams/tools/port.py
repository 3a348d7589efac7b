"""The port between the dispatcher and what calls providers: one physical call in, one outcome per member out.

An outcome is a value, never an exception: whoever implements this classifies everything that can go wrong at the provider, and
above all whether the call may have been billed.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from schemas.events import Fault


class CallMember(msgspec.Struct, frozen=True):
    """One member of a call: its receipt, which also correlates it, and its input as exact JSON."""

    receipt: str
    input: bytes


class ProviderCall(msgspec.Struct, frozen=True):
    """One physical call to a provider."""

    #: ``provider.tool`` of the providers file.
    tool: str
    members: tuple[CallMember, ...]
    #: The tool's batch form is used; else there is exactly one member.
    batched: bool
    idempotency_key: str
    request_id: str
    #: Runs that ask for it, each once, and the batch's own name where it is one (P1).
    runs: tuple[str, ...] = ()
    batch: str = ""
    #: Ask for this job of the provider's instead of submitting anything (P10).
    job: str | None = None


class Answered(msgspec.Struct, frozen=True):
    """The provider's output for this member, as exact JSON; ``b"null"`` means that there is no result."""

    output: bytes


class Refused(msgspec.Struct, frozen=True):
    """The provider said no and billed nothing; ``fault.repairable`` tells whether a later run should ask again."""

    fault: Fault


class NotDone(msgspec.Struct, frozen=True):
    """Nothing was done or billed, and trying again later makes sense (429, connection refused, ...)."""

    fault: Fault
    #: What the provider asked for, in seconds; ``None`` where it said nothing usable.
    retry_after_seconds: float | None = None


class Doubtful(msgspec.Struct, frozen=True):
    """The call may have been made and billed, and its answer is lost."""

    fault: Fault
    #: Whether asking again is of no use; ``None``: that is for the tool's policy to say.
    used_up: bool | None = None


MemberOutcome = Answered | Refused | NotDone | Doubtful


class JobUnderWay(msgspec.Struct, frozen=True):
    """The provider works on it as a job, which is to be asked for again after a while (P10)."""

    job: str
    ask_again_seconds: float
    #: Why the last question brought no word of the job; ``None`` where it did.
    trouble: Fault | None = None


class CallReport(msgspec.Struct, frozen=True):
    """How a call ended: an outcome for each member, in order, and what the whole lane should know.

    Where ``job`` is given the call has not ended, and there is no outcome.
    """

    outcomes: tuple[MemberOutcome, ...]
    #: The provider wants every caller to wait this long (P3), in seconds.
    lane_pause_seconds: float | None = None
    #: Seconds from sending to the end of the answer.
    seconds: float = 0.0
    job: JobUnderWay | None = None


class Caller(Protocol):
    """Makes provider calls. Raises nothing but ``asyncio.CancelledError``; cancelling may leave the call made."""

    async def call(self, call: ProviderCall) -> CallReport:
        """Make one call and tell how it ended."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
