"""A worker whose broker falls silent while it starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.watchdog import EXIT_CODE
from tests.support.proxy import ProxiedBroker, Proxy
from tests.support.system import System
from tests.support.wait import wait_until

#: One process runs these tests and those of the settlement, which need such a broker, too.
pytestmark = pytest.mark.xdist_group("settlement")


async def test_case_B4_a_worker_that_is_told_to_stop_while_its_start_waits_for_a_silent_broker_ends(
    own_broker: ProxiedBroker, tmp_path: Path
) -> None:
    """It listened to nobody before its first assignment: no SIGTERM, no deadline and no watchdog ended it."""
    async with (
        Proxy(own_broker.proxy_port, own_broker.inner_port) as proxy,
        System(own_broker.direct, tmp_path, partitions=1, grace_seconds=2) as system,
    ):
        system.start_sandbox()
        worker = system.worker("w1", broker=proxy.address)
        await asyncio.to_thread(wait_until, "the app starts", lambda: "_App]: Starting" in worker.text())
        proxy.freeze()
        worker.terminate()
        # Where the client's own stop hangs on the broker, the deadline of every stop ends it: grace time and 15 s.
        assert await asyncio.to_thread(worker.wait, 30) in (0, EXIT_CODE), worker.text()[-2000:]
        proxy.heal()
