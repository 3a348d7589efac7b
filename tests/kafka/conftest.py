"""The real broker of the kafka tests: one for the session, with a system of its own for each test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from streams.broker.local import LocalBroker
from tests.support.proxy import ProxiedBroker
from tests.support.system import System


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real Kafka broker. It is missing for no reason but a defect: no test is skipped."""
    local = LocalBroker(tmp_path_factory.mktemp("broker"))
    running = local.start(parent_pid=os.getpid())
    yield running.bootstrap
    local.stop()


@pytest.fixture
async def system(broker: str, tmp_path: Path) -> AsyncIterator[System]:
    """A fresh system on the shared broker; its workers and its sandbox end with the test."""
    async with System(broker, tmp_path) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedBroker]:
    """A broker that can be reached through a proxy, too, and that a test may stop or kill."""
    broker = ProxiedBroker(tmp_path_factory.mktemp("own-broker"))
    broker.start(parent_pid=os.getpid())
    yield broker
    broker.kill()
