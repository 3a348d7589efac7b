"""Tasks that nobody awaits, and timers: one that ends in a defect ends the worker, instead of being missed in silence (B11)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from streams.errors import PaidonceError

log = logging.getLogger(__name__)


def called(fail: Callable[[PaidonceError], None], what: str, function: Callable[..., None], *arguments: Any) -> None:
    """Call a function for a timer, above which only the loop would hear of a defect. ``what`` is how people call that."""
    try:
        function(*arguments)
    except PaidonceError as error:
        fail(error)
    except Exception as error:  # of the dispatcher's shell, which may: a lane that nobody looks at again stands still in silence
        log.exception("%s ended in a defect", what)
        fail(PaidonceError(f"{what} ended in a defect: {error!r}"))


def heard(fail: Callable[[PaidonceError], None], what: str, task: asyncio.Task[None]) -> None:
    """A task has ended: where that was by an exception, fail with it. ``what`` is how people call the task."""
    error = None if task.cancelled() else task.exception()
    if error is None:
        return
    log.error("%s ended in a defect", what, exc_info=error)
    fail(error if isinstance(error, PaidonceError) else PaidonceError(f"{what} ended in a defect: {error!r}"))
