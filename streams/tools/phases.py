"""Limits of time of the phases of a request, each with a name that its error says (F2, P5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

from streams.errors import PaidonceError

_UNLIMITED: Final = nullcontext()


class Late(PaidonceError):
    """A limit of time is over; the message names phase and limit."""


def within(phase: str, seconds: float | None) -> AbstractAsyncContextManager[None]:
    """Raise ``Late`` naming phase and limit where what is inside takes longer; ``None``: no limit, which costs next to nothing."""
    return _UNLIMITED if seconds is None else _limited(phase, seconds)


@asynccontextmanager
async def _limited(phase: str, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise Late(f"{phase}: not done within {seconds:g} s") from error
