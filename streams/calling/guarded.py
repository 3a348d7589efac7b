"""A caller whose defects are outcomes: whatever it raises is a loud doubt about one call, and no end of the worker (B11).

Part of the dispatcher's shell, between ``calls`` and ``jobs`` and the callers. A row that no caller foresaw would otherwise end the
worker, and then each worker that takes its partition over: one row, or one strange web page, would stop all the others for good.
"""

from __future__ import annotations

import asyncio
import logging

from schemas.events import Fault
from streams.errors import PaidonceError
from streams.tools.port import Caller, CallReport, Doubtful, ProviderCall

log = logging.getLogger(__name__)


class Guarded:
    """Wraps a ``Caller`` so that an unexpected exception becomes a doubtful outcome."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def call(self, call: ProviderCall) -> CallReport:
        """See ``Caller``; where it fails with a defect, what became of the call is in doubt for each member."""
        try:
            report = await self._caller.call(call)
        except PaidonceError:  # these say that nothing may go on
            raise
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            # Out of something that the caller shares with others, and somebody else cancelled: nobody asked this call to end.
            log.exception("a call of %s for %s was cancelled from within", call.tool, _names(call))
            return _doubtful(call, "it was cancelled from within; the worker's log has its traceback")
        except Exception as error:  # of the dispatcher's shell, which may: a defect in one call is not to end all the others (B11)
            log.exception("a call of %s for %s ended in a defect", call.tool, _names(call))
            # Not its text: a part of a row, of an answer or of a secret may stand there, and this goes into events (V3).
            return _doubtful(call, f"{type(error).__name__}; the worker's log has its traceback")
        if report.job is None and len(report.outcomes) != len(call.members):
            log.error("a call of %s for %s has %d outcomes", call.tool, _names(call), len(report.outcomes))
            return _doubtful(call, f"{len(report.outcomes)} outcomes for {len(call.members)} members")
        return report

    async def close(self) -> None:
        """See ``Caller``."""
        await self._caller.close()


def is_cancelled() -> bool:
    """Somebody asked the running task to end; else a CancelledError in it comes from elsewhere, and no stop is waiting for it."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _names(call: ProviderCall) -> str:
    more = len(call.members) - 1
    return f"receipt {call.members[0].receipt}" + (f" and {more} more" if more else "")


def _doubtful(call: ProviderCall, what: str) -> CallReport:
    fault = Fault("defect", f"{call.tool}: a defect in what calls it: {what}")
    return CallReport((Doubtful(fault),) * len(call.members))
