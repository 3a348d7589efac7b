"""Tools for the Kafka tests, as a user would write them; their provider is a file that every paid item is a line of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from streams.tools.python import BatchCall, Refused, ToolCall, ToolResult


def bill(path: Path) -> list[str]:
    """The items paid so far."""
    return path.read_text().split() if path.exists() else []


async def check(call: ToolCall) -> ToolResult:
    """Check one address."""
    return _paid(call.secrets["bill"], call.input)


async def checks(call: BatchCall) -> dict[str, Any]:
    """Check many addresses, and answer in another order than asked."""
    asked = [asyncio.to_thread(_paid, call.secrets["bill"], given) for given in call.inputs]
    results = await asyncio.gather(*asked, return_exceptions=True)
    return dict(reversed(list(zip(call.keys, results, strict=True))))


def _paid(bill_path: str, given: Any) -> ToolResult:
    email = given["email"]
    if email.startswith("bad"):
        return Refused("no_such_domain", f"{email} has no domain")
    with Path(bill_path).open("a") as file:
        file.write(f"{email}\n")
        file.flush()
    if email.startswith("lost"):
        raise ConnectionResetError("the answer is lost")
    return {"data": {"email": email, "status": "ok", "accept_all": email.startswith("all")}}
