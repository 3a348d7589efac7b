"""What ``demo`` and ``dev`` need around a worker, in a folder: broker, sandbox, providers, play, contacts.

A folder keeps its addresses, since a provider's address is part of what its receipts are found by.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from streams.broker import topics
from streams.broker.local import LocalBroker
from streams.cli.terminal import say
from streams.errors import Unreachable
from streams.public.rowfile import write_rows
from streams.settings import Settings

if TYPE_CHECKING:
    # Brings aiohttp and the checkers, for which no other command should wait: imported where it is used.
    from streams.sandbox import SandboxProcess

SECRET = "SANDBOX_API_KEY"
CONTACT_FIELDS = ("id", "name", "email", "company", "phone", "country")
LATENCY_MS = 30.0
PRICE_PER_RESULT = 0.004
BATCH_SIZE_MAX = 100

_PLAY = """\
# Each contact's e-mail address is checked once, however often it stands in the file.
name = "contacts"
key = ["id"]

[[columns]]
name = "verdict"
tool = "sandbox.email-check"
input = {{ email = "{{{{ row.email }}}}" }}
needs = ["email"]
extract = "verdict"
"""

_PROVIDERS = """\
# The sandbox on loopback: it does real work, wants a key, and keeps its own bill.
[providers.sandbox]
base_url = "{url}"
idempotency_header = "Idempotency-Key"
auth = {{ secret = "env:{secret}" }}
pace = {{ requests_per_second = {rate}, burst = 1, concurrency = {concurrency} }}

[providers.sandbox.tools.email-check]
path = "/v1/email/check"
repeat = "with-key"
price = {{ per_result = {price} }}

[providers.sandbox.tools.email-check.batch]
path = "/v1/email/check/batch"
size_max = {size}
window_ms = 250
match_key = "id"
list_field = "items"
result_list = "results"

[providers.sandbox.tools.phone-check]
path = "/v1/phone/check"
repeat = "never"
price = {{ per_result = {price} }}
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """How the sandbox is called."""

    requests_per_second: float
    batch_size_max: int = BATCH_SIZE_MAX

    @classmethod
    def lasting(cls, rows: int, seconds: float) -> Pace:
        """Twenty calls at least, where there are rows enough, spread over these seconds."""
        size = min(BATCH_SIZE_MAX, max(2, rows // 20))
        return cls(round(max(1.0, rows / size / seconds), 2), size)

    @property
    def concurrency(self) -> int:
        """Calls in flight that this pace needs at the sandbox's latency, with room."""
        return min(64, max(4, math.ceil(self.requests_per_second * LATENCY_MS / 1000 * 3)))


class Stage:
    """The surroundings of a worker in ``folder``; an async context manager that starts broker and sandbox."""

    def __init__(self, folder: Path, *, rows: int, pace: Pace, settings: Settings) -> None:
        self.folder = folder
        self.play = folder / "play.toml"
        self.contacts = folder / "contacts.csv"
        self.providers = settings.providers or folder / "providers.toml"
        self.rows = rows
        self._pace = pace
        self._given = settings
        self._broker = LocalBroker(folder / "broker", on_progress=say)
        self._key = secrets.token_urlsafe(24)
        self._address = folder / "sandbox.json"
        self.sandbox = self._sandbox(self._port())

    async def __aenter__(self) -> Self:
        from streams.sandbox import SandboxFailed

        starts: Sequence[Any] = await asyncio.gather(
            asyncio.to_thread(self._broker.start, parent_pid=os.getpid()),
            asyncio.to_thread(self.sandbox.start),
            asyncio.to_thread(self._write_contacts),
            return_exceptions=True,
        )
        failed = next((result for result in starts if isinstance(result, BaseException)), None)
        if failed is not None:
            self.sandbox.stop()
            if isinstance(failed, SandboxFailed):
                raise Unreachable(f"{failed}. If its port is taken, delete {self._address}") from failed
            raise failed
        self._address.write_text(json.dumps({"port": int(self.sandbox.url.rpartition(":")[2])}))
        self._write_files()
        values = self._given.model_dump(exclude_unset=True)
        values |= {
            "broker": starts[0].bootstrap,
            "data": self.folder / "worker",
            "providers": self.providers.resolve(),
        }
        self.settings = Settings(**values)
        self.base = dict(os.environ) | {SECRET: self._key}
        await topics.apply(
            self.settings.connection(),
            self.settings.app,
            self.settings.partitions,
            self.settings.replication,
            self.settings.topic_prefix,
        )
        return self

    async def __aexit__(self, *_exception: object) -> None:
        # The broker ends with this process: to wait for its clean end here would only take time.
        await asyncio.to_thread(self.sandbox.stop)

    async def broker_answers(self) -> bool:
        """Whether the broker is there."""
        return await asyncio.to_thread(self._broker.status) is not None

    def restart_sandbox(self) -> None:
        """Start it again at its address, with its bill."""
        self.sandbox = self._sandbox(self._port()).start()

    def _sandbox(self, port: int) -> SandboxProcess:
        from streams.sandbox import SandboxProcess

        return SandboxProcess(api_key=self._key, bill=self.folder / "bill.csv", port=port, latency_ms=LATENCY_MS)

    def _port(self) -> int:
        try:
            return int(json.loads(self._address.read_text())["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _write_contacts(self) -> None:
        from streams.sandbox import generate_contacts

        rows = ({"id": f"c{n:06}", **row} for n, row in enumerate(generate_contacts(self.rows), start=1))
        write_rows(self.contacts, CONTACT_FIELDS, rows)

    def _write_files(self) -> None:
        """The play, if there is none yet, and our providers file; one that the user named is left alone."""
        if not self.play.exists():
            self.play.write_text(_PLAY.format())
        if self._given.providers is None:
            self.providers.write_text(
                _PROVIDERS.format(
                    url=self.sandbox.url,
                    secret=SECRET,
                    rate=self._pace.requests_per_second,
                    concurrency=self._pace.concurrency,
                    price=PRICE_PER_RESULT,
                    size=self._pace.batch_size_max,
                )
            )
