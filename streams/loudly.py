"""Tasks that nobody awaits: one that ends in a defect ends the worker, instead of being missed in silence (B11)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from streams.errors import PaidonceError

log = logging.getLogger(__name__)


def heard(fail: Callable[[PaidonceError], None], what: str, task: asyncio.Task[None]) -> None:
    """A task has ended: where that was by an exception, fail with it. ``what`` is how people call the task."""
    error = None if task.cancelled() else task.exception()
    if error is None:
        return
    log.error("%s ended in a defect", what, exc_info=error)
    fail(error if isinstance(error, PaidonceError) else PaidonceError(f"{what} ended in a defect: {error!r}"))
