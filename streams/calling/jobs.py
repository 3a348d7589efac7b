"""Provider calls that go on as jobs (P10): made known to all before they are asked for, and asked for until they end.

Part of the dispatcher's shell, beside ``calls``. The submission is the call that is paid for, so it is made once; the job's name is
in the log before the first question, and whoever owns the receipt after us asks on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from schemas.events import Event, Fault, JobStarted
from schemas.providers import Providers, Tool
from streams.tools.port import Caller, CallReport, Doubtful, ProviderCall
from streams.turn import Checkpoint

log = logging.getLogger(__name__)

#: For a job of a tool that the providers file no longer describes as one.
DEADLINE_SECONDS: Final = 3600.0
#: After a question that failed the next one waits twice as long as the one before, up to this.
TROUBLE_SECONDS_MAX: Final = 60.0


class Jobs:
    """Follows jobs to their ends. ``ending`` is set when the process stops: a job goes on without us."""

    def __init__(
        self, providers: Providers, caller: Caller, *, ending: asyncio.Event, clock: Callable[[], float], checkpoint: Checkpoint
    ) -> None:
        self._providers = providers
        self._caller = caller
        self._ending = ending
        self._clock = clock
        self._checkpoint = checkpoint

    async def followed(self, call: ProviderCall, report: CallReport, announce: Callable[[str], Awaitable[None]]) -> CallReport:
        """The end of a call that ``report`` says is under way as a job; any other report as it is.

        ``announce`` makes the job's name durable; it is awaited before the first question about a job that was just submitted.
        """
        if report.job is None:
            return report
        began = self._clock()
        deadline = began + self._deadline_seconds(call.tool)
        job = report.job.job
        if call.job is None:
            await announce(job)
            self._checkpoint("dispatcher:job_started")
        asking = msgspec.structs.replace(call, job=job)
        troubles, last = 0, ""
        while report.job is not None:
            wait = report.job.ask_again_seconds
            if (trouble := report.job.trouble) is None:
                troubles = 0
            else:
                if not troubles:
                    log.warning("%s: job %s goes on, but a question about it failed (%s)", call.tool, job, trouble.code)
                last = f"; the last question that failed: {trouble.code}: {trouble.message}"
                wait = max(wait, min(wait * 2 ** min(troubles, 16), TROUBLE_SECONDS_MAX))
                troubles += 1
            left = deadline - self._clock()
            if left <= 0:
                text = f"{call.tool}: job {job} has not ended within {self._deadline_seconds(call.tool):g} s{last}"
                return CallReport((Doubtful(Fault("job_deadline", text), used_up=True),), None, self._clock() - began)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), min(wait, left))
            if self._ending.is_set():
                # No release: the submission was sent. Nor is a try used up: whoever comes next asks on.
                fault = Fault("stopped", f"{call.tool}: the worker stopped while job {job} was under way")
                return CallReport((Doubtful(fault, used_up=False),), None, self._clock() - began)
            report = await self._caller.call(asking)
        return msgspec.structs.replace(report, seconds=self._clock() - began)

    def _deadline_seconds(self, tool: str) -> float:
        found = self._providers.tool(tool)
        form = found[1].job if found is not None and isinstance(found[1], Tool) else None
        return DEADLINE_SECONDS if form is None else form.deadline_seconds


def job_started(receipt: str, n: int, lease: str, job: str) -> list[Event]:
    """What makes a job's name durable. It is logged as well: should the broker be gone now, a person can still find the job."""
    log.info("receipt %s: attempt %d is under way at the provider as job %s", receipt, n, job)
    return [JobStarted(receipt, n, lease, job)]
