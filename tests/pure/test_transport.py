"""Faust's consumer as we adapt it."""

from __future__ import annotations

from typing import Any

from streams.kafka.transport import BulkConsumerThread


def test_case_B4_a_rebalance_that_meets_a_stop_closes_nothing_from_another_thread() -> None:
    """Faust closed the consumer thread's connections from the main thread while their event loop ran: a segmentation fault."""
    touched: list[str] = []

    class Consumer:
        """Whoever looks for something to close here is noted."""

        def __getattr__(self, name: str) -> object:
            touched.append(name)
            raise AssertionError(name)

    thread = object.__new__(BulkConsumerThread)
    consumer: Any = Consumer()
    thread._consumer = consumer
    thread.close()
    assert touched == []
