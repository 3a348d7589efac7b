"""The sandbox provider as tests talk to it: in this process or in one of its own, over real HTTP."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from streams.sandbox import Sandbox, SandboxProcess

EMAIL = "/v1/email/check"
EMAILS = "/v1/email/check/batch"
PHONE = "/v1/phone/check"
PHONES = "/v1/phone/check/batch"
AUTHORIZATION = {"Authorization": "Bearer secret"}
PATIENCE_SECONDS = 5.0
# Never used, all is plain HTTP; but each client would make one of its own, and that takes 50 ms.
TLS = ssl.create_default_context()


def with_key(key: str, request_id: str = "") -> dict[str, str]:
    """Headers of a request under an idempotency key."""
    return AUTHORIZATION | {"Idempotency-Key": key, "X-Request-Id": request_id}


def batch_of(*emails: str) -> dict[str, Any]:
    """The body of a batch."""
    return {"items": [{"id": place, "email": email} for place, email in enumerate(emails)]}


@asynccontextmanager
async def open_sandbox(**options: Any) -> AsyncIterator[tuple[Sandbox, httpx.AsyncClient]]:
    """A sandbox in this process, and a client of it."""
    async with (
        Sandbox(api_key="secret", **options) as sandbox,
        httpx.AsyncClient(base_url=sandbox.url, headers=AUTHORIZATION, timeout=PATIENCE_SECONDS, verify=TLS) as client,
    ):
        yield sandbox, client


def client_of(process: SandboxProcess) -> httpx.Client:
    """A client of a sandbox in a process of its own."""
    return httpx.Client(base_url=process.url, headers=AUTHORIZATION, timeout=PATIENCE_SECONDS, verify=TLS)
