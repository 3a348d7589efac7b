"""Limits of time of the phases of a request, each with a name that its error says (F2, P5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streams.errors import PaidonceError


class Late(PaidonceError):
    """A limit of time is over; the message names phase and limit."""


@asynccontextmanager
async def within(phase: str, seconds: float | None) -> AsyncIterator[None]:
    """Raise ``Late`` naming phase and limit where what is inside takes longer; ``None``: no limit of its own."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise Late(f"{phase}: not done within {seconds:g} s") from error
